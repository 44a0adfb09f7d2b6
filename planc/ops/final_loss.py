"""The losses of --loss, which planc hangs on outputs of the model. Each is a mean over the whole batch times a weight.

Ranges of samples add their shares up: they divide by the whole batch's divisor, which is a number where it is that of
the elements, and where it depends on the labels (some are ignored, or classes have weights) a launch that reads the
labels of the whole batch before any range of the loss. Launches, besides those of ops/loss.py:

    MeanSquaredError(x, t) -> loss        (x - t)^2
    MeanAbsoluteError(x, t) -> loss       |x - t|
    SmoothL1(x, t) -> loss                d^2 / (2 beta) where d = |x - t| < beta, else d - beta / 2
    BinaryCrossEntropy(x, t) -> loss      max(x, 0) - x t + log(1 + exp(-|x|)): of sigmoid(x), targets in [0, 1]
    <each>Backward(x, t) -> dx
    Fill() -> a constant

Sources: Girshick, "Fast R-CNN", ICCV 2015, for SmoothL1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from planc.graph import AttrValue, TensorSpec
from planc.ops.loss import CrossEntropy, label_shape, label_weight
from planc.ops.spec import Builder, LaunchSpec, OpSpec, Recompute, flops_per_input, flops_per_output


@dataclass(frozen=True, slots=True)
class LossForm:
    """What a loss is told besides its kind. Numbers are decimal text.

    weight:        factor of the loss in the sum of all.
    axis:          of the classes in the scores of a cross-entropy.
    ignore_index:  a label that does not count (None: no such label).
    class_weights: a weight for each class (empty: all 1).
    beta:          of smooth L1.
    """

    weight: str = "1"
    axis: int = 1
    ignore_index: int | None = None
    class_weights: tuple[str, ...] = ()
    beta: str = "1"

    @property
    def scale(self) -> dict[str, AttrValue]:
        """The weight as an attribute, if it is not 1."""
        return {} if self.weight == "1" else {"scale": self.weight}


@dataclass(frozen=True, slots=True)
class LossSpec:
    """A kind of loss.

    labels:   (scores, form) -> what the loss compares them with.
    lower:    (Builder, scores, labels, form) -> (loss tensor, saved tensors).
    gradient: (Builder, scores, labels, form, saved) -> gradient of the scores.
    """

    labels: Callable[[TensorSpec, LossForm], TensorSpec]
    lower: Callable[[Builder, int, int, LossForm], tuple[int, tuple[int, ...]]]
    gradient: Callable[[Builder, int, int, LossForm, tuple[int, ...]], int]


def _class_labels(scores: TensorSpec, form: LossForm) -> TensorSpec:
    """int64 class indices; trailing axes of size 1 are dropped: scores (N, 1000, 1, 1) take labels (N,)."""
    shape = label_shape(scores, form.axis)
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return TensorSpec(shape, "int64", scores.rows if form.axis else 0)


def _cross_entropy(builder: Builder, scores: int, labels: int, form: LossForm, divisor: int | None) -> CrossEntropy:
    attrs: dict[str, AttrValue] = {"axis": form.axis, **_valid(form), **form.scale}
    extras = {} if divisor is None else {"divisor": divisor}
    if divisor is None:
        attrs["divisor"] = builder.spec(labels).elements
    return CrossEntropy(scores, labels, MappingProxyType(extras), MappingProxyType(attrs))


def _valid(form: LossForm) -> dict[str, AttrValue]:
    """Which labels count, and how much."""
    attrs: dict[str, AttrValue] = {}
    if form.ignore_index is not None:
        attrs["ignore_index"] = form.ignore_index
    if form.class_weights:
        attrs["class_weights"] = form.class_weights
    return attrs


def _lower_cross_entropy(builder: Builder, scores: int, labels: int, form: LossForm) -> tuple[int, tuple[int, ...]]:
    spec, divisor = builder.spec(scores), None
    if valid := _valid(form):
        divisor = label_weight(builder, labels, (), spec, {**valid, "classes": spec.shape[form.axis]})
    made = _cross_entropy(builder, scores, labels, form, divisor)
    loss, *saved = made.forward(builder, TensorSpec((), spec.dtype), save=builder.training)
    return loss, (*saved, *((divisor,) if divisor is not None else ()))


def _gradient_cross_entropy(builder: Builder, scores: int, labels: int, form: LossForm, saved: tuple[int, ...]) -> int:
    probabilities, *divisor = saved
    made = _cross_entropy(builder, scores, labels, form, divisor[0] if divisor else None)
    return made.backward(builder, probabilities, None)


def _between_elements(op: str) -> LossSpec:
    """A mean over the elements of the scores and of targets of their shape."""

    def attrs(prediction: TensorSpec, form: LossForm) -> dict[str, AttrValue]:
        beta: dict[str, AttrValue] = {"beta": form.beta} if op == "SmoothL1" else {}
        return {"divisor": prediction.elements, **beta, **form.scale}

    def lower(builder: Builder, scores: int, labels: int, form: LossForm) -> tuple[int, tuple[int, ...]]:
        prediction = builder.spec(scores)
        (loss,) = builder.emit(op, (scores, labels), (TensorSpec((), prediction.dtype),), attrs(prediction, form))
        return loss, ()

    def gradient(builder: Builder, scores: int, labels: int, form: LossForm, saved: tuple[int, ...]) -> int:
        prediction = builder.spec(scores)
        (made,) = builder.emit(f"{op}Backward", (scores, labels), (prediction,), attrs(prediction, form))
        return made

    return LossSpec(lambda scores, form: scores, lower, gradient)


LOSSES: Mapping[str, LossSpec] = MappingProxyType(
    {
        "cross_entropy": LossSpec(_class_labels, _lower_cross_entropy, _gradient_cross_entropy),
        "bce": _between_elements("BinaryCrossEntropy"),
        "mse": _between_elements("MeanSquaredError"),
        "l1": _between_elements("MeanAbsoluteError"),
        "smooth_l1": _between_elements("SmoothL1"),
    }
)
"""Kind of --loss -> meaning."""


def _both(op: str, forward: int, backward: int) -> dict[str, LaunchSpec]:
    """A loss between elements and its gradient, with their operations an element."""
    return {
        op: LaunchSpec(sums=True, flops=flops_per_input(forward), recompute=Recompute.NEVER),
        f"{op}Backward": LaunchSpec(inplace=((0, 0),), flops=flops_per_output(backward)),
    }


OPS: dict[str, OpSpec] = {}

LAUNCHES: dict[str, LaunchSpec] = {
    "Fill": LaunchSpec(flops=flops_per_output(0)),
    **_both("MeanSquaredError", 3, 2),
    **_both("MeanAbsoluteError", 3, 3),
    **_both("SmoothL1", 7, 5),
    **_both("BinaryCrossEntropy", 8, 5),
}
