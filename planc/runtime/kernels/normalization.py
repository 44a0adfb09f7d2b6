"""NumPy kernels of normalization: batch norm in its parts, local response normalization, dropout.

Sums over many elements are taken pairwise along each channel's stretch of memory and in float64 across samples, so that
float32 results don't lose digits as batches grow. An array of any rank is seen as (samples, channels, positions).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.runtime.kernels.blocks import Index, block_length, integer, number, tiles
from planc.runtime.kernels.random import Stream, keep_tiles
from planc.runtime.launch import Array, Hyper, Kernel, Launch

Values = npt.NDArray[Any]
Sums = npt.NDArray[np.float64]

_CHANNELS = 1024
"""Channels whose float64 sums are kept at a time: a few arrays of 8 KiB."""


def _by_channel(array: Array) -> Values:
    return array.reshape(array.shape[0], array.shape[1], prod(array.shape[2:]))


def _channel_groups(channels: int) -> Iterator[slice]:
    for start in range(0, channels, _CHANNELS):
        yield slice(start, min(start + _CHANNELS, channels))


def _group_tiles(shape: tuple[int, ...], group: slice, length: int) -> Iterator[tuple[Index, slice]]:
    """Tiles of an array of `shape` that cover a group of channels, each with its channels' places in the group."""
    for rows, inner, places in tiles((shape[0], group.stop - group.start, shape[2]), length):
        first, last, _ = inner.indices(group.stop - group.start)
        yield (rows, slice(group.start + first, group.start + last), places), slice(first, last)


def _sums(tile: Values) -> Sums:
    """Sum over samples and positions, shape (channels,)."""
    if tile.shape[2] == 1:
        return np.asarray(np.add.reduce(tile[:, :, 0], axis=0, dtype=np.float64))
    return np.asarray(np.add.reduce(np.add.reduce(tile, axis=2), axis=0, dtype=np.float64))


Moments = tuple[Any, Any, Any]
"""(count, mean, M2): M2 is the sum of squared deviations from the mean."""


def _tile_moments(tile: Values, scratch: Values) -> Moments:
    """Moments of every channel of a tile, in two passes with the second one's rounding taken back.

    Source: Chan, Golub, LeVeque, "Algorithms for Computing the Sample Variance", The American Statistician 1983, (1.7).
    """
    count = tile.shape[0] * tile.shape[2]
    about = (_sums(tile) / count).astype(tile.dtype)
    deviation = scratch[: tile.size].reshape(tile.shape)
    np.subtract(tile, about[:, None], out=deviation)
    rest = _sums(deviation)
    np.multiply(deviation, deviation, out=deviation)
    return count, about + rest / count, _sums(deviation) - rest * rest / count


def _merge(a: Moments, b: Moments) -> Moments:
    """Moments of two sets of samples together.

    Source: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
    """
    count = a[0] + b[0]
    step = b[1] - a[1]
    return count, a[1] + step * (b[0] / count), a[2] + b[2] + step * step * (a[0] * (b[0] / count))


def _scratch(x: Values, share: int = 1) -> Values:
    """Room for a tile of `x`, a block or a share of it: NumPy buffers the operands of a tile that is not contiguous."""
    return np.empty(min(block_length(x.dtype) // share, x.size), x.dtype)


def _group_moments(x: Values, group: slice, scratch: Values, begun: Values | None = None) -> Sums:
    """Moments (3, width) of a group of channels, added to those that `begun` (3, channels) holds."""
    moments = np.zeros((3, group.stop - group.start))
    if begun is not None:
        moments[:] = begun[:, group]
    for index, part in _group_tiles(x.shape, group, scratch.size):
        count, mean, squares = moments[:, part]
        moments[:, part] = _merge((count, mean, squares), _tile_moments(x[index], scratch))
    return moments


def _batch_norm_statistics(launch: Launch, hyper: Hyper) -> None:
    """(x) -> moments (3, channels): count, mean, M2."""
    x, (moments,) = _by_channel(launch.inputs[0]), launch.outputs
    scratch = _scratch(x)
    for group in _channel_groups(x.shape[1]):
        moments[:, group] = _group_moments(x, group, scratch, moments if launch.accumulate else None)


def _batch_norm_finalize(launch: Launch, hyper: Hyper) -> None:
    """(moments) -> stat (2, channels): mean, 1 / sqrt(variance + epsilon)."""
    (moments,), (stat,) = launch.inputs, launch.outputs
    stat[0], stat[1] = moments[1], _inverse(launch, moments)


def _inverse(launch: Launch, moments: Values) -> Sums:
    """1 / sqrt(variance + epsilon)."""
    variance = np.divide(moments[2], moments[0], dtype=np.float64)
    return np.asarray(1 / np.sqrt(variance + number(launch.attrs, "epsilon")))


def _batch_norm_update(launch: Launch, hyper: Hyper) -> None:
    """(moments, mean, variance) -> mean, variance: running statistics as ONNX has them, population variance."""
    moments: Values = launch.inputs[0]
    _follow(launch, slice(0, moments.shape[1]), moments)


def _follow(launch: Launch, group: slice, moments: Values) -> None:
    """Move the running statistics of a group of channels (inputs 1 and 2) towards its moments."""
    momentum = number(launch.attrs, "momentum")
    for old, new, found in zip(launch.inputs[1:], launch.outputs, (moments[1], moments[2] / moments[0]), strict=True):
        np.multiply(old[group], momentum, out=new[group])
        np.add(new[group], found * (1 - momentum), out=new[group])


def _affine(source: Array, target: Array, mean: Array, factor: Array, bias: Array) -> None:
    """target = (source - mean) * factor + bias, a tile at a time; source and target may be the same memory."""
    x, y = _by_channel(source), _by_channel(target)
    for index in tiles(x.shape, block_length(x.dtype)):
        channels = index[1]
        out = y[index]
        np.subtract(x[index], mean[channels, None], out=out)
        np.multiply(out, factor[channels, None], out=out)
        np.add(out, bias[channels, None], out=out)


def _batch_norm_normalize(launch: Launch, hyper: Hyper) -> None:
    """(x, scale, bias, stat) -> y."""
    x, scale, bias, stat = launch.inputs
    _affine(x, launch.outputs[0], stat[0], np.multiply(scale, stat[1]), bias)


def _inference_factor(scale: Array, variance: Array, epsilon: float) -> Values:
    factor = np.add(variance, epsilon)
    np.sqrt(factor, out=factor)
    np.divide(scale, factor, out=factor)
    return factor


def _batch_norm_inference(launch: Launch, hyper: Hyper) -> None:
    """(x, scale, bias, mean, variance) -> y."""
    x, scale, bias, mean, variance = launch.inputs
    _affine(x, launch.outputs[0], mean, _inference_factor(scale, variance, number(launch.attrs, "epsilon")), bias)


def _batch_norm_inference_gradient(launch: Launch, hyper: Hyper) -> None:
    """(dy, scale, variance) -> dx."""
    source, scale, variance = launch.inputs
    factor = _inference_factor(scale, variance, number(launch.attrs, "epsilon"))
    dy, dx = _by_channel(source), _by_channel(launch.outputs[0])
    for index in tiles(dy.shape, block_length(dy.dtype)):
        np.multiply(dy[index], factor[index[1], None], out=dx[index])


def _batch_norm_reduce(launch: Launch, hyper: Hyper) -> None:
    """(x, dy, stat) -> dbias = sum of dy, dscale = sum of dy * normalised x."""
    x, dy, stat = _by_channel(launch.inputs[0]), _by_channel(launch.inputs[1]), launch.inputs[2]
    dbias, dscale = launch.outputs
    scratch = _scratch(x)
    for group in _channel_groups(x.shape[1]):
        sums = _gradient_sums(x, dy, group, stat[0, group], stat[1, group], scratch)
        _give(launch, (dbias, dscale), group, sums)


def _gradient_sums(
    x: Values, dy: Values, group: slice, mean: Values, inverse: Values, scratch: Values
) -> tuple[Sums, Sums]:
    """Sum of dy, and of dy * normalised x, for a group of channels whose mean and 1 / deviation are given."""
    plain, weighted = np.zeros(group.stop - group.start), np.zeros(group.stop - group.start)
    for index, part in _group_tiles(x.shape, group, scratch.size):
        product = scratch[: x[index].size].reshape(x[index].shape)
        np.subtract(x[index], mean[part, None], out=product)
        np.multiply(product, dy[index], out=product)
        plain[part] += _sums(dy[index])
        weighted[part] += _sums(product)
    return plain, weighted * inverse


def _give(launch: Launch, targets: tuple[Values, ...], group: slice, sums: tuple[Sums, ...]) -> None:
    """Write, or add, the sums of a group of channels."""
    for target, values in zip(targets, sums, strict=True):
        target[group] = target[group] + values if launch.accumulate else values


def _batch_norm_input_gradient(launch: Launch, hyper: Hyper) -> None:
    """(dy, x, stat, scale, dscale, dbias) -> dx = scale * inv_std * (dy - dbias / n - normalised x * dscale / n)."""
    dy, x, dx = (_by_channel(array) for array in (*launch.inputs[:2], launch.outputs[0]))
    stat, scale, dscale, dbias = launch.inputs[2:]
    share = 1 / integer(launch.attrs, "count")
    factor = np.multiply(scale, stat[1])
    slope = np.multiply(dscale, stat[1])
    slope *= share
    level = np.multiply(dbias, share)
    scratch = _scratch(x)
    for index in tiles(x.shape, scratch.size):
        line = tuple(vector[index[1], None] for vector in (stat[0], slope, level, factor))
        _to_input(x[index], dy[index], dx[index], line, scratch)


def _to_input(x: Values, dy: Values, dx: Values, line: tuple[Values, ...], scratch: Values) -> None:
    """dx = (dy - ((x - mean) * slope + level)) * factor for a tile; dx may be the memory of x or of dy."""
    mean, slope, level, factor = line
    common = scratch[: x.size].reshape(x.shape)
    np.subtract(x, mean, out=common)
    np.multiply(common, slope, out=common)
    np.add(common, level, out=common)
    np.subtract(dy, common, out=dx)
    np.multiply(dx, factor, out=dx)


# Each range of samples by itself.


def _sub_batch_norm(launch: Launch, hyper: Hyper) -> None:
    """(x, scale, bias) -> y, normalised with the statistics of the samples given."""
    x, y = _by_channel(launch.inputs[0]), _by_channel(launch.outputs[0])
    scale: Values = launch.inputs[1]
    bias: Values = launch.inputs[2]
    scratch = _scratch(x, 4)
    for group in _channel_groups(x.shape[1]):
        moments = _group_moments(x, group, scratch)
        mean, factor = moments[1].astype(x.dtype), (scale[group] * _inverse(launch, moments)).astype(x.dtype)
        for index, part in _group_tiles(x.shape, group, scratch.size):
            out = y[index]
            np.subtract(x[index], mean[part, None], out=out)
            np.multiply(out, factor[part, None], out=out)
            np.add(out, bias[index[1], None], out=out)


def _sub_batch_norm_update(launch: Launch, hyper: Hyper) -> None:
    """(x, mean, variance) -> mean, variance: running statistics move towards those of the samples given."""
    x = _by_channel(launch.inputs[0])
    scratch = _scratch(x, 4)
    for group in _channel_groups(x.shape[1]):
        _follow(launch, group, _group_moments(x, group, scratch))


def _sub_batch_norm_gradient(launch: Launch, hyper: Hyper) -> None:
    """(dy, x, scale) -> dbias and dscale, which add up over ranges, and dx if there is a third output."""
    dy, x = (_by_channel(array) for array in launch.inputs[:2])
    dx = _by_channel(launch.outputs[2]) if len(launch.outputs) > 2 else None
    scale: Values = launch.inputs[2]
    scratch = _scratch(x, 4)
    share = 1 / (x.shape[0] * x.shape[2])
    for group in _channel_groups(x.shape[1]):
        moments = _group_moments(x, group, scratch)
        mean, inverse = moments[1].astype(x.dtype), _inverse(launch, moments)
        dbias, dscale = _gradient_sums(x, dy, group, mean, inverse, scratch)
        _give(launch, launch.outputs[:2], group, (dbias, dscale))
        if dx is None:
            continue
        vectors = (inverse * dscale * share, dbias * share, scale[group] * inverse)
        slope, level, factor = (vector.astype(x.dtype) for vector in vectors)
        for index, part in _group_tiles(x.shape, group, scratch.size):
            line = tuple(vector[part, None] for vector in (mean, slope, level, factor))
            _to_input(x[index], dy[index], dx[index], line, scratch)


class _Lrn:
    """Local response normalization of one stretch of positions of one sample, all channels: arrays (channels, width).

    ONNX's window of channel c reaches from c - floor((size - 1) / 2) to c + ceil((size - 1) / 2).
    """

    def __init__(self, launch: Launch) -> None:
        self.size = integer(launch.attrs, "size")
        self.beta = number(launch.attrs, "beta")
        self.bias = number(launch.attrs, "bias")
        self.rate = number(launch.attrs, "alpha") / self.size
        self.before, self.after = (self.size - 1) // 2, self.size // 2

    def window_sum(self, values: Values, out: Values, before: int, after: int) -> None:
        """out[c] = sum of values[c - before .. c + after]."""
        channels = len(values)
        np.copyto(out, values)
        for reach in range(1, min(before, channels - 1) + 1):
            np.add(out[reach:], values[:-reach], out=out[reach:])
        for reach in range(1, min(after, channels - 1) + 1):
            np.add(out[:-reach], values[reach:], out=out[:-reach])

    def scale(self, x: Values, squares: Values, out: Values) -> None:
        np.multiply(x, x, out=squares)
        self.window_sum(squares, out, self.before, self.after)
        np.multiply(out, self.rate, out=out)
        np.add(out, self.bias, out=out)

    def power(self, scale: Values, out: Values) -> None:
        """out = scale ** -beta; two roots for AlexNet's 0.75, several times faster than a power."""
        if self.beta == 0.75:
            np.sqrt(scale, out=out)
            np.sqrt(out, out=out)
            np.divide(out, scale, out=out)
        else:
            np.power(scale, -self.beta, out=out)

    def forward(self, x: Values, y: Values, spare: tuple[Values, ...]) -> None:
        squares, scale = spare
        self.scale(x, squares, scale)
        self.power(scale, squares)
        np.multiply(x, squares, out=y)

    def backward(self, dy: Values, x: Values, dx: Values, spare: tuple[Values, ...]) -> None:
        """dx = dy * scale^-beta - 2 * beta * rate * x * t; t sums dy * x * scale^(-beta - 1) where x is seen."""
        first, scale, power = spare
        self.scale(x, first, scale)
        self.power(scale, power)
        np.multiply(dy, x, out=first)
        np.multiply(first, power, out=first)
        np.divide(first, scale, out=first)
        self.window_sum(first, scale, self.after, self.before)
        np.multiply(scale, x, out=scale)
        np.multiply(scale, 2 * self.beta * self.rate, out=scale)
        np.multiply(power, dy, out=power)
        np.subtract(power, scale, out=dx)


def _stretches(arrays: tuple[Array, ...], scratch: int) -> Iterator[tuple[tuple[Values, ...], tuple[Values, ...]]]:
    """Stretches of positions of every sample: (channels, width) of each array, with pieces of scratch of that shape."""
    views = [_by_channel(array) for array in arrays]
    samples, channels, positions = views[0].shape
    # Half a block: NumPy buffers what it cannot see as one line, and that counts against the allowance.
    width = min(positions, max(1, block_length(views[0].dtype) // 2 // channels))
    spare = np.empty((scratch, channels * width), views[0].dtype)
    for sample in range(samples):
        for start in range(0, positions, width):
            part = tuple(view[sample, :, start : start + width] for view in views)
            count = part[0].size
            yield part, tuple(piece[:count].reshape(part[0].shape) for piece in spare)


def _lrn(launch: Launch, hyper: Hyper) -> None:
    """(x) -> y."""
    rule = _Lrn(launch)
    for (x, y), spare in _stretches((launch.inputs[0], launch.outputs[0]), 2):
        rule.forward(x, y, spare)


def _lrn_backward(launch: Launch, hyper: Hyper) -> None:
    """(dy, x) -> dx."""
    rule = _Lrn(launch)
    for (dy, x, dx), spare in _stretches((*launch.inputs, launch.outputs[0]), 3):
        rule.backward(dy, x, dx, spare)


def _dropout(launch: Launch, hyper: Hyper) -> None:
    """(x) -> x * mask / (1 - ratio); of a gradient the same, since the mask depends on the position alone."""
    elements = integer(launch.attrs, "elements")
    drop = number(launch.attrs, "ratio")
    x: Values = launch.inputs[0].reshape(-1, elements)
    y: Values = launch.outputs[0].reshape(-1, elements)
    stream = Stream(hyper.seed, hyper.step, integer(launch.attrs, "node"))
    for tile in keep_tiles(stream, launch.first_sample, len(x), elements, drop):
        rows, columns = slice(tile.first, tile.last), slice(tile.start, tile.stop)
        out = y[rows, columns]
        np.multiply(x[rows, columns], tile.keep, out=out)
        np.multiply(out, 1 / (1 - drop), out=out)


KERNELS: dict[str, Kernel] = {
    "BatchNormStatistics": _batch_norm_statistics,
    "BatchNormFinalize": _batch_norm_finalize,
    "BatchNormUpdate": _batch_norm_update,
    "BatchNormNormalize": _batch_norm_normalize,
    "BatchNormInference": _batch_norm_inference,
    "BatchNormReduce": _batch_norm_reduce,
    "BatchNormInputGradient": _batch_norm_input_gradient,
    "BatchNormInferenceGradient": _batch_norm_inference_gradient,
    "SubBatchNorm": _sub_batch_norm,
    "SubBatchNormUpdate": _sub_batch_norm_update,
    "SubBatchNormGradient": _sub_batch_norm_gradient,
    "LRN": _lrn,
    "LRNBackward": _lrn_backward,
    "Dropout": _dropout,
    "DropoutBackward": _dropout,
}
