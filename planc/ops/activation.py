"""Elementwise operators of one tensor beside those of elementwise.py: smooth activations, and functions of a number.

Each launch that is not linear in its input saves the input, except where the output serves as well: Selu and Celu are
the launch Elu with a gain and a width, and Reciprocal is Pow. Sign, Floor, Ceil and Round have derivative 0 wherever
they have one, so nothing flows back through them (`OpSpec.differentiable` = ()).
"""

from __future__ import annotations

from planc.graph import AttrValue, Node
from planc.ops.elementwise import backward_launch, forward_launch, infer_same, unary
from planc.ops.reading import raw_float, raw_float_text, raw_text
from planc.ops.spec import Builder, Grads, LaunchSpec, OpSpec, RawNode, Reading


def _read_alpha(raw: RawNode) -> dict[str, AttrValue]:
    return {"alpha": raw_float_text(raw, "alpha", 1.0)}


def _read_gelu(raw: RawNode) -> dict[str, AttrValue]:
    approximate = raw_text(raw, "approximate", "none")
    if approximate not in ("none", "tanh"):
        raise raw.error(f"approximate is {approximate!r}; 'none' or 'tanh' was expected.")
    return {"approximate": approximate}


def _positive(raw: RawNode, name: str, default: float) -> str:
    """A number above 0: else the sign of the output, from which the gradient is taken, would not tell the input's."""
    if raw_float(raw, name, default) <= 0:
        raise raw.error(f"attribute {name!r} is {raw_float(raw, name, default)}; a number above 0 was expected.")
    return raw_float_text(raw, name, default)


def _read_celu(raw: RawNode) -> dict[str, AttrValue]:
    alpha = _positive(raw, "alpha", 1.0)
    return {"alpha": alpha, "width": alpha}


def _read_selu(raw: RawNode) -> dict[str, AttrValue]:
    return {
        "alpha": _positive(raw, "alpha", 1.6732631921768188),
        "gain": _positive(raw, "gamma", 1.0507010221481323),
    }


def _stepped(op: str) -> OpSpec:
    """An operator that is constant between its steps."""

    def read(raw: RawNode) -> Reading:
        return Reading(raw.inputs[:1])

    def lower(builder: Builder, node: Node) -> tuple[int, ...]:
        x = builder.tensor(node.inputs[0])
        (y,) = builder.emit(op, (x,), (builder.spec(x),))
        builder.define(node.outputs[0], y)
        return ()

    return OpSpec(read, infer_same, lower, no_flow, differentiable=())


def no_flow(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    """The gradient of an operator whose derivative is 0 wherever it has one."""
    return (None,) * len(node.inputs)


OPS: dict[str, OpSpec] = {
    "Abs": unary("Abs", saves_output=False),
    "Ceil": _stepped("Ceil"),
    "Celu": unary("Elu", saves_output=True, read=_read_celu),
    "Cos": unary("Cos", saves_output=False),
    "Erf": unary("Erf", saves_output=False),
    "Floor": _stepped("Floor"),
    "Gelu": unary("Gelu", saves_output=False, read=_read_gelu),
    "Mish": unary("Mish", saves_output=False),
    "Reciprocal": unary("Pow", saves_output=False, read=lambda raw: {"exponent": "-1"}),
    "Round": _stepped("Round"),
    "Selu": unary("Elu", saves_output=True, read=_read_selu),
    "Sign": _stepped("Sign"),
    "Sin": unary("Sin", saves_output=False),
    "Softsign": unary("Softsign", saves_output=False),
    "Swish": unary("Swish", saves_output=False, read=_read_alpha),
    "ThresholdedRelu": unary("ThresholdedRelu", saves_output=False, read=_read_alpha),
}

LAUNCHES: dict[str, LaunchSpec] = {
    "Abs": forward_launch(1),
    "AbsBackward": backward_launch(2),
    "Ceil": forward_launch(1),
    "Cos": forward_launch(10),
    "CosBackward": backward_launch(12),
    "Erf": forward_launch(35),
    "ErfBackward": backward_launch(12),
    "Floor": forward_launch(1),
    "Gelu": forward_launch(40),
    "GeluBackward": backward_launch(55),
    "Mish": forward_launch(15),
    "MishBackward": backward_launch(25),
    "Round": forward_launch(1),
    "Sign": forward_launch(1),
    "Sin": forward_launch(10),
    "SinBackward": backward_launch(11),
    "Softsign": forward_launch(3),
    "SoftsignBackward": backward_launch(4),
    "Swish": forward_launch(12),
    "SwishBackward": backward_launch(16),
    "ThresholdedRelu": forward_launch(2),
    "ThresholdedReluBackward": backward_launch(2),
}
