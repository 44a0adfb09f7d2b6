"""Which outputs the losses hang on, and how: `--loss` made definite.

A loss is written `[OUTPUT=]KIND[:WEIGHT][,SETTING=VALUE...]`, such as `cross_entropy`, `boxes=smooth_l1:0.5,beta=0.1`
or `logits=cross_entropy:1,axis=-1,ignore_index=-100,class_weights=1/2/0.5`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planc.errors import UsageError
from planc.graph import FLOATS, Graph, Node, TensorSpec
from planc.ops.final_loss import LOSSES, LossForm
from planc.units import parse_decimal

KINDS = (*LOSSES, "none")
"""`none`: the output is the loss itself, a single number."""

_SETTINGS = {"cross_entropy": ("axis", "ignore_index", "class_weights"), "smooth_l1": ("beta",)}
_FORM = (
    f"Use --loss {'|'.join(KINDS)}, or --loss OUTPUT=cross_entropy to name the output; for several losses repeat it, "
    "KIND:WEIGHT each."
)
_TEXT = re.compile(rf"(?:(?P<output>.*)=)?(?P<kind>{'|'.join(KINDS)})(?P<settings>[:,].*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LossChoice:
    """A loss of `kind` on the forward value `scores`, for the model's output `output`.

    `kind` "none": the output is the loss itself, a single number.
    """

    output: str
    scores: str
    kind: str
    form: LossForm = field(default_factory=LossForm)


def choose_losses(graph: Graph, losses: str | Sequence[str] | None) -> tuple[LossChoice, ...]:
    """Resolve `losses` (texts of the form above; none = what the only output plainly is) on the outputs of `graph`.

    A Softmax or LogSoftmax at the end of a classifier is taken together with the cross-entropy, which then hangs on
    its input.

    Raises:
        UsageError: an output is ambiguous, unknown, named twice, or has a form the loss cannot take; the outputs are
            listed.
    """
    texts = (losses,) if isinstance(losses, str) else losses
    chosen = tuple(_choose(graph, text) for text in texts or ("",))
    outputs = [choice.output for choice in chosen]
    if twice := [output for output in outputs if outputs.count(output) > 1]:
        raise UsageError(f"output {twice[0]!r} is given two losses.", "Give each output one --loss.")
    return chosen


def _choose(graph: Graph, text: str) -> LossChoice:
    match = _TEXT.fullmatch(text)
    if match is None and text:
        raise UsageError(f"loss {text.rpartition('=')[2].partition(':')[0]!r}: unknown.", _FORM)
    output = _output(graph, (match and match["output"]) or "", text)
    spec = graph.tensors[output]
    kind = match["kind"] if match else _default_kind(graph, output)
    form, given = _form(kind, (match and match["settings"]) or "")
    if kind == "none":
        if spec.elements != 1 or spec.dtype not in FLOATS:
            raise UsageError(
                f"loss none: output {output!r} has shape {list(spec.shape)}, wanted a single number.", _FORM
            )
        return LossChoice(output, output, kind, form)
    if spec.dtype not in FLOATS or not spec.rows:
        found = f"{spec.dtype}{list(spec.shape)}"
        raise UsageError(f"loss {kind}: output {output!r} is {found}, wanted floats with the batch in front.", _FORM)
    if kind != "cross_entropy":
        return LossChoice(output, output, kind, form)
    return _cross_entropy(graph, output, form, "axis" in given)


def _form(kind: str, text: str) -> tuple[LossForm, frozenset[str]]:
    """What follows the kind, and the names of the settings given: `:0.5,beta=0.1` or `,beta=0.1`."""
    first, *others = text.split(",")
    weight = parse_decimal(first[1:], f"loss {kind}: weight") if first else "1"
    if float(weight) == 0:
        raise UsageError(f"loss {kind}: weight 0.", "Leave the loss out, or give it another weight.")
    found: dict[str, str] = {}
    for setting in others:
        name, _, value = setting.partition("=")
        if name not in _SETTINGS.get(kind, ()) or name in found:
            known = ", ".join(_SETTINGS.get(kind, ())) or "none"
            raise UsageError(f"loss {kind}: {setting!r} is no setting of it, or given twice.", f"It has: {known}.")
        found[name] = value
    weights = found.get("class_weights")
    form = LossForm(
        weight=weight,
        axis=_integer(kind, "axis", found.get("axis", "1")),
        ignore_index=_integer(kind, "ignore_index", found["ignore_index"]) if "ignore_index" in found else None,
        class_weights=tuple(parse_decimal(value, f"loss {kind}: class weight") for value in weights.split("/"))
        if weights is not None
        else (),
        beta=parse_decimal(found.get("beta", "1"), f"loss {kind}: beta"),
    )
    if float(form.beta) <= 0 or any(float(value) < 0 for value in form.class_weights):
        raise UsageError(f"loss {kind}: {text!r}; a positive beta, no negative class weight are wanted.")
    return form, frozenset(found)


def _integer(kind: str, name: str, text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise UsageError(f"loss {kind}: {name} {text!r}; an integer was expected.", f"Write {name}=-1, for example.")
    return int(text)


def _output(graph: Graph, name: str, loss: str) -> str:
    if name:
        if name not in graph.outputs:
            raise UsageError(f"--loss {loss}: the model has no output {name!r}; it has {_listing(graph)}.", _FORM)
        return name
    if len(graph.outputs) != 1:
        raise UsageError(
            f"the loss is ambiguous: the model has {len(graph.outputs)} outputs: {_listing(graph)}.", _FORM
        )
    return graph.outputs[0]


def _listing(graph: Graph) -> str:
    return ", ".join(f"{name} {list(graph.tensors[name].shape)}" for name in graph.outputs)


def _default_kind(graph: Graph, output: str) -> str:
    """Cross-entropy where the output is plainly a classifier's: (batch, classes) or the result of a Softmax."""
    spec = graph.tensors[output]
    if _softmax_before(graph, output) is not None:
        return "cross_entropy"
    if spec.elements == 1 and not spec.rows:
        return "none"
    if spec.rows == 1 and sum(size != 1 for size in spec.shape[1:]) == 1:
        return "cross_entropy"
    raise UsageError(f"the loss is ambiguous: output {output!r} has shape {list(spec.shape)}.", _FORM)


def _softmax_before(graph: Graph, output: str) -> Node | None:
    """The Softmax or LogSoftmax whose result, perhaps reshaped, is `output`."""
    producers = {name: node for node in graph.nodes for name in node.outputs}
    name = output
    while name in producers:
        node = producers[name]
        if node.op in ("Softmax", "LogSoftmax"):
            return node
        if node.op not in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"):
            return None
        name = node.inputs[0]
    return None


def _cross_entropy(graph: Graph, output: str, form: LossForm, axis_given: bool) -> LossChoice:
    softmax = _softmax_before(graph, output)
    if softmax is None:
        return LossChoice(output, output, "cross_entropy", _at(output, graph.tensors[output], form, form.axis))
    spec = graph.tensors[softmax.inputs[0]]
    axis = int(str(softmax.attrs["axis"])) % len(spec.shape)
    if softmax.attrs.get("flatten") and any(size != 1 for size in spec.shape[axis + 1 :]):
        raise UsageError(
            f"loss cross_entropy: node {softmax.name!r} takes one softmax over several axes of {list(spec.shape)}.",
            "Name an output before it, or end the model in its logits.",
        )
    if axis_given and form.axis % len(spec.shape) != axis:
        raise UsageError(
            f"loss cross_entropy: axis {form.axis} was given; node {softmax.name!r} has its classes on axis {axis}.",
            "Leave axis out: the softmax says it.",
        )
    return LossChoice(output, softmax.inputs[0], "cross_entropy", _at(output, spec, form, axis))


def _at(output: str, spec: TensorSpec, form: LossForm, axis: int) -> LossForm:
    """`form` with its classes on `axis` of scores of `spec`, counted from the front."""
    rank = len(spec.shape)
    if not 2 <= rank <= 5 or not -rank <= axis < rank or axis % rank == 0:
        raise UsageError(
            f"loss cross_entropy: output {output!r} has shape {list(spec.shape)}, wanted 2 to 5 axes, the batch in "
            f"front and the classes on axis {axis}.",
            _FORM,
        )
    classes = spec.shape[axis]
    if form.class_weights and len(form.class_weights) != classes:
        raise UsageError(
            f"loss cross_entropy: {len(form.class_weights)} class weights for {classes} classes of output {output!r}.",
            "Give one weight a class: class_weights=1/0.5/2.",
        )
    return replace(form, axis=axis % rank)
