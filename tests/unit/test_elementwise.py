"""Elementwise operators and shapes where the operator table cannot look: types, edges of domains, batch axes."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from interpret import Result, interpret

from planc.errors import ModelError
from planc.graph import Graph, Node, TensorSpec
from planc.ops import OPS


def run(op: str, inputs: dict[str, Any], cotangent: Any, rows: dict[str, int] | None = None, **attrs: Any) -> Result:
    """One node in normal form on `inputs`, with batch axes of `rows` rows a sample (1 if not said)."""
    specs = {
        name: TensorSpec(value.shape, value.dtype.name, (rows or {}).get(name, 1)) for name, value in inputs.items()
    }
    node = Node(op, "the-node", tuple(inputs), ("y",), MappingProxyType(attrs))
    batch = next(value.shape[0] // specs[name].rows for name, value in inputs.items() if specs[name].rows)
    (out,) = OPS[op].infer(node, tuple(specs.values()), batch)
    graph = Graph(batch, tuple(inputs), ("y",), (node,), {**specs, "y": out}, {}, {})
    return interpret(graph, inputs, cotangents={"y": cotangent}, ranges=((0, 1), (1, batch)))


def test_cast_goes_back_in_the_gradient() -> None:
    x = np.linspace(-1, 1, 6).reshape(3, 2)
    result = run("Cast", {"x": x}, np.ones((3, 2), np.float32), to="float32")
    assert result.outputs["y"].dtype == np.float32
    assert np.array_equal(result.outputs["y"], x.astype(np.float32))
    assert result.gradients["x"].dtype == np.float64


def test_pow_is_defined_at_zero() -> None:
    x = np.array([[0.0], [2.0]])
    assert run("Pow", {"x": x}, np.ones((2, 1)), exponent="0").gradients["x"].tolist() == [[0.0], [0.0]]
    assert run("Pow", {"x": x}, np.ones((2, 1)), exponent="1").gradients["x"].tolist() == [[1.0], [1.0]]
    result = run("Pow", {"a": x, "b": np.array([[3.0], [0.0]])}, np.ones((2, 1)))
    assert result.gradients["a"].tolist() == [[0.0], [0.0]]
    assert result.gradients["b"].tolist() == [[0.0], [np.log(2.0)]]


@pytest.mark.parametrize(("op", "low", "high"), [("Sigmoid", 0.0, 1.0), ("Softplus", 0.0, 1000.0)])
def test_large_values_do_not_overflow(op: str, low: float, high: float) -> None:
    result = run(op, {"x": np.array([[-1000.0], [1000.0]])}, np.ones((2, 1)))
    assert result.outputs["y"].tolist() == [[low], [high]]
    assert np.isfinite(result.gradients["x"]).all()


def test_whole_batch_operand_without_a_batch_axis() -> None:
    """An operand that spans the samples without a batch axis of its own makes the node see the whole batch."""
    a, b, dy = (np.random.default_rng(seed).standard_normal((3, 2)) for seed in range(3))
    result = run("Mul", {"a": a, "b": b}, dy, rows={"b": 0})
    np.testing.assert_array_equal(result.gradients["a"], dy * b)
    np.testing.assert_array_equal(result.gradients["b"], dy * a)


def test_operand_that_keeps_no_batch_axis_sums_over_samples() -> None:
    a, b, dy = np.ones((3, 2)), np.full((1, 2), 2.0), np.arange(6.0).reshape(3, 2)
    result = run("Mul", {"a": a, "b": b}, dy, rows={"b": 0})
    assert result.gradients["b"].tolist() == [[6.0, 9.0]]


@pytest.mark.parametrize(
    ("op", "attrs"),
    [("Reshape", {"shape": (3, 2)}), ("Transpose", {"perm": (1, 0)}), ("Unsqueeze", {"shape": (1, 2, 3)})],
)
def test_gradient_reaches_a_weight_behind_a_change_of_shape(op: str, attrs: dict[str, Any]) -> None:
    w = np.arange(6.0).reshape(2, 3)
    seen = TensorSpec(w.shape, "float64")
    change = Node(op, "change", ("w",), ("v",), MappingProxyType(attrs))
    (changed,) = OPS[op].infer(change, (seen,), 4)
    product = Node("Mul", "product", ("x", "v"), ("y",))
    x = np.random.default_rng(1).standard_normal((4, *changed.shape))
    spec = TensorSpec(x.shape, "float64", 1)
    tensors = {"x": spec, "w": seen, "v": changed, "y": spec}
    graph = Graph(4, ("x",), ("y",), (change, product), tensors, {"w": w}, {"w": "w"})
    result = interpret(graph, {"x": x}, cotangents={"y": np.ones_like(x)}, ranges=((0, 1), (1, 4)))
    summed = x.sum(0)
    wanted = summed.T if op == "Transpose" else summed.reshape(2, 3)
    np.testing.assert_allclose(result.gradients["w"], wanted, rtol=1e-14)  # four terms in another order


def test_operands_that_do_not_fit_are_refused() -> None:
    one, two = TensorSpec((3, 2), "float32", 1), TensorSpec((3, 4), "float32", 1)
    node = Node("Add", "the-node", ("a", "b"), ("y",))
    with pytest.raises(ModelError, match=r"the-node.*float32\[3, 2\], float32\[3, 4\]"):
        OPS["Add"].infer(node, (one, two), 3)
    with pytest.raises(ModelError, match="one element type"):
        OPS["Add"].infer(node, (one, TensorSpec((3, 2), "float64", 1)), 3)
    slope = Node("PRelu", "the-node", ("a", "b"), ("y",))
    with pytest.raises(ModelError, match="slope"):
        OPS["PRelu"].infer(slope, (one, TensorSpec((5, 3, 2), "float32")), 3)
    concat = Node("Concat", "the-node", ("a", "b"), ("y",), {"axis": 0})
    with pytest.raises(ModelError, match="may differ along axis 0 only"):
        OPS["Concat"].infer(concat, (one, two), 3)


def test_gradient_of_a_split_with_one_unused_part() -> None:
    x = np.arange(12.0).reshape(2, 6)
    specs = {"x": TensorSpec((2, 6), "float64", 1)}
    node = Node("Split", "the-node", ("x",), ("a", "b", "c"), MappingProxyType({"axis": 1, "split": (1, 2, 3)}))
    parts = dict(zip(node.outputs, OPS["Split"].infer(node, (specs["x"],), 2), strict=True))
    graph = Graph(2, ("x",), ("b",), (node,), {**specs, **parts}, {}, {})
    result = interpret(graph, {"x": x}, cotangents={"b": np.ones((2, 2))}, ranges=((0, 1), (1, 2)))
    assert result.outputs["b"].tolist() == x[:, 1:3].tolist()
    assert result.gradients["x"].tolist() == [[0, 1, 1, 0, 0, 0]] * 2
