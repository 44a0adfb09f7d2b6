"""Convolution and its two gradients, by the algorithms and micro-batches of the plan; the sum of bias gradients."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

import numpy as np

from planc.errors import InternalError
from planc.runtime.kernels import conv_direct, conv_fft, conv_im2col, conv_shifted, conv_winograd
from planc.runtime.kernels.conv_problem import Algorithm, Floats, Problem, Workspace, launch_problem
from planc.runtime.launch import Hyper, Kernel, Launch

ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {
        "direct": {
            "Conv": conv_direct.forward,
            "ConvBackwardData": conv_direct.backward_data,
            "ConvBackwardFilter": conv_direct.backward_filter,
        },
        "im2col_gemm": {
            "Conv": conv_im2col.whole_forward,
            "ConvBackwardData": conv_im2col.whole_backward_data,
            "ConvBackwardFilter": conv_im2col.whole_backward_filter,
        },
        "im2col_gemm_sample": {
            "Conv": conv_im2col.sample_forward,
            "ConvBackwardData": conv_im2col.sample_backward_data,
            "ConvBackwardFilter": conv_im2col.sample_backward_filter,
        },
        "shifted_gemm": {
            "Conv": conv_shifted.forward,
            "ConvBackwardData": conv_shifted.backward_data,
            "ConvBackwardFilter": conv_shifted.backward_filter,
        },
        "winograd": {"Conv": conv_winograd.forward, "ConvBackwardData": conv_winograd.backward_data},
        "fft": {
            "Conv": conv_fft.forward,
            "ConvBackwardData": conv_fft.backward_data,
            "ConvBackwardFilter": conv_fft.backward_filter,
        },
    }
)
"""Algorithm -> launch -> what runs it. A name that is not here (a plan for a GPU, emulated) runs as `direct`."""

_BUFFER_ELEMENTS = 512
"""NumPy's iterators set a buffer aside for each operand, 64 KiB unless told otherwise, even where they copy nothing."""


def convolve(launch: Launch, hyper: Hyper) -> None:
    """Conv (x, w[, b]) -> y; ConvBackwardData (y's gradient, w) -> x's; ConvBackwardFilter (x, y's gradient) -> w's.

    The configuration's micro-batches run in order over the range; none at all means `direct`. Of a filter gradient
    the first micro-batch follows the launch, the later ones add to it.

    Raises:
        InternalError: the micro-batches do not cover the range, or an algorithm cannot do this shape or workspace.
    """
    problem = launch_problem(launch, launch.accumulate)
    with np.errstate():
        np.setbufsize(_BUFFER_ELEMENTS)
        for position, (name, part) in enumerate(_micro_batches(launch, problem)):
            run = ALGORITHMS.get(name, ALGORITHMS["direct"])[launch.op]
            run(problem.samples(part.start, part.stop, launch.accumulate or position > 0), Workspace(launch.workspace))
        if launch.op == "Conv" and len(launch.inputs) == 3:
            y = launch.outputs[0]
            np.add(y, launch.inputs[2].reshape(-1, *(1,) * (y.ndim - 2)), out=y)


def _micro_batches(launch: Launch, problem: Problem) -> list[tuple[str, slice]]:
    """Algorithms and the images of x that each takes (a sample may be several images)."""
    images = problem.x.shape[0]
    if len(launch.configuration) < 2:
        return [(name, slice(0, images)) for name, _ in launch.configuration or (("direct", 0),)]
    samples = sum(count for _, count in launch.configuration)
    if images % samples:
        raise InternalError(f"{launch.op}: {images} images, but micro-batches of {samples} samples")
    parts = []
    start = 0
    for name, count in launch.configuration:
        stop = start + count * images // samples
        parts.append((name, slice(start, stop)))
        start = stop
    return parts


def channel_sum(launch: Launch, hyper: Hyper) -> None:
    """Sum of (n, k, ...) over every axis but 1: (k,), sample by sample, so that nothing large is allocated."""
    gradients, total = cast(Floats, launch.inputs[0]), cast(Floats, launch.outputs[0])
    if not launch.accumulate:
        total[...] = 0
    for sample in gradients:
        total += np.add.reduce(sample.reshape(len(total), -1), axis=1)


KERNELS: dict[str, Kernel] = {
    "Conv": convolve,
    "ConvBackwardData": convolve,
    "ConvBackwardFilter": convolve,
    "ChannelSum": channel_sum,
}
"""The kernels of this family."""
