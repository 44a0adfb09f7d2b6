"""Pooling: maximum and average over windows, and over everything."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from planc.graph import Attrs, Node, TensorSpec
from planc.ops.reading import integer, integers, present, raw_int, raw_ints, raw_spec, raw_text
from planc.ops.spec import Builder, Grads, LaunchSpec, OpSpec, RawNode, Reading, flops_per_input, flops_per_output

Specs = tuple[TensorSpec | None, ...]

_INDEX_TAPS = 255
"""A window with more taps than this keeps the place of its maximum in int32 instead of uint8."""


def _read_pool(raw: RawNode) -> Reading:
    """Defaults filled in, `auto_pad` turned into pads, every window checked to hold at least one element.

    `auto_pad` overrules `pads`, as in onnxruntime. The output MaxPool calls Indices is not kept.
    """
    size = raw_spec(raw, 0).shape[2:]
    rank = len(size)
    kernel = raw_ints(raw, "kernel_shape") or ()
    if not rank or len(kernel) != rank:
        raise raw.error(f"kernel_shape {list(kernel)} over shape {list(raw_spec(raw, 0).shape)}: the ranks don't fit.")
    strides = raw_ints(raw, "strides") or (1,) * rank
    dilations = raw_ints(raw, "dilations") or (1,) * rank
    pads = raw_ints(raw, "pads") or (0,) * (2 * rank)
    for name, values, count in (("strides", strides, rank), ("dilations", dilations, rank), ("pads", pads, 2 * rank)):
        if len(values) != count or min(values) < (0 if name == "pads" else 1):
            raise raw.error(f"{name} {list(values)}: not the {count} values that {rank} spatial axes need.")
    ceil_mode = raw_int(raw, "ceil_mode", 0)
    automatic = raw_text(raw, "auto_pad", "NOTSET") or "NOTSET"
    if automatic != "NOTSET":
        pads, ceil_mode = _auto_pads(raw, automatic, size, kernel, strides, dilations), 0
    attrs: dict[str, int | tuple[int, ...]] = {
        "kernel_shape": kernel,
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "ceil_mode": ceil_mode,
    }
    if raw.op == "AveragePool":
        attrs["count_include_pad"] = raw_int(raw, "count_include_pad", 0)
    _check_windows(raw, size, attrs)
    return Reading(raw.inputs[:1], attrs, outputs=1)


def _auto_pads(
    raw: RawNode,
    automatic: str,
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> tuple[int, ...]:
    """SAME: a window for every stride begun; an odd element of padding goes behind (UPPER) or in front (LOWER)."""
    if automatic == "VALID":
        return (0,) * (2 * len(size))
    if automatic not in ("SAME_UPPER", "SAME_LOWER"):
        raise raw.error(f"auto_pad {automatic!r}; NOTSET, SAME_UPPER, SAME_LOWER or VALID was expected.")
    small, large = [], []
    for extent, taps, stride, dilation in zip(size, kernel, strides, dilations, strict=True):
        windows = -(-extent // stride)
        total = max(0, (windows - 1) * stride + (taps - 1) * dilation + 1 - extent)
        small.append(total // 2)
        large.append(total - total // 2)
    return (*small, *large) if automatic == "SAME_UPPER" else (*large, *small)


def _check_windows(raw: RawNode, size: tuple[int, ...], attrs: Attrs) -> None:
    kernel, strides, dilations, pads = _window(attrs)
    for axis, windows in enumerate(_windows(size, attrs)):
        if windows < 1:
            raise raw.error(f"its window is larger than the padded input {list(size)} on spatial axis {axis}.")
        first = [position * strides[axis] - pads[axis] for position in range(windows)]
        taps = [tap * dilations[axis] for tap in range(kernel[axis])]
        if not all(any(0 <= start + tap < size[axis] for tap in taps) for start in first):
            raise raw.error(
                f"pads {list(pads)} leave a window on spatial axis {axis} that lies in the padding alone.",
                "Use pads smaller than the window.",
            )


def _window(attrs: Attrs) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(kernel shape, strides, dilations, pads) of a node."""
    kernel, strides = integers(attrs, "kernel_shape"), integers(attrs, "strides")
    return kernel, strides, integers(attrs, "dilations"), integers(attrs, "pads")


def _windows(size: tuple[int, ...], attrs: Attrs) -> tuple[int, ...]:
    """Number of windows on every spatial axis. With ceil_mode a window that would start behind the input is dropped."""
    kernel, strides, dilations, pads = _window(attrs)
    found = []
    for axis, extent in enumerate(size):
        room = extent + pads[axis] + pads[axis + len(size)] - (kernel[axis] - 1) * dilations[axis] - 1
        if integer(attrs, "ceil_mode"):
            windows = -(-room // strides[axis]) + 1
            if (windows - 1) * strides[axis] >= extent + pads[axis]:
                windows -= 1
        else:
            windows = room // strides[axis] + 1
        found.append(windows)
    return tuple(found)


def _infer_pool(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    x = present(specs[0])
    return (replace(x, shape=(*x.shape[:2], *_windows(x.shape[2:], node.attrs))),)


def _read_global(raw: RawNode) -> Reading:
    if len(raw_spec(raw, 0).shape) < 3:
        raise raw.error(f"its input has shape {list(raw_spec(raw, 0).shape)}; at least one spatial axis was expected.")
    return Reading(raw.inputs[:1], {}, outputs=1)


def _infer_global(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    x = present(specs[0])
    return (replace(x, shape=(*x.shape[:2], *(1,) * (len(x.shape) - 2))),)


def _is_global(node: Node, x: TensorSpec) -> bool:
    """Whether there is one window and it is the whole input: many exporters write global pooling so."""
    if not node.attrs:
        return True
    kernel, _, dilations, pads = _window(node.attrs)
    return kernel == x.shape[2:] and set(dilations) == {1} and not any(pads)


def _launch_attrs(node: Node) -> dict[str, int | str | tuple[int, ...] | tuple[str, ...]]:
    """What kernels need besides the shapes of their arrays, which tell the number of windows."""
    return {name: value for name, value in node.attrs.items() if name != "ceil_mode"}


def _lower_max(b: Builder, node: Node) -> tuple[int, ...]:
    """Saves where in its window each maximum was found, a byte an output, instead of input and output."""
    x = b.tensor(node.inputs[0])
    y_spec = _infer(node, b.spec(x))
    whole = _is_global(node, b.spec(x))
    op, attrs = ("GlobalMaxPool", {}) if whole else ("MaxPool", _launch_attrs(node))
    if not b.wants(node.inputs[0]):
        (y,) = b.emit(op, (x,), (y_spec,), attrs)
        b.define(node.outputs[0], y)
        return ()
    wide = whole or prod(integers(node.attrs, "kernel_shape")) > _INDEX_TAPS
    y, index = b.emit(op, (x,), (y_spec, replace(y_spec, dtype="int32" if wide else "uint8")), attrs)
    b.define(node.outputs[0], y)
    return (index,)


def _lower_average(b: Builder, node: Node) -> tuple[int, ...]:
    x = b.tensor(node.inputs[0])
    whole = _is_global(node, b.spec(x))
    op, attrs = ("GlobalAveragePool", {}) if whole else ("AveragePool", _launch_attrs(node))
    (y,) = b.emit(op, (x,), (_infer(node, b.spec(x)),), attrs)
    b.define(node.outputs[0], y)
    return ()


def _infer(node: Node, x: TensorSpec) -> TensorSpec:
    return (_infer_pool if node.attrs else _infer_global)(node, (x,), 0)[0]


def _max_gradient(b: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    (dy,) = grads
    if dy is None or not b.wants(node.inputs[0]):
        return (None,)
    return _emit_gradient(b, node, "MaxPool", (dy, *saved))


def _average_gradient(b: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    (dy,) = grads
    if dy is None or not b.wants(node.inputs[0]):
        return (None,)
    return _emit_gradient(b, node, "AveragePool", (dy,))


def _emit_gradient(b: Builder, node: Node, family: str, inputs: tuple[int, ...]) -> Grads:
    spec = b.spec(b.tensor(node.inputs[0]))
    if _is_global(node, spec):
        return b.emit(f"Global{family}Backward", inputs, (spec,))
    return b.emit(f"{family}Backward", inputs, (spec,), _launch_attrs(node))


def _flops_per_tap(attrs: Attrs, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> int:
    """One operation for every tap of every window; the smaller array has an element a window."""
    windows = min(inputs[0].elements, outputs[0].elements)
    return windows * prod(integers(attrs, "kernel_shape"))


def _flops_per_tap_twice(attrs: Attrs, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> int:
    return 2 * _flops_per_tap(attrs, inputs, outputs)


OPS: dict[str, OpSpec] = {
    "MaxPool": OpSpec(_read_pool, _infer_pool, _lower_max, _max_gradient, parameters=()),
    "AveragePool": OpSpec(_read_pool, _infer_pool, _lower_average, _average_gradient, parameters=()),
    "GlobalMaxPool": OpSpec(_read_global, _infer_global, _lower_max, _max_gradient, parameters=()),
    "GlobalAveragePool": OpSpec(_read_global, _infer_global, _lower_average, _average_gradient, parameters=()),
}

LAUNCHES: dict[str, LaunchSpec] = {
    "MaxPool": LaunchSpec(flops=_flops_per_tap),
    "MaxPoolBackward": LaunchSpec(flops=_flops_per_tap_twice),
    "AveragePool": LaunchSpec(flops=_flops_per_tap),
    "AveragePoolBackward": LaunchSpec(flops=_flops_per_tap),
    "GlobalMaxPool": LaunchSpec(flops=flops_per_input(1)),
    "GlobalMaxPoolBackward": LaunchSpec(flops=flops_per_output(1)),
    "GlobalAveragePool": LaunchSpec(flops=flops_per_input(1)),
    "GlobalAveragePoolBackward": LaunchSpec(flops=flops_per_output(1)),
}
