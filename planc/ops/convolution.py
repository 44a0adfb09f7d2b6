"""Convolution in one and two dimensions: groups, dilation, any stride, asymmetric padding, every auto_pad.

A Conv in normal form has explicit `pads` (begin of every axis, then end of every axis), `strides`, `dilations`, `group`
and `kernel_shape`, whatever the file left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

from planc.graph import FLOATS, Attrs, AttrValue, Node, TensorSpec
from planc.ops.reading import integers, present, raw_input, raw_int, raw_ints, raw_spec, raw_text
from planc.ops.spec import BatchRule, Builder, Grads, LaunchSpec, OpSpec, RawNode, Reading, Recompute, flops_per_input


def read_conv(node: RawNode) -> Reading:
    """Normal form of a Conv.

    Raises:
        ModelError: not 1-D or 2-D, shapes that do not fit each other, attributes out of range, an empty output.
    """
    x, w = raw_spec(node, 0), raw_spec(node, 1)
    axes = len(x.shape) - 2
    if axes not in (1, 2):
        raise node.error(
            f"its input {list(x.shape)} has {axes} spatial axes; planc convolves 1-D and 2-D.",
            "Rewrite the node with 1-D or 2-D convolutions.",
        )
    group = raw_int(node, "group", 1)
    _check_shapes(node, x, w, group)
    kernel = w.shape[2:]
    strides = _positive(node, "strides", axes)
    dilations = _positive(node, "dilations", axes)
    pads = _pads(node, x.shape[2:], kernel, strides, dilations)
    if any(size < 1 for size in _outputs(x.shape[2:], kernel, strides, dilations, pads)):
        raise node.error(
            f"its output is empty: input {list(x.shape)}, kernel {list(kernel)}, dilations {list(dilations)}, "
            f"pads {list(pads)}.",
            "The padded input must be as large as the dilated kernel.",
        )
    attrs: dict[str, AttrValue] = {
        "pads": pads,
        "strides": strides,
        "dilations": dilations,
        "group": group,
        "kernel_shape": kernel,
    }
    bias = raw_input(node, 2)
    return Reading((node.inputs[0], node.inputs[1], *((bias,) if bias else ())), attrs)


def _check_shapes(node: RawNode, x: TensorSpec, w: TensorSpec, group: int) -> None:
    if len(w.shape) != len(x.shape):
        raise node.error(
            f"its weight {list(w.shape)} has {len(w.shape)} axes; its input {list(x.shape)} asks for equal."
        )
    if x.dtype != w.dtype or x.dtype not in FLOATS:
        raise node.error(f"its input is {x.dtype} and its weight {w.dtype}; one floating-point type was expected.")
    if group < 1 or w.shape[0] % group or x.shape[1] != w.shape[1] * group:
        raise node.error(
            f"its input {list(x.shape)}, weight {list(w.shape)} and group {group} do not fit: the input needs "
            f"{w.shape[1] * group} channels, and the weight a multiple of {group} outputs."
        )
    kernel = raw_ints(node, "kernel_shape")
    if kernel is not None and kernel != w.shape[2:]:
        raise node.error(f"its kernel_shape {list(kernel)} is not that of its weight {list(w.shape)}.")
    if raw_input(node, 2) and raw_spec(node, 2).shape != w.shape[:1]:
        raise node.error(
            f"its bias {list(raw_spec(node, 2).shape)} is not [{w.shape[0]}], one for each output channel."
        )


def _positive(node: RawNode, name: str, axes: int) -> tuple[int, ...]:
    """The attribute `name`, one positive integer for each axis; ones where it is absent."""
    values = raw_ints(node, name) or (1,) * axes
    if len(values) != axes or any(value < 1 for value in values):
        raise node.error(f"its {name} {list(values)} should be {axes} positive integers.")
    return values


def _pads(
    node: RawNode,
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> tuple[int, ...]:
    """Explicit pads. With an auto_pad other than NOTSET the attribute `pads` is ignored, as onnxruntime does."""
    auto = raw_text(node, "auto_pad", "NOTSET") or "NOTSET"
    if auto == "NOTSET":
        pads = raw_ints(node, "pads") or (0,) * (2 * len(sizes))
        if len(pads) != 2 * len(sizes) or any(pad < 0 for pad in pads):
            raise node.error(f"its pads {list(pads)} should be {2 * len(sizes)} integers, none negative.")
        return pads
    if auto == "VALID":
        return (0,) * (2 * len(sizes))
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise node.error(f"its auto_pad {auto!r} is none of NOTSET, VALID, SAME_UPPER, SAME_LOWER.")
    totals = [
        max(0, (-(-size // stride) - 1) * stride + (taps - 1) * dilation + 1 - size)
        for size, taps, stride, dilation in zip(sizes, kernel, strides, dilations)
    ]
    smaller, larger = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    return (*smaller, *larger) if auto == "SAME_UPPER" else (*larger, *smaller)


def _outputs(
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pads: tuple[int, ...],
) -> tuple[int, ...]:
    """Spatial sizes of the output."""
    axes = len(sizes)
    return tuple(
        (sizes[i] + pads[i] + pads[axes + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i in range(axes)
    )


def infer_conv(node: Node, inputs: tuple[TensorSpec | None, ...], batch: int) -> tuple[TensorSpec, ...]:
    """(n, k, output sizes). A weight with a batch axis mixes samples, so that the output has none."""
    x, w = present(inputs[0]), present(inputs[1])
    strides, dilations, pads = (integers(node.attrs, name) for name in ("strides", "dilations", "pads"))
    sizes = _outputs(x.shape[2:], w.shape[2:], strides, dilations, pads)
    return (TensorSpec((x.shape[0], w.shape[0], *sizes), x.dtype, 0 if w.rows else x.rows),)


def lower_conv(b: Builder, node: Node) -> tuple[int, ...]:
    """One launch. Saved: x for the gradient of the weight, the weight for the gradient of x."""
    inputs = tuple(b.tensor(name) for name in node.inputs)
    (spec,) = infer_conv(node, tuple(b.spec(tensor) for tensor in inputs), b.batch)
    (y,) = b.emit("Conv", inputs, (spec,), node.attrs)
    b.define(node.outputs[0], y)
    wanted = (b.wants(node.inputs[1]), b.wants(node.inputs[0]))
    return tuple(tensor for tensor, want in zip(inputs, wanted) if b.training and want)


def conv_gradient(b: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    """Backward-data, backward-filter, and the sum of each channel for the bias."""
    dy = grads[0]
    if dy is None:
        return (None,) * len(node.inputs)
    inputs = tuple(b.tensor(name) for name in node.inputs)
    x, w = inputs[:2]
    rule = BatchRule.WHOLE if b.spec(w).rows else None
    results: list[int | None] = [None] * len(inputs)
    if b.wants(node.inputs[0]):
        (results[0],) = b.emit("ConvBackwardData", (dy, w), (b.spec(x),), node.attrs, rule=rule)
    if b.wants(node.inputs[1]):
        (results[1],) = b.emit("ConvBackwardFilter", (x, dy), (b.spec(w),), node.attrs, rule=rule)
    if len(inputs) == 3 and b.wants(node.inputs[2]):
        (results[2],) = b.emit("ChannelSum", (dy,), (b.spec(inputs[2]),), rule=rule)
    return tuple(results)


def conv_flops(attrs: Attrs, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> int:
    """Of Conv (x, w) -> y: a multiplication and an addition for each output element and filter element."""
    return 2 * outputs[0].elements * prod(inputs[1].shape[1:])


def data_flops(attrs: Attrs, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> int:
    """Of ConvBackwardData (y's gradient, w) -> x's."""
    return 2 * inputs[0].elements * prod(inputs[1].shape[1:])


def filter_flops(attrs: Attrs, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> int:
    """Of ConvBackwardFilter (x, y's gradient) -> w's."""
    return 2 * inputs[1].elements * prod(outputs[0].shape[1:])


OPS: Mapping[str, OpSpec] = MappingProxyType(
    {
        "Conv": OpSpec(
            read=read_conv,
            infer=infer_conv,
            lower=lower_conv,
            gradient=conv_gradient,
            differentiable=(0, 1, 2),
            parameters=(1, 2),
        ),
    }
)

LAUNCHES: Mapping[str, LaunchSpec] = MappingProxyType(
    {
        "Conv": LaunchSpec(flops=conv_flops, recompute=Recompute.COSTLY, matrix=True),
        "ConvBackwardData": LaunchSpec(flops=data_flops, recompute=Recompute.COSTLY, matrix=True),
        "ConvBackwardFilter": LaunchSpec(sums=True, flops=filter_flops, recompute=Recompute.NEVER, matrix=True),
        "ChannelSum": LaunchSpec(sums=True, flops=flops_per_input(1), recompute=Recompute.NEVER),
    }
)
