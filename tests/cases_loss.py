"""Rows of the operator table: loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from case import Case, positive


def _flat_softmax(x: Any, axis: int) -> Any:
    return x.flatten(axis).softmax(-1).reshape(x.shape)


def _cross_entropy(t: Mapping[str, Any], **options: Any) -> Any:
    from torch.nn.functional import cross_entropy

    weights = t["weights"].detach() if "weights" in t else None
    return cross_entropy(t["x"], t["labels"], weight=weights, **options)


_WEIGHTS = np.array([0.5, 2.0, 1.0])

CASES: tuple[Case, ...] = (
    Case("softmax", "Softmax", 13, {"x": (4, 5)}, lambda t: t["x"].softmax(-1)),
    Case("softmax-axis-1-of-4", "Softmax", 13, {"x": (4, 3, 2, 2)}, lambda t: t["x"].softmax(1), attrs={"axis": 1}),
    Case("softmax-over-batch", "Softmax", 13, {"x": (4, 3)}, lambda t: t["x"].softmax(0), attrs={"axis": 0}),
    # onnx.reference gives the operators' older opsets the meaning of opset 13.
    Case("softmax-9-flattens", "Softmax", 9, {"x": (4, 3, 2)}, lambda t: _flat_softmax(t["x"], 1), reference=False),
    Case(
        "softmax-11-flattens-from-2",
        "Softmax",
        11,
        {"x": (4, 3, 2, 2)},
        lambda t: _flat_softmax(t["x"], 2),
        attrs={"axis": 2},
        reference=False,
    ),
    Case("log-softmax", "LogSoftmax", 13, {"x": (4, 5)}, lambda t: t["x"].log_softmax(-1)),
    Case(
        "log-softmax-axis-1-of-3",
        "LogSoftmax",
        13,
        {"x": (4, 3, 2)},
        lambda t: t["x"].log_softmax(1),
        attrs={"axis": 1},
    ),
    Case("log-softmax-over-batch", "LogSoftmax", 13, {"x": (4, 3)}, lambda t: t["x"].log_softmax(0), attrs={"axis": 0}),
    Case(
        "log-softmax-9-flattens",
        "LogSoftmax",
        9,
        {"x": (4, 3, 2)},
        lambda t: t["x"].flatten(1).log_softmax(-1).reshape(4, 3, 2),
        reference=False,
    ),
    Case(
        "cross-entropy",
        "SoftmaxCrossEntropyLoss",
        13,
        {"x": (5, 3), "labels": (5,)},
        _cross_entropy,
        integers={"labels": 3},
    ),
    Case(
        "cross-entropy-sum-maps",
        "SoftmaxCrossEntropyLoss",
        12,
        {"x": (5, 3, 2, 2), "labels": (5, 2, 2)},
        lambda t: _cross_entropy(t, reduction="sum"),
        attrs={"reduction": "sum"},
        integers={"labels": 3},
    ),
    Case(
        "cross-entropy-none",
        "SoftmaxCrossEntropyLoss",
        13,
        {"x": (5, 3, 2), "labels": (5, 2)},
        lambda t: _cross_entropy(t, reduction="none"),
        attrs={"reduction": "none"},
        integers={"labels": 3},
    ),
    Case(
        "cross-entropy-ignore",
        "SoftmaxCrossEntropyLoss",
        13,
        {"x": (7, 3), "labels": (7,)},
        lambda t: _cross_entropy(t, ignore_index=1),
        attrs={"ignore_index": 1},
        integers={"labels": 3},
    ),
    Case(
        "cross-entropy-weights",
        "SoftmaxCrossEntropyLoss",
        13,
        {"x": (5, 3, 2), "labels": (5, 2)},
        _cross_entropy,
        constants={"weights": _WEIGHTS},
        integers={"labels": 3},
    ),
    Case(
        "cross-entropy-weights-ignore",
        "SoftmaxCrossEntropyLoss",
        12,
        {"x": (7, 3), "labels": (7,)},
        lambda t: _cross_entropy(t, ignore_index=2),
        constants={"weights": _WEIGHTS},
        attrs={"ignore_index": 2},
        integers={"labels": 3},
    ),
    Case(
        "cross-entropy-weights-none-ignore",
        "SoftmaxCrossEntropyLoss",
        13,
        {"x": (7, 3), "labels": (7,)},
        lambda t: _cross_entropy(t, ignore_index=0, reduction="none"),
        constants={"weights": _WEIGHTS},
        attrs={"ignore_index": 0, "reduction": "none"},
        integers={"labels": 3},
        draw=positive,
    ),
)
