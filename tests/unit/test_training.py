"""The training graph: what is trained, which loss, where gradients go, when parameters are updated."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import floats, make_model

from planc.errors import ModelError, UsageError
from planc.graph import Graph
from planc.losses import LossChoice, choose_losses
from planc.onnx_loader import load_model
from planc.ops import OPS
from planc.ops.spec import TensorKind
from planc.pipeline import Workload
from planc.profile import load_profile
from planc.training import make_evaluation_graph, make_training_graph, optimizer_settings
from planc.training_graph import Launch, TrainingGraph, TrainingOptions
from planc.zoo import lenet, tiny_residual_cnn

RANDOM = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"{op.lower()}-{outputs.split()[0]}", **attrs)


def graph(nodes: list[onnx.NodeProto], outputs: str = "y", x: tuple[int, ...] = (4, 3), **weights: Any) -> Graph:
    return load_model(make_model(nodes, [floats("x", x)], outputs.split(), weights=weights))


def mlp() -> Graph:
    nodes = [node("MatMul", "x a", "h"), node("Relu", "h", "r"), node("MatMul", "r b", "y")]
    return graph(nodes, a=weight(3, 8), b=weight(8, 5))


def train(made: Graph, loss: str | None = None, **options: Any) -> TrainingGraph:
    return make_training_graph(made, TrainingOptions(loss=loss, **options))


def updates(made: TrainingGraph) -> dict[str, Launch]:
    """Updates by the label of their parameter."""
    return {made.tensors[s.inputs[0]].label: s for s in made.launches if s.phase == "update"}


# The loss


@pytest.mark.parametrize(
    ("shape", "loss", "wanted"),
    [
        ((4, 3), None, LossChoice("y", "y", "cross_entropy")),
        ((4, 3), "mse", LossChoice("y", "y", "mse")),
        ((4, 3, 6), "y=cross_entropy", LossChoice("y", "y", "cross_entropy")),
        ((4, 10, 1, 1), None, LossChoice("y", "y", "cross_entropy")),
    ],
)
def test_the_loss_that_is_meant(shape: tuple[int, ...], loss: str | None, wanted: LossChoice) -> None:
    assert choose_losses(graph([node("Relu", "x", "y")], x=shape), loss) == (wanted,)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_a_softmax_at_the_end_goes_with_the_cross_entropy(op: str) -> None:
    nodes = [node("MatMul", "x w", "h"), node(op, "h", "p", axis=1), node("Flatten", "p", "y")]
    made = graph(nodes, w=weight(3, 5))
    assert choose_losses(made, None) == (LossChoice("y", "h", "cross_entropy"),)
    ops = Counter(launch.op for launch in train(made).launches)
    assert not ops[op]
    assert ops["MatMul"] == 1


def test_a_loss_that_is_ambiguous_lists_the_outputs() -> None:
    two = graph([node("Relu", "x", "y"), node("Sigmoid", "x", "z")], "y z")
    with pytest.raises(UsageError, match=r"2 outputs: y \[4, 3\], z \[4, 3\]\..*--loss OUTPUT=cross_entropy"):
        choose_losses(two, "cross_entropy")
    assert choose_losses(two, "z=mse")[0].output == "z"
    with pytest.raises(UsageError, match="no output 'q'; it has y"):
        choose_losses(two, "q=mse")
    image = graph([node("Relu", "x", "y")], x=(4, 3, 8, 8))
    with pytest.raises(UsageError, match=r"ambiguous: output 'y' has shape \[4, 3, 8, 8\]"):
        choose_losses(image, None)
    with pytest.raises(UsageError, match="loss 'hinge': unknown"):
        choose_losses(image, "hinge")
    with pytest.raises(UsageError, match="wanted a single number"):
        choose_losses(image, "none")


def test_a_model_with_its_own_loss_needs_no_labels() -> None:
    made = graph([node("MatMul", "x w", "h"), node("ReduceMean", "h", "y", keepdims=0)], w=weight(3, 5))
    trained = train(made)
    assert trained.loss_kind == "none"
    assert trained.labels == ()
    assert updates(trained)


# What is trained


def test_parameters_statistics_and_literals() -> None:
    """Field case A3."""
    made = train(load_model(tiny_residual_cnn(), batch=4))
    kinds = Counter(made.tensors[item.tensor].kind for item in made.persistent)
    norms, convolutions = 11, 11
    assert kinds[TensorKind.STATISTIC] == 2 * norms
    assert kinds[TensorKind.PARAMETER] == convolutions + 2 * norms + 2
    assert kinds[TensorKind.STATE] == kinds[TensorKind.PARAMETER]
    assert kinds[TensorKind.CONSTANT] == 0
    assert len(updates(made)) == kinds[TensorKind.PARAMETER]
    assert all(item.trainable == (made.tensors[item.tensor].kind is TensorKind.PARAMETER) for item in made.persistent)


def test_what_is_frozen_says_why() -> None:
    """Field case A4."""
    nodes = [
        node("MatMul", "x w", "h"),
        node("Mul", "h half", "m"),
        node("Sum", "m one", "y"),
        node("MatMul", "x aside", "z"),
    ]
    made = train(
        graph(nodes, "y z", w=weight(3, 5), half=np.float32([0.5]), one=np.float32([1]), aside=weight(3, 2)), "y=mse"
    )
    assert list(updates(made)) == ["w"]
    assert dict(made.frozen) == {
        "one": "a single number in arithmetic, taken as a literal",
        "aside": "no differentiable path to the loss",
    }
    assert not any(launch.label == "matmul-z" for launch in made.launches), "an unused output costs nothing (A25)"


def test_a_weight_that_only_a_step_function_sees_is_named() -> None:
    """It stays as it is, and whoever trains is told; a frozen batch norm was asked for and is not."""
    nodes = [node("MatMul", "x w", "h"), node("MatMul", "x v", "g"), node("Round", "g", "r"), node("Add", "h r", "y")]
    stepped = Workload.of(graph(nodes, w=weight(3, 5), v=weight(3, 5)), TrainingOptions("mse"), load_profile("cpu"))
    assert list(updates(stepped.training)) == ["w"]
    assert stepped.warnings == ("weights that are not trained, no differentiable path to the loss: 1 (first 'v').",)
    frozen = load_model(tiny_residual_cnn(), batch=4, batch_norm="frozen")
    assert Workload.of(frozen, TrainingOptions(), load_profile("cpu")).warnings == frozen.warnings


def test_an_unused_output_gets_no_gradient_buffer() -> None:
    """Field case A25: it branches off what is trained."""
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "y"), node("Sigmoid", "h", "z")]
    two, one = (graph(nodes[:n], names, w=weight(3, 5)) for n, names in ((3, "y z"), (2, "y")))
    found, wanted = train(two, "y=mse"), train(one, "y=mse")
    assert [launch.op for launch in found.launches] == [launch.op for launch in wanted.launches]


def test_nothing_to_train_is_an_error() -> None:
    """Field case A5: the peer's failure is a plan for 0 parameters, which fits any budget."""
    with pytest.raises(ModelError, match="no trainable parameter"):
        train(graph([node("Relu", "x", "y")]), "mse")


def test_operators_without_a_gradient_are_listed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case A17; those off the way from a parameter to the loss do not block."""
    table = {op: replace(spec, gradient=None) if op in ("Tanh", "Sqrt") else spec for op, spec in OPS.items()}
    for module in ("planc.gradient_flow", "planc.training"):
        monkeypatch.setattr(f"{module}.OPS", table)
    nodes = [node("Sqrt", "x", "s"), node("MatMul", "s w", "h"), node("Tanh", "h", "t"), node("Tanh", "h", "u")]
    made = graph([*nodes, node("Sqrt", "h", "v"), node("Sum", "h t u v", "y")], w=weight(3, 5))
    with pytest.raises(ModelError, match=r"Sqrt \(1, first 'sqrt-v'\); Tanh \(2, first 'tanh-t'\)"):
        train(made, "mse")
    assert updates(train(graph(nodes[:3], "h t", w=weight(3, 5)), "h=mse"))


# Gradients and updates


def test_a_weight_used_twice_has_one_gradient_one_state_one_update() -> None:
    """Field case A6: the second use is behind a Transpose."""
    nodes = [
        node("MatMul", "x w", "h"),
        node("Relu", "h", "r"),
        node("Transpose", "w", "wt", perm=[1, 0]),
        node("MatMul", "r wt", "y"),
    ]
    made = train(graph(nodes, w=weight(3, 5)), "mse")
    assert list(updates(made)) == ["w"]
    assert sum(made.tensors[item.tensor].kind is TensorKind.STATE for item in made.persistent) == 1
    gradient = made.root(updates(made)["w"].inputs[1])
    assert made.tensors[gradient].kind is TensorKind.PARAMETER_GRADIENT
    (writer,) = (launch for launch in made.launches if gradient in map(made.root, launch.outputs))
    assert writer.op == "Add"
    assert [made.spec(tensor).shape for tensor in writer.inputs] == [(3, 5), (3, 5)]


@pytest.mark.parametrize("model", [lenet, tiny_residual_cnn])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_an_update_follows_every_reader_of_its_parameter_and_is_early(model: Any, optimizer: str) -> None:
    made = train(load_model(model(), batch=4), optimizer=optimizer)
    updated = {made.root(launch.inputs[0]): launch.index for launch in updates(made).values()}
    for launch in made.launches:
        for tensor in launch.inputs:
            parameter = made.root(tensor)
            if parameter in updated and launch.phase != "update":
                assert launch.index < updated[parameter], "an update before a reader"
    backward = [launch.index for launch in made.launches if launch.phase == "backward"]
    assert sum(index < backward[-1] for index in updated.values()) >= len(updated) - 3, "updates wait for the end"


def test_values_are_written_before_they_are_read() -> None:
    for kind in (make_training_graph, make_evaluation_graph):
        made = kind(load_model(tiny_residual_cnn(), batch=4), TrainingOptions())
        known = {tensor.index for tensor in made.tensors if tensor.kind in ("input", "label")}
        known |= {made.root(item.tensor) for item in made.persistent}
        for launch in made.launches:
            assert {made.root(tensor) for tensor in launch.inputs} <= known, launch
            known |= {made.root(tensor) for tensor in launch.outputs}


def test_relu_needs_its_output_and_not_its_input() -> None:
    made = train(mlp())
    (forward,) = (launch for launch in made.launches if launch.op == "Relu")
    (backward,) = (launch for launch in made.launches if launch.op == "ReluBackward")
    assert forward.outputs[0] in backward.inputs
    assert forward.inputs[0] not in backward.inputs


def test_the_first_layer_computes_no_gradient_of_the_data() -> None:
    made = train(mlp())
    backward = [launch for launch in made.launches if launch.phase == "backward"]
    assert not any(made.spec(tensor).shape == (4, 3) for launch in backward for tensor in launch.outputs)


def test_evaluation_shares_what_stays_and_writes_none_of_it() -> None:
    model = load_model(tiny_residual_cnn(), batch=4)
    training, evaluation = train(model), make_evaluation_graph(model, TrainingOptions())
    assert training.persistent == evaluation.persistent
    count = len(training.persistent)
    assert training.tensors[:count] == evaluation.tensors[:count]
    assert {launch.phase for launch in evaluation.launches} == {"forward"}
    assert all(tensor >= count for launch in evaluation.launches for tensor in launch.outputs)
    ops = {launch.op for launch in evaluation.launches}
    assert "BatchNormInference" in ops
    assert "BatchNormStatistics" not in ops
    assert [name for name, _ in evaluation.outputs] == ["scores"]


def test_half_precision_state_is_kept_in_float32() -> None:
    """Field case A23, as far as the training graph goes."""
    full = mlp()
    halved = {name: replace(spec, dtype="float16") for name, spec in full.tensors.items()}
    made = train(replace(full, tensors=halved))
    assert {made.spec(item.tensor).dtype for item in made.persistent if item.slot} == {"float32"}


# Settings


def test_settings_have_defaults_and_unknown_ones_are_refused() -> None:
    assert optimizer_settings(TrainingOptions(settings={"momentum": "0.5"})) == {
        "lr": "0.01",
        "momentum": "0.5",
        "nesterov": "0",
        "weight_decay": "0",
    }
    with pytest.raises(UsageError, match="optimizer 'sgd' has no setting 'beta1'"):
        optimizer_settings(TrainingOptions(optimizer="sgd", settings={"beta1": "0.9"}))
    with pytest.raises(UsageError, match="optimizer 'lion': unknown"):
        optimizer_settings(TrainingOptions(optimizer="lion"))


def test_dropout_can_be_left_out() -> None:
    nodes = [node("MatMul", "x w", "h"), node("Dropout", "h half", "d"), node("Relu", "d", "y")]
    made = graph(nodes, w=weight(3, 5), half=np.float32(0.5))
    on, off = (train(made, dropout=dropout) for dropout in (True, False))
    assert sum("Dropout" in launch.op for launch in on.launches) == 2
    assert not any("Dropout" in launch.op for launch in off.launches)
    assert list(updates(off)) == ["w"]
