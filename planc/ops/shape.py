"""Operators that change a tensor's shape: Reshape, Flatten, Squeeze, Unsqueeze and Transpose.

All but Transpose leave every element where it is, so they are views and cost nothing, and so is a Transpose that moves
axes of size 1 only. Samples stay whole under any of these views as long as the leading axis is a multiple of the batch.
"""

from __future__ import annotations

from math import prod

from planc.graph import Node, TensorSpec
from planc.ops.alignment import emit_moved, reshaped
from planc.ops.reading import (
    constant_ints,
    integers,
    normal_axes,
    present,
    raw_int,
    raw_ints,
    raw_spec,
)
from planc.ops.spec import Builder, Grads, LaunchSpec, OpSpec, RawNode, Reading, flops_per_output

Shape = tuple[int, ...]
Specs = tuple[TensorSpec | None, ...]


def _read_reshape(raw: RawNode) -> Reading:
    target = constant_ints(raw, 1, "target shape")
    if target is None:
        raise raw.error("it has no target shape.")
    return Reading(raw.inputs[:1], {"shape": _resolve(raw, target, keep_zeros=bool(raw_int(raw, "allowzero", 0)))})


def _resolve(raw: RawNode, target: Shape, *, keep_zeros: bool) -> Shape:
    """The shape that `target` means at the batch in force.

    A target written for the batch of the file has that batch, or a multiple of it, as its leading entry. With the batch
    axis of the input in front, the target then says what becomes of each sample, and only its leading entry changes
    with the batch.
    """
    x = raw_spec(raw, 0)
    leading = target[0] if target else 0
    if x.rows and leading > 0:
        saved_batch = raw.file_batch or _saved_batch(raw, x, target)
        if saved_batch and leading % saved_batch == 0:
            saved = _fit((saved_batch * x.rows, *x.shape[1:]), target, keep_zeros)
            if saved is not None:
                return (leading // saved_batch * raw.batch, *saved[1:])
    shape = _fit(x.shape, target, keep_zeros)
    if shape is None:
        raise raw.error(
            f"its target shape {list(target)} does not fit its input {list(x.shape)} at batch {raw.batch}.",
            "If the batch is baked into the target, export the model with a dynamic batch axis, or with -1 in front.",
        )
    return shape


def _saved_batch(raw: RawNode, x: TensorSpec, target: Shape) -> int | None:
    """The batch that a target without open entries must have been written for, if it is not the batch in force."""
    sample = x.elements // raw.batch
    if min(target) <= 0 or not sample or prod(target) % sample:
        return None
    return prod(target) // sample


def _fit(shape: Shape, target: Shape, keep_zeros: bool) -> Shape | None:
    """`target` with 0 (copy the entry) and -1 (what is left) filled in for a tensor of `shape`; None if it can't be."""
    copied = []
    for position, entry in enumerate(target):
        if entry == 0 and not keep_zeros:
            if position >= len(shape):
                return None
            entry = shape[position]
        copied.append(entry)
    known = prod(entry for entry in copied if entry != -1)
    if copied.count(-1) == 1 and known and prod(shape) % known == 0:
        copied[copied.index(-1)] = prod(shape) // known
    return tuple(copied) if min(copied, default=0) >= 0 and prod(copied) == prod(shape) else None


def view_spec(x: TensorSpec, shape: Shape, batch: int) -> TensorSpec:
    """`x` under `shape`, elements in order: samples stay whole if the leading axis is a multiple of the batch."""
    whole = x.rows and shape and shape[0] % batch == 0
    return TensorSpec(shape, x.dtype, shape[0] // batch if whole else 0)


def _infer_reshape(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    return (view_spec(present(specs[0]), integers(node.attrs, "shape"), batch),)


def _lower_view(builder: Builder, node: Node) -> tuple[int, ...]:
    """Reshape, Flatten, Squeeze and Unsqueeze, whose normal form is the shape that comes out."""
    x = builder.tensor(node.inputs[0])
    spec = view_spec(builder.spec(x), integers(node.attrs, "shape"), builder.batch)
    builder.define(node.outputs[0], reshaped(builder, x, spec))
    return ()


def _gradient_view(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    (dy,) = grads
    if dy is None or not builder.wants(node.inputs[0]):
        return (None,)
    return (reshaped(builder, dy, builder.spec(builder.tensor(node.inputs[0]))),)


def _read_flatten(raw: RawNode) -> Reading:
    shape = raw_spec(raw, 0).shape
    axis = raw_int(raw, "axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise raw.error(f"axis {axis} is outside [-{len(shape)}, {len(shape)}].")
    split = axis + len(shape) if axis < 0 else axis
    return Reading(raw.inputs[:1], {"shape": (prod(shape[:split]), prod(shape[split:]))})


def _raw_axes(raw: RawNode) -> Shape | None:
    """Axes of Squeeze and Unsqueeze: an attribute before opset 13, an input since."""
    return raw_ints(raw, "axes") if raw.opset < 13 else constant_ints(raw, 1, "axes")


def _read_squeeze(raw: RawNode) -> Reading:
    shape = raw_spec(raw, 0).shape
    given = _raw_axes(raw)
    if given is None:
        return Reading(raw.inputs[:1], {"shape": tuple(size for size in shape if size != 1)})
    axes = normal_axes(raw, given, len(shape))
    for axis in axes:
        if shape[axis] != 1:
            raise raw.error(f"axis {axis} of its input {list(shape)} has size {shape[axis]}; 1 was expected.")
    return Reading(raw.inputs[:1], {"shape": tuple(size for axis, size in enumerate(shape) if axis not in axes)})


def _read_unsqueeze(raw: RawNode) -> Reading:
    given = _raw_axes(raw)
    if given is None:
        raise raw.error("it names no axes.")
    shape = list(raw_spec(raw, 0).shape)
    for axis in sorted(normal_axes(raw, given, len(shape) + len(given))):
        shape.insert(axis, 1)
    return Reading(raw.inputs[:1], {"shape": tuple(shape)})


# Transpose


def _read_transpose(raw: RawNode) -> Reading:
    rank = len(raw_spec(raw, 0).shape)
    given = raw_ints(raw, "perm")
    perm = tuple(reversed(range(rank))) if given is None else normal_axes(raw, given, rank)
    if len(perm) != rank:
        raise raw.error(f"perm {list(perm)} does not order the {rank} axes of its input.")
    return Reading(raw.inputs[:1], {"perm": perm})


def _infer_transpose(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    x, perm = present(specs[0]), integers(node.attrs, "perm")
    shape = tuple(x.shape[axis] for axis in perm)
    return (TensorSpec(shape, x.dtype, x.rows if perm[:1] == (0,) else 0),)


def _transposed(builder: Builder, tensor: int, perm: Shape, spec: TensorSpec) -> int:
    shape = builder.spec(tensor).shape
    moved = [axis for axis in perm if shape[axis] != 1]
    if moved == sorted(moved):
        return reshaped(builder, tensor, spec)
    return emit_moved(builder, "Transpose", (tensor,), spec, {"perm": perm})


def _lower_transpose(builder: Builder, node: Node) -> tuple[int, ...]:
    x = builder.tensor(node.inputs[0])
    (spec,) = _infer_transpose(node, (builder.spec(x),), builder.batch)
    builder.define(node.outputs[0], _transposed(builder, x, integers(node.attrs, "perm"), spec))
    return ()


def _gradient_transpose(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    (dy,) = grads
    if dy is None or not builder.wants(node.inputs[0]):
        return (None,)
    perm = integers(node.attrs, "perm")
    inverse = tuple(perm.index(axis) for axis in range(len(perm)))
    return (_transposed(builder, dy, inverse, builder.spec(builder.tensor(node.inputs[0]))),)


OPS: dict[str, OpSpec] = {
    "Flatten": OpSpec(_read_flatten, _infer_reshape, _lower_view, _gradient_view),
    "Reshape": OpSpec(_read_reshape, _infer_reshape, _lower_view, _gradient_view),
    "Squeeze": OpSpec(_read_squeeze, _infer_reshape, _lower_view, _gradient_view),
    "Transpose": OpSpec(_read_transpose, _infer_transpose, _lower_transpose, _gradient_transpose),
    "Unsqueeze": OpSpec(_read_unsqueeze, _infer_reshape, _lower_view, _gradient_view),
}

LAUNCHES: dict[str, LaunchSpec] = {
    "Copy": LaunchSpec(inplace=((0, 0),), flops=flops_per_output(0)),
    "Transpose": LaunchSpec(flops=flops_per_output(0)),
}
