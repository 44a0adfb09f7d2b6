"""Arithmetic on several tensors with NumPy broadcasting: Add, Sub, Mul, Div, Pow, Sum and PRelu.

The gradient of an operand that was broadcast is summed to its shape; where the operand has no batch axis (a bias) that
sum runs over samples too and accumulates over ranges. Products are summed as they are formed (`MulSumTo` and the like),
so that no gradient of the large shape needs memory on the way to a small one.

A literal (a constant of one element) becomes an attribute: x * 2 + 1 is the launch Affine(factor=2, offset=1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from planc.graph import FLOATS, Array, AttrValue, Node, TensorSpec
from planc.ops.alignment import broadcast_spec, emit_aligned, sum_to
from planc.ops.elementwise import negated
from planc.ops.reading import node_error, present, raw_spec
from planc.ops.spec import (
    Builder,
    Grads,
    LaunchSpec,
    OpSpec,
    RawNode,
    Reading,
    flops_per_input,
    flops_per_output,
)
from planc.units import decimal_text

Specs = tuple[TensorSpec | None, ...]


def _literal(raw: RawNode, position: int) -> float | None:
    """The number at `position` if it is a finite literal that leaves the other operand's shape and type alone."""
    value: Array | None = raw.constants[position]
    other = raw_spec(raw, 1 - position)
    if value is None or value.size != 1 or value.ndim > len(other.shape) or other.dtype not in FLOATS:
        return None
    number = float(value.reshape(-1)[0])
    return number if math.isfinite(number) else None


def _affine(factor: float, offset: float) -> dict[str, AttrValue]:
    return {"factor": decimal_text(factor), "offset": decimal_text(offset)}


def _read_arithmetic(raw: RawNode) -> Reading:
    first, second = raw.inputs
    left, right = _literal(raw, 0), _literal(raw, 1)
    if right is not None:
        match raw.op:
            case "Add":
                return Reading((first,), _affine(1.0, right))
            case "Sub":
                return Reading((first,), _affine(1.0, -right))
            case "Mul":
                return Reading((first,), _affine(right, 0.0))
            case "Div" if right != 0 and math.isfinite(1.0 / right):
                return Reading((first,), _affine(1.0 / right, 0.0))
    elif left is not None:
        match raw.op:
            case "Add":
                return Reading((second,), _affine(1.0, left))
            case "Sub":
                return Reading((second,), _affine(-1.0, left))
            case "Mul":
                return Reading((second,), _affine(left, 0.0))
    return Reading((first, second))


def _infer(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    return (broadcast_spec(node, [present(spec) for spec in specs]),)


def _operands(builder: Builder, node: Node) -> tuple[int, ...]:
    return tuple(builder.tensor(name) for name in node.inputs)


def _combine(builder: Builder, node: Node, op: str, operands: Sequence[int]) -> int:
    """The launch `op` on two operands."""
    spec = broadcast_spec(node, [builder.spec(tensor) for tensor in operands])
    return emit_aligned(builder, op, operands, spec)


def _target(builder: Builder, node: Node, position: int) -> TensorSpec | None:
    """What the gradient of the input at `position` looks like; None if it is not wanted."""
    name = node.inputs[position]
    return builder.spec(builder.tensor(name)) if builder.wants(name) else None


def _lower_binary(builder: Builder, node: Node) -> int:
    """Emit and define; returns the output."""
    operands = _operands(builder, node)
    if len(operands) == 1:
        (y,) = builder.emit("Affine", operands, (builder.spec(operands[0]),), node.attrs)
    else:
        y = _combine(builder, node, node.op, operands)
    builder.define(node.outputs[0], y)
    return y


def _affine_gradient(builder: Builder, node: Node, dy: int) -> Grads:
    if not builder.wants(node.inputs[0]):
        return (None,)
    factor = node.attrs["factor"]
    if factor == "1":
        return (dy,)
    return builder.emit("Affine", (dy,), (builder.spec(dy),), {"factor": factor, "offset": "0"})


# Add, Sub, Sum: linear, nothing is saved


def _lower_linear(builder: Builder, node: Node) -> tuple[int, ...]:
    _lower_binary(builder, node)
    return ()


def _gradient_linear(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    """Add, Sub and Sum: dy summed to each operand's shape, negated for what is subtracted."""
    (dy,) = grads
    if dy is None:
        return (None,) * len(node.inputs)
    if "factor" in node.attrs:
        return _affine_gradient(builder, node, dy)
    found: list[int | None] = []
    for position in range(len(node.inputs)):
        target = _target(builder, node, position)
        gradient = None if target is None else sum_to(builder, dy, target)
        if gradient is not None and node.op == "Sub" and position == 1:
            gradient = negated(builder, gradient)
        found.append(gradient)
    return tuple(found)


def _read_sum(raw: RawNode) -> Reading:
    return Reading(raw.inputs)


def _lower_sum(builder: Builder, node: Node) -> tuple[int, ...]:
    total, *rest = _operands(builder, node)
    for operand in rest:
        total = _combine(builder, node, "Add", (total, operand))
    builder.define(node.outputs[0], total)
    return ()


# Mul: each gradient needs the other operand


def _lower_mul(builder: Builder, node: Node) -> tuple[int, ...]:
    _lower_binary(builder, node)
    if "factor" in node.attrs:
        return ()
    pairs = zip(node.inputs, reversed(node.inputs), strict=True)
    return tuple(builder.tensor(other) for name, other in pairs if builder.wants(name))


def _gradient_mul(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    (dy,) = grads
    if dy is None:
        return (None,) * len(node.inputs)
    if "factor" in node.attrs:
        return _affine_gradient(builder, node, dy)
    others = iter(saved)
    found: list[int | None] = []
    for position in range(2):
        target = _target(builder, node, position)
        found.append(None if target is None else _combined_to(builder, "Mul", (dy, next(others)), target))
    return tuple(found)


def _combined_to(builder: Builder, op: str, operands: tuple[int, int], target: TensorSpec) -> int:
    """`op` (Mul or Div) of dy and an operand, summed to `target`."""
    same = builder.spec(operands[0]) == target
    return emit_aligned(builder, op if same else f"{op}SumTo", operands, target)


# Div: d(a / b) = dy / b and -dy y / b


def _lower_div(builder: Builder, node: Node) -> tuple[int, ...]:
    y = _lower_binary(builder, node)
    if "factor" in node.attrs or not any(builder.wants(name) for name in node.inputs):
        return ()
    divisor = builder.tensor(node.inputs[1])
    return (divisor, y) if builder.wants(node.inputs[1]) else (divisor,)


def _gradient_div(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    (dy,) = grads
    if dy is None:
        return (None,) * len(node.inputs)
    if "factor" in node.attrs:
        return _affine_gradient(builder, node, dy)
    dividend, divisor = _target(builder, node, 0), _target(builder, node, 1)
    return (
        None if dividend is None else _combined_to(builder, "Div", (dy, saved[0]), dividend),
        None if divisor is None else emit_aligned(builder, "DivisorSumTo", (dy, saved[1], saved[0]), divisor),
    )


# Pow: by a literal, which needs the base alone, or by a tensor


def _read_pow(raw: RawNode) -> Reading:
    exponent = _literal(raw, 1)
    if exponent is not None:
        return Reading(raw.inputs[:1], {"exponent": decimal_text(exponent)})
    return Reading(raw.inputs)


def _lower_pow(builder: Builder, node: Node) -> tuple[int, ...]:
    operands = _operands(builder, node)
    saved: tuple[int, ...]
    if len(operands) == 1:
        (y,) = builder.emit("Pow", operands, (builder.spec(operands[0]),), node.attrs)
        saved = operands if builder.wants(node.inputs[0]) else ()
    else:
        base, exponent = operands
        y = _combine(builder, node, "Power", operands)
        by_base, by_exponent = (builder.wants(name) for name in node.inputs)
        needed = ((base, by_base or by_exponent), (exponent, by_base), (y, by_exponent))
        saved = tuple(tensor for tensor, wanted in needed if wanted)
    builder.define(node.outputs[0], y)
    return saved


def _gradient_pow(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    """By base: dy b a^(b-1), from a and b. By exponent: dy y log a, from a and y."""
    (dy,) = grads
    if dy is None:
        return (None,) * len(node.inputs)
    base = _target(builder, node, 0)
    if len(node.inputs) == 1:
        return (None,) if base is None else builder.emit("PowBackward", (dy, *saved), (base,), node.attrs)
    exponent = _target(builder, node, 1)
    return (
        None if base is None else emit_aligned(builder, "PowerBaseSumTo", (dy, saved[0], saved[1]), base),
        None if exponent is None else emit_aligned(builder, "PowerExponentSumTo", (dy, saved[0], saved[-1]), exponent),
    )


# PRelu: the slope broadcasts to x, never x to the slope


def _read_prelu(raw: RawNode) -> Reading:
    return Reading(raw.inputs[:2])


def _infer_prelu(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    x, slope = present(specs[0]), present(specs[1])
    (out,) = _infer(node, specs, batch)
    if out.shape != x.shape:
        raise node_error(node, f"its slope {list(slope.shape)} does not broadcast to its input {list(x.shape)}.")
    return (out,)


def _lower_prelu(builder: Builder, node: Node) -> tuple[int, ...]:
    x, slope = _operands(builder, node)
    builder.define(node.outputs[0], _combine(builder, node, "PRelu", (x, slope)))
    wanted = [builder.wants(name) for name in node.inputs]
    return ((x, slope) if wanted[0] else (x,)) if any(wanted) else ()


def _gradient_prelu(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    (dy,) = grads
    if dy is None:
        return (None, None)
    x, slope = _target(builder, node, 0), _target(builder, node, 1)
    return (
        None if x is None else emit_aligned(builder, "PReluBackward", (dy, *saved), x),
        None if slope is None else emit_aligned(builder, "PReluSlopeSumTo", (dy, saved[0]), slope),
    )


OPS: dict[str, OpSpec] = {
    "Add": OpSpec(_read_arithmetic, _infer, _lower_linear, _gradient_linear, literal_scalars=True),
    "Div": OpSpec(_read_arithmetic, _infer, _lower_div, _gradient_div, literal_scalars=True),
    "Mul": OpSpec(_read_arithmetic, _infer, _lower_mul, _gradient_mul, literal_scalars=True),
    "PRelu": OpSpec(_read_prelu, _infer_prelu, _lower_prelu, _gradient_prelu),
    "Pow": OpSpec(_read_pow, _infer, _lower_pow, _gradient_pow, literal_scalars=True),
    "Sub": OpSpec(_read_arithmetic, _infer, _lower_linear, _gradient_linear, literal_scalars=True),
    "Sum": OpSpec(_read_sum, _infer, _lower_sum, _gradient_linear, literal_scalars=True),
}

_BINARY = LaunchSpec(inplace=((0, 0), (1, 0)))
"""An operand with as many bytes as the output has its shape, so that element meets element."""


def _summing(flops: int) -> LaunchSpec:
    return LaunchSpec(sums=True, flops=flops_per_input(flops))


LAUNCHES: dict[str, LaunchSpec] = {
    "Add": _BINARY,
    "Div": _BINARY,
    "DivSumTo": _summing(2),
    "DivisorSumTo": _summing(4),
    "Mul": _BINARY,
    "MulSumTo": _summing(2),
    "PRelu": LaunchSpec(inplace=((0, 0),), flops=flops_per_output(2)),
    "PReluBackward": LaunchSpec(inplace=((0, 0), (1, 0)), flops=flops_per_output(2)),
    "PReluSlopeSumTo": _summing(3),
    "Pow": LaunchSpec(inplace=((0, 0),), flops=flops_per_output(10)),
    "PowBackward": LaunchSpec(inplace=((0, 0), (1, 0)), flops=flops_per_output(12)),
    "Power": LaunchSpec(inplace=((0, 0), (1, 0)), flops=flops_per_output(10)),
    "PowerBaseSumTo": _summing(13),
    "PowerExponentSumTo": _summing(11),
    "Sub": _BINARY,
}
