"""The losses of --loss against PyTorch, in float64: value and gradient, weighted, several at once, over sub-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from interpret import execute
from onnx import helper
from onnx_models import floats, make_model

from planc.candidates import compile_workload
from planc.errors import UsageError
from planc.graph import Graph
from planc.losses import choose_losses
from planc.onnx_loader import load_model
from planc.options import Options
from planc.pipeline import Workload
from planc.profile import load_profile
from planc.runtime.data import check_batch, random_batch, wanted
from planc.runtime.launch import Hyper
from planc.session import Session
from planc.training import make_evaluation_graph, make_training_graph
from planc.training_graph import TrainingOptions

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.nn import functional  # noqa: E402 - after it is known that there is a torch

Array = npt.NDArray[Any]
BATCH, CLASSES = 6, 4
RANGES = (((0, 6),), ((0, 2), (2, 6)), ((0, 1), (1, 4), (4, 6)))


def model(*shapes: tuple[int, ...]) -> Graph:
    """Outputs y0, y1, ... of `shapes` (without the batch), each x times a weight of its own, under tanh."""
    nodes, weights = [], {}
    rng = np.random.default_rng(0)
    for position, shape in enumerate(shapes):
        weights[f"w{position}"] = rng.standard_normal((5, int(np.prod(shape)))).astype("f")
        weights[f"s{position}"] = np.array([-1, *shape])
        nodes += [
            helper.make_node("MatMul", ["x", f"w{position}"], [f"h{position}"]),
            helper.make_node("Tanh", [f"h{position}"], [f"t{position}"]),
            helper.make_node("Reshape", [f"t{position}", f"s{position}"], [f"y{position}"]),
        ]
    names = [f"y{position}" for position in range(len(shapes))]
    return load_model(make_model(nodes, [floats("x", (BATCH, 5))], names, weights=weights), precision="fp64")


def labels_of(shape: tuple[int, ...], dtype: str, kind: str, rng: np.random.Generator) -> Array:
    if dtype == "int64":
        return rng.integers(0, CLASSES, shape)
    return rng.uniform(0, 1, shape) if "bce" in kind else rng.standard_normal(shape)


def scores_by_torch(graph: Graph, x: Array) -> tuple[list[Any], list[Any]]:
    """(weights, outputs)."""
    weights, outputs = [], []
    for position, name in enumerate(graph.outputs):
        weights.append(torch.tensor(np.asarray(graph.constants[f"w{position}"], "d"), requires_grad=True))
        outputs.append(torch.tanh(torch.tensor(x) @ weights[-1]).reshape(graph.tensors[name].shape))
    return weights, outputs


def last_axis(y: Any, t: Any, **options: Any) -> Any:
    return functional.cross_entropy(y.movedim(-1, 1), t, **options)


WEIGHTS = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64)
FORMS: tuple[tuple[str, tuple[int, ...], Callable[[Any, Any], Any]], ...] = (
    ("cross_entropy", (CLASSES,), functional.cross_entropy),
    ("cross_entropy:-0.25", (CLASSES, 3), lambda y, t: -0.25 * functional.cross_entropy(y, t)),
    ("cross_entropy,axis=-1", (3, CLASSES), last_axis),
    ("cross_entropy,axis=4", (2, 1, 2, CLASSES), last_axis),
    ("cross_entropy,ignore_index=1", (CLASSES,), lambda y, t: functional.cross_entropy(y, t, ignore_index=1)),
    ("cross_entropy,class_weights=0.5/2/0/1", (CLASSES, 2, 2), lambda y, t: functional.cross_entropy(y, t, WEIGHTS)),
    (
        "y0=cross_entropy:3,axis=-1,ignore_index=0,class_weights=0.5/2/0/1",
        (3, CLASSES),
        lambda y, t: 3 * last_axis(y, t, weight=WEIGHTS, ignore_index=0),
    ),
    ("bce", (3,), functional.binary_cross_entropy_with_logits),
    ("bce:0.5", (1,), lambda y, t: 0.5 * functional.binary_cross_entropy_with_logits(y, t)),
    ("mse:2", (3, 2), lambda y, t: 2 * functional.mse_loss(y, t)),
    ("l1", (3,), functional.l1_loss),
    ("smooth_l1", (3,), functional.smooth_l1_loss),
    ("smooth_l1:2,beta=0.3", (3, 2), lambda y, t: 2 * functional.smooth_l1_loss(y, t, beta=0.3)),
)


def compare(graph: Graph, losses: tuple[str, ...], by_torch: Callable[..., Any], ranges: Any) -> None:
    """Loss in training and in evaluation, and weights after a step at rate 1."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((BATCH, 5))
    options = TrainingOptions(loss=losses, optimizer="sgd")
    weights, outputs = scores_by_torch(graph, x)
    targets: list[Array] = []
    for make in (make_training_graph, make_evaluation_graph):
        step = make(graph, options)
        values: dict[int, Array] = {dict(step.inputs)["x"]: x}
        for item in step.persistent:
            values[item.tensor] = np.array(graph.constants[item.initializer], "d")
        for position, (_, tensor) in enumerate(step.labels):
            spec = step.spec(tensor)
            if len(targets) <= position:
                targets.append(labels_of(spec.shape, spec.dtype, losses[position], rng))
            values[tensor] = targets[position]
        execute(step, values, ranges, hyper=Hyper(0, 1, 1.0))
        wanted_loss = by_torch(*outputs, *map(torch.tensor, targets))
        # 1e-12: sums of at most 100 numbers near 1, in another order.
        assert float(values[step.root(step.loss[1])].item()) == pytest.approx(wanted_loss.item(), abs=1e-12)
        if make is make_training_graph:
            wanted_loss.backward(retain_graph=True)
            trained = {item.initializer: values[item.tensor] for item in step.persistent if item.trainable}
    for position, weight in enumerate(weights):
        expected = weight.detach() - weight.grad
        np.testing.assert_allclose(trained[f"w{position}"], expected.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("ranges", RANGES, ids=["whole", "two", "three"])
@pytest.mark.parametrize(("loss", "shape", "by_torch"), FORMS, ids=[form[0] for form in FORMS])
def test_a_loss(loss: str, shape: tuple[int, ...], by_torch: Callable[[Any, Any], Any], ranges: Any) -> None:
    compare(model(shape), (loss,), by_torch, ranges)


@pytest.mark.parametrize("ranges", RANGES, ids=["whole", "two", "three"])
def test_losses_on_several_outputs_add_up(ranges: Any) -> None:
    def by_torch(scores: Any, boxes: Any, labels: Any, targets: Any) -> Any:
        return functional.cross_entropy(scores, labels, ignore_index=2) + 0.25 * functional.smooth_l1_loss(
            boxes, targets
        )

    compare(model((CLASSES,), (4,)), ("y0=cross_entropy,ignore_index=2", "y1=smooth_l1:0.25"), by_torch, ranges)


def test_two_outputs_of_one_value_send_their_gradients_together() -> None:
    """A softmax is taken out of the cross-entropy, so that both losses hang on its input."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["p"])]
    weight = np.random.default_rng(0).standard_normal((5, CLASSES)).astype("f")
    graph = load_model(make_model(nodes, [floats("x", (BATCH, 5))], ("h", "p"), weights={"w": weight}))
    assert [choice.scores for choice in choose_losses(graph, ("p=cross_entropy", "h=mse"))] == ["h", "h"]
    step = make_training_graph(graph, TrainingOptions(loss=("p=cross_entropy", "h=mse")))
    assert [name for name, _ in step.labels] == ["labels_p", "labels_h"]
    sums = [launch for launch in step.launches if launch.op == "Add" and step.spec(launch.outputs[0]).rows]
    assert len(sums) == 1


def test_a_number_of_the_model_among_the_losses() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Mul", ["w", "w"], ["squares"]),
        helper.make_node("ReduceSum", ["squares"], ["penalty"], keepdims=0),
    ]
    weight = np.random.default_rng(0).standard_normal((5, 2)).astype("f")
    made = make_model(nodes, [floats("x", (BATCH, 5))], ("y", "penalty"), weights={"w": weight})
    graph = load_model(made, precision="fp64")
    work = Workload.of(graph, TrainingOptions(loss=("y=mse", "penalty=none:0.1"), optimizer="sgd"), load_profile("cpu"))
    plan = compile_workload(work, Options(sub_batches=2))
    x, t = np.random.default_rng(1).standard_normal((BATCH, 5)), np.ones((BATCH, 2))
    session = Session(plan, graph, lr=1.0)
    loss = session.step({"x": x, "labels_y": t})
    w = torch.tensor(weight.astype("d"), requires_grad=True)
    wanted_loss = functional.mse_loss(torch.tensor(x) @ w, torch.tensor(t)) + 0.1 * (w * w).sum()
    wanted_loss.backward()
    assert loss == pytest.approx(wanted_loss.item(), rel=1e-12)
    np.testing.assert_allclose(session.values()["w"], (w - w.grad).detach().numpy(), rtol=0, atol=1e-12)


LOSS_OF_ALL = ("y0=cross_entropy,ignore_index=1,class_weights=1/2/1/1", "y1=bce:0.5", "y2=l1:2", "y3=mse")


@pytest.mark.parametrize("sub_batches", [1, 2, 3])
def test_a_plan_with_all_of_them_on_synthetic_labels(sub_batches: int) -> None:
    """The divisor of the cross-entropy is complete before the first range that reads it, whatever the split."""
    graph = model((CLASSES,), (3,), (2,), (2, 2))
    work = Workload.of(graph, TrainingOptions(loss=LOSS_OF_ALL, optimizer="sgd"), load_profile("cpu"))
    plan = compile_workload(work, Options(sub_batches=sub_batches))
    batch = random_batch(wanted(plan), seed=0)
    assert set(np.unique(batch["labels_y1"])) == {0.0, 1.0}
    loss = Session(plan, graph).step(batch)
    _, (scores, *others) = scores_by_torch(graph, np.asarray(batch["x"], "d"))
    weights = torch.tensor([1.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    labels = [torch.tensor(np.asarray(batch[f"labels_y{position}"])) for position in range(4)]
    expected = functional.cross_entropy(scores, labels[0], weights, ignore_index=1)
    expected += 0.5 * functional.binary_cross_entropy_with_logits(others[0], labels[1])
    expected += 2 * functional.l1_loss(others[1], labels[2]) + functional.mse_loss(others[2], labels[3])
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    with pytest.raises(UsageError, match="'labels_y1' has targets outside 0 to 1"):
        check_batch(wanted(plan), {**batch, "labels_y1": np.full((BATCH, 3), 1.5)})
    with pytest.raises(UsageError, match="'labels_y0' has the label 4"):
        check_batch(wanted(plan), {**batch, "labels_y0": np.full(BATCH, 4)})


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        (("y0=mse", "y0=l1"), "output 'y0' is given two losses"),
        (("y0=hinge",), "loss 'hinge': unknown"),
        (("y7=mse",), "no output 'y7'"),
        (("mse",), "ambiguous: the model has 2 outputs"),
        (("y0=mse:x",), "loss mse: weight 'x': not a finite number"),
        (("y0=mse:0",), "loss mse: weight 0"),
        (("y0=mse,beta=1",), "loss mse: 'beta=1' is no setting of it, or given twice. It has: none"),
        (("y0=smooth_l1,beta=0",), "a positive beta"),
        (("y0=smooth_l1,beta=1,beta=2",), "'beta=2' is no setting of it, or given twice"),
        (("y0=cross_entropy,axis=one",), "axis 'one'; an integer was expected"),
        (("y0=cross_entropy,axis=2",), "classes on axis 2"),
        (("y0=cross_entropy,axis=0",), "classes on axis 0"),
        (("y0=cross_entropy,class_weights=1/2",), "2 class weights for 4 classes of output 'y0'"),
        (("y0=cross_entropy,class_weights=1/-2/1/1",), "no negative class weight"),
    ],
)
def test_losses_that_are_refused(losses: tuple[str, ...], found: str) -> None:
    with pytest.raises(UsageError, match=found):
        choose_losses(model((CLASSES,), (2,)), losses)
