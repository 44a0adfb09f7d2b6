"""Operators that take tensors apart and put them together: Concat, Split, Slice and Pad.

Along an axis of the sample each works sample by sample; along the batch axis the node sees the whole batch.
"""

from __future__ import annotations

from planc.graph import AttrValue, Node, TensorSpec
from planc.ops.alignment import common_rows, emit_moved
from planc.ops.reading import (
    constant_float,
    constant_ints,
    integer,
    integers,
    node_error,
    normal_axes,
    normal_axis,
    present,
    raw_float_text,
    raw_input,
    raw_int,
    raw_ints,
    raw_spec,
    raw_text,
    text,
)
from planc.ops.spec import Builder, Grads, LaunchSpec, OpSpec, RawNode, Reading, flops_per_output
from planc.units import decimal_text

Shape = tuple[int, ...]
Specs = tuple[TensorSpec | None, ...]


# Concat


def _read_concat(raw: RawNode) -> Reading:
    if "axis" not in raw.attrs:
        raise raw.error("it names no axis.")
    return Reading(raw.inputs, {"axis": normal_axis(raw, raw_int(raw, "axis", 1), len(raw_spec(raw, 0).shape))})


def _infer_concat(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    given, axis = [present(spec) for spec in specs], integer(node.attrs, "axis")
    rests = {(spec.dtype, *spec.shape[:axis], *spec.shape[axis + 1 :]) for spec in given}
    if len(rests) > 1 or len({len(spec.shape) for spec in given}) > 1:
        found = ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in given)
        raise node_error(node, f"its inputs are {found}; they may differ along axis {axis} only.")
    first = given[0]
    shape = (*first.shape[:axis], sum(spec.shape[axis] for spec in given), *first.shape[axis + 1 :])
    return (TensorSpec(shape, first.dtype, common_rows(shape, given) if axis else 0),)


def _lower_concat(builder: Builder, node: Node) -> tuple[int, ...]:
    tensors = tuple(builder.tensor(name) for name in node.inputs)
    (spec,) = _infer_concat(node, tuple(builder.spec(tensor) for tensor in tensors), builder.batch)
    if len(tensors) == 1:
        builder.define(node.outputs[0], tensors[0])
    else:
        builder.define(node.outputs[0], emit_moved(builder, "Concat", tensors, spec, node.attrs))
    return ()


def _gradient_concat(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    (dy,) = grads
    if dy is None or len(node.inputs) == 1:
        return (dy,) * len(node.inputs)
    axis, offset = integer(node.attrs, "axis"), 0
    found: list[int | None] = []
    for name in node.inputs:
        spec = builder.spec(builder.tensor(name))
        found.append(_part(builder, dy, axis, offset, spec) if builder.wants(name) else None)
        offset += spec.shape[axis]
    return tuple(found)


def _part(builder: Builder, tensor: int, axis: int, offset: int, spec: TensorSpec) -> int:
    """The part of `tensor` that begins at `offset` along `axis`."""
    rank = len(spec.shape)
    starts = tuple(offset if position == axis else 0 for position in range(rank))
    return emit_moved(builder, "Slice", (tensor,), spec, {"starts": starts, "steps": (1,) * rank})


# Split


def _read_split(raw: RawNode) -> Reading:
    shape = raw_spec(raw, 0).shape
    axis = normal_axis(raw, raw_int(raw, "axis", 0), len(shape))
    given = raw_ints(raw, "split") if raw.opset < 13 else constant_ints(raw, 1, "split sizes")
    sizes = _equal_parts(raw, shape[axis]) if given is None else given
    if sum(sizes) != shape[axis] or len(sizes) != len(raw.outputs) or min(sizes) <= 0:
        raise raw.error(
            f"sizes {list(sizes)} for {len(raw.outputs)} outputs do not split the {shape[axis]} entries of axis {axis}."
        )
    return Reading(raw.inputs[:1], {"axis": axis, "split": sizes})


def _equal_parts(raw: RawNode, size: int) -> Shape:
    """Parts of equal size; from opset 18 on the last one is smaller where they can't be equal."""
    count = raw_int(raw, "num_outputs", len(raw.outputs))
    if raw.opset < 18 and size % count:
        raise raw.error(f"axis of {size} entries does not split into {count} equal parts.")
    part = -(-size // count)
    return (*(part,) * (count - 1), size - part * (count - 1))


def _infer_split(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    x, axis = present(specs[0]), integer(node.attrs, "axis")
    return tuple(
        TensorSpec((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype, x.rows if axis else 0)
        for size in integers(node.attrs, "split")
    )


def _lower_split(builder: Builder, node: Node) -> tuple[int, ...]:
    x, axis = builder.tensor(node.inputs[0]), integer(node.attrs, "axis")
    specs, offset = _infer_split(node, (builder.spec(x),), builder.batch), 0
    for name, spec in zip(node.outputs, specs, strict=True):
        if name:
            builder.define(name, _part(builder, x, axis, offset, spec))
        offset += spec.shape[axis]
    return ()


def _gradient_split(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    """The gradients of the parts side by side, zeros where a part has none."""
    if not builder.wants(node.inputs[0]):
        return (None,)
    x, axis = builder.spec(builder.tensor(node.inputs[0])), integer(node.attrs, "axis")
    pieces: list[int] = []
    offsets: list[int] = []
    offset = 0
    for piece, size in zip(grads, integers(node.attrs, "split"), strict=True):
        if piece is not None:
            pieces.append(piece)
            offsets.append(offset)
        offset += size
    return (emit_moved(builder, "SplitBackward", pieces, x, {"axis": axis, "offsets": tuple(offsets)}),)


# Slice


def _slice_arguments(raw: RawNode) -> tuple[Shape, Shape, Shape | None, Shape | None]:
    """(starts, ends, axes, steps): attributes before opset 10, inputs since."""
    if raw.opset < 10:
        starts, ends = raw_ints(raw, "starts"), raw_ints(raw, "ends")
        axes, steps = raw_ints(raw, "axes"), None
    else:
        starts, ends = constant_ints(raw, 1, "starts"), constant_ints(raw, 2, "ends")
        axes, steps = constant_ints(raw, 3, "axes"), constant_ints(raw, 4, "steps")
    if starts is None or ends is None:
        raise raw.error("it has no starts or no ends.")
    return starts, ends, axes, steps


def _read_slice(raw: RawNode) -> Reading:
    """Normal form: first index, step and number of entries of every axis."""
    x = raw_spec(raw, 0)
    rank = len(x.shape)
    starts, ends, given, steps = _slice_arguments(raw)
    axes = normal_axes(raw, range(len(starts)) if given is None else given, rank)
    steps = (1,) * len(axes) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise raw.error(f"starts {starts}, ends {ends}, axes {axes} and steps {steps} do not belong together.")
    first, stride, sizes = [0] * rank, [1] * rank, list(x.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if axis == 0 and step == 1 and _whole_batch_of_file(raw, x, start, end):
            continue
        # Python clamps starts and ends to the axis as ONNX does.
        indices = range(*slice(start, end, step).indices(x.shape[axis]))
        if not indices:
            raise raw.error(f"[{start}:{end}:{step}] of axis {axis} ({x.shape[axis]} entries) is empty.")
        first[axis], stride[axis], sizes[axis] = indices[0], step, len(indices)
    return Reading(raw.inputs[:1], {"starts": tuple(first), "steps": tuple(stride), "sizes": tuple(sizes)})


def _whole_batch_of_file(raw: RawNode, x: TensorSpec, start: int, end: int) -> bool:
    """Whether [start, end) is every sample of the batch that the file was saved with."""
    if not x.rows or raw.file_batch is None:
        return False
    rows = raw.file_batch * x.rows
    return slice(start, end).indices(rows) == (0, rows, 1)


def _infer_slice(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    x, sizes = present(specs[0]), integers(node.attrs, "sizes")
    untouched = bool(sizes) and sizes[0] == x.shape[0] and integers(node.attrs, "steps")[0] == 1
    return (TensorSpec(sizes, x.dtype, x.rows if untouched else 0),)


def _slice_attrs(node: Node) -> dict[str, AttrValue]:
    """What a kernel needs: how many entries there are it sees from its arrays."""
    return {"starts": node.attrs["starts"], "steps": node.attrs["steps"]}


def _lower_slice(builder: Builder, node: Node) -> tuple[int, ...]:
    x = builder.tensor(node.inputs[0])
    (spec,) = _infer_slice(node, (builder.spec(x),), builder.batch)
    builder.define(node.outputs[0], emit_moved(builder, "Slice", (x,), spec, _slice_attrs(node)))
    return ()


def _gradient_slice(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    (dy,) = grads
    if dy is None or not builder.wants(node.inputs[0]):
        return (None,)
    x = builder.spec(builder.tensor(node.inputs[0]))
    return (emit_moved(builder, "SliceBackward", (dy,), x, _slice_attrs(node)),)


# Pad


def _read_pad(raw: RawNode) -> Reading:
    """Normal form: entries added before every axis, then behind every axis (removed where negative)."""
    shape = raw_spec(raw, 0).shape
    rank = len(shape)
    mode = raw_text(raw, "mode", "constant")
    if mode not in ("constant", "reflect", "edge"):
        raise raw.error(f"mode {mode!r} is not one of constant, reflect, edge.")
    given = raw_ints(raw, "pads") if raw.opset < 11 else constant_ints(raw, 1, "pads")
    if given is None:
        raise raw.error("it has no pads.")
    chosen = constant_ints(raw, 3, "axes") if raw.opset >= 18 and raw_input(raw, 3) else None
    axes = tuple(range(rank)) if chosen is None else normal_axes(raw, chosen, rank)
    if len(given) != 2 * len(axes):
        raise raw.error(f"{len(given)} pads for {len(axes)} axes; {2 * len(axes)} were expected.")
    pads = [0] * (2 * rank)
    for position, axis in enumerate(axes):
        pads[axis], pads[rank + axis] = given[position], given[len(axes) + position]
    _check_pads(raw, shape, mode, pads)
    return Reading(raw.inputs[:1], {"pads": tuple(pads), "mode": mode, "value": _pad_value(raw)})


def _check_pads(raw: RawNode, shape: Shape, mode: str, pads: list[int]) -> None:
    for axis, size in enumerate(shape):
        before, behind = pads[axis], pads[len(shape) + axis]
        if size + before + behind <= 0 or min(before, behind) <= -size:
            raise raw.error(f"pads {before} and {behind} leave nothing of axis {axis} ({size} entries).")
        if mode != "constant" and min(before, behind) < 0:
            raise raw.error(f"pads {before} and {behind} of axis {axis} are negative, which {mode} does not allow.")
        if mode == "reflect" and max(before, behind) >= size:
            raise raw.error(
                f"pads {before} and {behind} of axis {axis} are not under its size {size}, as reflect needs."
            )


def _pad_value(raw: RawNode) -> str:
    if raw.opset < 11:
        return raw_float_text(raw, "value", 0.0)
    value = constant_float(raw, 2, "padding value")
    return "0" if value is None else decimal_text(value)


def _infer_pad(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    x, pads = present(specs[0]), integers(node.attrs, "pads")
    rank = len(x.shape)
    shape = tuple(size + pads[axis] + pads[rank + axis] for axis, size in enumerate(x.shape))
    untouched = rank and not pads[0] and not pads[rank]
    return (TensorSpec(shape, x.dtype, x.rows if untouched else 0),)


def _lower_pad(builder: Builder, node: Node) -> tuple[int, ...]:
    x = builder.tensor(node.inputs[0])
    (spec,) = _infer_pad(node, (builder.spec(x),), builder.batch)
    padded = any(integers(node.attrs, "pads"))
    builder.define(node.outputs[0], emit_moved(builder, "Pad", (x,), spec, node.attrs) if padded else x)
    return ()


def _gradient_pad(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    """Of constant padding: remove what was added, put zeros where something was removed. Else: add the copies up."""
    (dy,) = grads
    pads = integers(node.attrs, "pads")
    if dy is None or not builder.wants(node.inputs[0]):
        return (None,)
    if not any(pads):
        return (dy,)
    x = builder.spec(builder.tensor(node.inputs[0]))
    if text(node.attrs, "mode") == "constant":
        attrs: dict[str, AttrValue] = {**node.attrs, "pads": tuple(-pad for pad in pads), "value": "0"}
        return (emit_moved(builder, "Pad", (dy,), x, attrs),)
    return (emit_moved(builder, "PadBackward", (dy,), x, {"pads": pads, "mode": node.attrs["mode"]}),)


OPS: dict[str, OpSpec] = {
    "Concat": OpSpec(_read_concat, _infer_concat, _lower_concat, _gradient_concat),
    "Pad": OpSpec(_read_pad, _infer_pad, _lower_pad, _gradient_pad),
    "Slice": OpSpec(_read_slice, _infer_slice, _lower_slice, _gradient_slice),
    "Split": OpSpec(_read_split, _infer_split, _lower_split, _gradient_split),
}

_MOVES = LaunchSpec(flops=flops_per_output(0))

LAUNCHES: dict[str, LaunchSpec] = {
    "Concat": _MOVES,
    "Pad": _MOVES,
    "PadBackward": LaunchSpec(flops=flops_per_output(1)),
    "Slice": _MOVES,
    "SliceBackward": _MOVES,
    "SplitBackward": _MOVES,
}
