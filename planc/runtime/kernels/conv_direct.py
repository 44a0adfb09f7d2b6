"""`direct`: no workspace. A tile of the output at a time, its columns in small scratch on the heap.

The column matrix of a tile is cut along the pixels of the map and along the depth (channels times taps) so that it
stays in a core's cache. Grouped convolutions put several groups into one tile; where a group is a single channel
(depthwise) there is no product to make, and each tap is a multiplication and an addition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planc.runtime.kernels import conv_depthwise
from planc.runtime.kernels.conv_columns import Tile, gather, scatter, tiles
from planc.runtime.kernels.conv_problem import Floats, Problem, Workspace, put_product, scratch


@dataclass(frozen=True, slots=True)
class _Slab:
    """Groups [first, last) at a depth of channels [low, high) of each group and `taps`; in w the depth [start, stop).

    Depth is one run of w: several groups or channels only with all taps.
    """

    first: int
    last: int
    low: int
    high: int
    taps: range
    start: int
    stop: int

    def image(self, p: Problem, sample: int) -> Floats:
        """x of the slab: (groups, channels, h, w)."""
        x: Floats = p.x[sample].reshape(p.groups, -1, *p.x.shape[2:])
        return x[self.first : self.last, self.low : self.high]

    def columns(self, room: Floats, tile: Tile) -> tuple[Floats, Floats]:
        """The same scratch as (taps, groups, channels, rows, columns) and as (groups, depth, pixels)."""
        groups, channels, pixels = self.last - self.first, self.high - self.low, tile.stop - tile.start
        flat = room[: groups * channels * len(self.taps) * pixels]
        by_tap = flat.reshape(groups, channels, len(self.taps), *tile.shape).transpose(2, 0, 1, 3, 4)
        return by_tap, flat.reshape(groups, channels * len(self.taps), pixels)


def _slabs(p: Problem, depth: int, groups: int) -> Iterator[_Slab]:
    """Slabs of at most `depth` each: `groups` whole groups together, or parts of one group."""
    channels, taps = p.w.shape[1], p.taps
    if depth >= p.depth:
        for first in range(0, p.groups, groups):
            yield _Slab(first, min(p.groups, first + groups), 0, channels, range(taps), 0, p.depth)
        return
    together = max(1, depth // taps)
    part = taps if depth >= taps else max(1, depth)
    for group in range(p.groups):
        for low in range(0, channels, together):
            high = min(channels, low + together)
            for tap in range(0, taps, part):
                some = range(tap, min(taps, tap + part))
                start = low * taps + tap
                yield _Slab(group, group + 1, low, high, some, start, start + (high - low - 1) * taps + len(some))


@dataclass(frozen=True, slots=True)
class _Cut:
    """How large the columns of a tile are: pixels, depth, groups together."""

    pixels: int
    depth: int
    groups: int


def _cut(p: Problem, room: int, wide: int, staged: bool) -> _Cut:
    """Columns of at most `room` elements: all the depth if that leaves `wide` pixels, else `wide` pixels, less depth.

    With less depth a product is added to what is there; if it is `staged` for that, a third of the room stays free.
    """
    pixels = min(p.pixels, max(room // p.depth, 1))
    if pixels >= min(p.pixels, wide):
        return _Cut(pixels, p.depth, room // (p.depth * pixels))
    pixels = min(p.pixels, wide)
    return _Cut(pixels, (room * 2 // 3 if staged else room) // pixels, 1)


def _long_cut(p: Problem, room: int, long: int) -> _Cut:
    """Columns of at most `room` elements, `long` pixels if the map has them: the more, the fewer sums to add."""
    pixels = min(p.pixels, long)
    depth = min(p.depth, room // pixels)
    return _Cut(pixels, depth, max(1, room // (depth * pixels)))


def forward(p: Problem, _: Workspace) -> None:
    """y = w * x."""
    filters = p.filter_matrices()
    y = p.y.reshape(-1, p.groups, filters.shape[1], p.pixels)
    if p.pointwise:
        np.matmul(filters, p.x.reshape(-1, p.groups, p.depth, p.pixels), out=y)
        return
    if conv_depthwise.fits(p):
        conv_depthwise.forward(p)
        return
    room = scratch(p.x.dtype)
    cut = _cut(p, room.size, 48, staged=True)
    for sample in range(p.x.shape[0]):
        for tile in tiles(p.y.shape[2], p.y.shape[3], cut.pixels):
            for slab in _slabs(p, cut.depth, cut.groups):
                by_tap, columns = slab.columns(room, tile)
                gather(p, slab.image(p, sample), by_tap, tile, slab.taps)
                target = y[sample, slab.first : slab.last, :, tile.start : tile.stop]
                matrix = filters[slab.first : slab.last, :, slab.start : slab.stop]
                put_product(matrix, columns, target, slab.start > 0, room[columns.size :])


def backward_data(p: Problem, _: Workspace) -> None:
    """x = the gradient of x."""
    filters = p.filter_matrices()
    y = p.y.reshape(-1, p.groups, filters.shape[1], p.pixels)
    if p.pointwise:
        np.matmul(filters.swapaxes(1, 2), y, out=p.x.reshape(-1, p.groups, p.depth, p.pixels))
        return
    if conv_depthwise.fits(p):
        conv_depthwise.backward_data(p)
        return
    room = scratch(p.x.dtype)
    cut = _cut(p, room.size, 96, staged=False)
    p.x[...] = 0
    for sample in range(p.x.shape[0]):
        for tile in tiles(p.y.shape[2], p.y.shape[3], cut.pixels):
            for slab in _slabs(p, cut.depth, cut.groups):
                by_tap, columns = slab.columns(room, tile)
                matrix = filters[slab.first : slab.last, :, slab.start : slab.stop]
                gradients = y[sample, slab.first : slab.last, :, tile.start : tile.stop]
                np.matmul(matrix.swapaxes(1, 2), gradients, out=columns)
                scatter(p, by_tap, slab.image(p, sample), tile, slab.taps)


def backward_filter(p: Problem, _: Workspace) -> None:
    """w = the gradient of w, or w += it."""
    filters = p.filter_matrices()
    y = p.y.reshape(-1, p.groups, filters.shape[1], p.pixels)
    if p.pointwise:
        x = p.x.reshape(-1, p.groups, p.depth, p.pixels)
        for sample in range(p.x.shape[0]):
            put_product(y[sample], x[sample].swapaxes(1, 2), filters, p.accumulate or sample > 0)
        return
    if not p.accumulate:
        p.w[...] = 0
    if conv_depthwise.fits(p):
        conv_depthwise.backward_filter(p)
        return
    room = scratch(p.x.dtype)
    cut = _long_cut(p, room.size * 2 // 3, 512)
    for sample in range(p.x.shape[0]):
        for tile in tiles(p.y.shape[2], p.y.shape[3], cut.pixels):
            for slab in _slabs(p, cut.depth, cut.groups):
                by_tap, columns = slab.columns(room, tile)
                gather(p, slab.image(p, sample), by_tap, tile, slab.taps)
                gradients = y[sample, slab.first : slab.last, :, tile.start : tile.stop]
                target = filters[slab.first : slab.last, :, slab.start : slab.stop]
                put_product(gradients, columns.swapaxes(1, 2), target, True, room[columns.size :])
