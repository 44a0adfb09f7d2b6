"""Fits the coefficients of profiles/cpu.yaml: times planc's convolution kernels on this machine, one BLAS thread.

    OPENBLAS_NUM_THREADS=1 python tests/bench/calibrate_cpu.py

Prints the lines for the profile and the mean error of each fit. Takes about two minutes on an idle machine.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from planc.conv_algorithms import FAMILIES, ConvCall, conv_call
from planc.graph import Attrs, TensorSpec
from planc.runtime.kernels.convolution import convolve
from planc.runtime.launch import Array, Hyper, Launch

PEAK_FLOPS = 100e9
BANDWIDTH_BYTES_PER_S = 35e9
"""Both as in profiles/cpu.yaml: the efficiencies are shares of them."""

LAUNCHES = {"forward": "Conv", "backward-data": "ConvBackwardData", "backward-filter": "ConvBackwardFilter"}
REPEATS = 5

Parts = tuple[tuple[str, int], ...]
"""A configuration: (algorithm, samples) in order."""

SHAPES = (
    # samples, channels, edge, filters, taps, stride, pad, groups
    (4, 3, 112, 32, 7, 2, 3, 1),
    (4, 32, 28, 64, 5, 1, 2, 1),
    (8, 64, 28, 64, 3, 1, 1, 1),
    (4, 64, 56, 64, 3, 1, 1, 1),
    (4, 64, 56, 64, 1, 1, 0, 1),
    (8, 128, 28, 128, 3, 1, 1, 1),
    (8, 256, 14, 256, 3, 1, 1, 1),
    (8, 256, 14, 512, 1, 1, 0, 1),
    (8, 512, 7, 512, 3, 1, 1, 1),
    (4, 256, 28, 128, 1, 2, 0, 1),
    (8, 128, 28, 128, 3, 2, 1, 1),
    (4, 96, 28, 96, 3, 1, 1, 4),
    (8, 16, 55, 64, 1, 1, 0, 1),
    (8, 16, 55, 64, 3, 1, 1, 1),
    (16, 64, 13, 256, 3, 1, 1, 1),
    # many images with small maps, where the loops around the compiled code show, and a few images alone
    (64, 16, 16, 16, 3, 1, 1, 1),
    (64, 32, 8, 32, 3, 1, 1, 1),
    (64, 64, 4, 64, 3, 1, 1, 1),
    (64, 32, 14, 64, 5, 1, 2, 1),
    (64, 32, 16, 64, 1, 2, 0, 1),
    (32, 16, 32, 32, 3, 2, 1, 1),
    (1, 64, 28, 64, 3, 1, 1, 1),
    (2, 192, 13, 384, 3, 1, 1, 1),
    (1, 64, 27, 192, 5, 1, 2, 1),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: the shortest of `REPEATS` runs, in CPU time, which a busy machine disturbs least."""

    call: ConvCall
    algorithm: str
    ns: int


def measure() -> list[Row]:
    rows = []
    for shape, (call, op) in itertools.product(SHAPES, LAUNCHES.items()):
        launch, description = prepare(op, shape)
        for name, algorithm in FAMILIES["numpy"].items():
            if call in algorithm.calls and algorithm.supports(description):
                run = runner(launch, ((name, launch.batch),), algorithm.workspace_bytes(description))
                rows.append(Row(description, name, duration_ns(run)))
    return rows


def prepare(op: str, shape: tuple[int, ...]) -> tuple[Launch, ConvCall]:
    """The launch `op` on random arrays of a shape, and what costs call it."""
    n, c, edge, k, taps, stride, pad, groups = shape
    out = (edge + 2 * pad - taps) // stride + 1
    attrs: Attrs = {
        "strides": (stride, stride),
        "dilations": (1, 1),
        "pads": (pad, pad, pad, pad),
        "group": groups,
        "kernel_shape": (taps, taps),
    }
    shapes = {"x": (n, c, edge, edge), "w": (k, c // groups, taps, taps), "y": (n, k, out, out)}
    roles = {"Conv": "xwy", "ConvBackwardData": "ywx", "ConvBackwardFilter": "xyw"}[op]
    rng = np.random.default_rng(0)
    arrays: list[Array] = [rng.standard_normal(shapes[role], np.float32) for role in roles]
    specs = tuple(TensorSpec(shapes[role], "float32", 0 if role == "w" else 1) for role in roles)
    empty = np.empty(0, np.uint8)
    launch = Launch(op, attrs, (arrays[0], arrays[1]), (arrays[2],), empty, False, 0, n, ())
    return launch, conv_call(op, attrs, specs[:2], specs[2:])


def runner(launch: Launch, parts: Parts, workspace_bytes: int) -> Callable[[], None]:
    """Runs the launch by the configuration `parts`, with a workspace of that size."""
    whole = np.empty(workspace_bytes + 64, np.uint8)
    start = -whole.ctypes.data % 64
    ready = Launch(
        launch.op,
        launch.attrs,
        launch.inputs,
        launch.outputs,
        whole[start : start + workspace_bytes],
        launch.accumulate,
        launch.first_sample,
        launch.batch,
        parts,
    )
    return lambda: convolve(ready, Hyper(0, 1, 0.0))


def duration_ns(run: Callable[[], None]) -> int:
    run()
    times = []
    for _ in range(REPEATS):
        start = time.thread_time_ns()
        run()
        times.append(time.thread_time_ns() - start)
    return min(times)


def fit(rows: list[Row]) -> tuple[float, float, int, float]:
    """Efficiency, bandwidth share, overhead in ns a round, mean relative error: least squares of the relative error.

    Both shares stay between 0.02 and 1, and the overhead is not negative: of all choices of which of the three sit at
    a limit and which are free, the best that keeps the limits is taken.
    """
    family = FAMILIES["numpy"]
    seconds = np.array(
        [
            (
                family[row.algorithm].padded_flops(row.call) / PEAK_FLOPS * 1e9 / row.ns,
                family[row.algorithm].bytes(row.call) / BANDWIDTH_BYTES_PER_S * 1e9 / row.ns,
                1e3 * family[row.algorithm].rounds(row.call) / row.ns,
            )
            for row in rows
        ]
    )
    low, high = np.array([1.0, 1.0, 0.0]), np.array([50.0, 50.0, 1e5])
    best, smallest = low, np.inf
    for places in itertools.product(("low", "free", "high"), repeat=3):
        free = np.array([place == "free" for place in places])
        found = np.where(np.array(places) == "high", high, low)
        target = 1 - seconds[:, ~free] @ found[~free]
        found[free] = np.linalg.lstsq(seconds[:, free], target, rcond=None)[0]
        error = float(((seconds @ found - 1) ** 2).sum())
        if (found >= low).all() and (found <= high).all() and error < smallest:
            best, smallest = found, error
    mean_error = float(np.abs(seconds @ best - 1).mean())
    return round(1 / best[0], 3), round(1 / best[1], 3), round(best[2] * 1e3), mean_error


def main() -> None:
    rows = measure()
    for name, algorithm in FAMILIES["numpy"].items():
        print(f"  {name}:")
        for kind in algorithm.calls:
            fitted = [row for row in rows if row.algorithm == name and row.call.call == kind]
            efficiency, bandwidth, overhead, error = fit(fitted)
            source = f"fitted to {len(fitted)} shapes timed on one core of an AMD EPYC, mean error {100 * error:.0f} %"
            print(
                f"    {kind}: {{efficiency: {efficiency}, bandwidth: {bandwidth}, overhead_ns: {overhead:_}, "
                f'source: "{source}"}}'
            )
    for call in dict.fromkeys(row.call for row in rows):
        shape = f"n{call.n} c{call.c} {call.h}x{call.w} k{call.k} {call.r}x{call.s}/{call.stride_h} g{call.groups}"
        own = sorted((row.ns, row.algorithm) for row in rows if row.call == call)
        print(f"# {call.call:16} {shape:32}", ", ".join(f"{algorithm} {ns / 1e6:.1f} ms" for ns, algorithm in own))


if __name__ == "__main__":
    main()
