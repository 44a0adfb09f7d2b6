"""Kernels of the losses between elements (ops/final_loss.py).

They add up in float64 whatever the type of the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.runtime.kernels.blocks import blocks, number
from planc.runtime.kernels.loss import add_number
from planc.runtime.launch import Hyper, Kernel, Launch

Values = npt.NDArray[Any]
Terms = Callable[[Values, Values, Values, Values, float], None]
"""(scores, targets, out, scratch, beta): write what each element adds to the sum."""
Slopes = Callable[[Values, Values, Values, float], None]
"""(scores, targets, out, beta): write the derivatives of the terms; out may be the scores."""


def _loss(terms: Terms) -> Kernel:
    """(x, t) -> sum of the terms, scale / divisor."""

    def kernel(launch: Launch, hyper: Hyper) -> None:
        beta, total = number(launch.attrs, "beta", 1), 0.0
        # The last array gives scratch its type: the scores.
        for target, scores, out, spare in blocks(launch.inputs[1], launch.inputs[0], scratch=2):
            terms(scores, target, out, spare, beta)
            total += float(out.sum(dtype=np.float64))
        add_number(launch, total, number(launch.attrs, "divisor") / number(launch.attrs, "scale", 1))

    return kernel


def _backward(slopes: Slopes) -> Kernel:
    """(x, t) -> the slopes, scale / divisor."""

    def kernel(launch: Launch, hyper: Hyper) -> None:
        beta = number(launch.attrs, "beta", 1)
        factor = number(launch.attrs, "scale", 1) / number(launch.attrs, "divisor")
        for scores, target, out in blocks(*launch.inputs, launch.outputs[0]):
            slopes(scores, target, out, beta)
            np.multiply(out, factor, out=out)

    return kernel


def _squares(x: Values, t: Values, out: Values, spare: Values, beta: float) -> None:
    np.subtract(x, t, out=out)
    np.multiply(out, out, out=out)


def _squares_slope(x: Values, t: Values, out: Values, beta: float) -> None:
    np.subtract(x, t, out=out)
    np.multiply(out, 2, out=out)


def _distances(x: Values, t: Values, out: Values, spare: Values, beta: float) -> None:
    np.subtract(x, t, out=out)
    np.abs(out, out=out)


def _distances_slope(x: Values, t: Values, out: Values, beta: float) -> None:
    """0 where there is no distance, as PyTorch has it."""
    np.subtract(x, t, out=out)
    np.sign(out, out=out)


def _smooth(x: Values, t: Values, out: Values, spare: Values, beta: float) -> None:
    """With near = min(distance, beta) both branches are near (distance - near / 2) / beta."""
    _distances(x, t, out, spare, beta)
    near = np.minimum(out, beta, out=spare)
    np.multiply(out, near, out=out)
    np.multiply(near, near, out=near)
    np.multiply(near, 0.5, out=near)
    np.subtract(out, near, out=out)
    np.divide(out, beta, out=out)


def _smooth_slope(x: Values, t: Values, out: Values, beta: float) -> None:
    np.subtract(x, t, out=out)
    np.divide(out, beta, out=out)
    np.clip(out, -1, 1, out=out)


def _binary(x: Values, t: Values, out: Values, spare: Values, beta: float) -> None:
    """max(x, 0) - x t + log(1 + exp(-|x|)): no exponential of it overflows."""
    np.abs(x, out=spare)
    np.negative(spare, out=spare)
    np.exp(spare, out=spare)
    np.log1p(spare, out=spare)
    np.multiply(x, t, out=out)
    np.subtract(spare, out, out=spare)
    np.maximum(x, 0, out=out)
    np.add(out, spare, out=out)


def _binary_slope(x: Values, t: Values, out: Values, beta: float) -> None:
    """sigmoid(x) - t, the sigmoid as (1 + tanh(x / 2)) / 2, which does not overflow."""
    np.multiply(x, 0.5, out=out)
    np.tanh(out, out=out)
    np.add(out, 1, out=out)
    np.multiply(out, 0.5, out=out)
    np.subtract(out, t, out=out)


def _fill(launch: Launch, hyper: Hyper) -> None:
    """The constant `value` everywhere: the gradient of a loss with respect to itself."""
    launch.outputs[0].fill(number(launch.attrs, "value"))


KERNELS: dict[str, Kernel] = {
    "Fill": _fill,
    "MeanSquaredError": _loss(_squares),
    "MeanSquaredErrorBackward": _backward(_squares_slope),
    "MeanAbsoluteError": _loss(_distances),
    "MeanAbsoluteErrorBackward": _backward(_distances_slope),
    "SmoothL1": _loss(_smooth),
    "SmoothL1Backward": _backward(_smooth_slope),
    "BinaryCrossEntropy": _loss(_binary),
    "BinaryCrossEntropyBackward": _backward(_binary_slope),
}
