"""Normalization of each sample by itself: layer, RMS, group and instance normalization.

All are one computation on another view of the input: the last axes of the view, from `axis` on, are a *row*, brought to
mean 0 and variance 1 (RMS: to mean square 1), then scaled and shifted by parameters that broadcast to the view.

    LayerNormalization, RMSNormalization    the input itself, its own `axis`
    GroupNormalization                      (N, groups, channels / groups, positions), axis 2
    InstanceNormalization                   the same with as many groups as channels

Statistics are a launch of their own: one or two numbers a row, saved for the backward pass, so that a planner who drops
the result needs neither of them again to rebuild it. Every launch is per sample, and exact under sub-batches; only the
parameters' gradients are sums over samples. Launches, with `stat` = mean, inverse deviation (RMS, `centred` 0: the
latter alone), 1 / sqrt(variance or mean square + epsilon):

    RowStatistics(x) -> *stat
    RowNormalize(x, *stat, scale[, bias]) -> y
    RowNormalizeBackward(dy, x, *stat, scale) -> dx
    RowScaleSumTo(dy, x, *stat) -> dscale

Sources: Ba, Kiros, Hinton, "Layer Normalization", 2016; Zhang, Sennrich, "Root Mean Square Layer Normalization",
NeurIPS 2019; Wu, He, "Group Normalization", ECCV 2018; Ulyanov, Vedaldi, Lempitsky, "Instance Normalization", 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from planc.graph import AttrValue, Node, TensorSpec
from planc.ops.alignment import sum_to
from planc.ops.reading import (
    integer,
    node_error,
    normal_axis,
    present,
    raw_float_text,
    raw_input,
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

Shape = tuple[int, ...]
Specs = tuple[TensorSpec | None, ...]

_PER_CHANNEL = 21
"""Opset from which GroupNormalization has a scale for each channel; before it has one for each group."""


def _read_layer_norm(raw: RawNode) -> Reading:
    """Mean and deviation, the optional outputs, are dropped; `stash_type` asks for no more than sums have: float64."""
    axis = normal_axis(raw, raw_int(raw, "axis", -1), len(raw_spec(raw, 0).shape))
    centred = int(raw.op == "LayerNormalization")
    attrs: dict[str, AttrValue] = {"axis": axis, "centred": centred, "epsilon": raw_float_text(raw, "epsilon", 1e-5)}
    return Reading((raw.inputs[0], raw.inputs[1], raw_input(raw, 2)), attrs, outputs=1)


def _read_group_norm(raw: RawNode) -> Reading:
    x = raw_spec(raw, 0)
    if len(x.shape) < 2:
        raise raw.error(f"its input has shape {list(x.shape)}; a batch axis and a channel axis were expected.")
    channels = x.shape[1]
    groups = channels if raw.op == "InstanceNormalization" else raw_int(raw, "num_groups", 0)
    if groups < 1 or channels % groups:
        raise raw.error(f"{channels} channels do not fall into {groups} groups of one size.")
    count = channels if raw.op == "InstanceNormalization" or raw.opset >= _PER_CHANNEL else groups
    for position, what in ((1, "scale"), (2, "bias")):
        spec = raw_spec(raw, position)
        if spec.shape != (count,):
            raise raw.error(f"its {what} has shape {list(spec.shape)}; [{count}] was expected at opset {raw.opset}.")
    attrs: dict[str, AttrValue] = {"groups": groups, "centred": 1, "epsilon": raw_float_text(raw, "epsilon", 1e-5)}
    return Reading(raw.inputs[:3], attrs, outputs=1)


@dataclass(frozen=True, slots=True)
class _Rows:
    """How a node's tensors are seen: `x` and `scale`, `bias` (None = absent) as views, rows from `axis` on."""

    x: TensorSpec
    axis: int
    scale: TensorSpec
    bias: TensorSpec | None

    @classmethod
    def of(cls, node: Node, specs: Specs) -> _Rows:
        """
        Raises:
            ModelError: a parameter has a batch axis, or does not broadcast to the input.
        """
        x, scale, bias = present(specs[0]), present(specs[1]), specs[2]
        if "groups" in node.attrs:
            groups, channels = integer(node.attrs, "groups"), x.shape[1]
            view = (x.shape[0], groups, channels // groups, prod(x.shape[2:]))
            of_group = TensorSpec((groups, scale.elements // groups, 1), scale.dtype)
            return cls(TensorSpec(view, x.dtype, x.rows), 2, of_group, of_group)
        axis = integer(node.attrs, "axis")
        for what, spec in (("scale", scale), ("bias", bias)):
            if spec is not None and not _fits(spec, x, whole=axis == 0):
                raise node_error(
                    node,
                    f"its {what} has shape {list(spec.shape)}; one that broadcasts to {list(x.shape)} and is the same "
                    "for every sample was expected.",
                    "Leave the node's scale at ones, and multiply and add behind it.",
                )
        return cls(x, axis, scale, bias)

    @property
    def rule(self) -> BatchRule | None:
        """WHOLE where a row spans samples, else what each launch is by itself."""
        return BatchRule.WHOLE if self.axis == 0 else None

    @property
    def result(self) -> TensorSpec:
        return TensorSpec(self.x.shape, self.x.dtype, self.x.rows if self.axis else 0)

    @property
    def statistic(self) -> TensorSpec:
        """One number a row."""
        shape = self.x.shape[: self.axis] + (1,) * (len(self.x.shape) - self.axis)
        return TensorSpec(shape, self.x.dtype, self.x.rows if self.axis else 0)


def _fits(spec: TensorSpec, x: TensorSpec, *, whole: bool) -> bool:
    """Whether a parameter broadcasts to `x` and, but for a `whole` batch, is the same for every sample."""
    if spec.rows or len(spec.shape) > len(x.shape):
        return False
    if not whole and len(spec.shape) == len(x.shape) and spec.shape[0] != 1:
        return False
    return all(have in (1, want) for have, want in zip(reversed(spec.shape), reversed(x.shape), strict=False))


def _infer(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    x = present(specs[0])
    return (TensorSpec(x.shape, x.dtype, _Rows.of(node, specs).result.rows),)


def _rows(b: Builder, node: Node) -> _Rows:
    return _Rows.of(node, tuple(b.spec(b.tensor(name)) if name else None for name in node.inputs))


def _parameters(b: Builder, node: Node, rows: _Rows) -> tuple[int, ...]:
    """Scale and, if there is one, bias, as they broadcast."""
    given = ((node.inputs[1], rows.scale), (node.inputs[2], rows.bias))
    return tuple(b.view(b.tensor(name), spec) for name, spec in given if name and spec is not None)


def _form(node: Node, rows: _Rows) -> dict[str, AttrValue]:
    return {"axis": rows.axis, "centred": integer(node.attrs, "centred")}


def _lower(b: Builder, node: Node) -> tuple[int, ...]:
    """Saves the input and the statistics."""
    rows = _rows(b, node)
    form = _form(node, rows)
    x = b.view(b.tensor(node.inputs[0]), rows.x)
    epsilon = {"epsilon": text(node.attrs, "epsilon")}
    kept = (rows.statistic,) * (2 if form["centred"] else 1)
    stat = b.emit("RowStatistics", (x,), kept, {**form, **epsilon}, rule=rows.rule)
    inputs = (x, *stat, *_parameters(b, node, rows))
    (y,) = b.emit("RowNormalize", inputs, (rows.result,), form, rule=rows.rule)
    shape = b.spec(b.tensor(node.inputs[0])).shape
    b.define(node.outputs[0], b.view(y, TensorSpec(shape, rows.x.dtype, rows.result.rows)))
    return (x, *stat)


def _gradient(b: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    """With n the normalised row and g = dy scale: dx = inverse (g - mean(g) - n mean(g n)), RMS without mean(g).

    dscale = sum of dy n and dbias = sum of dy, over whatever scale and bias were broadcast along.
    """
    if grads[0] is None:
        return (None, None, None)
    rows = _rows(b, node)
    form = _form(node, rows)
    dy = b.view(grads[0], rows.result)
    x_name, scale_name, bias_name = node.inputs
    dx = dscale = dbias = None
    if bias_name and b.wants(bias_name) and rows.bias is not None:
        dbias = b.view(sum_to(b, dy, rows.bias), b.spec(b.tensor(bias_name)))
    if b.wants(scale_name):
        (total,) = b.emit("RowScaleSumTo", (dy, *saved), (rows.scale,), form, rule=rows.rule)
        dscale = b.view(total, b.spec(b.tensor(scale_name)))
    if b.wants(x_name):
        scale = _parameters(b, node, rows)[0]
        (found,) = b.emit("RowNormalizeBackward", (dy, *saved, scale), (rows.x,), form, rule=rows.rule)
        dx = b.view(found, b.spec(b.tensor(x_name)))
    return (dx, dscale, dbias)


OPS: dict[str, OpSpec] = {
    "LayerNormalization": OpSpec(_read_layer_norm, _infer, _lower, _gradient, parameters=(1, 2)),
    "RMSNormalization": OpSpec(_read_layer_norm, _infer, _lower, _gradient, parameters=(1,)),
    "GroupNormalization": OpSpec(_read_group_norm, _infer, _lower, _gradient, parameters=(1, 2)),
    "InstanceNormalization": OpSpec(_read_group_norm, _infer, _lower, _gradient, parameters=(1, 2)),
}

LAUNCHES: dict[str, LaunchSpec] = {
    "RowStatistics": LaunchSpec(flops=flops_per_input(4)),
    "RowNormalize": LaunchSpec(inplace=((0, 0),), flops=flops_per_output(4)),
    "RowNormalizeBackward": LaunchSpec(inplace=((0, 0), (1, 0)), flops=flops_per_output(11)),
    "RowScaleSumTo": LaunchSpec(sums=True, flops=flops_per_input(4), recompute=Recompute.NEVER),
}
