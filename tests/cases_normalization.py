"""Rows of the operator table: normalization.

Dropout's mask is planc's own (tests/unit/test_dropout.py), so its rows are those in which it drops nothing. Running
statistics are not outputs of a row: tests/differential/test_batch_norm.py has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from case import Case, Shape, positive


def _batch_norm(
    form: str,
    opset: int,
    shape: Shape,
    attrs: Mapping[str, Any] | None = None,
    outputs: int = 1,
    reference: bool = False,
) -> Case:
    """A row whose other outputs (opset < 14: of no use, later: running statistics) no one reads."""
    channels = shape[1]
    epsilon = (attrs or {}).get("epsilon", 1e-5)

    def torch(t: dict[str, Any]) -> Any:
        from torch.nn import functional

        return functional.batch_norm(t["x"], None, None, t["scale"], t["bias"], training=True, eps=epsilon)

    return Case(
        f"batch_norm_{form}",
        "BatchNormalization",
        opset,
        {"x": shape},
        torch,
        weights={"scale": (channels,), "bias": (channels,)},
        constants={"mean": np.linspace(-1, 1, channels), "variance": np.linspace(0.5, 2, channels)},
        attrs=attrs or {},
        draws={"scale": positive},
        outputs=outputs,
        reference=reference,
    )


def _lrn(form: str, opset: int, shape: Shape, size: int, alpha: float, beta: float, bias: float) -> Case:
    def torch(t: dict[str, Any]) -> Any:
        from torch.nn import functional

        # For an even size PyTorch's window has the odd element in front, ONNX's behind: mirror the channels.
        x = t["x"].flip(1) if size % 2 == 0 else t["x"]
        y = functional.local_response_norm(x, size, alpha, beta, bias)
        return y.flip(1) if size % 2 == 0 else y

    return Case(
        f"lrn_{form}",
        "LRN",
        opset,
        {"x": shape},
        torch,
        attrs={"size": size, "alpha": alpha, "beta": beta, "bias": bias},
        # onnx.reference normalises as many channels as there are samples.
        reference=shape[0] == shape[1] and len(shape) == 4,
    )


def _same(t: dict[str, Any]) -> Any:
    return t["x"] * 1


def _dropout(form: str, opset: int, **ratio: Any) -> Case:
    keep: Callable[[dict[str, Any]], Any] = _same
    return Case(f"dropout_{form}", "Dropout", opset, {"x": (4, 3, 5)}, keep, **ratio)


CASES: tuple[Case, ...] = (
    _batch_norm("opset7", 7, (5, 3, 4, 2)),
    _batch_norm("opset9", 9, (4, 6, 3, 3), {"epsilon": 0.001, "momentum": 0.75}),
    _batch_norm("opset14_inference_form", 14, (3, 4, 5), {"training_mode": 0}),
    _batch_norm("opset15", 15, (6, 5), {"training_mode": 0, "momentum": 0.5}),
    _batch_norm("3d", 15, (3, 2, 2, 3, 2)),
    _lrn("alexnet", 13, (5, 5, 3, 2), 5, 0.5, 0.75, 2.0),
    _lrn("opset7", 7, (3, 7, 2, 2), 3, 0.25, 0.5, 1.0),
    _lrn("even", 13, (4, 4, 2, 3), 4, 0.5, 0.75, 1.0),
    _lrn("wide", 13, (3, 4, 4, 2), 7, 0.75, 1.25, 1.0),
    _lrn("1d", 13, (3, 6, 4), 3, 0.5, 0.75, 1.0),
    _dropout("opset7_ratio0", 7, attrs={"ratio": 0.0}),
    _dropout("opset13_ratio0", 13, constants={"ratio": np.array(0.0, dtype=np.float64)}),
)
