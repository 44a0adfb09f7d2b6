"""Rows of the operator table: convolution.

PyTorch pads symmetrically, so the counterparts pad first; `pad` is ONNX's: begin of every axis, then end of every axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from case import Case, Shape


def _conv(
    form: str,
    x: Shape,
    w: Shape,
    pad: Sequence[int] = (0, 0, 0, 0),
    *,
    bias: bool = False,
    auto_pad: str = "",
    opset: int = 13,
    dynamic: bool = False,
    reference: bool = True,
    **attrs: Any,
) -> Case:
    """`pad` is what the counterpart pads; the node says so itself unless it has `auto_pad`.

    dynamic: the weight is a graph input.
    """

    def torch(t: dict[str, Any]) -> Any:
        from torch.nn import functional

        axes = len(x) - 2
        sides = [pad[axis + side * axes] for axis in reversed(range(axes)) for side in (0, 1)]
        convolve = functional.conv1d if axes == 1 else functional.conv2d
        return convolve(
            functional.pad(t["x"], sides),
            t["w"],
            t.get("b"),
            tuple(attrs.get("strides", (1,) * axes)),
            0,
            tuple(attrs.get("dilations", (1,) * axes)),
            attrs.get("group", 1),
        )

    stated = {"auto_pad": auto_pad} if auto_pad else {"pads": list(pad)} if any(pad) else {}
    weights = {"w": w, "b": w[:1]} if bias else {"w": w}
    return Case(
        f"conv_{form}",
        "Conv",
        opset,
        {"x": x, "w": w} if dynamic else {"x": x},
        torch,
        weights={} if dynamic else weights,
        attrs={**stated, **attrs},
        reference=reference,
    )


CASES: tuple[Case, ...] = (
    _conv("3x3_same", (3, 4, 8, 9), (6, 4, 3, 3), (1, 1, 1, 1)),
    _conv("bias", (3, 4, 8, 9), (6, 4, 3, 3), (1, 1, 1, 1), bias=True),
    _conv("bias_opset_7", (3, 4, 8, 9), (6, 4, 3, 3), (1, 1, 1, 1), bias=True, opset=7),
    _conv("kernel_shape_stated", (3, 4, 8, 9), (6, 4, 3, 2), kernel_shape=[3, 2]),
    _conv("pointwise", (3, 8, 5, 6), (4, 8, 1, 1), bias=True),
    _conv("pointwise_strided", (3, 8, 5, 6), (4, 8, 1, 1), strides=[2, 2]),
    _conv("pointwise_padded", (3, 8, 5, 6), (4, 8, 1, 1), (1, 0, 0, 2)),
    _conv("5x5", (3, 3, 11, 10), (4, 3, 5, 5), (2, 2, 2, 2)),
    _conv("7x7_stride_2", (3, 3, 15, 14), (5, 3, 7, 7), (3, 3, 3, 3), strides=[2, 2]),
    _conv("even_kernel_stride_2", (3, 3, 9, 10), (4, 3, 4, 2), (1, 0, 2, 1), strides=[2, 2]),
    _conv("stride_3", (3, 4, 10, 11), (4, 4, 3, 3), (1, 1, 1, 1), strides=[3, 3]),
    _conv("unequal_strides", (3, 4, 10, 11), (4, 4, 3, 3), strides=[1, 2]),
    _conv("stride_over_kernel", (3, 4, 10, 11), (4, 4, 2, 2), strides=[4, 3]),
    _conv("asymmetric_pads", (3, 4, 7, 8), (4, 4, 3, 3), (0, 2, 1, 0)),
    _conv("pads_over_kernel", (3, 2, 4, 4), (3, 2, 2, 2), (3, 1, 2, 4)),
    _conv("dilated", (3, 4, 9, 10), (4, 4, 3, 3), (2, 2, 2, 2), dilations=[2, 2]),
    _conv("dilated_strided", (3, 4, 11, 12), (4, 4, 3, 3), (1, 2, 2, 3), dilations=[2, 3], strides=[2, 2]),
    _conv("groups", (3, 6, 7, 8), (8, 3, 3, 3), (1, 1, 1, 1), group=2, bias=True),
    _conv("groups_strided", (3, 6, 7, 8), (9, 2, 3, 3), (1, 1, 1, 1), group=3, strides=[2, 2]),
    _conv("depthwise", (3, 6, 7, 8), (6, 1, 3, 3), (1, 1, 1, 1), group=6, bias=True),
    _conv("depthwise_multiplier", (3, 4, 7, 8), (12, 1, 3, 3), (1, 1, 1, 1), group=4, strides=[2, 2]),
    _conv("depthwise_dilated", (3, 4, 9, 9), (4, 1, 3, 3), (2, 2, 2, 2), group=4, dilations=[2, 2]),
    _conv("valid", (3, 4, 8, 9), (4, 4, 3, 3), auto_pad="VALID"),
    _conv("same_upper", (3, 4, 8, 9), (4, 4, 4, 3), (1, 1, 2, 1), auto_pad="SAME_UPPER"),
    _conv("same_lower", (3, 4, 8, 9), (4, 4, 4, 3), (2, 1, 1, 1), auto_pad="SAME_LOWER"),
    _conv("same_upper_strided", (3, 4, 8, 9), (4, 4, 3, 3), (0, 1, 1, 1), auto_pad="SAME_UPPER", strides=[2, 2]),
    _conv("same_lower_strided", (3, 4, 8, 9), (4, 4, 3, 3), (1, 1, 0, 1), auto_pad="SAME_LOWER", strides=[2, 2]),
    _conv("whole_map", (3, 4, 5, 6), (7, 4, 5, 6)),
    _conv("one_channel", (3, 1, 6, 7), (4, 1, 3, 3), (1, 1, 1, 1)),
    _conv("1d", (3, 4, 12), (5, 4, 3), (1, 1), bias=True),
    _conv("1d_dilated_strided", (3, 4, 15), (6, 2, 4), (3, 2), group=2, dilations=[2], strides=[2]),
    _conv("1d_same_lower", (3, 4, 11), (5, 4, 4), (2, 1), auto_pad="SAME_LOWER"),
    _conv("1d_depthwise", (3, 4, 12), (4, 1, 5), (2, 2), group=4),
)
