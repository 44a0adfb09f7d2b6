"""How a Conv of a file is read: explicit attributes, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest

from planc.errors import ModelError
from planc.graph import TensorSpec
from planc.ops.convolution import infer_conv, read_conv
from planc.ops.spec import Node, RawNode


def _node(x: tuple[int, ...] = (2, 4, 9, 8), w: tuple[int, ...] = (6, 4, 3, 3), **attrs: Any) -> RawNode:
    dtypes = attrs.pop("dtypes", ("float32", "float32"))
    specs = [TensorSpec(x, dtypes[0], 1), TensorSpec(w, dtypes[1])]
    bias = attrs.pop("bias", None)
    names = ["x", "w"]
    if bias is not None:
        names.append("b")
        specs.append(TensorSpec(bias, "float32"))
    return RawNode("Conv", "c1", 13, tuple(names), ("y",), attrs, tuple(specs), (None,) * len(names), x[0], None)


def test_everything_left_out_becomes_explicit() -> None:
    reading = read_conv(_node())
    assert dict(reading.attrs) == {
        "pads": (0, 0, 0, 0),
        "strides": (1, 1),
        "dilations": (1, 1),
        "group": 1,
        "kernel_shape": (3, 3),
    }
    assert reading.inputs == ("x", "w")


@pytest.mark.parametrize(
    ("auto_pad", "strides", "pads"),
    [
        (b"VALID", [1, 1], (0, 0, 0, 0)),
        (b"SAME_UPPER", [1, 1], (1, 1, 1, 1)),
        (b"SAME_UPPER", [2, 2], (1, 0, 1, 1)),
        (b"SAME_LOWER", [2, 2], (1, 1, 1, 0)),
        (b"SAME_UPPER", [4, 4], (1, 0, 1, 0)),
        (b"NOTSET", [1, 1], (7, 7, 7, 7)),
        (b"", [1, 1], (7, 7, 7, 7)),
    ],
)
def test_auto_pad_is_resolved_and_wins_over_pads(auto_pad: bytes, strides: list[int], pads: tuple[int, ...]) -> None:
    """Input 9 x 8, kernel 3 x 3: SAME at stride 2 gives 5 x 4 and needs 2 x 1 rows and columns of padding."""
    node = _node(auto_pad=auto_pad, strides=strides, pads=[7, 7, 7, 7])
    assert read_conv(node).attrs["pads"] == pads


@pytest.mark.parametrize(("w_rows", "x_rows", "rows"), [(0, 1, 1), (0, 3, 3), (0, 0, 0), (1, 1, 0)])
def test_output_has_the_batch_layout_of_x_unless_the_weight_mixes_samples(w_rows: int, x_rows: int, rows: int) -> None:
    node = Node("Conv", "c1", ("x", "w"), ("y",), read_conv(_node()).attrs)
    x, w = TensorSpec((6, 4, 9, 8), "float32", x_rows), TensorSpec((6, 4, 3, 3), "float32", w_rows)
    assert infer_conv(node, (x, w), 6) == (TensorSpec((6, 6, 7, 6), "float32", rows),)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (_node(x=(2, 4, 9, 8, 7), w=(6, 4, 3, 3, 3)), "3 spatial axes; planc convolves 1-D and 2-D"),
        (_node(x=(2, 4)), "0 spatial axes"),
        (_node(w=(6, 4, 3)), "has 3 axes"),
        (_node(w=(6, 3, 3, 3)), "the input needs 3 channels"),
        (_node(w=(5, 2, 3, 3), group=2), "a multiple of 2 outputs"),
        (_node(group=0), "group 0"),
        (_node(kernel_shape=[2, 3]), r"kernel_shape \[2, 3\] is not that of its weight"),
        (_node(strides=[1]), r"strides \[1\] should be 2 positive integers"),
        (_node(strides=[1, 0]), r"strides \[1, 0\] should be 2 positive integers"),
        (_node(dilations=[0, 1]), "dilations"),
        (_node(pads=[1, 1]), r"pads \[1, 1\] should be 4 integers"),
        (_node(pads=[1, 1, -1, 1]), "none negative"),
        (_node(auto_pad=b"SAME"), "auto_pad 'SAME' is none of"),
        (_node(w=(6, 4, 10, 3)), "its output is empty"),
        (_node(bias=(5,)), r"bias \[5\] is not \[6\]"),
        (_node(dtypes=("float32", "float64")), "its input is float32 and its weight float64"),
        (_node(dtypes=("int8", "int8")), "one floating-point type was expected"),
    ],
)
def test_refusals_name_the_node_and_what_was_found(node: RawNode, words: str) -> None:
    with pytest.raises(ModelError, match=words) as failure:
        read_conv(node)
    assert failure.value.message.startswith("node 'c1' (Conv): ")
