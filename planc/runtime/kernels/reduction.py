"""Kernels of the reductions (ops/reduction.py), and the walk that sums anything to a smaller shape.

Sums run tile by tile: NumPy adds pairwise inside a tile, and tiles are added in their order, so that a result is the
same every time and large sums of float32 keep their digits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planc.runtime.kernels.blocks import Floats, Parts, block_length, integer, operands, project, spare, tiles
from planc.runtime.launch import Hyper, Kernel, Launch

Compute = Callable[[Parts, Floats], Floats]
"""(operands of a tile as they broadcast, scratch of the tile's shape) -> values of the tile."""


def sum_of(compute: Compute, launch: Launch, divisor: int = 1) -> None:
    """Sum `compute` over the shape of the first input to the output's shape, which broadcasts to it.

    The output may have fewer axes. Under `accumulate` the sum, divided by `divisor`, is added to what is there.
    """
    shape, out = launch.inputs[0].shape, launch.outputs[0]
    out = out.reshape((1,) * (len(shape) - out.ndim) + out.shape)
    reduced = tuple(axis for axis, (have, want) in enumerate(zip(shape, out.shape, strict=True)) if have != want)
    length = block_length(out.dtype)
    scratch = spare(launch.inputs[0], length)
    if not launch.accumulate:
        out.fill(0)
    for index in tiles(shape, length):
        parts = operands(launch.inputs, index)
        room = scratch[: parts[0].size].reshape(parts[0].shape)
        partial = np.sum(compute(parts, room), axis=reduced, keepdims=True)
        if divisor != 1:
            np.divide(partial, divisor, out=partial)
        place = out[project(index, out.shape)]
        np.add(place, partial, out=place)


def summed(compute: Compute) -> Kernel:
    """The kernel that sums `compute` to its output's shape."""

    def kernel(launch: Launch, hyper: Hyper) -> None:
        sum_of(compute, launch)

    return kernel


def _itself(parts: Parts, scratch: Floats) -> Floats:
    return parts[0]


def _mean_to(launch: Launch, hyper: Hyper) -> None:
    sum_of(_itself, launch, integer(launch.attrs, "count"))


def _expand(launch: Launch, hyper: Hyper) -> None:
    (x,), (y,) = launch.inputs, launch.outputs
    count = integer(launch.attrs, "count")
    if count == 1:
        np.copyto(y, x)
    else:
        np.divide(x, count, out=y)


KERNELS: dict[str, Kernel] = {
    "Expand": _expand,
    "MeanTo": _mean_to,
    "SumTo": summed(_itself),
}
