"""Columns: an image rearranged so that a convolution becomes a matrix product (im2col), and the way back (col2im)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planc.runtime.kernels.conv_problem import Floats, Problem


@dataclass(frozen=True, slots=True)
class Tile:
    """Output rows [top, bottom) and columns [left, right): one run of pixels [start, stop) of the output map.

    To be one run, a tile is either whole rows or a part of a single row.
    """

    top: int
    bottom: int
    left: int
    right: int
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.bottom - self.top, self.right - self.left


def tiles(height: int, width: int, pixels: int) -> Iterator[Tile]:
    """Tiles of at most about `pixels` (at least one) pixels that cover a map, of nearly equal size."""
    if pixels >= width:
        rows = -(-height // -(-height // (pixels // width)))
        for top in range(0, height, rows):
            bottom = min(height, top + rows)
            yield Tile(top, bottom, 0, width, top * width, bottom * width)
        return
    part = -(-width // -(-width // max(1, pixels)))
    for top in range(height):
        for left in range(0, width, part):
            right = min(width, left + part)
            yield Tile(top, top + 1, left, right, top * width + left, top * width + right)


def span(size: int, low: int, high: int, stride: int, offset: int) -> tuple[int, int, int]:
    """Outputs [first, last) of [low, high), counted from `low`, whose input `output * stride + offset` exists.

    Third comes the input of the first one.
    """
    first = max(low, -(offset // stride))
    last = min(high, (size - 1 - offset) // stride + 1)
    if last <= first:
        return 0, 0, 0
    return first - low, last - low, first * stride + offset


def windows(p: Problem, tile: Tile, taps: range) -> Iterator[tuple[int, tuple[slice, slice], tuple[slice, slice]]]:
    """For each tap: its place in `taps`, the part of the tile that has inputs, and those inputs (rows, columns)."""
    (h, w), s = p.x.shape[2:], p.w.shape[3]
    rows = {
        i: span(h, tile.top, tile.bottom, p.stride[0], i * p.dilation[0] - p.pad[0])
        for i in range(taps.start // s, -(-taps.stop // s))
    }
    columns = [span(w, tile.left, tile.right, p.stride[1], j * p.dilation[1] - p.pad[1]) for j in range(s)]
    for place, tap in enumerate(taps):
        (a, b, y), (c, d, x) = rows[tap // s], columns[tap % s]
        inputs = (
            slice(y, y + (b - a - 1) * p.stride[0] + 1 if b > a else y, p.stride[0]),
            slice(x, x + (d - c - 1) * p.stride[1] + 1 if d > c else x, p.stride[1]),
        )
        yield place, (slice(a, b), slice(c, d)), inputs


def gather(p: Problem, image: Floats, columns: Floats, tile: Tile, taps: range) -> None:
    """columns[tap, ...] = what the tap meets in the image, 0 outside it.

    Args:
        image: (..., h, w).
        columns: (taps, ..., rows of the tile, columns of the tile), any strides.
    """
    for place, (rows, cols), (inputs, across) in windows(p, tile, taps):
        target = columns[place]
        if rows.start:
            target[..., : rows.start, :] = 0
        if rows.stop < target.shape[-2]:
            target[..., rows.stop :, :] = 0
        if cols.start:
            target[..., rows, : cols.start] = 0
        if cols.stop < target.shape[-1]:
            target[..., rows, cols.stop :] = 0
        target[..., rows, cols] = image[..., inputs, across]


def scatter(p: Problem, columns: Floats, image: Floats, tile: Tile, taps: range) -> None:
    """image += columns, each element where `gather` would have read it."""
    for place, (rows, cols), (inputs, across) in windows(p, tile, taps):
        image[..., inputs, across] += columns[place][..., rows, cols]


def whole_map(p: Problem) -> Tile:
    """The tile that is the whole output map."""
    oh, ow = p.y.shape[2:]
    return Tile(0, oh, 0, ow, 0, oh * ow)
