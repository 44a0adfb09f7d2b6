"""Reductions: ReduceSum and ReduceMean, and the launches that sum a tensor to a smaller shape.

A reduction over axes of the sample works sample by sample. One over the batch axis as well is a sum over samples, which
accumulates over ranges; a mean divides by the count of the whole batch, whatever the ranges are.
"""

from __future__ import annotations

from math import prod

from planc.graph import AttrValue, Node, TensorSpec
from planc.ops.alignment import emit_aligned, reshaped
from planc.ops.reading import constant_ints, integer, integers, normal_axes, present, raw_int, raw_ints, raw_spec
from planc.ops.spec import Builder, Grads, LaunchSpec, OpSpec, RawNode, Reading, flops_per_input, flops_per_output

Specs = tuple[TensorSpec | None, ...]

_AXES_ARE_INPUTS_SINCE = {"ReduceSum": 13, "ReduceMean": 18}


def _read(raw: RawNode) -> Reading:
    rank = len(raw_spec(raw, 0).shape)
    as_input = raw.opset >= _AXES_ARE_INPUTS_SINCE[raw.op]
    given = constant_ints(raw, 1, "axes") if as_input else raw_ints(raw, "axes")
    if given:
        axes = tuple(sorted(normal_axes(raw, given, rank)))
    else:
        axes = () if raw_int(raw, "noop_with_empty_axes", 0) else tuple(range(rank))
    return Reading(raw.inputs[:1], {"axes": axes, "keepdims": int(raw_int(raw, "keepdims", 1) != 0)})


def _kept(node: Node, x: TensorSpec) -> TensorSpec:
    """The result with the reduced axes kept at size 1."""
    axes = integers(node.attrs, "axes")
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    return TensorSpec(shape, x.dtype, 0 if 0 in axes else x.rows)


def _infer(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    x = present(specs[0])
    kept = _kept(node, x)
    if integer(node.attrs, "keepdims"):
        return (kept,)
    axes = integers(node.attrs, "axes")
    return (TensorSpec(tuple(s for axis, s in enumerate(x.shape) if axis not in axes), x.dtype, kept.rows),)


def _count(node: Node, x: TensorSpec) -> int:
    return prod(x.shape[axis] for axis in integers(node.attrs, "axes"))


def _lower(builder: Builder, node: Node) -> tuple[int, ...]:
    x = builder.tensor(node.inputs[0])
    spec = builder.spec(x)
    result = x
    if integers(node.attrs, "axes"):
        op, attrs = ("SumTo", {}) if node.op == "ReduceSum" else ("MeanTo", {"count": _count(node, spec)})
        result = emit_aligned(builder, op, (x,), _kept(node, spec), attrs)
    (out,) = _infer(node, (spec,), builder.batch)
    builder.define(node.outputs[0], reshaped(builder, result, out))
    return ()


def _gradient(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    """dy at every place it was summed from, divided by their count for a mean."""
    (dy,) = grads
    if dy is None or not builder.wants(node.inputs[0]):
        return (None,)
    x = builder.spec(builder.tensor(node.inputs[0]))
    if not integers(node.attrs, "axes"):
        return (dy,)
    attrs: dict[str, AttrValue] = {"count": _count(node, x) if node.op == "ReduceMean" else 1}
    return (emit_aligned(builder, "Expand", (reshaped(builder, dy, _kept(node, x)),), x, attrs),)


OPS: dict[str, OpSpec] = {
    "ReduceMean": OpSpec(_read, _infer, _lower, _gradient),
    "ReduceSum": OpSpec(_read, _infer, _lower, _gradient),
}

LAUNCHES: dict[str, LaunchSpec] = {
    "Expand": LaunchSpec(flops=flops_per_output(1)),
    "MeanTo": LaunchSpec(sums=True, flops=flops_per_input(1)),
    "SumTo": LaunchSpec(sums=True, flops=flops_per_input(1)),
}
