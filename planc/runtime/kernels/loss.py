"""Softmax, LogSoftmax and cross-entropy.

Arrays are seen as (outer, classes, inner), and walked in tiles of positions (outer, inner) with all of their classes.
Losses add up in float64 whatever the type of the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.runtime.kernels.blocks import block_length, blocks, integer, number, tiles
from planc.runtime.launch import Hyper, Kernel, Launch

Values = npt.NDArray[Any]
Tile = tuple[slice, slice, slice]


def _by_class(array: Values, axis: int, *, flatten: bool = False) -> Values:
    """`array` as (outer, classes, inner); `flatten`: all axes from `axis` on are the classes."""
    shape = array.shape
    classes = prod(shape[axis:]) if flatten else shape[axis]
    inner = 1 if flatten else prod(shape[axis + 1 :])
    return array.reshape(prod(shape[:axis]), classes, inner)


def _half_block(values: Values) -> int:
    """Elements of a temporary. Half a block, because NumPy takes scratch of its own where tiles are not contiguous."""
    return block_length(values.dtype) // 2


def _tiles(values: Values) -> Iterator[Tile]:
    """Tiles (some outer, all classes, some inner) of half a block, or one position with more classes than that."""
    outer, classes, inner = values.shape
    for rows, columns in tiles((outer, inner), max(1, _half_block(values) // max(classes, 1))):
        yield rows, slice(None), columns


def _class_ranges(tile: Values) -> Iterator[slice]:
    """Ranges of the classes of `tile` of at most half a block."""
    outer, classes, inner = tile.shape
    step = max(1, _half_block(tile) // max(outer * inner, 1))
    for start in range(0, classes, step):
        yield slice(start, start + step)


def _class_sum(tile: Values, term: Callable[[slice], Values]) -> Values:
    """Sum of `term(range of classes)` over the classes of `tile`, shape (outer, 1, inner)."""
    outer, _, inner = tile.shape
    total = np.zeros((outer, 1, inner), tile.dtype)
    for part in _class_ranges(tile):
        total += term(part).sum(axis=1, keepdims=True)
    return total


def _sum_of_exponentials(x: Values, largest: Values) -> Values:
    return _class_sum(x, lambda part: np.exp(x[:, part] - largest))


def _sum_of_products(a: Values, b: Values) -> Values:
    return _class_sum(a, lambda part: a[:, part] * b[:, part])


def _softmax_tile(x: Values, y: Values) -> Values:
    """Softmax of a tile, y may be x; returns log(sum(exp(x - max)))."""
    np.subtract(x, x.max(axis=1, keepdims=True), out=y)
    np.exp(y, out=y)
    total = y.sum(axis=1, keepdims=True)
    np.divide(y, total, out=y)
    log_total: Values = np.log(total)
    return log_total


def _softmax_views(launch: Launch) -> tuple[Values, ...]:
    axis, flatten = integer(launch.attrs, "axis"), bool(integer(launch.attrs, "flatten", 0))
    return tuple(_by_class(array, axis, flatten=flatten) for array in (*launch.inputs, *launch.outputs))


def _softmax(launch: Launch, hyper: Hyper) -> None:
    """Softmax(x) -> y; y may be x."""
    x, y = _softmax_views(launch)
    for tile in _tiles(x):
        _softmax_tile(x[tile], y[tile])


def _softmax_backward(launch: Launch, hyper: Hyper) -> None:
    """SoftmaxBackward(y, dy) -> dx = y (dy - sum(y dy)); dx may be dy."""
    y, dy, dx = _softmax_views(launch)
    for tile in _tiles(y):
        y_tile, dy_tile, dx_tile = y[tile], dy[tile], dx[tile]
        total = _sum_of_products(y_tile, dy_tile)
        np.subtract(dy_tile, total, out=dx_tile)
        np.multiply(dx_tile, y_tile, out=dx_tile)


def _log_softmax(launch: Launch, hyper: Hyper) -> None:
    """LogSoftmax(x) -> y; y may be x."""
    x, y = _softmax_views(launch)
    for tile in _tiles(x):
        x_tile, y_tile = x[tile], y[tile]
        largest = x_tile.max(axis=1, keepdims=True)
        log_total = np.log(_sum_of_exponentials(x_tile, largest))
        np.subtract(x_tile, largest, out=y_tile)
        np.subtract(y_tile, log_total, out=y_tile)


def _log_softmax_backward(launch: Launch, hyper: Hyper) -> None:
    """LogSoftmaxBackward(y, dy) -> dx = dy - exp(y) sum(dy); dx may be dy."""
    y, dy, dx = _softmax_views(launch)
    for tile in _tiles(y):
        y_tile, dy_tile, dx_tile = y[tile], dy[tile], dx[tile]
        total = dy_tile.sum(axis=1, keepdims=True)
        for part in _class_ranges(y_tile):
            share = np.exp(y_tile[:, part])
            np.multiply(share, total, out=share)
            np.subtract(dy_tile[:, part], share, out=dx_tile[:, part])


@dataclass(frozen=True, slots=True)
class _Targets:
    """What labels say: `index` is a class, `weight` 0 where the label is ignored."""

    index: npt.NDArray[np.integer[Any]]
    weight: Values


@dataclass(frozen=True, slots=True)
class _Labelling:
    """How labels are read: the number of classes, the label that is ignored, a weight for each class."""

    classes: int
    ignored: int | None
    weights: Values | None
    dtype: np.dtype[Any]

    def read(self, labels: Values) -> _Targets:
        """
        Raises:
            ValueError: a label that is not ignored is outside [0, classes).
        """
        valid = np.ones(labels.shape, np.bool_) if self.ignored is None else labels != self.ignored
        wrong = valid & ((labels < 0) | (labels >= self.classes))
        if wrong.any():
            raise ValueError(f"found label {labels[wrong][0]}, wanted one of the classes 0 to {self.classes - 1}")
        index = np.where(valid, labels, 0)
        weight = valid if self.weights is None else np.where(valid, self.weights[index], 0)
        return _Targets(index, weight.astype(self.dtype, copy=False))


def _ignored(launch: Launch) -> int | None:
    return integer(launch.attrs, "ignore_index") if "ignore_index" in launch.attrs else None


def _extras(launch: Launch) -> Mapping[str, Values]:
    """Inputs after the labels, by name."""
    names = launch.attrs.get("extras", ())
    assert isinstance(names, tuple)
    return dict(zip(map(str, names), launch.inputs[2:], strict=True))


def _divisor(launch: Launch, extras: Mapping[str, Values]) -> float:
    """What a sum is divided by: the divisor over the weight of the loss, if it has one."""
    divisor = float(extras["divisor"].item()) if "divisor" in extras else number(launch.attrs, "divisor", 1)
    return divisor / number(launch.attrs, "scale", 1)


def _class_weights(launch: Launch, given: Values | None, dtype: np.dtype[Any]) -> Values | None:
    """Weights of the classes: `given` in an input, or numbers in the attribute `class_weights`, or none."""
    numbers = launch.attrs.get("class_weights")
    return np.array(numbers, dtype) if isinstance(numbers, tuple) else given


def add_number(launch: Launch, total: float, divisor: float) -> None:
    """Write, or add if the launch accumulates, total / divisor to the single number that the launch puts out."""
    out: Values = launch.outputs[0]
    with np.errstate(invalid="ignore", divide="ignore"):  # every label ignored: NaN, which the run then reports
        value = np.float64(total) / np.float64(divisor)
    out[...] = out + value if launch.accumulate else value


def _cross_entropy(launch: Launch, hyper: Hyper) -> None:
    """SoftmaxCrossEntropy(scores, labels, ...) -> loss[, probabilities]; the probabilities may be the scores."""
    extras = _extras(launch)
    scores = _by_class(launch.inputs[0], integer(launch.attrs, "axis"))
    outer, classes, inner = scores.shape
    labels = launch.inputs[1].reshape(outer, 1, inner)
    labelling = _Labelling(
        classes, _ignored(launch), _class_weights(launch, extras.get("weights"), scores.dtype), scores.dtype
    )
    each = launch.outputs[0].reshape(labels.shape) if launch.attrs.get("reduction") == "none" else None
    probabilities = launch.outputs[1].reshape(scores.shape) if len(launch.outputs) > 1 else None
    total = 0.0
    for tile in _tiles(scores):
        x, targets = scores[tile], labelling.read(labels[tile])
        largest = x.max(axis=1, keepdims=True)
        picked = np.take_along_axis(x, targets.index, axis=1) - largest  # before x may be overwritten
        if probabilities is not None:
            log_total = _softmax_tile(x, probabilities[tile])
        else:
            log_total = np.log(_sum_of_exponentials(x, largest))
        losses = (log_total - picked) * targets.weight
        if each is not None:
            each[tile] = losses
        else:
            total += float(losses.sum(dtype=np.float64))
    if each is None:
        add_number(launch, total, _divisor(launch, extras))


def _cross_entropy_backward(launch: Launch, hyper: Hyper) -> None:
    """SoftmaxCrossEntropyBackward(probabilities, labels, ...) -> dscores = (probabilities - one at the label) scale.

    The scale of a position is its label's weight / divisor times the loss's gradient. dscores may be the probabilities.
    """
    extras = _extras(launch)
    axis = integer(launch.attrs, "axis")
    probabilities, dscores = _by_class(launch.inputs[0], axis), _by_class(launch.outputs[0], axis)
    outer, classes, inner = probabilities.shape
    labels = launch.inputs[1].reshape(outer, 1, inner)
    labelling = _Labelling(
        classes,
        _ignored(launch),
        _class_weights(launch, extras.get("weights"), probabilities.dtype),
        probabilities.dtype,
    )
    divisor, gradient = _divisor(launch, extras), extras.get("gradient")
    if gradient is not None:
        gradient = np.broadcast_to(gradient.reshape(labels.shape if gradient.size > 1 else (1, 1, 1)), labels.shape)
    for tile in _tiles(probabilities):
        targets, out = labelling.read(labels[tile]), dscores[tile]
        scale = np.zeros_like(targets.weight)
        np.divide(targets.weight, divisor, out=scale, where=targets.weight != 0)
        if gradient is not None:
            scale *= gradient[tile]
        np.multiply(probabilities[tile], scale, out=out)
        np.put_along_axis(out, targets.index, np.take_along_axis(out, targets.index, axis=1) - scale, axis=1)


def _label_weight(launch: Launch, hyper: Hyper) -> None:
    """LabelWeight(labels[, weights]) -> sum of the weights (1 without) of the labels that are not ignored."""
    dtype = launch.outputs[0].dtype
    weights = _class_weights(launch, launch.inputs[1] if len(launch.inputs) > 1 else None, dtype)
    labelling = _Labelling(integer(launch.attrs, "classes"), _ignored(launch), weights, dtype)
    total = sum(float(labelling.read(part).weight.sum(dtype=np.float64)) for (part,) in blocks(launch.inputs[0]))
    add_number(launch, total, 1.0)


KERNELS: dict[str, Kernel] = {
    "Softmax": _softmax,
    "SoftmaxBackward": _softmax_backward,
    "LogSoftmax": _log_softmax,
    "LogSoftmaxBackward": _log_softmax_backward,
    "SoftmaxCrossEntropy": _cross_entropy,
    "SoftmaxCrossEntropyBackward": _cross_entropy_backward,
    "LabelWeight": _label_weight,
}
