"""NumPy kernels of pooling: maximum and average over windows, and over everything.

Kernels go over the taps of the window, and for each tap over all windows at once. The whole input is never padded: a
tap takes part only in the windows where it lies inside the input. Outputs are made tile by tile, so that what a window
re-reads is in the processor's cache and scratch stays small. What a tap meets is gathered into one line first: NumPy
computes several times faster on it than on strided arrays, which it would buffer besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.runtime.kernels.blocks import Index, block_length, integer, integers, tiles
from planc.runtime.launch import Array, Hyper, Kernel, Launch

Values = npt.NDArray[Any]
Tap = tuple[int, tuple[Any, ...], tuple[Any, ...]]
"""A place in the window: its number, the elements of the input and the windows of a tile that meet there."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The windows along one spatial axis."""

    size: int
    taps: int
    stride: int
    dilation: int
    front: int
    back: int

    def reach(self, tap: int, start: int, stop: int) -> tuple[slice, slice] | None:
        """Input elements that `tap` meets in windows [start, stop), and those windows counted from `start`."""
        offset = tap * self.dilation - self.front
        first = max(start, -(offset // self.stride))
        last = min(stop, (self.size - 1 - offset) // self.stride + 1)
        if first >= last:
            return None
        begin = first * self.stride + offset
        end = (last - 1) * self.stride + offset + 1
        return slice(begin, end, self.stride), slice(first - start, last - start)

    def first_taps(self, start: int, stop: int, dtype: Any) -> Values:
        """For windows [start, stop) the first tap that lies inside the input."""
        first = np.zeros(stop - start, dtype)
        for tap in reversed(range(self.taps)):
            found = self.reach(tap, start, stop)
            if found is not None:
                first[found[1]] = tap
        return first

    def counts(self, start: int, stop: int, dtype: Any) -> Values:
        """For windows [start, stop) the number of taps inside the input."""
        counts = np.zeros(stop - start, dtype)
        for tap in range(self.taps):
            found = self.reach(tap, start, stop)
            if found is not None:
                counts[found[1]] += 1
        return counts

    def padded(self) -> Axis:
        """The same windows, with the padding as part of the input."""
        return replace(self, size=self.front + self.size + self.back, front=0, back=0)


@dataclass(frozen=True, slots=True)
class Tile:
    """Part of an array with an element a window.

    maps:   the samples and channels it covers, whole or in part.
    axes:   the spatial axes.
    ranges: windows [start, stop) on every spatial axis.
    spare:  scratch of the tile's shape.
    """

    index: Index
    axes: tuple[Axis, ...]
    ranges: tuple[tuple[int, int], ...]
    spare: tuple[Values, ...]

    @property
    def maps(self) -> Index:
        return self.index[:2]

    def taps(self) -> Iterator[Tap]:
        """The taps that meet the tile, in order; elements count from the maps' first, windows from the tile's first."""
        lines: list[list[tuple[int, slice, slice]]] = []
        weight = prod(axis.taps for axis in self.axes)
        for axis, (start, stop) in zip(self.axes, self.ranges, strict=True):
            weight //= axis.taps
            reached = [(tap * weight, axis.reach(tap, start, stop)) for tap in range(axis.taps)]
            lines.append([(number, *found) for number, found in reached if found is not None])
        for places in product(*lines):
            yield sum(n for n, _, _ in places), (..., *(x for _, x, _ in places)), (..., *(y for _, _, y in places))

    def first_taps(self, out: Values) -> None:
        """Number of the first tap inside the input, for every window."""
        out.fill(0)
        for place, (axis, part) in enumerate(zip(self.axes, self.ranges, strict=True)):
            np.multiply(out, out.dtype.type(axis.taps), out=out)
            np.add(out, self.along(place, axis.first_taps(*part, out.dtype)), out=out)

    def divide(self, values: Values, padding: bool) -> None:
        """Divide each window's value by the number of its taps that count."""
        for place, (axis, part) in enumerate(zip(self.axes, self.ranges, strict=True)):
            counts = (axis.padded() if padding else axis).counts(*part, values.dtype)
            if counts.min() == counts.max():
                np.multiply(values, 1 / counts.flat[0], out=values)
            else:
                np.divide(values, self.along(place, counts), out=values)

    def along(self, place: int, vector: Values) -> Values:
        """A vector, laid along a spatial axis."""
        return vector.reshape(-1, *(1,) * (len(self.axes) - 1 - place))


@dataclass(frozen=True, slots=True)
class Window:
    """The windows of a launch."""

    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, launch: Launch, shape: tuple[int, ...]) -> Window:
        """The windows over an input of `shape`."""
        size = shape[2:]
        kernel, strides = integers(launch.attrs, "kernel_shape"), integers(launch.attrs, "strides")
        dilations, pads = integers(launch.attrs, "dilations"), integers(launch.attrs, "pads")
        return cls(tuple(map(Axis, size, kernel, strides, dilations, pads[: len(size)], pads[len(size) :])))

    @property
    def disjoint(self) -> bool:
        """Whether no two windows share an element."""
        return all((axis.taps - 1) * axis.dilation < axis.stride for axis in self.axes)

    def tiles(self, array: Array, *dtypes: Any) -> Iterator[Tile]:
        """Tiles of an array with an element a window, with a piece of scratch of each type."""
        length = block_length(array.dtype)
        pieces = [np.empty(min(length, array.size), dtype) for dtype in dtypes]
        for index in tiles(array.shape, length):
            bounds = [part.indices(size)[:2] for part, size in zip(index, array.shape, strict=True)]
            shape = tuple(stop - start for start, stop in bounds)
            spare = tuple(piece[: prod(shape)].reshape(shape) for piece in pieces)
            yield Tile(index, self.axes, tuple(bounds[2:]), spare)


def _gather(x: Values, tap: Tap, out: Values, fill: float) -> None:
    """What a tap meets in every window of a tile; `fill` where that is padding."""
    met = out[tap[2]]
    if met.size < out.size:
        out.fill(fill)
    np.copyto(met, x[tap[1]])


def _scatter(values: Values, tap: Tap, dx: Values, scratch: Values | None) -> None:
    """Add each window's value to what a tap meets; without scratch, write it (disjoint windows)."""
    if scratch is not None:
        _gather(dx, tap, scratch, 0)
        np.add(scratch, values, out=scratch)
        values = scratch
    np.copyto(dx[tap[1]], values[tap[2]])


def _max_pool(launch: Launch, hyper: Hyper) -> None:
    """(x) -> y, or y and index: the number of the tap that holds the maximum, the first one among equals."""
    x, y = launch.inputs[0], launch.outputs[0]
    window = Window.of(launch, x.shape)
    if len(launch.outputs) == 1:
        for tile in window.tiles(y, y.dtype):
            best: Values = y[tile.index]
            best.fill(-np.inf)
            for tap in tile.taps():
                _gather(x[tile.maps], tap, tile.spare[0], -np.inf)
                np.maximum(best, tile.spare[0], out=best)
        return
    index: Values = launch.outputs[1]
    number = index.dtype.type
    for tile in window.tiles(y, y.dtype, np.uint8, index.dtype):
        candidate, beaten, mark = tile.spare
        best, where = y[tile.index], index[tile.index]
        best.fill(-np.inf)
        tile.first_taps(where)
        for tap in tile.taps():
            _gather(x[tile.maps], tap, candidate, -np.inf)
            np.greater(candidate, best, out=beaten.view(np.bool_))
            np.maximum(best, candidate, out=best)
            # Taps come in order, so the last one that beat all before it has the largest number.
            np.multiply(beaten, number(tap[0]), out=mark)
            np.maximum(where, mark, out=where)


def _max_pool_backward(launch: Launch, hyper: Hyper) -> None:
    """(dy, index) -> dx: each window's gradient goes to where its maximum was found."""
    dy, index = launch.inputs
    dx: Values = launch.outputs[0]
    window = Window.of(launch, dx.shape)
    number = index.dtype.type
    dx.fill(0)
    for tile in window.tiles(dy, dy.dtype, dy.dtype, np.bool_):
        share, scratch, chosen = tile.spare
        for tap in tile.taps():
            np.equal(index[tile.index], number(tap[0]), out=chosen)
            np.multiply(dy[tile.index], chosen, out=share)
            _scatter(share, tap, dx[tile.maps], None if window.disjoint else scratch)


def _average_pool(launch: Launch, hyper: Hyper) -> None:
    """(x) -> y."""
    x, y = launch.inputs[0], launch.outputs[0]
    window = Window.of(launch, x.shape)
    padding = bool(integer(launch.attrs, "count_include_pad"))
    for tile in window.tiles(y, y.dtype):
        total: Values = y[tile.index]
        total.fill(0)
        for tap in tile.taps():
            _gather(x[tile.maps], tap, tile.spare[0], 0)
            np.add(total, tile.spare[0], out=total)
        tile.divide(total, padding)


def _average_pool_backward(launch: Launch, hyper: Hyper) -> None:
    """(dy) -> dx: each window's gradient in equal shares to its elements."""
    dy = launch.inputs[0]
    dx: Values = launch.outputs[0]
    window = Window.of(launch, dx.shape)
    padding = bool(integer(launch.attrs, "count_include_pad"))
    dx.fill(0)
    for tile in window.tiles(dy, dy.dtype, dy.dtype):
        share, scratch = tile.spare
        np.copyto(share, dy[tile.index])
        tile.divide(share, padding)
        for tap in tile.taps():
            _scatter(share, tap, dx[tile.maps], None if window.disjoint else scratch)


def _maps(array: Array) -> Values:
    """The array as (samples * channels, positions)."""
    return array.reshape(array.shape[0] * array.shape[1], prod(array.shape[2:]))


_ROWS = 4096
"""Maps whose maxima are sought at a time: their places are 32 KiB of int64."""


def _row_ranges(count: int) -> Iterator[slice]:
    for start in range(0, count, _ROWS):
        yield slice(start, min(start + _ROWS, count))


def _global_max_pool(launch: Launch, hyper: Hyper) -> None:
    """(x) -> y, or y and index: the position of each map's maximum, the first one among equals."""
    x, y = _maps(launch.inputs[0]), launch.outputs[0].reshape(-1)
    if len(launch.outputs) == 1:
        np.maximum.reduce(x, axis=1, out=y)
        return
    index = launch.outputs[1].reshape(-1)
    for rows in _row_ranges(len(x)):
        places = np.argmax(x[rows], axis=1)
        index[rows] = places
        y[rows] = x[np.arange(rows.start, rows.stop), places]


def _global_max_pool_backward(launch: Launch, hyper: Hyper) -> None:
    """(dy, index) -> dx."""
    dy, index = (array.reshape(-1) for array in launch.inputs)
    dx = _maps(launch.outputs[0])
    dx.fill(0)
    for rows in _row_ranges(len(dx)):
        dx[np.arange(rows.start, rows.stop), index[rows]] = dy[rows]


def _global_average_pool(launch: Launch, hyper: Hyper) -> None:
    """(x) -> y; pairwise sums along each map, so float32 keeps its digits."""
    x, y = _maps(launch.inputs[0]), launch.outputs[0].reshape(-1)
    np.add.reduce(x, axis=1, out=y)
    np.multiply(y, 1 / x.shape[1], out=y)


def _global_average_pool_backward(launch: Launch, hyper: Hyper) -> None:
    """(dy) -> dx."""
    dx = _maps(launch.outputs[0])
    np.multiply(launch.inputs[0].reshape(-1, 1), 1 / dx.shape[1], out=dx)


KERNELS: dict[str, Kernel] = {
    "MaxPool": _max_pool,
    "MaxPoolBackward": _max_pool_backward,
    "AveragePool": _average_pool,
    "AveragePoolBackward": _average_pool_backward,
    "GlobalMaxPool": _global_max_pool,
    "GlobalMaxPoolBackward": _global_max_pool_backward,
    "GlobalAveragePool": _global_average_pool,
    "GlobalAveragePoolBackward": _global_average_pool_backward,
}
