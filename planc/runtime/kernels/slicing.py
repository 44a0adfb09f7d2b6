"""Kernels of the operators that take tensors apart and put them together (ops/slicing.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np

from planc.plan import AttrValue
from planc.runtime.kernels.blocks import integer, integers, number
from planc.runtime.launch import Array, Hyper, Kernel, Launch

Index = tuple[slice, ...]


def _along(array: Array, axis: int, start: int, stop: int) -> Array:
    """The entries [start, stop) of `axis`."""
    return array[(*(slice(None),) * axis, slice(start, stop))]


def _concat(launch: Launch, hyper: Hyper) -> None:
    (y,), axis = launch.outputs, integer(launch.attrs, "axis")
    start = 0
    for x in launch.inputs:
        stop = start + x.shape[axis]
        np.copyto(_along(y, axis, start, stop), x)
        start = stop


def _split_backward(launch: Launch, hyper: Hyper) -> None:
    """Each input at its offset, zeros between them."""
    (dx,), axis = launch.outputs, integer(launch.attrs, "axis")
    end = 0
    for dy, start in zip(launch.inputs, integers(launch.attrs, "offsets"), strict=True):
        _along(dx, axis, end, start).fill(0)
        end = start + dy.shape[axis]
        np.copyto(_along(dx, axis, start, end), dy)
    _along(dx, axis, end, dx.shape[axis]).fill(0)


def _chosen(attrs: Mapping[str, AttrValue], sizes: tuple[int, ...]) -> Index:
    """The index of `sizes` entries an axis, from `starts` on in `steps`."""
    index = []
    for start, step, size in zip(integers(attrs, "starts"), integers(attrs, "steps"), sizes, strict=True):
        stop = start + step * size
        # Below 0 an index would count from the end.
        index.append(slice(start, stop if stop >= 0 else None, step))
    return tuple(index)


def _slice(launch: Launch, hyper: Hyper) -> None:
    (x,), (y,) = launch.inputs, launch.outputs
    np.copyto(y, x[_chosen(launch.attrs, y.shape)])


def _slice_backward(launch: Launch, hyper: Hyper) -> None:
    (dy,), (dx,) = launch.inputs, launch.outputs
    dx.fill(0)
    dx[_chosen(launch.attrs, dy.shape)] = dy


# Pad


def _pad(launch: Launch, hyper: Hyper) -> None:
    (x,), (y,) = launch.inputs, launch.outputs
    pads = integers(launch.attrs, "pads")
    if launch.attrs["mode"] == "constant":
        y.fill(number(launch.attrs, "value"))
        inside, source = _overlap(x.shape, pads)
        y[inside] = x[source]
        return
    for target, source in _boxes(launch, x.shape):
        y[target] = x[source]


def _overlap(shape: tuple[int, ...], pads: tuple[int, ...]) -> tuple[Index, Index]:
    """What is left of the tensor: where in the padded one, and where in the tensor (pads may be negative)."""
    inside, source = [], []
    for size, before, behind in zip(shape, pads, pads[len(shape) :], strict=False):
        first, end = max(0, -before), size - max(0, -behind)
        source.append(slice(first, end))
        inside.append(slice(first + before, end + before))
    return tuple(inside), tuple(source)


def _pad_backward(launch: Launch, hyper: Hyper) -> None:
    """Every entry gathers the gradients of all of its copies."""
    (dy,), (dx,) = launch.inputs, launch.outputs
    dx.fill(0)
    for target, source in _boxes(launch, dx.shape):
        place = dx[source]
        np.add(place, dy[target], out=place)


def _boxes(launch: Launch, shape: tuple[int, ...]) -> Iterator[tuple[Index, Index]]:
    """Boxes that tile the padded tensor, each with the box of equal size in the tensor of `shape` that it copies."""
    pads = integers(launch.attrs, "pads")
    segments = _reflections if launch.attrs["mode"] == "reflect" else _edges
    axes = [
        segments(size, before, behind) for size, before, behind in zip(shape, pads, pads[len(shape) :], strict=False)
    ]
    for box in product(*axes):
        yield tuple(target for target, _ in box), tuple(source for _, source in box)


Segments = list[tuple[slice, slice]]


def _reflections(size: int, before: int, behind: int) -> Segments:
    """Segments of an axis padded by its mirror image, the outermost entry not repeated."""
    last = size - 1
    found = [(slice(before, before + size), slice(0, size))]
    if before:
        found.append((slice(0, before), slice(before, 0, -1)))
    if behind:
        stop = last - 1 - behind
        found.append((slice(before + size, before + size + behind), slice(last - 1, stop if stop >= 0 else None, -1)))
    return found


def _edges(size: int, before: int, behind: int) -> Segments:
    """Segments of an axis padded by its outermost entries: one for each entry, so that no box overlaps itself."""
    found = [(slice(before, before + size), slice(0, size))]
    found += [(slice(place, place + 1), slice(0, 1)) for place in range(before)]
    found += [
        (slice(before + size + place, before + size + place + 1), slice(size - 1, size)) for place in range(behind)
    ]
    return found


KERNELS: dict[str, Kernel] = {
    "Concat": _concat,
    "Pad": _pad,
    "PadBackward": _pad_backward,
    "Slice": _slice,
    "SliceBackward": _slice_backward,
    "SplitBackward": _split_backward,
}
