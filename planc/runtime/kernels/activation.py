"""Kernels of the activations and functions of a number (ops/activation.py). As in elementwise.py, a block of the
output is written last, so that it may lie in the memory of any input.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from planc.runtime.kernels.blocks import Floats, blocks, number
from planc.runtime.launch import Hyper, Kernel, Launch

_ERF_NEAR = (
    1.1283791670955126, -0.37612638903183543, 0.1128379167094513, -0.026866170643256995, 0.005223977607269946,
    -0.0008548325982543225, 0.00012055295112667001, -1.4924740785377576e-05, 1.6447471190594618e-06,
    -1.6208829856810202e-07, 1.3721520406351094e-08, -7.798543850549947e-10,
)  # fmt: skip
"""erf(x) / x on [0, 1], in powers of x^2."""

_ERF_FAR = (
    0.17900115118138996, -0.3262335600430372, 0.24560380171233484, -0.15011593650077798, 0.07166583719747689,
    -0.02439249931897869, 0.004269136356764373, 0.0007077464683795443, -0.0005970624913315528, 4.5254324753444315e-05,
    6.406272093668428e-05, -1.2845673357286076e-05, -8.00928960121368e-06, 2.0134932881269957e-06,
    1.2742568627764978e-06, 2.2748538034632206e-09,
)  # fmt: skip
"""exp(x^2) (1 - erf(x)) on [1, 6], in powers of (x - 3) / (x + 3)."""

_ERF_PIECE = 2048
_SQRT2 = math.sqrt(2.0)
_GELU_SCALE, _GELU_CUBE = math.sqrt(2.0 / math.pi), 0.044715


def erf(x: Floats, out: Floats) -> None:
    """The error function of the flat `x`, in float64 whatever its type; `out` may be `x`.

    Two Chebyshev series, cut at degrees 11 in x^2 and 15 and written as polynomials, the second in the variable that
    Schonfelder proposes ("Chebyshev expansions for the error and related functions", Math. Comp. 32, 1978).
    Coefficients computed in 50 digits for planc. Relative error at most 2 units in the last place.
    """
    for start in range(0, x.size, _ERF_PIECE):
        part = x[start : start + _ERF_PIECE].astype(np.float64)
        size = np.absolute(part)
        near, far = size < 1, size >= 1
        values = size[near]
        size[near] = values * _polynomial(_ERF_NEAR, values * values)
        values = np.minimum(size[far], 6)  # beyond 6, erf is 1 to within rounding
        size[far] = 1 - np.exp(-values * values) * _polynomial(_ERF_FAR, (values - 3) / (values + 3))
        out[start : start + _ERF_PIECE] = np.copysign(size, part)


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    """Horner's rule; the coefficient of degree 0 comes first."""
    result = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        np.multiply(result, x, out=result)
        np.add(result, coefficient, out=result)
    return result


def _ufunc(function: np.ufunc) -> Kernel:
    @np.errstate(invalid="ignore")
    def kernel(launch: Launch, hyper: Hyper) -> None:
        function(launch.inputs[0], out=launch.outputs[0])

    return kernel


def _forward(compute: Callable[[Floats, Floats], None]) -> Kernel:
    """The kernel that computes y, given (x, scratch), into the scratch."""

    @np.errstate(over="ignore", invalid="ignore")
    def kernel(launch: Launch, hyper: Hyper) -> None:
        for x, y, scratch in blocks(*launch.inputs, *launch.outputs, scratch=1):
            compute(x, scratch)
            np.copyto(y, scratch)

    return kernel


def _backward(slope: Callable[[Floats, Floats], None]) -> Kernel:
    """The kernel that multiplies dy by a slope, computed from (x, scratch) into the scratch."""

    @np.errstate(over="ignore", invalid="ignore")
    def kernel(launch: Launch, hyper: Hyper) -> None:
        for dy, x, dx, scratch in blocks(*launch.inputs, *launch.outputs, scratch=1):
            slope(x, scratch)
            np.multiply(dy, scratch, out=dx)

    return kernel


def _abs_slope(x: Floats, slope: Floats) -> None:
    np.sign(x, out=slope)


def _cos_slope(x: Floats, slope: Floats) -> None:
    np.sin(x, out=slope)
    np.negative(slope, out=slope)


def _sin_slope(x: Floats, slope: Floats) -> None:
    np.cos(x, out=slope)


def _erf_slope(x: Floats, slope: Floats) -> None:
    """2 / sqrt(pi) exp(-x^2)."""
    np.multiply(x, x, out=slope)
    np.negative(slope, out=slope)
    np.exp(slope, out=slope)
    np.multiply(slope, 2 / math.sqrt(math.pi), out=slope)


def _softsign(x: Floats, y: Floats) -> None:
    np.absolute(x, out=y)
    np.add(y, 1, out=y)
    np.divide(x, y, out=y)


def _softsign_slope(x: Floats, slope: Floats) -> None:
    """1 / (1 + |x|)^2."""
    np.absolute(x, out=slope)
    np.add(slope, 1, out=slope)
    np.reciprocal(slope, out=slope)
    np.multiply(slope, slope, out=slope)


# Gelu: x times the normal distribution function of x, or its approximation by tanh


def _gelu_cdf(x: Floats, cdf: Floats) -> None:
    """(1 + erf(x / sqrt 2)) / 2."""
    np.divide(x, _SQRT2, out=cdf)
    erf(cdf, cdf)
    np.add(cdf, 1, out=cdf)
    np.multiply(cdf, 0.5, out=cdf)


def _gelu_tanh(x: Floats, t: Floats) -> None:
    """tanh(sqrt(2 / pi) (x + 0.044715 x^3))."""
    np.multiply(x, x, out=t)
    np.multiply(t, _GELU_CUBE, out=t)
    np.add(t, 1, out=t)
    np.multiply(t, x, out=t)
    np.multiply(t, _GELU_SCALE, out=t)
    np.tanh(t, out=t)


@np.errstate(over="ignore")
def _gelu(launch: Launch, hyper: Hyper) -> None:
    exact = launch.attrs["approximate"] == "none"
    for x, y, gate in blocks(*launch.inputs, *launch.outputs, scratch=1):
        if exact:
            _gelu_cdf(x, gate)
        else:
            _gelu_tanh(x, gate)
            np.add(gate, 1, out=gate)
            np.multiply(gate, 0.5, out=gate)
        np.multiply(x, gate, out=y)


@np.errstate(over="ignore")
def _gelu_backward(launch: Launch, hyper: Hyper) -> None:
    exact = launch.attrs["approximate"] == "none"
    for dy, x, dx, slope, other in blocks(*launch.inputs, *launch.outputs, scratch=2):
        if exact:
            _gelu_exact_slope(x, slope, other)
        else:
            _gelu_tanh_slope(x, slope, other)
        np.multiply(dy, slope, out=dx)


def _gelu_exact_slope(x: Floats, slope: Floats, other: Floats) -> None:
    """cdf(x) + x exp(-x^2 / 2) / sqrt(2 pi)."""
    _gelu_cdf(x, slope)
    np.multiply(x, x, out=other)
    np.multiply(other, -0.5, out=other)
    np.exp(other, out=other)
    np.multiply(other, x, out=other)
    np.multiply(other, 1 / math.sqrt(2 * math.pi), out=other)
    np.add(slope, other, out=slope)


def _gelu_tanh_slope(x: Floats, slope: Floats, other: Floats) -> None:
    """(1 + t) / 2 + x (1 - t^2) u' / 2, where t = tanh(u) and u' = sqrt(2 / pi) (1 + 3 * 0.044715 x^2)."""
    _gelu_tanh(x, slope)
    np.multiply(x, x, out=other)
    np.multiply(other, 3 * _GELU_CUBE, out=other)
    np.add(other, 1, out=other)
    np.multiply(other, x, out=other)
    np.multiply(other, _GELU_SCALE, out=other)
    np.multiply(other, 1 - slope, out=other)  # with 1 + t taken out of both terms
    np.add(other, 1, out=other)
    np.add(slope, 1, out=slope)
    np.multiply(slope, other, out=slope)
    np.multiply(slope, 0.5, out=slope)


# Mish: x tanh(softplus(x)), which is x n / (n + 2) with e = exp(x) and n = e (e + 2)

_MISH_FLAT = 20.0
"""From here on tanh(softplus(x)) is 1 to within rounding; e^2 stays far from overflow."""


def _mish(x: Floats, y: Floats) -> None:
    np.clip(x, -math.inf, _MISH_FLAT, out=y)
    np.exp(y, out=y)
    np.multiply(y, y + 2, out=y)
    np.divide(y, y + 2, out=y)
    np.multiply(y, x, out=y)


def _mish_slope(x: Floats, slope: Floats) -> None:
    """n / (n + 2) + x 4 e (e + 1) / (n + 2)^2."""
    np.clip(x, -math.inf, _MISH_FLAT, out=slope)
    e = np.exp(slope)
    np.multiply(slope, e, out=slope)
    np.multiply(slope, e + 1, out=slope)
    np.multiply(slope, 4, out=slope)
    np.multiply(e, e + 2, out=e)
    np.divide(slope, e + 2, out=slope)
    np.add(slope, e, out=slope)
    np.divide(slope, e + 2, out=slope)


# Swish and ThresholdedRelu have a number


def _sigmoid(x: Floats, alpha: float, out: Floats) -> None:
    """1 / (1 + exp(-alpha x)): where exp overflows, the result is 0 as it should be."""
    np.multiply(x, -alpha, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.reciprocal(out, out=out)


@np.errstate(over="ignore")
def _swish(launch: Launch, hyper: Hyper) -> None:
    alpha = number(launch.attrs, "alpha")
    for x, y, gate in blocks(*launch.inputs, *launch.outputs, scratch=1):
        _sigmoid(x, alpha, gate)
        np.multiply(x, gate, out=y)


@np.errstate(over="ignore")
def _swish_backward(launch: Launch, hyper: Hyper) -> None:
    """Slope s (1 + alpha x (1 - s)), where s = sigmoid(alpha x)."""
    alpha = number(launch.attrs, "alpha")
    for dy, x, dx, gate, rest in blocks(*launch.inputs, *launch.outputs, scratch=2):
        _sigmoid(x, alpha, gate)
        np.subtract(1, gate, out=rest)
        np.multiply(rest, x, out=rest)
        np.multiply(rest, alpha, out=rest)
        np.add(rest, 1, out=rest)
        np.multiply(rest, gate, out=rest)
        np.multiply(dy, rest, out=dx)


def _thresholded(launch: Launch, hyper: Hyper) -> None:
    """The first input where the last one, x, is above the threshold, else 0: of x forward, of dy backward."""
    alpha = number(launch.attrs, "alpha")
    for first, *rest, out in blocks(*launch.inputs, *launch.outputs):
        x: Any = rest[-1] if rest else first
        np.multiply(first, x > alpha, out=out)


KERNELS: dict[str, Kernel] = {
    "Abs": _ufunc(np.absolute),
    "AbsBackward": _backward(_abs_slope),
    "Ceil": _ufunc(np.ceil),
    "Cos": _ufunc(np.cos),
    "CosBackward": _backward(_cos_slope),
    "Erf": _forward(erf),
    "ErfBackward": _backward(_erf_slope),
    "Floor": _ufunc(np.floor),
    "Gelu": _gelu,
    "GeluBackward": _gelu_backward,
    "Mish": _forward(_mish),
    "MishBackward": _backward(_mish_slope),
    "Round": _ufunc(np.rint),
    "Sign": _ufunc(np.sign),
    "Sin": _ufunc(np.sin),
    "SinBackward": _backward(_sin_slope),
    "Softsign": _forward(_softsign),
    "SoftsignBackward": _backward(_softsign_slope),
    "Swish": _swish,
    "SwishBackward": _swish_backward,
    "ThresholdedRelu": _thresholded,
    "ThresholdedReluBackward": _thresholded,
}
