"""Rows of the operator table: pooling.

PyTorch pads symmetrically and by at most half a window; where a row goes beyond that, its counterpart pads first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from case import Case, Shape, distinct

Torch = Callable[[dict[str, Any]], Any]


def _max(form: str, opset: int, shape: Shape, torch: Torch, **attrs: Any) -> Case:
    return Case(f"max_pool_{form}", "MaxPool", opset, {"x": shape}, torch, attrs=attrs, draw=distinct)


def _average(form: str, opset: int, shape: Shape, torch: Torch, reference: bool = True, **attrs: Any) -> Case:
    return Case(f"average_pool_{form}", "AveragePool", opset, {"x": shape}, torch, attrs=attrs, reference=reference)


def _max_of(kernel: Sequence[int], pad: Sequence[int] = (), stride: Any = 1, **how: Any) -> Torch:
    """`pad` as torch.nn.functional.pad takes it: last axis first, front and back."""

    def torch(t: dict[str, Any]) -> Any:
        from torch.nn import functional

        pool = functional.max_pool1d if len(kernel) == 1 else functional.max_pool2d
        return pool(functional.pad(t["x"], tuple(pad), value=float("-inf")), tuple(kernel), stride, **how)

    return torch


def _average_of(
    kernel: Sequence[int], pad: Sequence[int] = (), count: bool = True, stride: Any = 1, **how: Any
) -> Torch:
    """With `pad`, an average of explicitly padded values; `count` False divides by the elements of the input alone."""

    def torch(t: dict[str, Any]) -> Any:
        import torch
        from torch.nn import functional

        pool = functional.avg_pool1d if len(kernel) == 1 else functional.avg_pool2d
        y = pool(functional.pad(t["x"], tuple(pad)), tuple(kernel), stride, **how)
        return (
            y if count else y / pool(functional.pad(torch.ones_like(t["x"]), tuple(pad)), tuple(kernel), stride, **how)
        )

    return torch


def _dilated_average(t: dict[str, Any]) -> Any:
    """Windows of 2 x 2 with gaps of one element, as a convolution of every channel with quarters."""
    import torch
    from torch.nn import functional

    channels = t["x"].shape[1]
    taps = torch.full((channels, 1, 2, 2), 0.25, dtype=t["x"].dtype)
    return functional.conv2d(t["x"], taps, stride=(2, 1), dilation=2, groups=channels)


def _global_max(t: dict[str, Any]) -> Any:
    return t["x"].amax(dim=tuple(range(2, t["x"].ndim)), keepdim=True)


def _global_average(t: dict[str, Any]) -> Any:
    return t["x"].mean(dim=tuple(range(2, t["x"].ndim)), keepdim=True)


_X = (3, 2, 7, 6)

CASES: tuple[Case, ...] = (
    _max("opset7", 7, _X, _max_of((2, 2)), kernel_shape=[2, 2]),
    _max("strided", 8, _X, _max_of((2, 2), stride=2), kernel_shape=[2, 2], strides=[2, 2]),
    _max("overlapping", 12, _X, _max_of((3, 2), stride=(2, 1)), kernel_shape=[3, 2], strides=[2, 1]),
    _max(
        "padded", 12, _X, _max_of((3, 3), stride=2, padding=1), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    _max(
        "asymmetric",
        11,
        _X,
        _max_of((3, 3), pad=(0, 1, 2, 0), stride=2),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[2, 0, 0, 1],
    ),
    _max("dilated", 10, _X, _max_of((2, 3), dilation=(3, 2)), kernel_shape=[2, 3], dilations=[3, 2]),
    _max(
        "ceil",
        12,
        _X,
        _max_of((2, 2), stride=(2, 3), ceil_mode=True),
        kernel_shape=[2, 2],
        strides=[2, 3],
        ceil_mode=1,
    ),
    _max(
        "ceil_drops_last",
        22,
        (3, 1, 5, 5),
        _max_of((2, 2), stride=3, padding=1, ceil_mode=True),
        kernel_shape=[2, 2],
        strides=[3, 3],
        pads=[1, 1, 1, 1],
        ceil_mode=1,
    ),
    _max(
        "same_upper",
        12,
        _X,
        _max_of((2, 3), pad=(1, 1, 0, 1)),
        kernel_shape=[2, 3],
        auto_pad="SAME_UPPER",
        strides=[1, 1],
    ),
    _max(
        "same_upper_strided",
        12,
        (3, 2, 7, 8),
        _max_of((3, 3), pad=(0, 1, 1, 1), stride=2),
        kernel_shape=[3, 3],
        auto_pad="SAME_UPPER",
        strides=[2, 2],
    ),
    _max("same_lower", 7, _X, _max_of((2, 2), pad=(1, 0, 1, 0)), kernel_shape=[2, 2], auto_pad="SAME_LOWER"),
    _max("valid", 12, _X, _max_of((3, 3), stride=2), kernel_shape=[3, 3], auto_pad="VALID", strides=[2, 2]),
    _max("1d", 12, (4, 3, 11), _max_of((3,), stride=2, padding=1), kernel_shape=[3], strides=[2], pads=[1, 1]),
    _max("whole_map", 12, _X, _global_max, kernel_shape=[7, 6]),
    _max("more_than_255_taps", 12, (3, 1, 19, 18), _max_of((16, 17), stride=2), kernel_shape=[16, 17], strides=[2, 2]),
    _average("opset7", 7, _X, _average_of((2, 2)), kernel_shape=[2, 2]),
    _average("strided", 11, _X, _average_of((3, 2), stride=(2, 3)), kernel_shape=[3, 2], strides=[2, 3]),
    _average(
        "padded",
        11,
        _X,
        _average_of((3, 3), stride=2, padding=1, count_include_pad=False),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
    ),
    _average(
        "count_include_pad",
        11,
        _X,
        _average_of((3, 3), stride=2, padding=1, count_include_pad=True),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        count_include_pad=1,
    ),
    _average(
        "asymmetric",
        11,
        _X,
        _average_of((3, 3), pad=(0, 1, 2, 0), count=False),
        kernel_shape=[3, 3],
        pads=[2, 0, 0, 1],
    ),
    _average(
        "ceil",
        19,
        _X,
        _average_of((2, 2), stride=(2, 3), ceil_mode=True, count_include_pad=False),
        kernel_shape=[2, 2],
        strides=[2, 3],
        ceil_mode=1,
    ),
    _average(
        "ceil_count_include_pad",
        19,
        (3, 2, 8, 6),
        _average_of((3, 3), stride=3, padding=1, ceil_mode=True, count_include_pad=True),
        kernel_shape=[3, 3],
        strides=[3, 3],
        pads=[1, 1, 1, 1],
        ceil_mode=1,
        count_include_pad=1,
    ),
    _average(
        "same_upper",
        11,
        _X,
        _average_of((2, 2), pad=(0, 1, 0, 1), count=False),
        kernel_shape=[2, 2],
        auto_pad="SAME_UPPER",
    ),
    _average(
        "same_lower",
        11,
        _X,
        _average_of((4, 4), pad=(1, 1, 2, 1), count=False, stride=2),
        kernel_shape=[4, 4],
        auto_pad="SAME_LOWER",
        strides=[2, 2],
    ),
    _average("dilated", 19, _X, _dilated_average, kernel_shape=[2, 2], strides=[2, 1], dilations=[2, 2]),
    _average("1d", 7, (4, 3, 11), _average_of((4,), stride=3), kernel_shape=[4], strides=[3]),
    _average("whole_map", 11, _X, _global_average, kernel_shape=[7, 6]),
    Case("global_average_pool", "GlobalAveragePool", 7, {"x": _X}, _global_average),
    Case("global_average_pool_1d", "GlobalAveragePool", 22, {"x": (3, 4, 5)}, _global_average),
    Case("global_max_pool", "GlobalMaxPool", 7, {"x": _X}, _global_max, draw=distinct),
    Case(
        "global_max_pool_3d", "GlobalMaxPool", 22, {"x": (3, 2, 3, 2, 4)}, _global_max, draw=distinct, reference=False
    ),
)
