"""`winograd`: F(2x2, 3x3), 16 products for the 36 of the definition. Stride 1, dilation 1, groups 1.

A 4x4 tile d of the padded image gives a 2x2 tile of the output, A'[(G g G') * (B' d B)]A, where * is element by
element and, summed over channels, a matrix product for each of the 16 positions.
Source: Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, section 4.1.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from planc.runtime.kernels.conv_columns import span
from planc.runtime.kernels.conv_problem import Floats, Problem, Workspace

TILES: Final = 512
"""Tiles that make a product efficient: samples with smaller maps are taken together up to this many."""

_G: Final = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])


def forward(p: Problem, workspace: Workspace) -> None:
    """y = w * x."""
    _check(p, True)
    filters = _filters(p, workspace, np.kron(_G, _G))
    _correlate(workspace, p.x, filters, p.y, p.pad)


def backward_data(p: Problem, workspace: Workspace) -> None:
    """x = the gradient of x: y correlated with the filter turned by half a turn, its channels exchanged."""
    _check(p, max(p.pad) <= 2)
    filters = _filters(p, workspace, np.kron(_G, _G)[:, ::-1])
    _correlate(workspace, p.y, filters.swapaxes(1, 2), p.x, (2 - p.pad[0], 2 - p.pad[1]))


def _check(p: Problem, pads_fit: bool) -> None:
    p.require(
        p.w.shape[2:] == (3, 3) and (p.stride, p.dilation, p.groups) == ((1, 1), (1, 1), 1) and pads_fit,
        "winograd",
        "a 3x3 filter, stride 1, dilation 1, groups 1, and backward-data a padding of at most 2",
    )


def _filters(p: Problem, workspace: Workspace, transform: npt.NDArray[np.float64]) -> Floats:
    """G g G' of every filter: (16, k, c). One product with the Kronecker square of G."""
    k, c = p.w.shape[:2]
    filters: Floats = workspace.take((16, k, c), p.w.dtype)
    matrix = np.ascontiguousarray(transform, p.w.dtype)
    np.matmul(matrix, p.w.reshape(k * c, 9).T, out=filters.reshape(16, k * c))
    return filters


def _correlate(workspace: Workspace, images: Floats, filters: Floats, outputs: Floats, pad: tuple[int, int]) -> None:
    """outputs = images correlated with filters (16, output channels, input channels)."""
    high, wide = (-(-size // 2) for size in outputs.shape[2:])
    samples, c = images.shape[:2]
    k = outputs.shape[1]
    block = min(samples, max(1, TILES // (high * wide)))
    phases = workspace.take((4 * c * block * (high + 1) * (wide + 1),), images.dtype)
    rows = workspace.take((2 * c * block * high * (wide + 1),), images.dtype)
    points = workspace.take((16 * c * block * high * wide,), images.dtype)
    products = workspace.take((16 * k * block * high * wide,), images.dtype)
    for start in range(0, samples, block):
        image = images[start : start + block].swapaxes(0, 1)
        some = image.shape[1]
        phase = _cut(phases, (2, 2, c, some, high + 1, wide + 1))
        row = _cut(rows, (2, c, some, high, wide + 1))
        point = _cut(points, (4, 4, c, some, high, wide))
        product = _cut(products, (4, 4, k, some, high, wide))
        _split_phases(image, phase, pad)
        _transform_input(phase, row, point)
        tiles = some * high * wide
        np.matmul(filters, point.reshape(16, c, tiles), out=product.reshape(16, k, tiles))
        _transform_output(product, outputs[start : start + block].swapaxes(0, 1))


def _cut(memory: Floats, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The first elements of flat memory as an array of `shape`."""
    return memory[: int(np.prod(shape))].reshape(shape)


def _split_phases(image: Floats, phase: Floats, pad: tuple[int, int]) -> None:
    """phase[a, b, ..., u, v] = the padded image at (2u + a, 2v + b): later steps then read whole rows."""
    (h, w), (high, wide) = image.shape[2:], phase.shape[4:]
    for a in (0, 1):
        top, bottom, y = span(h, 0, high, 2, a - pad[0])
        for b in (0, 1):
            left, right, x = span(w, 0, wide, 2, b - pad[1])
            target = phase[a, b]
            target[..., :top, :] = 0
            target[..., bottom:, :] = 0
            target[..., top:bottom, :left] = 0
            target[..., top:bottom, right:] = 0
            last_y, last_x = y + 2 * (bottom - top), x + 2 * (right - left)
            target[..., top:bottom, left:right] = image[..., y:last_y:2, x:last_x:2]


def _transform_input(phase: Floats, row: Floats, point: Floats) -> None:
    """point = B' d B of every tile d, first along the height, then along the width."""
    for position, (op, first, second) in enumerate(_COMBINED):
        for b in (0, 1):
            op(_at(phase[:, b], first, -2), _at(phase[:, b], second, -2), out=row[b])
        for across, (also, left, right) in enumerate(_COMBINED):
            also(_at(row, left, -1), _at(row, right, -1), out=point[position, across])


_COMBINED: Final = ((np.subtract, 0, 2), (np.add, 1, 2), (np.subtract, 2, 1), (np.subtract, 1, 3))
"""B' d: the operation and the two of a tile's four rows (or columns) that make each of its four results."""


def _at(phases: Floats, index: int, axis: int) -> Floats:
    """Row (axis -2) or column (-1) `index` (0 to 3) of every tile, from the two phases (even, odd) in axis 0."""
    part: Floats = phases[index % 2]
    tiles = slice(index // 2, index // 2 + part.shape[axis] - 1)
    return part[..., tiles] if axis == -1 else part[..., tiles, :]


def _transform_output(product: Floats, output: Floats) -> None:
    """output = A' m A of every tile m, in place in `product`, and the tiles side by side."""
    product[0] += product[1]
    product[0] += product[2]
    product[1] -= product[2]
    product[1] -= product[3]
    for a in (0, 1):
        half = product[a]
        half[0] += half[1]
        half[0] += half[2]
        half[1] -= half[2]
        half[1] -= half[3]
        for b in (0, 1):
            target = output[..., a::2, b::2]
            target[...] = half[b][..., : target.shape[-2], : target.shape[-1]]
