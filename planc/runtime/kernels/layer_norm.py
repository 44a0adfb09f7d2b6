"""Kernels of the normalizations of each sample by itself (ops/layer_norm.py).

An array is walked row by row: as many whole rows as fit a tile, or tiles of one long row. Sums over a row are taken
pairwise inside a tile and in float64 across tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.runtime.kernels.blocks import Floats, Index, Parts, block_length, integer, number, operands, spare, tiles
from planc.runtime.kernels.reduction import sum_of
from planc.runtime.launch import Array, Hyper, Kernel, Launch

Sums = npt.NDArray[np.float64]

_ROWS = 2048
"""Most rows of a tile: each takes a few float64 sums."""


def _row_tiles(shape: tuple[int, ...], axis: int, length: int) -> Iterator[tuple[Index, tuple[Index, ...]]]:
    """(indices of some whole rows, the tiles that cover them); a tile has at most `length` elements."""
    inner = prod(shape[axis:])
    for rows in tiles(shape[:axis], min(_ROWS, max(1, length // max(inner, 1)))):
        yield rows, tuple(rows + columns for columns in tiles(shape[axis:], length))


def _row_sums(tile: Any, rows: int) -> Sums:
    """Sum of each of the `rows` rows, or parts of a row, that a contiguous tile has."""
    return np.asarray(np.add.reduce(tile.reshape(rows, -1), axis=1), np.float64)


def _room(scratch: Floats, like: Array) -> Floats:
    return scratch[: like.size].reshape(like.shape)


def _row_statistics(launch: Launch, hyper: Hyper) -> None:
    """RowStatistics(x) -> [mean,] 1 / sqrt(variance or mean square + epsilon), in two passes, the mean's rounding taken
    back (Chan, Golub, LeVeque, The American Statistician 1983, (1.7))."""
    (x,), axis, epsilon = launch.inputs, integer(launch.attrs, "axis"), number(launch.attrs, "epsilon")
    *means, inverse = launch.outputs
    length = prod(x.shape[axis:])
    scratch = spare(x, block_length(x.dtype))
    for rows, parts in _row_tiles(x.shape, axis, scratch.size):
        place = inverse[rows]
        count = place.size
        rest, squares = np.zeros(count), np.zeros(count)
        for mean in means:
            total = np.add.reduce([_row_sums(x[index], count) for index in parts], axis=0)
            mean[rows] = (total / length).reshape(place.shape)
        for index in parts:
            values = _room(scratch, x[index])
            if means:
                np.subtract(x[index], means[0][rows], out=values)
                rest += _row_sums(values, count)
                np.multiply(values, values, out=values)
            else:
                np.multiply(x[index], x[index], out=values)
            squares += _row_sums(values, count)
        np.subtract(squares, rest * rest / length, out=squares)
        place[...] = (1 / np.sqrt(squares / length + epsilon)).reshape(place.shape)


def _normalise(x: Any, stat: Sequence[Any], out: Any) -> None:
    """out = (x - mean) inverse, or x inverse where there is no mean; out may be x."""
    *mean, inverse = stat
    if mean:
        x = np.subtract(x, mean[0], out=out)
    np.multiply(x, inverse, out=out)


def _row_normalize(launch: Launch, hyper: Hyper) -> None:
    """RowNormalize(x, *stat, scale[, bias]) -> y; y may be x."""
    y: Any = launch.outputs[0]
    after_stat = 2 + integer(launch.attrs, "centred")
    for index in tiles(y.shape, block_length(y.dtype)):
        x, *stat = operands(launch.inputs[:after_stat], index)
        scale, *bias = operands(launch.inputs[after_stat:], index)
        out = y[index]
        _normalise(x, stat, out)
        np.multiply(out, scale, out=out)
        if bias:
            np.add(out, bias[0], out=out)


def _row_normalize_backward(launch: Launch, hyper: Hyper) -> None:
    """RowNormalizeBackward(dy, x, *stat, scale) -> dx; dx may be dy or x."""
    dx: Any = launch.outputs[0]
    dy, x, *stat, scale = launch.inputs
    axis, centred = integer(launch.attrs, "axis"), integer(launch.attrs, "centred")
    length = prod(x.shape[axis:])
    normal, slope = (spare(dx, block_length(dx.dtype)) for _ in range(2))

    def at(index: Index) -> Parts:
        """(n, g) of a tile."""
        n, g = _room(normal, dx[index]), _room(slope, dx[index])
        _normalise(x[index], operands(stat, index), n)
        np.multiply(dy[index], operands((scale,), index)[0], out=g)
        return n, g

    for rows, parts in _row_tiles(x.shape, axis, normal.size):
        inverse: Any = stat[-1][rows]
        level, tilt = np.zeros(inverse.size), np.zeros(inverse.size)
        for index in parts:
            n, g = at(index)
            if centred:
                level += _row_sums(g, level.size)
            np.multiply(n, g, out=n)
            tilt += _row_sums(n, tilt.size)
        means = [(total / length).astype(dx.dtype).reshape(inverse.shape) for total in (level, tilt)]
        for index in parts:
            n, g = at(index)
            np.multiply(n, means[1], out=n)
            np.subtract(g, n, out=g)
            np.subtract(g, means[0], out=g)
            np.multiply(g, inverse, out=dx[index])


def _row_scale_sum_to(launch: Launch, hyper: Hyper) -> None:
    """RowScaleSumTo(dy, x, *stat) -> sum of dy n to the scale's shape."""

    def product(parts: Parts, scratch: Floats) -> Floats:
        dy, x, *stat = parts
        _normalise(x, stat, scratch)
        np.multiply(scratch, dy, out=scratch)
        return scratch

    sum_of(product, launch)


KERNELS: dict[str, Kernel] = {
    "RowStatistics": _row_statistics,
    "RowNormalize": _row_normalize,
    "RowNormalizeBackward": _row_normalize_backward,
    "RowScaleSumTo": _row_scale_sum_to,
}
