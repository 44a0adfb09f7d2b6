"""Cross-entropy, and the two operators that come before it: Softmax and LogSoftmax.

Launches (probabilities, gradients and scores have one shape; labels are the scores' shape without the class axis):

    Softmax(x) -> y                                     LogSoftmax(x) -> y
    SoftmaxBackward(y, dy) -> dx                        LogSoftmaxBackward(y, dy) -> dx
    SoftmaxCrossEntropy(scores, labels, ...) -> loss[, probabilities]
    SoftmaxCrossEntropyBackward(probabilities, labels, ...) -> dscores
    LabelWeight(labels[, weights]) -> sum of the weights of the valid labels

A mean divides by the *whole* batch's divisor, in every range: a number in the attribute `divisor`, or, where it depends
on the labels, the result of `LabelWeight`, complete before any range reads it. Attribute `extras` names the inputs
that follow the labels: weights (one a class), divisor, gradient (of the loss; without it the loss is a final one, whose
weight is the attribute `scale`). The weights of a final loss are numbers in the attribute `class_weights`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from planc.graph import AttrValue, Node, TensorSpec
from planc.ops.reading import node_error, present, raw_input, raw_int, raw_spec, raw_text
from planc.ops.spec import (
    BatchRule,
    Builder,
    Grads,
    LaunchSpec,
    OpSpec,
    RawNode,
    Reading,
    Recompute,
    flops_per_input,
    flops_per_output,
)

Specs = tuple[TensorSpec | None, ...]


# Softmax and LogSoftmax


def _read_softmax(raw: RawNode) -> Reading:
    """Before opset 13 the axes from `axis` on count as one; since then `axis` alone."""
    rank = len(raw_spec(raw, 0).shape)
    flatten = raw.opset < 13
    axis = raw_int(raw, "axis", 1 if flatten else -1)
    if not -rank <= axis < rank and not (flatten and axis == rank):
        raise raw.error(f"found axis {axis}, wanted one of the {rank} axes of the input.")
    return Reading((raw.inputs[0],), {"axis": axis + rank if axis < 0 else axis, "flatten": int(flatten)})


def _infer_softmax(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    x = present(specs[0])
    return (TensorSpec(x.shape, x.dtype, x.rows if node.attrs["axis"] != 0 else 0),)


def _lower_softmax(builder: Builder, node: Node) -> tuple[int, ...]:
    x = builder.tensor(node.inputs[0])
    (spec,) = _infer_softmax(node, (builder.spec(x),), builder.batch)
    (y,) = builder.emit(node.op, (x,), (spec,), node.attrs)
    builder.define(node.outputs[0], y)
    return (y,)


def _gradient_softmax(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    """From the result alone: dx = y (dy - sum(y dy)), for the logarithm dx = dy - exp(y) sum(dy)."""
    (dy,) = grads
    if dy is None or not builder.wants(node.inputs[0]):
        return (None,)
    spec = builder.spec(builder.tensor(node.inputs[0]))
    rule = BatchRule.PER_SAMPLE if builder.spec(saved[0]).rows else BatchRule.WHOLE
    return builder.emit(node.op + "Backward", (saved[0], dy), (spec,), node.attrs, rule=rule)


# Cross-entropy


def label_shape(scores: TensorSpec, axis: int) -> tuple[int, ...]:
    return scores.shape[:axis] + scores.shape[axis + 1 :]


def _rule(output: TensorSpec, scores: TensorSpec, labels: TensorSpec) -> BatchRule:
    if not scores.rows or scores.rows != labels.rows:
        return BatchRule.WHOLE
    return BatchRule.PER_SAMPLE if output.rows else BatchRule.SUM


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """A cross-entropy about to be lowered: its tensors, and `attrs` that forward and backward share."""

    scores: int
    labels: int
    extras: Mapping[str, int]
    attrs: Mapping[str, AttrValue]

    def attributes(self, extras: Mapping[str, int]) -> dict[str, AttrValue]:
        return {**self.attrs, "extras": tuple(extras)} if extras else dict(self.attrs)

    def forward(self, builder: Builder, loss: TensorSpec, *, save: bool) -> tuple[int, ...]:
        """(loss,) or, to `save` for the backward pass, (loss, probabilities)."""
        scores = builder.spec(self.scores)
        outputs = (loss, scores) if save else (loss,)
        inputs = (self.scores, self.labels, *self.extras.values())
        rule = _rule(loss, scores, builder.spec(self.labels))
        return builder.emit("SoftmaxCrossEntropy", inputs, outputs, self.attributes(self.extras), rule=rule)

    def backward(self, builder: Builder, probabilities: int, gradient: int | None) -> int:
        extras = self.extras if gradient is None else {**self.extras, "gradient": gradient}
        scores = builder.spec(self.scores)
        inputs = (probabilities, self.labels, *extras.values())
        rule = _rule(scores, scores, builder.spec(self.labels))
        (dscores,) = builder.emit("SoftmaxCrossEntropyBackward", inputs, (scores,), self.attributes(extras), rule=rule)
        return dscores


def _read_cross_entropy(raw: RawNode) -> Reading:
    reduction = raw_text(raw, "reduction", "mean")
    if reduction not in ("mean", "sum", "none"):
        raise raw.error(f"found reduction {reduction!r}, wanted mean, sum or none.")
    attrs: dict[str, AttrValue] = {"reduction": reduction}
    if "ignore_index" in raw.attrs:
        attrs["ignore_index"] = raw_int(raw, "ignore_index", 0)
    if raw_input(raw, 2) and raw_spec(raw, 2).rows:
        raise raw.error(f"its class weights {raw.inputs[2]!r} have a batch axis; one weight a class was expected.")
    return Reading((raw.inputs[0], raw.inputs[1], raw_input(raw, 2)), attrs, outputs=1)


def _infer_cross_entropy(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    scores, labels = present(specs[0]), present(specs[1])
    if len(scores.shape) < 2 or labels.shape != label_shape(scores, 1):
        raise node_error(
            node,
            f"found scores of shape {list(scores.shape)} and labels of shape {list(labels.shape)}, "
            "wanted [N, classes, ...] and the same without the classes.",
        )
    if node.attrs["reduction"] != "none":
        return (TensorSpec((), scores.dtype),)
    return (TensorSpec(labels.shape, scores.dtype, scores.rows if scores.rows == labels.rows else 0),)


def _cross_entropy_of(builder: Builder, node: Node, divisor: int | None) -> CrossEntropy:
    scores, labels, *weights = (builder.tensor(name) for name in node.inputs if name)
    extras = {"weights": weights[0]} if weights else {}
    attrs: dict[str, AttrValue] = {"axis": 1}
    if "ignore_index" in node.attrs:
        attrs["ignore_index"] = node.attrs["ignore_index"]
    if node.attrs["reduction"] == "none":
        attrs["reduction"] = "none"
    if divisor is not None:
        extras["divisor"] = divisor
    else:
        attrs["divisor"] = builder.spec(labels).elements if node.attrs["reduction"] == "mean" else 1
    return CrossEntropy(scores, labels, MappingProxyType(extras), MappingProxyType(attrs))


def label_weight(
    builder: Builder, labels: int, weights: tuple[int, ...], scores: TensorSpec, attrs: Mapping[str, AttrValue]
) -> int:
    """The sum of the weights of the valid labels, over the whole batch; `attrs` say what is ignored, and weights."""
    rule = BatchRule.SUM if builder.spec(labels).rows else BatchRule.WHOLE
    (total,) = builder.emit("LabelWeight", (labels, *weights), (TensorSpec((), scores.dtype),), attrs, rule=rule)
    return total


def _divisor(builder: Builder, node: Node) -> int | None:
    """The divisor of a mean where it depends on the labels."""
    labels_alone = "ignore_index" not in node.attrs and not node.inputs[2]
    if node.attrs["reduction"] != "mean" or labels_alone:
        return None
    scores, labels, *weights = (builder.tensor(name) for name in node.inputs if name)
    spec = builder.spec(scores)
    attrs = {name: node.attrs[name] for name in ("ignore_index",) if name in node.attrs}
    return label_weight(builder, labels, tuple(weights), spec, {**attrs, "classes": spec.shape[1]})


def _lower_cross_entropy(builder: Builder, node: Node) -> tuple[int, ...]:
    specs = tuple(builder.spec(builder.tensor(name)) if name else None for name in node.inputs)
    (spec,) = _infer_cross_entropy(node, specs, builder.batch)
    divisor = _divisor(builder, node)
    save = builder.training and builder.wants(node.inputs[0])
    loss, *probabilities = _cross_entropy_of(builder, node, divisor).forward(builder, spec, save=save)
    builder.define(node.outputs[0], loss)
    return (*probabilities, *((divisor,) if divisor is not None else ()))


def _gradient_cross_entropy(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    if grads[0] is None or not builder.wants(node.inputs[0]):
        return (None, None, None)
    probabilities, *divisor = saved
    loss = _cross_entropy_of(builder, node, divisor[0] if divisor else None)
    return (loss.backward(builder, probabilities, grads[0]), None, None)


OPS: dict[str, OpSpec] = {
    "Softmax": OpSpec(_read_softmax, _infer_softmax, _lower_softmax, _gradient_softmax),
    "LogSoftmax": OpSpec(_read_softmax, _infer_softmax, _lower_softmax, _gradient_softmax),
    "SoftmaxCrossEntropyLoss": OpSpec(
        _read_cross_entropy,
        _infer_cross_entropy,
        _lower_cross_entropy,
        _gradient_cross_entropy,
        differentiable=(0,),
    ),
}
LAUNCHES: dict[str, LaunchSpec] = {
    # Operations an element: maximum, difference, exponential, sum, quotient, and so on.
    "Softmax": LaunchSpec(inplace=((0, 0),), flops=flops_per_output(5)),
    "LogSoftmax": LaunchSpec(inplace=((0, 0),), flops=flops_per_output(5)),
    "SoftmaxBackward": LaunchSpec(inplace=((1, 0),), flops=flops_per_output(4)),
    "LogSoftmaxBackward": LaunchSpec(inplace=((1, 0),), flops=flops_per_output(4)),
    "SoftmaxCrossEntropy": LaunchSpec(
        inplace=((0, 1),), sums=True, flops=flops_per_input(5), recompute=Recompute.NEVER
    ),
    "SoftmaxCrossEntropyBackward": LaunchSpec(inplace=((0, 0),), flops=flops_per_output(2)),
    "LabelWeight": LaunchSpec(sums=True, flops=flops_per_input(1), recompute=Recompute.NEVER),
}
