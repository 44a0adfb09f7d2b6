"""Kernels of the arithmetic on several tensors (ops/broadcast.py)."""

from __future__ import annotations

import numpy as np

from planc.runtime.kernels.blocks import Floats, Parts, block_length, blocks, number, operands, spare, tiles
from planc.runtime.kernels.reduction import Compute, summed
from planc.runtime.launch import Hyper, Kernel, Launch


def _ufunc(function: np.ufunc) -> Kernel:
    """A binary function of NumPy, which broadcasts without temporaries and may write over either operand."""

    @np.errstate(all="ignore")
    def kernel(launch: Launch, hyper: Hyper) -> None:
        first, second = launch.inputs
        function(first, second, out=launch.outputs[0])

    return kernel


def _tiled(compute: Compute) -> Kernel:
    """The kernel that writes `compute` tile by tile to an output of the first input's shape."""

    def kernel(launch: Launch, hyper: Hyper) -> None:
        out = launch.outputs[0]
        length = block_length(out.dtype)
        scratch = spare(out, length)
        for index in tiles(out.shape, length):
            parts = operands(launch.inputs, index)
            room = scratch[: parts[0].size].reshape(parts[0].shape)
            np.copyto(out[index], compute(parts, room))

    return kernel


def _product(parts: Parts, scratch: Floats) -> Floats:
    dy, other = parts
    return np.multiply(dy, other, out=scratch)


@np.errstate(all="ignore")
def _quotient(parts: Parts, scratch: Floats) -> Floats:
    dy, divisor = parts
    return np.divide(dy, divisor, out=scratch)


@np.errstate(all="ignore")
def _divisor(parts: Parts, scratch: Floats) -> Floats:
    """-dy y / b."""
    dy, y, divisor = parts
    np.multiply(dy, y, out=scratch)
    np.divide(scratch, divisor, out=scratch)
    return np.negative(scratch, out=scratch)


def _prelu(parts: Parts, scratch: Floats) -> Floats:
    x, slope = parts
    np.clip(x, -np.inf, 0, out=scratch)
    np.multiply(scratch, slope, out=scratch)
    return np.add(scratch, np.clip(x, 0, np.inf), out=scratch)


def _prelu_backward(parts: Parts, scratch: Floats) -> Floats:
    dy, x, slope = parts
    positive = x > 0
    np.multiply(slope, ~positive, out=scratch)
    np.add(scratch, positive, out=scratch)
    return np.multiply(scratch, dy, out=scratch)


def _prelu_slope(parts: Parts, scratch: Floats) -> Floats:
    dy, x = parts
    np.clip(x, -np.inf, 0, out=scratch)
    return np.multiply(scratch, dy, out=scratch)


# Pow by a literal


@np.errstate(all="ignore")
def _raise(x: Floats, exponent: float, out: Floats) -> None:
    """x ** exponent, by the exact and much faster function where there is one."""
    if exponent == 2:
        np.multiply(x, x, out=out)
    elif exponent == 1:
        np.copyto(out, x)
    elif exponent == 0.5:
        np.sqrt(x, out=out)
    elif exponent == -1:
        np.reciprocal(x, out=out)
    else:
        np.power(x, exponent, out=out)


def _pow(launch: Launch, hyper: Hyper) -> None:
    exponent = number(launch.attrs, "exponent")
    for x, y in blocks(*launch.inputs, *launch.outputs):
        _raise(x, exponent, y)


def _pow_backward(launch: Launch, hyper: Hyper) -> None:
    """dy e x^(e-1), which for e = 0 is 0 everywhere."""
    exponent = number(launch.attrs, "exponent")
    if exponent == 0:
        launch.outputs[0].fill(0)
        return
    for dy, x, dx, slope in blocks(*launch.inputs, *launch.outputs, scratch=1):
        _raise(x, exponent - 1, slope)
        np.multiply(slope, exponent, out=slope)
        np.multiply(dy, slope, out=dx)


# Pow by a tensor


@np.errstate(all="ignore")
def _power_base(parts: Parts, scratch: Floats) -> Floats:
    """dy b a^(b-1), 0 where b is 0."""
    dy, base, exponent = parts
    np.power(base, exponent - 1, out=scratch)
    np.multiply(scratch, exponent, out=scratch)
    np.copyto(scratch, 0, where=exponent == 0)
    return np.multiply(scratch, dy, out=scratch)


@np.errstate(all="ignore")
def _power_exponent(parts: Parts, scratch: Floats) -> Floats:
    """dy y log a, 0 where y is 0."""
    dy, base, y = parts
    np.log(base, out=scratch)
    np.multiply(scratch, y, out=scratch)
    np.copyto(scratch, 0, where=y == 0)
    return np.multiply(scratch, dy, out=scratch)


KERNELS: dict[str, Kernel] = {
    "Add": _ufunc(np.add),
    "Div": _ufunc(np.divide),
    "DivSumTo": summed(_quotient),
    "DivisorSumTo": summed(_divisor),
    "Mul": _ufunc(np.multiply),
    "MulSumTo": summed(_product),
    "PRelu": _tiled(_prelu),
    "PReluBackward": _tiled(_prelu_backward),
    "PReluSlopeSumTo": summed(_prelu_slope),
    "Pow": _pow,
    "PowBackward": _pow_backward,
    "Power": _ufunc(np.power),
    "PowerBaseSumTo": summed(_power_base),
    "PowerExponentSumTo": summed(_power_exponent),
    "Sub": _ufunc(np.subtract),
}
