"""Matrix products. The BLAS behind NumPy reads transposed matrices where they lie, so no operand is ever copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.runtime.launch import Hyper, Kernel, Launch

Matrix = npt.NDArray[Any]

_TILE_BYTES = 96 * 1024
"""Largest temporary. NumPy takes up to 128 KiB itself to walk a strided tile; both together stay under 256 KiB."""


def _operands(launch: Launch) -> tuple[Matrix, Matrix]:
    """The two operands: vectors made a row (first) or a column (second), then transposed as the launch says."""
    a, b = launch.inputs[:2]
    if a.ndim == 1:
        a = a.reshape(1, -1)
    if b.ndim == 1:
        b = b.reshape(-1, 1)
    if launch.attrs.get("trans_a"):
        a = a.swapaxes(-1, -2)
    if launch.attrs.get("trans_b"):
        b = b.swapaxes(-1, -2)
    return a, b


def _factor(launch: Launch, name: str) -> float:
    return float(str(launch.attrs.get(name, "1")))


def _tiles(matrix: Matrix) -> Iterator[tuple[slice, slice]]:
    """Pieces of a matrix of at most `_TILE_BYTES`, not narrower than 192 columns: square ones suit BLAS best."""
    rows, columns = matrix.shape
    items = _TILE_BYTES // matrix.itemsize
    width = min(columns, max(192, items // max(rows, 1)))
    height = items // max(width, 1)
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            yield slice(row, row + height), slice(column, column + width)


def _scale(array: Matrix, factor: float) -> None:
    if factor != 1.0:
        np.multiply(array, factor, out=array)


def add_product(a: Matrix, b: Matrix, out: Matrix, factor: float, *, accumulate: bool) -> None:
    """out = or += factor a b. NumPy has no product that adds, so the addition goes tile by tile."""
    if not accumulate:
        np.matmul(a, b, out=out)
        _scale(out, factor)
        return
    for rows, columns in _tiles(out):
        piece = np.matmul(a[rows], b[:, columns])
        _scale(piece, factor)
        np.add(out[rows, columns], piece, out=out[rows, columns])


def _matmul(launch: Launch, hyper: Hyper) -> None:
    """MatMul(a, b) -> alpha a' b', leading axes broadcast."""
    a, b = _operands(launch)
    if b.ndim == 2 and a.ndim > 2 and not launch.attrs.get("trans_a"):
        a = a.reshape(-1, a.shape[-1])  # one product in place of one a leading index
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = launch.outputs[0].reshape(*leading, a.shape[-2], b.shape[-1])
    np.matmul(a, b, out=out)
    _scale(out, _factor(launch, "alpha"))


def _gemm(launch: Launch, hyper: Hyper) -> None:
    """Gemm(a, b[, c]) -> alpha a' b' + beta c."""
    _matmul(launch, hyper)
    if len(launch.inputs) < 3:
        return
    out: Matrix = launch.outputs[0]
    bias = np.broadcast_to(launch.inputs[2], out.shape)
    beta = _factor(launch, "beta")
    if beta == 1.0:
        np.add(out, bias, out=out)
        return
    for tile in _tiles(out):
        np.add(out[tile], np.multiply(bias[tile], beta), out=out[tile])


def _matmul_sum(launch: Launch, hyper: Hyper) -> None:
    """MatMulSum(a, b) -> alpha a' b' summed over the leading axes that the output lacks, and over samples."""
    a, b = _operands(launch)
    target: Matrix = launch.outputs[0]
    factor, rows, columns = _factor(launch, "alpha"), a.shape[-2], b.shape[-1]
    transposed_first = launch.attrs.get("trans_a") and not launch.attrs.get("trans_b")
    if transposed_first and target.size == rows * columns and a.shape[:-2] == b.shape[:-2]:
        # The sum over leading axes is part of one long inner product: the weight gradient of a layer on sequences.
        stored_a, stored_b = launch.inputs[0].reshape(-1, rows), launch.inputs[1].reshape(-1, columns)
        out = target.reshape(rows, columns)
        add_product(stored_a.T, stored_b, out, factor, accumulate=launch.accumulate)
        return
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    kept = target.shape[:-2] if target.ndim > 1 else ()
    kept = (1,) * (len(leading) - len(kept)) + kept
    target = target.reshape(*kept, rows, columns)
    a = np.broadcast_to(a, (*leading, *a.shape[-2:]))
    b = np.broadcast_to(b, (*leading, *b.shape[-2:]))
    for index in np.ndindex(leading):
        place = tuple(0 if size == 1 else i for i, size in zip(index, kept, strict=True))
        first_visit = all(i == 0 for i, size in zip(index, kept, strict=True) if size == 1)
        add = launch.accumulate or not first_visit
        add_product(a[index], b[index], target[place], factor, accumulate=add)


KERNELS: dict[str, Kernel] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MatMulSum": _matmul_sum,
}
