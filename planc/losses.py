"""Which output the loss hangs on, and how: `--loss` made definite."""

from __future__ import annotations

from dataclasses import dataclass

from planc.errors import UsageError
from planc.graph import FLOATS, Graph, Node

KINDS = ("cross_entropy", "mse", "none")
_FORM = "Use --loss cross_entropy|mse|none, or --loss OUTPUT=cross_entropy to name the output."


@dataclass(frozen=True, slots=True)
class LossChoice:
    """A loss of `kind` on the forward value `scores` (class axis `axis`), for the model's output `output`.

    `kind` "none": the output is the loss itself, a single number.
    """

    output: str
    scores: str
    kind: str
    axis: int


def choose_loss(graph: Graph, loss: str | None) -> LossChoice:
    """Resolve `loss` (None, a kind, or OUTPUT=kind) on the outputs of `graph`.

    A Softmax or LogSoftmax at the end of a classifier is taken together with the cross-entropy, which then hangs on
    its input.

    Raises:
        UsageError: the output is ambiguous, unknown, or has a form the loss cannot take; the outputs are listed.
    """
    name, _, kind = (loss or "").rpartition("=")
    output = _output(graph, name, loss)
    spec = graph.tensors[output]
    if not kind:
        kind = _default_kind(graph, output)
    if kind not in KINDS:
        raise UsageError(f"loss {kind!r}: unknown.", _FORM)
    if kind == "none":
        if spec.elements != 1 or spec.dtype not in FLOATS:
            raise UsageError(
                f"loss none: output {output!r} has shape {list(spec.shape)}, wanted a single number.", _FORM
            )
        return LossChoice(output, output, kind, 0)
    if spec.dtype not in FLOATS or not spec.rows:
        found = f"{spec.dtype}{list(spec.shape)}"
        raise UsageError(f"loss {kind}: output {output!r} is {found}, wanted floats with the batch in front.", _FORM)
    if kind == "mse":
        return LossChoice(output, output, kind, 1)
    if len(spec.shape) < 2 or spec.rows != 1:
        raise UsageError(
            f"loss cross_entropy: output {output!r} has shape {list(spec.shape)}, wanted (batch, classes, ...).", _FORM
        )
    return _cross_entropy(graph, output)


def _output(graph: Graph, name: str, loss: str | None) -> str:
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


def _cross_entropy(graph: Graph, output: str) -> LossChoice:
    softmax = _softmax_before(graph, output)
    if softmax is None:
        return LossChoice(output, output, "cross_entropy", 1)
    spec = graph.tensors[softmax.inputs[0]]
    axis = int(str(softmax.attrs["axis"])) % len(spec.shape)
    if softmax.attrs.get("flatten") and any(size != 1 for size in spec.shape[axis + 1 :]):
        raise UsageError(
            f"loss cross_entropy: node {softmax.name!r} takes one softmax over several axes of {list(spec.shape)}.",
            "Name an output before it, or end the model in its logits.",
        )
    return LossChoice(output, softmax.inputs[0], "cross_entropy", axis)
