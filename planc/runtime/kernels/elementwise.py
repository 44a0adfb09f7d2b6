"""Kernels of the elementwise operators of one tensor (ops/elementwise.py).

Every kernel writes a block of its output last, so that the output may be the memory of any input. Infinities and NaN
that a function gives at the edge of its domain are its result; a run that must not have them looks at the loss.

Where an operator has two branches, both are computed and joined by factors of 0 and 1: NumPy's masked copies are five
times slower. So is its maximum with a number, for which clip stands in.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from planc.runtime.kernels.blocks import Floats, blocks, number
from planc.runtime.launch import Hyper, Kernel, Launch


def _one_where(mask: npt.NDArray[np.bool_], values: Floats) -> None:
    """Make `values` 1 where `mask` is set."""
    np.multiply(values, ~mask, out=values)
    np.add(values, mask, out=values)


def _affine(launch: Launch, hyper: Hyper) -> None:
    factor, offset = number(launch.attrs, "factor"), number(launch.attrs, "offset")
    for x, y in blocks(*launch.inputs, *launch.outputs):
        if factor == 1.0:
            np.add(x, offset, out=y)
        else:
            np.multiply(x, factor, out=y)
            if offset:
                np.add(y, offset, out=y)


def _cast(launch: Launch, hyper: Hyper) -> None:
    np.copyto(launch.outputs[0], launch.inputs[0], casting="unsafe")


def _bounds(launch: Launch) -> tuple[float, float]:
    return number(launch.attrs, "min", -math.inf), number(launch.attrs, "max", math.inf)


def _clip(launch: Launch, hyper: Hyper) -> None:
    low, high = _bounds(launch)
    for x, y in blocks(*launch.inputs, *launch.outputs):
        np.clip(x, low, high, out=y)


def _clip_backward(launch: Launch, hyper: Hyper) -> None:
    low, high = _bounds(launch)
    for dy, y, dx in blocks(*launch.inputs, *launch.outputs):
        np.multiply(dy, (y > low) & (y < high), out=dx)


def _elu(launch: Launch, hyper: Hyper) -> None:
    """gain (max(x, 0) + alpha (exp(min(x, 0) / width) - 1)): Elu, Celu and Selu."""
    alpha, gain, width = _elu_numbers(launch)
    for x, y, negative in blocks(*launch.inputs, *launch.outputs, scratch=1):
        np.clip(x, -math.inf, 0, out=negative)
        np.divide(negative, width, out=negative)
        np.expm1(negative, out=negative)
        np.multiply(negative, alpha * gain, out=negative)
        np.clip(x, 0, math.inf, out=y)
        np.multiply(y, gain, out=y)
        np.add(y, negative, out=y)


def _elu_backward(launch: Launch, hyper: Hyper) -> None:
    """Slope (y + gain alpha) / width where y <= 0, else gain."""
    alpha, gain, width = _elu_numbers(launch)
    for dy, y, dx, slope in blocks(*launch.inputs, *launch.outputs, scratch=1):
        positive = y > 0
        np.clip(y, -math.inf, 0, out=slope)
        np.add(slope, alpha * gain, out=slope)
        np.divide(slope, width * gain, out=slope)
        _one_where(positive, slope)
        np.multiply(slope, gain, out=slope)
        np.multiply(dy, slope, out=dx)


def _elu_numbers(launch: Launch) -> tuple[float, float, float]:
    return number(launch.attrs, "alpha"), number(launch.attrs, "gain", 1.0), number(launch.attrs, "width", 1.0)


@np.errstate(all="ignore")
def _exp(launch: Launch, hyper: Hyper) -> None:
    np.exp(launch.inputs[0], out=launch.outputs[0])


def _hard_sigmoid(launch: Launch, hyper: Hyper) -> None:
    alpha, beta = number(launch.attrs, "alpha"), number(launch.attrs, "beta")
    for x, y in blocks(*launch.inputs, *launch.outputs):
        np.multiply(x, alpha, out=y)
        np.add(y, beta, out=y)
        np.clip(y, 0, 1, out=y)


def _hard_sigmoid_backward(launch: Launch, hyper: Hyper) -> None:
    alpha = number(launch.attrs, "alpha")
    for dy, y, dx in blocks(*launch.inputs, *launch.outputs):
        inside = (y > 0) & (y < 1)
        np.multiply(dy, alpha, out=dx)
        np.multiply(dx, inside, out=dx)


def _hard_swish(launch: Launch, hyper: Hyper) -> None:
    for x, y, gate in blocks(*launch.inputs, *launch.outputs, scratch=1):
        np.divide(x, 6, out=gate)
        np.add(gate, 0.5, out=gate)
        np.clip(gate, 0, 1, out=gate)
        np.multiply(x, gate, out=y)


def _hard_swish_backward(launch: Launch, hyper: Hyper) -> None:
    """Slope x / 3 + 1/2 between -3 and 3."""
    for dy, x, dx, slope in blocks(*launch.inputs, *launch.outputs, scratch=1):
        np.divide(x, 3, out=slope)
        np.add(slope, 0.5, out=slope)
        np.multiply(slope, x > -3, out=slope)
        _one_where(x >= 3, slope)
        np.multiply(dy, slope, out=dx)


def _leaky_relu(launch: Launch, hyper: Hyper) -> None:
    alpha = number(launch.attrs, "alpha")
    # Of x and alpha x, the greater one is meant as long as the negative side is the less steep one.
    choose = np.maximum if alpha <= 1 else np.minimum
    for x, y, scaled in blocks(*launch.inputs, *launch.outputs, scratch=1):
        np.multiply(x, alpha, out=scaled)
        choose(x, scaled, out=y)


def _leaky_relu_backward(launch: Launch, hyper: Hyper) -> None:
    alpha = number(launch.attrs, "alpha")
    for dy, x, dx, slope in blocks(*launch.inputs, *launch.outputs, scratch=1):
        slope.fill(alpha)
        _one_where(x > 0, slope)
        np.multiply(dy, slope, out=dx)


@np.errstate(all="ignore")
def _log(launch: Launch, hyper: Hyper) -> None:
    np.log(launch.inputs[0], out=launch.outputs[0])


def _relu(launch: Launch, hyper: Hyper) -> None:
    np.clip(launch.inputs[0], 0, math.inf, out=launch.outputs[0])


def _relu_backward(launch: Launch, hyper: Hyper) -> None:
    for dy, y, dx in blocks(*launch.inputs, *launch.outputs):
        np.multiply(dy, y > 0, out=dx)


@np.errstate(over="ignore")
def _sigmoid(launch: Launch, hyper: Hyper) -> None:
    """1 / (1 + exp(-x)): where exp overflows, the result is 0 as it should be."""
    for x, y in blocks(*launch.inputs, *launch.outputs):
        np.negative(x, out=y)
        np.exp(y, out=y)
        np.add(y, 1, out=y)
        np.reciprocal(y, out=y)


def _sigmoid_backward(launch: Launch, hyper: Hyper) -> None:
    for dy, y, dx, slope in blocks(*launch.inputs, *launch.outputs, scratch=1):
        np.subtract(1, y, out=slope)
        np.multiply(slope, y, out=slope)
        np.multiply(dy, slope, out=dx)


def _softplus(launch: Launch, hyper: Hyper) -> None:
    """log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|)), which never overflows."""
    for x, y, rest in blocks(*launch.inputs, *launch.outputs, scratch=1):
        np.absolute(x, out=rest)
        np.negative(rest, out=rest)
        np.exp(rest, out=rest)
        np.log1p(rest, out=rest)
        np.clip(x, 0, math.inf, out=y)
        np.add(y, rest, out=y)


@np.errstate(over="ignore")
def _softplus_backward(launch: Launch, hyper: Hyper) -> None:
    """dy sigmoid(x)."""
    for dy, x, dx, slope in blocks(*launch.inputs, *launch.outputs, scratch=1):
        np.negative(x, out=slope)
        np.exp(slope, out=slope)
        np.add(slope, 1, out=slope)
        np.divide(dy, slope, out=dx)


@np.errstate(all="ignore")
def _sqrt(launch: Launch, hyper: Hyper) -> None:
    np.sqrt(launch.inputs[0], out=launch.outputs[0])


@np.errstate(all="ignore")
def _sqrt_backward(launch: Launch, hyper: Hyper) -> None:
    for dy, y, dx in blocks(*launch.inputs, *launch.outputs):
        np.divide(dy, y, out=dx)
        np.multiply(dx, 0.5, out=dx)


def _tanh(launch: Launch, hyper: Hyper) -> None:
    np.tanh(launch.inputs[0], out=launch.outputs[0])


def _tanh_backward(launch: Launch, hyper: Hyper) -> None:
    for dy, y, dx, slope in blocks(*launch.inputs, *launch.outputs, scratch=1):
        np.multiply(y, y, out=slope)
        np.subtract(1, slope, out=slope)
        np.multiply(dy, slope, out=dx)


KERNELS: dict[str, Kernel] = {
    "Affine": _affine,
    "Cast": _cast,
    "Clip": _clip,
    "ClipBackward": _clip_backward,
    "Elu": _elu,
    "EluBackward": _elu_backward,
    "Exp": _exp,
    "HardSigmoid": _hard_sigmoid,
    "HardSigmoidBackward": _hard_sigmoid_backward,
    "HardSwish": _hard_swish,
    "HardSwishBackward": _hard_swish_backward,
    "LeakyRelu": _leaky_relu,
    "LeakyReluBackward": _leaky_relu_backward,
    "Log": _log,
    "Relu": _relu,
    "ReluBackward": _relu_backward,
    "Sigmoid": _sigmoid,
    "SigmoidBackward": _sigmoid_backward,
    "Softplus": _softplus,
    "SoftplusBackward": _softplus_backward,
    "Sqrt": _sqrt,
    "SqrtBackward": _sqrt_backward,
    "Tanh": _tanh,
    "TanhBackward": _tanh_backward,
}
