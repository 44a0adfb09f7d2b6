"""Losses and softmax: exactness, labels, in-place work, memory; and the losses that planc hangs on an output."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from interpret import execute
from kernel_call import ALLOWANCE_BYTES, call

from planc.errors import ModelError
from planc.graph import Graph, Node, TensorSpec
from planc.ops import OPS
from planc.ops.final_loss import LOSSES, LossForm
from planc.runtime.launch import Hyper
from planc.training import make_evaluation_graph, make_training_graph
from planc.training_graph import TrainingGraph, TrainingOptions

Array = npt.NDArray[Any]


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    result: Array = e / e.sum(axis=axis, keepdims=True)
    return result


SHAPES = [((6, 10), 1), ((3, 7, 5, 2), 1), ((2, 3, 4), 2), ((2, 40_000), 1), ((1, 2, 20_000), 1)]


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_and_its_gradient_in_place_at_every_size(op: str, shape: tuple[int, ...], axis: int) -> None:
    rng = np.random.default_rng(0)
    x, dy, attrs = rng.standard_normal(shape) * 3, rng.standard_normal(shape), {"axis": axis}
    share = _softmax(x, axis)
    y = x.copy()
    assert call(op, (y,), (y,), attrs) < ALLOWANCE_BYTES
    # 1e-12 throughout: sums of up to 40,000 numbers below 10, in another order.
    np.testing.assert_allclose(y, share if op == "Softmax" else np.log(share), rtol=0, atol=1e-12)
    dx = dy.copy()
    assert call(f"{op}Backward", (y, dx), (dx,), attrs) < ALLOWANCE_BYTES
    along = {"axis": axis, "keepdims": True}
    expected = share * (dy - (share * dy).sum(**along)) if op == "Softmax" else dy - share * dy.sum(**along)
    np.testing.assert_allclose(dx, expected, rtol=0, atol=1e-12)


def test_softmax_of_large_numbers_neither_overflows_nor_loses_its_sum() -> None:
    x, y = np.array([[1e4, 1e4 - 1, -1e4]]), np.empty((1, 3))
    call("Softmax", (x,), (y,), {"axis": 1})
    np.testing.assert_allclose(y, [[0.7310585786300049, 0.2689414213699951, 0.0]], rtol=0, atol=1e-15)  # 1/(1+1/e)
    call("LogSoftmax", (x,), (y,), {"axis": 1})
    np.testing.assert_allclose(y, [[-0.3132616875182228, -1.3132616875182228, -20000.313261687518]], rtol=1e-15)


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_cross_entropy_in_place_equals_apart_and_evaluation(shape: tuple[int, ...], axis: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape)
    labels = rng.integers(0, shape[axis], shape[:axis] + shape[axis + 1 :])
    attrs = {"axis": axis, "divisor": labels.size}
    share = _softmax(x, axis)
    picked = np.take_along_axis(share, np.expand_dims(labels, axis), axis)
    loss, probabilities = np.full((), 7.0), x.copy()
    assert call("SoftmaxCrossEntropy", (probabilities, labels), (loss, probabilities), attrs) < ALLOWANCE_BYTES
    # 1e-12: as above; 1e-11 for logarithms of probabilities near 1e-5.
    np.testing.assert_allclose(probabilities, share, rtol=0, atol=1e-12)
    np.testing.assert_allclose(loss, -np.log(picked).mean(), rtol=0, atol=1e-11)
    alone = np.full((), 7.0)
    assert call("SoftmaxCrossEntropy", (x, labels), (alone,), attrs) < ALLOWANCE_BYTES
    np.testing.assert_allclose(alone, loss, rtol=0, atol=1e-12)
    expected = share.copy()
    np.put_along_axis(expected, np.expand_dims(labels, axis), picked - 1, axis)
    dscores = share.copy()
    assert call("SoftmaxCrossEntropyBackward", (dscores, labels), (dscores,), attrs) < ALLOWANCE_BYTES
    np.testing.assert_allclose(dscores, expected / labels.size, rtol=0, atol=1e-12)


def test_the_loss_adds_up_in_float64() -> None:
    """A running float32 sum of 2^20 equal numbers stops short; the mean must still be one of them."""
    count = 2**20
    scores, labels, loss = np.zeros((count, 2), "f"), np.zeros(count, np.int64), np.zeros((), "f")
    call("SoftmaxCrossEntropy", (scores, labels), (loss,), {"axis": 1, "divisor": count})
    assert loss == np.float32(np.log(2.0))


@pytest.mark.parametrize(("label", "attrs"), [(3, {}), (-1, {}), (-1, {"ignore_index": -100})])
def test_a_label_outside_the_classes_is_named(label: int, attrs: dict[str, int]) -> None:
    labels = np.array([0, label])
    for op, inputs, outputs in (
        ("SoftmaxCrossEntropy", (np.zeros((2, 3)), labels), (np.zeros(()),)),
        ("SoftmaxCrossEntropyBackward", (np.zeros((2, 3)), labels), (np.zeros((2, 3)),)),
        ("LabelWeight", (labels, np.ones(3)), (np.zeros(()),)),
    ):
        with pytest.raises(ValueError, match=f"found label {label}, wanted one of the classes 0 to 2"):
            call(op, inputs, outputs, {"axis": 1, "classes": 3, **attrs})


def test_labels_that_are_all_ignored_give_nan_and_no_gradient() -> None:
    """As in ONNX and PyTorch, 0/0; a run then stops at the loss and says so."""
    labels, weight = np.full(2, 9), np.full((), 5.0)
    call("LabelWeight", (labels,), (weight,), {"classes": 3, "ignore_index": 9})
    assert weight == 0
    attrs = {"axis": 1, "ignore_index": 9, "extras": ("divisor",)}
    loss, dscores = np.zeros(()), np.full((2, 3), 0.5)
    call("SoftmaxCrossEntropy", (np.zeros((2, 3)), labels, weight), (loss,), attrs)
    call("SoftmaxCrossEntropyBackward", (dscores, labels, weight), (dscores,), attrs)
    assert np.isnan(loss)
    assert not dscores.any()


def test_cross_entropy_operator_checks_its_shapes() -> None:
    node = Node("SoftmaxCrossEntropyLoss", "loss", ("x", "t", ""), ("y",), {"reduction": "mean"})
    specs = (TensorSpec((4, 3, 2), "float32", 1), TensorSpec((4, 3), "int64", 1), None)
    with pytest.raises(ModelError, match=r"'loss' .*scores of shape \[4, 3, 2\] and labels of shape \[4, 3\]"):
        OPS[node.op].infer(node, specs, 4)


@pytest.mark.parametrize(
    ("shape", "axis", "labels"),
    [
        ((8, 10), 1, (8,)),
        ((8, 1000, 1, 1), 1, (8,)),
        ((1, 10), 1, (1,)),
        ((8, 21, 32, 32), 1, (8, 32, 32)),
        ((8, 21, 32, 1), 1, (8, 32)),
        ((8, 5, 100), 2, (8, 5)),
    ],
)
def test_labels_of_cross_entropy(shape: tuple[int, ...], axis: int, labels: tuple[int, ...]) -> None:
    assert LOSSES["cross_entropy"].labels(TensorSpec(shape, "float32", 1), LossForm(axis=axis)) == TensorSpec(
        labels, "int64", 1
    )


def _linear_model() -> Graph:
    """y = reshape(x) w, for five samples of four numbers, three outputs."""
    return Graph(
        batch=5,
        inputs=("x",),
        outputs=("y",),
        nodes=(Node("MatMul", "fc", ("x", "w"), ("y",)),),
        tensors={
            "x": TensorSpec((5, 4), "float64", 1),
            "w": TensorSpec((4, 3), "float64"),
            "y": TensorSpec((5, 3), "float64", 1),
        },
        constants={"w": np.random.default_rng(2).standard_normal((4, 3))},
        initializers={"w": "w"},
    )


def _run(
    graph: TrainingGraph, model: Graph, x: Array, labels: Array, ranges: tuple[tuple[int, int], ...]
) -> tuple[float, Array]:
    """Loss, and the weights afterwards with learning rate 1."""
    weights = graph.persistent[0].tensor
    values: dict[int, Array] = {weights: np.array(model.constants["w"])}
    values[dict(graph.inputs)["x"]] = x
    values[dict(graph.labels)["labels"]] = labels
    values = execute(graph, values, ranges, hyper=Hyper(0, 1, 1.0))
    return float(values[graph.root(graph.loss[1])].item()), values[weights]


@pytest.mark.parametrize("kind", ["cross_entropy", "mse"])
@pytest.mark.parametrize("ranges", [((0, 5),), ((0, 2), (2, 3), (3, 5))])
def test_a_training_step_on_each_loss(kind: str, ranges: tuple[tuple[int, int], ...]) -> None:
    model, rng = _linear_model(), np.random.default_rng(3)
    x, w = rng.standard_normal((5, 4)), np.asarray(model.constants["w"])
    y = x @ w
    if kind == "mse":
        labels: Array = rng.standard_normal((5, 3))
        loss, dy = np.mean((y - labels) ** 2), 2 * (y - labels) / 15
    else:
        labels = np.array([0, 2, 1, 1, 0])
        share = _softmax(y, 1)
        loss, dy = -np.log(share[np.arange(5), labels]).mean(), (share - np.eye(3)[labels]) / 5
    options = TrainingOptions(loss=kind, optimizer="sgd")
    training, evaluation = make_training_graph(model, options), make_evaluation_graph(model, options)
    found, trained = _run(training, model, x, labels, ranges)
    evaluated, untouched = _run(evaluation, model, x, labels, ranges)
    # 1e-13: sums of at most 15 numbers in another order, some 2e-16 of the largest for each.
    np.testing.assert_allclose([found, evaluated], loss, rtol=1e-13)
    np.testing.assert_allclose(trained, w - x.T @ dy, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(untouched, w)


def test_evaluation_keeps_no_probabilities() -> None:
    options = TrainingOptions(loss="cross_entropy", optimizer="sgd")
    for make, outputs in ((make_training_graph, 2), (make_evaluation_graph, 1)):
        (launch,) = (item for item in make(_linear_model(), options).launches if item.op == "SoftmaxCrossEntropy")
        assert len(launch.outputs) == outputs


@pytest.mark.parametrize("op", ["MeanSquaredError", "MeanAbsoluteError", "SmoothL1", "BinaryCrossEntropy"])
def test_losses_between_elements_at_size(op: str) -> None:
    """Extreme logits neither overflow nor warn; a sum of 2^20 float32 terms keeps its digits."""
    x, t = np.full((2**20, 1), -1e4, "f"), np.full((2**20, 1), -1e4 + 1, "f")
    attrs, loss = {"divisor": 2**20, "beta": "0.5", "scale": "2"}, np.zeros((), "f")
    assert call(op, (x, t), (loss,), attrs) < ALLOWANCE_BYTES
    # -x t for the last, as max(x, 0) and the logarithm are 0. 1e-6: the rounding of a float32 result.
    wanted = {"SmoothL1": 0.75, "BinaryCrossEntropy": -1e4 * (1e4 - 1)}.get(op, 1.0)
    np.testing.assert_allclose(loss, 2 * wanted, rtol=1e-6)
    assert call(f"{op}Backward", (x, t), (x,), attrs) < ALLOWANCE_BYTES
    slope = {"MeanSquaredError": -2.0, "BinaryCrossEntropy": 1e4 - 1}.get(op, -1.0)
    np.testing.assert_allclose(x, np.full((2**20, 1), 2 * slope / 2**20), rtol=1e-6)
