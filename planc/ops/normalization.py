"""Normalization: batch norm in its three parts, local response normalization, dropout."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

from planc.graph import Node, TensorSpec
from planc.ops.reading import (
    constant_float,
    float_text,
    integer,
    present,
    raw_float_text,
    raw_int,
    raw_spec,
    text,
)
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

TRAIN, PER_SUB_BATCH, FROZEN = "train", "per-sub-batch", "frozen"
"""Values of batch norm's attribute `mode`: statistics of the batch, or of each sub-batch, and an update of the running
ones; or neither."""

BATCH_NORMS: Mapping[str, str] = MappingProxyType({"exact": TRAIN, "per-sub-batch": PER_SUB_BATCH, "frozen": FROZEN})
"""`--batch-norm` -> mode."""


def _same_spec(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    return (present(specs[0]),)


# Batch normalization (Ioffe, Szegedy, ICML 2015), split so that sub-batches leave it exact.


def _read_batch_norm(raw: RawNode) -> Reading:
    """Every opset's form, whatever `training_mode` and the number of outputs say: mode `train`.

    A file exported for inference does not say which of its nodes were frozen in training; whoever knows sets `mode`.
    """
    x = raw_spec(raw, 0)
    if len(x.shape) < 2:
        raise raw.error(f"its input has shape {list(x.shape)}; a batch axis and a channel axis were expected.")
    if raw_int(raw, "spatial", 1) != 1 and len(x.shape) > 2:
        raise raw.error(
            "spatial=0 keeps statistics for every position, which ONNX dropped in opset 9.",
            "Export with opset 9 or newer.",
        )
    for position, what in enumerate(("scale", "bias", "mean", "variance"), start=1):
        spec = raw_spec(raw, position)
        if spec.shape != (x.shape[1],):
            raise raw.error(f"its {what} has shape {list(spec.shape)}; [{x.shape[1]}], the channels, was expected.")
    attrs = {
        "epsilon": raw_float_text(raw, "epsilon", 1e-5),
        "momentum": raw_float_text(raw, "momentum", 0.9),
        "mode": TRAIN,
    }
    return Reading(raw.inputs[:5], attrs, outputs=1)


def _lower_batch_norm(b: Builder, node: Node) -> tuple[int, ...]:
    x, scale, bias, mean, variance = (b.tensor(name) for name in node.inputs)
    spec = b.spec(x)
    epsilon = {"epsilon": text(node.attrs, "epsilon")}
    if not b.training or text(node.attrs, "mode") == FROZEN:
        (y,) = b.emit("BatchNormInference", (x, scale, bias, mean, variance), (spec,), epsilon)
        b.define(node.outputs[0], y)
        return ()
    momentum = {"momentum": text(node.attrs, "momentum")}
    if text(node.attrs, "mode") == PER_SUB_BATCH:
        running = (mean, variance)
        b.overwrite("SubBatchNormUpdate", (x, *running), running, momentum, rule=BatchRule.PER_SAMPLE)
        (y,) = b.emit("SubBatchNorm", (x, scale, bias), (spec,), epsilon)
        b.define(node.outputs[0], y)
        return (x,)
    channels = spec.shape[1]
    (moments,) = b.emit("BatchNormStatistics", (x,), (TensorSpec((3, channels), spec.dtype),))
    (stat,) = b.emit("BatchNormFinalize", (moments,), (TensorSpec((2, channels), spec.dtype),), epsilon)
    # A launch of its own: whatever is computed twice, the running statistics move once a step.
    b.overwrite("BatchNormUpdate", (moments, mean, variance), (mean, variance), momentum)
    (y,) = b.emit("BatchNormNormalize", (x, scale, bias, stat), (spec,))
    b.define(node.outputs[0], y)
    return (x, stat)


def _batch_norm_gradient(b: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    """Train: the gradient sums over the batch are the parameters' gradients and what the input's gradient reads.

    Per sub-batch: one launch, which takes the statistics of its samples again, so that nothing of them is kept.
    Frozen: the node is a fixed affine map, only its input has a gradient.
    """
    (dy,) = grads
    x_name, scale_name, bias_name = node.inputs[:3]
    if dy is None:
        return (None,) * 5
    scale = b.tensor(scale_name)
    epsilon = {"epsilon": text(node.attrs, "epsilon")}
    if text(node.attrs, "mode") == FROZEN:
        if not b.wants(x_name):
            return (None,) * 5
        inputs = (dy, scale, b.tensor(node.inputs[4]))
        return (*b.emit("BatchNormInferenceGradient", inputs, (b.spec(dy),), epsilon), None, None, None, None)
    if not any(b.wants(name) for name in (x_name, scale_name, bias_name)):
        return (None,) * 5
    x = saved[0]
    spec = b.spec(x)
    sums = TensorSpec(spec.shape[1:2], spec.dtype)
    dx: int | None = None
    if text(node.attrs, "mode") == PER_SUB_BATCH:
        wanted = (sums, sums, spec) if b.wants(x_name) else (sums, sums)
        dbias, dscale, *rest = b.emit("SubBatchNormGradient", (dy, x, scale), wanted, epsilon)
        dx = rest[0] if rest else None
        return (dx, dscale if b.wants(scale_name) else None, dbias if b.wants(bias_name) else None, None, None)
    stat = saved[1]
    dbias, dscale = b.emit("BatchNormReduce", (x, dy, stat), (sums, sums))
    if b.wants(x_name):
        count = {"count": spec.elements // spec.shape[1]}
        (dx,) = b.emit("BatchNormInputGradient", (dy, x, stat, scale, dscale, dbias), (spec,), count)
    return (dx, dscale if b.wants(scale_name) else None, dbias if b.wants(bias_name) else None, None, None)


# Local response normalization (Krizhevsky, Sutskever, Hinton, NIPS 2012).


def _read_lrn(raw: RawNode) -> Reading:
    x = raw_spec(raw, 0)
    size = raw_int(raw, "size", 0)
    if size < 1 or len(x.shape) < 2:
        raise raw.error(f"size {size} over shape {list(x.shape)}; a positive size over a channel axis was expected.")
    attrs: dict[str, int | str] = {
        "size": size,
        "alpha": raw_float_text(raw, "alpha", 1e-4),
        "beta": raw_float_text(raw, "beta", 0.75),
        "bias": raw_float_text(raw, "bias", 1.0),
    }
    return Reading(raw.inputs[:1], attrs, outputs=1)


def _lower_lrn(b: Builder, node: Node) -> tuple[int, ...]:
    """Saves its input alone.

    The scale (bias + alpha/size * sum of squares) is as large as the input and takes `size` additions and one power an
    element to make again, less than reading it back over any link: backward rebuilds it block by block.
    """
    x = b.tensor(node.inputs[0])
    (y,) = b.emit("LRN", (x,), (b.spec(x),), node.attrs)
    b.define(node.outputs[0], y)
    return (x,)


def _lrn_gradient(b: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    (dy,), (x,) = grads, saved
    if dy is None or not b.wants(node.inputs[0]):
        return (None,)
    return b.emit("LRNBackward", (dy, x), (b.spec(x),), node.attrs)


# Dropout (Srivastava et al., JMLR 2014), the kept elements scaled in training.


def _read_dropout(raw: RawNode) -> Reading:
    """The ratio is an attribute before opset 12 and an input since; `training_mode` and `seed` are planc's to say."""
    if raw.opset < 12:
        ratio = raw_float_text(raw, "ratio", 0.5)
    else:
        given = constant_float(raw, 1, "ratio")
        ratio = float_text(0.5 if given is None else given)
    if not 0 <= float(ratio) < 1:
        raise raw.error(f"ratio {ratio}; a number in [0, 1) was expected.")
    return Reading(raw.inputs[:1], {"ratio": ratio}, outputs=1)


def _lower_dropout(b: Builder, node: Node) -> tuple[int, ...]:
    """Saves a number, not memory: the mask is drawn again.

    The view of the input is nobody else's, so its index tells this node's mask from that of another dropout of the same
    tensor; no launch of the backward pass reads it.
    """
    x = b.tensor(node.inputs[0])
    if not b.training or float(text(node.attrs, "ratio")) == 0:
        b.define(node.outputs[0], x)
        return ()
    spec = b.spec(x)
    own = b.view(x, spec)
    (y,) = b.emit("Dropout", (own,), (spec,), _dropout_attrs(node, spec, own))
    b.define(node.outputs[0], y)
    return (own,)


def _dropout_gradient(b: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    """Nothing saved: the node passed its input on, and passes the gradient on."""
    (dy,) = grads
    if dy is None or not b.wants(node.inputs[0]):
        return (None,)
    if not saved:
        return (dy,)
    spec = b.spec(dy)
    return b.emit("DropoutBackward", (dy,), (spec,), _dropout_attrs(node, spec, saved[0]))


def _dropout_attrs(node: Node, spec: TensorSpec, own: int) -> dict[str, int | str]:
    elements = spec.rows * prod(spec.shape[1:]) if spec.rows else spec.elements
    return {"ratio": text(node.attrs, "ratio"), "node": own, "elements": elements}


OPS: dict[str, OpSpec] = {
    "BatchNormalization": OpSpec(
        _read_batch_norm,
        _same_spec,
        _lower_batch_norm,
        _batch_norm_gradient,
        differentiable=(0, 1, 2),
        parameters=(1, 2),
        statistics=(3, 4),
    ),
    "LRN": OpSpec(_read_lrn, _same_spec, _lower_lrn, _lrn_gradient, parameters=()),
    "Dropout": OpSpec(_read_dropout, _same_spec, _lower_dropout, _dropout_gradient, parameters=()),
}

LAUNCHES: dict[str, LaunchSpec] = {
    "BatchNormStatistics": LaunchSpec(sums=True, flops=flops_per_input(4), recompute=Recompute.NEVER),
    "BatchNormFinalize": LaunchSpec(flops=flops_per_output(3)),
    "BatchNormUpdate": LaunchSpec(inplace=((1, 0), (2, 1)), flops=flops_per_input(3), recompute=Recompute.NEVER),
    "BatchNormNormalize": LaunchSpec(inplace=((0, 0),), flops=flops_per_output(3)),
    "BatchNormInference": LaunchSpec(inplace=((0, 0),), flops=flops_per_output(3)),
    "BatchNormReduce": LaunchSpec(sums=True, flops=flops_per_input(4), recompute=Recompute.NEVER),
    "BatchNormInputGradient": LaunchSpec(inplace=((0, 0), (1, 0)), flops=flops_per_output(5)),
    "BatchNormInferenceGradient": LaunchSpec(inplace=((0, 0),)),
    # The three take the statistics of the samples they run on, the gradient its own two sums besides.
    "SubBatchNorm": LaunchSpec(inplace=((0, 0),), flops=flops_per_output(7), passes=2),
    "SubBatchNormUpdate": LaunchSpec(inplace=((1, 0), (2, 1)), flops=flops_per_input(4), recompute=Recompute.NEVER),
    "SubBatchNormGradient": LaunchSpec(
        inplace=((0, 2), (1, 2)), sums=True, flops=flops_per_input(13), recompute=Recompute.NEVER, passes=3
    ),
    "LRN": LaunchSpec(
        inplace=((0, 0),),
        flops=lambda attrs, inputs, outputs: (integer(attrs, "size") + 4) * outputs[0].elements,
    ),
    "LRNBackward": LaunchSpec(
        inplace=((0, 0), (1, 0)),
        flops=lambda attrs, inputs, outputs: (2 * integer(attrs, "size") + 10) * outputs[0].elements,
    ),
    # Ten rounds of Philox make four words: ten operations a round, then compare, select, scale.
    "Dropout": LaunchSpec(inplace=((0, 0),), flops=flops_per_output(28)),
    "DropoutBackward": LaunchSpec(inplace=((0, 0),), flops=flops_per_output(28)),
}
