"""Rows of the operator table: layer, RMS, group and instance normalization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from case import Case, Shape, positive

EPSILON = 1e-5


def _normalised(x: Any, axes: tuple[int, ...], epsilon: float, *, centred: bool = True) -> Any:
    if centred:
        x = x - x.mean(axes, keepdim=True)
    return x / ((x * x).mean(axes, keepdim=True) + epsilon).sqrt()


def _layer_norm(
    form: str,
    shape: Shape,
    scale: Shape,
    bias: Shape | None = None,
    *,
    attrs: Mapping[str, Any] | None = None,
    op: str = "LayerNormalization",
    reference: bool = True,
) -> Case:
    given = attrs or {}
    axes = tuple(range(given.get("axis", -1) % len(shape), len(shape)))
    epsilon = given.get("epsilon", EPSILON)

    def torch(t: dict[str, Any]) -> Any:
        y = _normalised(t["x"], axes, epsilon, centred=op == "LayerNormalization") * t["scale"]
        return y + t["bias"] if "bias" in t else y

    return Case(
        form,
        op,
        23 if op == "RMSNormalization" else 17,
        {"x": shape},
        torch,
        weights={"scale": scale, **({} if bias is None else {"bias": bias})},
        attrs=given,
        draws={"scale": positive},
        reference=reference,
    )


def _group_norm(form: str, opset: int, shape: Shape, groups: int, parameters: int, op: str) -> Case:
    def torch(t: dict[str, Any]) -> Any:
        x = t["x"].reshape(shape[0], groups, shape[1] // groups, -1)
        scale, bias = (t[name].reshape(1, groups, parameters // groups, 1) for name in ("scale", "bias"))
        return (_normalised(x, (2, 3), EPSILON) * scale + bias).reshape(shape)

    return Case(
        form,
        op,
        opset,
        {"x": shape},
        torch,
        weights={"scale": (parameters,), "bias": (parameters,)},
        attrs={"num_groups": groups} if op == "GroupNormalization" else {},
        draws={"scale": positive},
        # onnx.reference has opset 21's form alone.
        reference=op == "InstanceNormalization" or opset >= 21,
    )


_GROUP, _INSTANCE = "GroupNormalization", "InstanceNormalization"

CASES: tuple[Case, ...] = (
    _layer_norm("layer-norm", (4, 3, 6), (6,), (6,)),
    _layer_norm("layer-norm-no-bias", (5, 6), (6,)),
    _layer_norm("layer-norm-axis-1", (3, 4, 5), (4, 5), (4, 5), attrs={"axis": 1, "epsilon": 0.01}),
    _layer_norm("layer-norm-axis-2-of-4", (4, 2, 3, 5), (3, 5), (5,), attrs={"axis": -2}),
    _layer_norm("layer-norm-stash", (4, 3, 2), (2,), (2,), attrs={"stash_type": 1}),
    # PyTorch computes with what axis 0 says, and so does the reference: the whole batch is one row.
    _layer_norm("layer-norm-over-batch", (4, 3), (4, 3), (4, 3), attrs={"axis": 0}),
    _layer_norm("layer-norm-parameters-of-a-position", (4, 3, 6), (3, 6), (1, 1, 6)),
    _layer_norm("layer-norm-of-a-single-number", (4, 3, 1), (1,), (1,)),
    _layer_norm("rms-norm", (4, 3, 6), (6,), op="RMSNormalization"),
    _layer_norm("rms-norm-axis-1", (4, 3, 5), (3, 5), attrs={"axis": 1, "epsilon": 0.001}, op="RMSNormalization"),
    _layer_norm("rms-norm-over-batch", (4, 3), (4, 3), attrs={"axis": 0}, op="RMSNormalization"),
    _group_norm("group-norm-18", 18, (4, 6, 3, 2), 2, 2, _GROUP),
    _group_norm("group-norm-21", 21, (4, 6, 3, 2), 3, 6, _GROUP),
    _group_norm("group-norm-one-group", 21, (3, 4, 5), 1, 4, _GROUP),
    _group_norm("group-norm-no-positions", 21, (5, 6), 2, 6, _GROUP),
    _group_norm("instance-norm", 7, (4, 3, 5, 2), 3, 3, _INSTANCE),
    _group_norm("instance-norm-1d", 22, (3, 4, 6), 4, 4, _INSTANCE),
    _group_norm("instance-norm-3d", 17, (3, 2, 2, 3, 2), 2, 2, _INSTANCE),
)
