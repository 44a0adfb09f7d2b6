"""How nodes are read: attributes, constants, axes, and the errors that name the node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planc.errors import ModelError
from planc.graph import TensorSpec
from planc.ops import OPS, reading
from planc.ops.spec import RawNode


def raw(op: str, *inputs: Any, opset: int = 13, batch: int = 4, file_batch: int | None = None, **attrs: Any) -> RawNode:
    """A node whose inputs are given as TensorSpec (computed), array (constant) or None (absent)."""
    specs = tuple(TensorSpec(i.shape, i.dtype.name) if isinstance(i, np.ndarray) else i for i in inputs)
    return RawNode(
        op=op,
        name="the-node",
        opset=opset,
        inputs=tuple("" if value is None else f"t{position}" for position, value in enumerate(inputs)),
        outputs=("y",),
        attrs=attrs,
        specs=specs,
        constants=tuple(value if isinstance(value, np.ndarray) else None for value in inputs),
        batch=batch,
        file_batch=file_batch,
    )


def samples(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec((4, *shape), dtype, 1)


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("value", "text"),
    [(float(np.float32(1e-5)), "1e-05"), (float(np.float32(0.1)), "0.1"), (1.0, "1"), (-0.5, "-0.5"), (0.0, "0")],
)
def test_float_attributes_become_the_decimal_that_was_meant(value: float, text: str) -> None:
    assert reading.float_text(value) == text


def test_attributes_have_defaults_and_types() -> None:
    node = raw("Op", axis=2, alpha=0.5, mode=b"edge", pads=[1, 2])
    assert (reading.raw_int(node, "axis", 1), reading.raw_int(node, "group", 1)) == (2, 1)
    assert (reading.raw_float(node, "alpha", 1.0), reading.raw_float(node, "beta", 1.0)) == (0.5, 1.0)
    assert (reading.raw_text(node, "mode", "x"), reading.raw_text(node, "auto_pad", "x")) == ("edge", "x")
    assert (reading.raw_ints(node, "pads"), reading.raw_ints(node, "axes")) == ((1, 2), None)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda node: reading.raw_int(node, "mode", 0), "integer was expected"),
        (lambda node: reading.raw_float(node, "mode", 0.0), "number was expected"),
        (lambda node: reading.raw_float_text(node, "huge", 0.0), "finite"),
        (lambda node: reading.raw_text(node, "axis", ""), "text was expected"),
        (lambda node: reading.raw_ints(node, "axis"), "list of integers"),
        (lambda node: reading.raw_spec(node, 9), "input 9 is missing"),
        (lambda node: reading.constant_ints(node, 0, "axes"), "depends on data"),
        (lambda node: reading.constant_ints(node, 1, "axes"), "integers were expected"),
        (lambda node: reading.constant_float(node, 1, "bound"), "2 elements"),
        (lambda node: reading.normal_axis(node, 3, 3), "outside the 3 axes"),
        (lambda node: reading.normal_axis(node, -4, 3), "outside the 3 axes"),
        (lambda node: reading.normal_axes(node, (1, -2), 3), "twice"),
    ],
)
def test_errors_name_the_node_and_the_problem(call: Any, problem: str) -> None:
    node = raw("Op", samples(2), np.array([0.5, 1.5]), axis=2, mode=b"edge", huge=float("inf"))
    with pytest.raises(ModelError, match=problem) as caught:
        call(node)
    assert "'the-node' (Op)" in str(caught.value)


@pytest.mark.parametrize(
    "node",
    [
        raw("Reshape", samples(6), TensorSpec((2,), "int64")),
        raw("Slice", samples(6), TensorSpec((1,), "int64"), ints(3)),
        raw("Pad", samples(6), TensorSpec((4,), "int64")),
        raw("Squeeze", samples(1), TensorSpec((1,), "int64")),
        raw("Unsqueeze", samples(1), TensorSpec((1,), "int64")),
        raw("Split", samples(6), TensorSpec((1,), "int64")),
        raw("Clip", samples(6), TensorSpec((), "float32")),
        raw("ReduceSum", samples(6), TensorSpec((1,), "int64")),
    ],
    ids=lambda node: node.op,
)
def test_arguments_that_depend_on_data_are_refused(node: RawNode) -> None:
    with pytest.raises(ModelError, match=r"the-node.*depends on data"):
        OPS[node.op].read(node)


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        (raw("Reshape", samples(6), ints(5, 5)), r"\[5, 5\] does not fit its input \[4, 6\] at batch 4"),
        (raw("Reshape", samples(6), ints(-1, -1)), "does not fit"),
        (raw("Reshape", samples(6), ints(4, 6, 0)), "does not fit"),
        (raw("Reshape", samples(6), ints(-1, 5)), "does not fit"),
        (raw("Squeeze", samples(6), ints(1)), "has size 6; 1 was expected"),
        (raw("Unsqueeze", samples(6), ints(5)), "outside"),
        (raw("Flatten", samples(6), axis=3), "axis 3 is outside"),
        (raw("Transpose", samples(6), perm=[0]), "does not order"),
        (raw("Concat", samples(6)), "names no axis"),
        (raw("Split", samples(6), axis=1, opset=11, split=[2, 3]), "do not split the 6 entries"),
        (raw("Slice", samples(6), ints(3), ints(3), ints(1)), "is empty"),
        (raw("Slice", samples(6), ints(3), ints(4, 5), ints(1)), "do not belong together"),
        (raw("Slice", samples(6), ints(0), ints(4), ints(1), ints(0)), "do not belong together"),
        (raw("Pad", samples(6), ints(0, 1, 0)), "3 pads for 2 axes"),
        (raw("Pad", samples(6), ints(0, 1, 0, 0), mode=b"wrap"), "is not one of"),
        (raw("Pad", samples(6), ints(0, -3, 0, -3)), "leave nothing"),
        (raw("Pad", samples(6), ints(0, 6, 0, 0), mode=b"reflect"), "not under its size 6"),
        (raw("Pad", samples(6), ints(0, -1, 0, 0), mode=b"edge"), "negative"),
        (raw("Elu", samples(6), alpha=-1.0), "alpha is negative"),
        (raw("Relu", samples(6, dtype="int64")), "a floating-point tensor was expected"),
        (raw("Cast", samples(6), to=7), "casts to floats only"),
        (raw("Clip", samples(6), opset=6, min=float("nan")), "not a number"),
    ],
)
def test_malformed_nodes_are_refused(node: RawNode, problem: str) -> None:
    with pytest.raises(ModelError, match=problem) as caught:
        OPS[node.op].read(node)
    assert "the-node" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "file_batch", "shape"),
    [
        ((1, 6), 1, (4, 6)),  # the batch of the file in front
        ((1, -1), 1, (4, 6)),  # ... and an open entry, which alone would take the other samples in
        ((1, 2, 3), None, (4, 2, 3)),  # the count of elements tells the batch it was written for
        ((2, 6), 2, (4, 6)),
        ((6, 2), 2, (12, 2)),  # three rows a sample
        ((3, 2), 1, (12, 2)),
        ((4, 6), None, (4, 6)),
        ((-1, 6), 1, (4, 6)),
        ((0, 3, 2), 1, (4, 3, 2)),
        ((2, -1), None, (2, 12)),  # nothing says that 2 is a batch
    ],
)
def test_reshape_targets_follow_the_batch(
    target: tuple[int, ...], file_batch: int | None, shape: tuple[int, ...]
) -> None:
    node = raw("Reshape", samples(6), ints(*target), file_batch=file_batch)
    assert OPS["Reshape"].read(node).attrs["shape"] == shape


def test_reshape_target_of_a_weight_is_left_alone() -> None:
    node = raw("Reshape", np.zeros((1, 6)), ints(1, 2, 3), file_batch=1)
    assert OPS["Reshape"].read(node).attrs["shape"] == (1, 2, 3)


def test_slice_over_all_samples_of_the_file_keeps_all_samples() -> None:
    node = raw("Slice", samples(6), ints(0, 1), ints(2, 4), ints(0, 1), file_batch=2)
    assert OPS["Slice"].read(node).attrs == {"starts": (0, 1), "steps": (1, 1), "sizes": (4, 3)}
    node = raw("Slice", samples(6), ints(0, 1), ints(1, 4), ints(0, 1), file_batch=2)
    assert OPS["Slice"].read(node).attrs["sizes"] == (1, 3)


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("Add", (samples(6), np.array(0.5)), {"factor": "1", "offset": "0.5"}),
        ("Sub", (np.array([2.0]), samples(6)), {"factor": "-1", "offset": "2"}),
        ("Mul", (samples(6), np.array([[3.0]])), {"factor": "3", "offset": "0"}),
        ("Div", (samples(6), np.array(8.0)), {"factor": "0.125", "offset": "0"}),
        ("Pow", (samples(6), np.array(2, np.int64)), {"exponent": "2"}),
        ("Div", (np.array(8.0), samples(6)), {}),
        ("Mul", (samples(6), np.array([[[3.0]]])), {}),  # raises the rank
        ("Mul", (samples(6), np.array([1.0, 2.0])), {}),
        ("Div", (samples(6), np.array(0.0)), {}),
        ("Add", (samples(6), np.array(np.inf)), {}),
    ],
)
def test_literals_become_attributes(op: str, inputs: tuple[Any, ...], attrs: dict[str, str]) -> None:
    found = OPS[op].read(raw(op, *inputs))
    assert found.attrs == attrs
    assert len(found.inputs) == (1 if attrs else 2)


def test_bounds_that_bound_nothing_are_left_out() -> None:
    lowest = float(np.finfo(np.float32).min)
    assert OPS["Clip"].read(raw("Clip", samples(6), opset=7, min=lowest, max=6.0)).attrs == {"max": "6"}
    assert OPS["Clip"].read(raw("Clip", samples(6), np.array(-np.inf), None)).attrs == {}
