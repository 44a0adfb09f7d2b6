"""Elementwise operators of one tensor.

Each has a launch of its own name and one for its gradient, which reads the gradient dy of the output and either the
input or the output, whichever is more often kept or overwritten for free. From the output: Relu, Sigmoid, Tanh, Exp,
Sqrt, Elu, Clip, HardSigmoid (its derivative is the slope wherever the output is strictly between its bounds). From the
input: LeakyRelu, HardSwish, Softplus, Log.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from planc.graph import FLOATS, AttrValue, Node, TensorSpec
from planc.ops.reading import (
    constant_float,
    float_text,
    present,
    raw_float,
    raw_float_text,
    raw_int,
    raw_spec,
    text,
)
from planc.ops.spec import Builder, Flops, Grads, LaunchSpec, OpSpec, RawNode, Reading, flops_per_output
from planc.units import decimal_text

Specs = tuple[TensorSpec | None, ...]
_FLOAT32_MAX = 3.4028234663852886e38


def unary(
    op: str, *, saves_output: bool, backward: str = "", read: Callable[[RawNode], dict[str, AttrValue]] | None = None
) -> OpSpec:
    """An operator whose launch is `op` and whose gradient is the launch `backward` (of dy and the saved tensor)."""

    def read_node(raw: RawNode) -> Reading:
        spec = raw_spec(raw, 0)
        if spec.dtype not in FLOATS:
            raise raw.error(f"its input is {spec.dtype}; a floating-point tensor was expected.")
        return Reading(raw.inputs[:1], read(raw) if read is not None else {})

    def lower(builder: Builder, node: Node) -> tuple[int, ...]:
        x = builder.tensor(node.inputs[0])
        (y,) = builder.emit(op, (x,), (builder.spec(x),), node.attrs)
        builder.define(node.outputs[0], y)
        return (y if saves_output else x,) if builder.wants(node.inputs[0]) else ()

    def gradient(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
        (dy,) = grads
        if dy is None or not builder.wants(node.inputs[0]):
            return (None,)
        return builder.emit(backward or f"{op}Backward", (dy, *saved), (builder.spec(dy),), node.attrs)

    return OpSpec(read_node, infer_same, lower, gradient)


def infer_same(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    """The output looks like the first input."""
    return (present(specs[0]),)


def _alpha(default: float) -> Callable[[RawNode], dict[str, AttrValue]]:
    return lambda raw: {"alpha": raw_float_text(raw, "alpha", default)}


def _read_elu(raw: RawNode) -> dict[str, AttrValue]:
    if raw_float(raw, "alpha", 1.0) < 0:
        # The sign of the output, from which the gradient is taken, would no longer tell that of the input.
        raise raw.error("alpha is negative; 0 or more was expected.")
    return {"alpha": raw_float_text(raw, "alpha", 1.0)}


def _read_hard_sigmoid(raw: RawNode) -> dict[str, AttrValue]:
    return {"alpha": raw_float_text(raw, "alpha", 0.2), "beta": raw_float_text(raw, "beta", 0.5)}


def _read_clip(raw: RawNode) -> dict[str, AttrValue]:
    """Bounds: attributes before opset 11, inputs since; one that bounds nothing is left out."""
    attrs: dict[str, AttrValue] = {}
    for position, name in ((1, "min"), (2, "max")):
        if raw.opset < 11:
            bound = raw_float(raw, name, math.inf)
            shown = float_text(bound)
        else:
            found = constant_float(raw, position, f"bound {name!r}")
            bound = math.inf if found is None else found
            shown = decimal_text(bound)
        if math.isnan(bound):
            raise raw.error(f"its bound {name!r} is not a number.")
        if abs(bound) < _FLOAT32_MAX:
            attrs[name] = shown
    return attrs


# Cast

_FLOAT_CODES = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
"""onnx.TensorProto.DataType of the floats; this layer does not import onnx."""


def _read_cast(raw: RawNode) -> Reading:
    code = raw_int(raw, "to", 0)
    if code not in _FLOAT_CODES:
        raise raw.error(
            f"it casts {raw_spec(raw, 0).dtype} to ONNX type {code}; planc casts to floats only.",
            f"Known types: {', '.join(f'{number} ({name})' for number, name in _FLOAT_CODES.items())}.",
        )
    return Reading(raw.inputs[:1], {"to": _FLOAT_CODES[code]})


def _infer_cast(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    spec = present(specs[0])
    return (TensorSpec(spec.shape, text(node.attrs, "to"), spec.rows),)


def _cast(builder: Builder, tensor: int, dtype: str) -> int:
    spec = builder.spec(tensor)
    if spec.dtype == dtype:
        return tensor
    (made,) = builder.emit("Cast", (tensor,), (TensorSpec(spec.shape, dtype, spec.rows),))
    return made


def _lower_cast(builder: Builder, node: Node) -> tuple[int, ...]:
    builder.define(node.outputs[0], _cast(builder, builder.tensor(node.inputs[0]), text(node.attrs, "to")))
    return ()


def _gradient_cast(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    (dy,) = grads
    if dy is None or not builder.wants(node.inputs[0]):
        return (None,)
    return (_cast(builder, dy, builder.spec(builder.tensor(node.inputs[0])).dtype),)


# Identity and Neg


def _read_first(raw: RawNode) -> Reading:
    return Reading(raw.inputs[:1])


def _lower_identity(builder: Builder, node: Node) -> tuple[int, ...]:
    builder.define(node.outputs[0], builder.tensor(node.inputs[0]))
    return ()


def _gradient_identity(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    return grads


def negated(builder: Builder, tensor: int) -> int:
    """The launch for -tensor."""
    (made,) = builder.emit("Affine", (tensor,), (builder.spec(tensor),), {"factor": "-1", "offset": "0"})
    return made


def _lower_neg(builder: Builder, node: Node) -> tuple[int, ...]:
    builder.define(node.outputs[0], negated(builder, builder.tensor(node.inputs[0])))
    return ()


def _gradient_neg(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    (dy,) = grads
    return (None if dy is None or not builder.wants(node.inputs[0]) else negated(builder, dy),)


OPS: dict[str, OpSpec] = {
    "Cast": OpSpec(_read_cast, _infer_cast, _lower_cast, _gradient_cast),
    "Clip": unary("Clip", saves_output=True, read=_read_clip),
    "Elu": unary("Elu", saves_output=True, read=_read_elu),
    "Exp": unary("Exp", saves_output=True, backward="Mul"),
    "HardSigmoid": unary("HardSigmoid", saves_output=True, read=_read_hard_sigmoid),
    "HardSwish": unary("HardSwish", saves_output=False),
    "Identity": OpSpec(_read_first, infer_same, _lower_identity, _gradient_identity),
    "LeakyRelu": unary("LeakyRelu", saves_output=False, read=_alpha(0.01)),
    "Log": unary("Log", saves_output=False, backward="Div"),
    "Neg": OpSpec(_read_first, infer_same, _lower_neg, _gradient_neg),
    "Relu": unary("Relu", saves_output=True),
    "Sigmoid": unary("Sigmoid", saves_output=True),
    "Softplus": unary("Softplus", saves_output=False),
    "Sqrt": unary("Sqrt", saves_output=True),
    "Tanh": unary("Tanh", saves_output=True),
}


def forward_launch(flops: int) -> LaunchSpec:
    """A function of `flops` operations an element, which may take the place of its input."""
    return LaunchSpec(inplace=((0, 0),), flops=flops_per_output(flops))


def backward_launch(flops: int) -> LaunchSpec:
    """The gradient may take the place of dy or of the saved tensor."""
    return LaunchSpec(inplace=((0, 0), (1, 0)), flops=flops_per_output(flops))


_ONE: Flops = flops_per_output(1)

LAUNCHES: dict[str, LaunchSpec] = {
    "Affine": forward_launch(2),
    "Cast": LaunchSpec(flops=_ONE),
    "Clip": forward_launch(2),
    "ClipBackward": backward_launch(3),
    "Elu": forward_launch(8),
    "EluBackward": backward_launch(3),
    "Exp": forward_launch(8),
    "HardSigmoid": forward_launch(4),
    "HardSigmoidBackward": backward_launch(4),
    "HardSwish": forward_launch(5),
    "HardSwishBackward": backward_launch(6),
    "LeakyRelu": forward_launch(2),
    "LeakyReluBackward": backward_launch(2),
    "Log": forward_launch(8),
    "Relu": forward_launch(1),
    "ReluBackward": backward_launch(1),
    "Sigmoid": forward_launch(10),
    "SigmoidBackward": backward_launch(3),
    "Softplus": forward_launch(12),
    "SoftplusBackward": backward_launch(11),
    "Sqrt": forward_launch(2),
    "SqrtBackward": backward_launch(2),
    "Tanh": forward_launch(10),
    "TanhBackward": backward_launch(3),
}
