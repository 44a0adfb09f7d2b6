"""What becomes of values known before the run: weights, literals, shape arithmetic; batch norm's mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import LIGHT_MODELS, floats, make_model, model_path, relu, weight_model

from planc.errors import ModelError, UsageError
from planc.model_hash import model_sha256
from planc.onnx_loader import load_model

# Constants


def test_shape_arithmetic_is_folded_at_the_new_batch() -> None:
    """A10, A9: Shape -> Gather -> Unsqueeze -> Concat -> Reshape leaves one Reshape and no constant."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    ints = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    graph = load_model(make_model(nodes, [floats("x", (2, 3, 4))], weights=ints), batch=5)
    assert [node.op for node in graph.nodes] == ["Reshape"]
    assert graph.tensors["y"].shape == (5, 12)
    assert graph.tensors["y"].rows == 1
    assert not graph.constants


def test_part_of_a_shape_and_size() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=1),
        helper.make_node("ConstantOfShape", ["s"], ["w"]),
        helper.make_node("Size", ["x"], ["count"]),
        helper.make_node("Unsqueeze", ["count", "axes"], ["target"]),
        helper.make_node("Add", ["x", "w"], ["h"]),
        helper.make_node("Reshape", ["h", "target"], ["y"]),
    ]
    graph = load_model(make_model(nodes, [floats("x", (2, 3, 4))], weights={"axes": np.array([0])}))
    assert graph.tensors["w"].shape == (3, 4)
    assert graph.tensors["y"].shape == (24,)


@pytest.mark.parametrize("kind", ["Constant", "ConstantOfShape"])
def test_weights_count_the_same_wherever_they_stand(kind: str) -> None:
    """A5."""
    graph, plain = load_model(weight_model(kind)), load_model(weight_model("initializer"))
    assert model_sha256(graph) == model_sha256(plain)
    assert list(graph.constants) == ["w"]
    np.testing.assert_array_equal(graph.constants["w"], plain.constants["w"])
    assert graph.initializers == {"w": "w"}


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_constant_of_shape_takes_no_memory(precision: str) -> None:
    """VGG-19's 144 million placeholder weights must not be written out to plan for them."""
    value = load_model(weight_model("ConstantOfShape"), precision=precision).constants["w"]
    assert value.strides == (0, 0)
    assert (value == 0.25).all()


def test_one_weight_with_two_readers_is_one_constant() -> None:
    """A6: embedding and head, the second through a Transpose, which stays a node so that its gradient adds up."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "wt"], ["y"]),
    ]
    graph = load_model(make_model(nodes, weights={"w": np.ones((3, 4), np.float32)}))
    assert [node.op for node in graph.nodes] == ["MatMul", "Transpose", "MatMul"]
    assert list(graph.constants) == ["w"]
    assert graph.tensors["wt"].shape == (4, 3)
    assert graph.tensors["wt"].rows == 0


def identity_model(readers_of_original: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", ["w"], ["copy"]), helper.make_node("MatMul", ["x", "copy"], ["h0"])]
    nodes += [helper.make_node("MatMul", [f"h{i}", "w"], [f"h{i + 1}"]) for i in range(readers_of_original)]
    return make_model([*nodes, relu(f"h{readers_of_original}")], weights={"w": np.ones((3, 3), np.float32)})


def test_identity_of_a_shared_weight_is_its_own_parameter_with_a_warning() -> None:
    """A27."""
    graph = load_model(identity_model(1))
    assert list(graph.constants) == ["copy", "w"]
    assert graph.initializers == {"copy": "copy", "w": "w"}
    assert graph.warnings == (
        "weights that are Identity of another weight: 1 (first 'copy'); each is trained as a parameter of its own",
    )
    tied = load_model(identity_model(1), tie=True)
    assert list(tied.constants) == ["w"]
    assert not tied.warnings


def test_identity_of_a_weight_nobody_else_reads_is_that_weight() -> None:
    graph = load_model(identity_model(0))
    assert list(graph.constants) == ["w"]
    assert [node.op for node in graph.nodes] == ["MatMul", "Relu"]
    assert not graph.warnings


def test_arithmetic_of_literals_is_folded() -> None:
    """1/sqrt(d) written as nodes: a literal that becomes an attribute, neither nodes nor a parameter."""
    nodes = [
        helper.make_node("Constant", [], ["d"], value_int=16),
        helper.make_node("Cast", ["d"], ["df"], to=TensorProto.FLOAT),
        helper.make_node("Sqrt", ["df"], ["root"]),
        helper.make_node("Div", ["x", "root"], ["y"]),
    ]
    graph = load_model(make_model(nodes))
    (node,) = graph.nodes
    assert (node.op, node.inputs) == ("Div", ("x",))
    assert "0.25" in node.attrs.values()
    assert not graph.constants


def test_weight_behind_an_operator_without_gradient_is_frozen_with_a_warning() -> None:
    nodes = [
        helper.make_node("Floor", ["w"], ["whole"], name="down"),
        helper.make_node("MatMul", ["x", "whole"], ["y"]),
    ]
    graph = load_model(make_model(nodes, weights={"w": np.full((3, 3), 1.5, np.float32)}))
    assert graph.constants["whole"].tolist() == [[1.0] * 3] * 3
    assert graph.warnings == (
        "nodes without a gradient that compute from weights: 1 (first 'down'); those weights are frozen",
    )


def test_random_constants_are_no_constants() -> None:
    node = helper.make_node("RandomNormal", [], ["noise"], shape=[3])
    with pytest.raises(ModelError, match="RandomNormal"):
        load_model(make_model([node, helper.make_node("Add", ["x", "noise"], ["y"])]))


def test_fp64_makes_every_float_a_float64() -> None:
    graph = load_model(weight_model("initializer"), precision="fp64")
    assert {spec.dtype for spec in graph.tensors.values()} == {"float64"}
    assert graph.constants["w"].dtype == np.float64


def test_half_precision_file_is_planned_in_the_precision_asked_for() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    graph = load_model(make_model(nodes, weights={"w": np.ones((3, 4), np.float16)}))
    assert {spec.dtype for spec in graph.tensors.values()} == {"float32"}
    assert graph.constants["w"].dtype == np.float32


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(UsageError, match="precision 'fp8'"):
        load_model(make_model([relu()]), precision="fp8")


# Batch norm and signs of an inference export


def batch_norm_model(opset: int = 15, outputs: int = 1, **attrs: Any) -> onnx.ModelProto:
    names = ["y", "mean", "var", "saved_mean", "saved_var"][:outputs]
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], names, **attrs)
    weights = {name: np.ones(3, np.float32) for name in "sbmv"}
    return make_model([node], [floats("x", (2, 3, 4, 4))], weights=weights, opset=opset)


@pytest.mark.parametrize(
    ("opset", "outputs", "attrs"),
    [(7, 1, {}), (9, 5, {}), (14, 1, {}), (15, 3, {"training_mode": 1}), (15, 1, {"training_mode": 0})],
)
def test_batch_norm_trains_whatever_the_file_says(opset: int, outputs: int, attrs: dict[str, int]) -> None:
    """A2."""
    proto = batch_norm_model(opset, outputs, **attrs)
    (node,) = load_model(proto).nodes
    assert node.attrs["mode"] == "train"
    assert node.outputs == ("y",)
    (node,) = load_model(proto, batch_norm="frozen").nodes
    assert node.attrs["mode"] == "frozen"


def test_inference_export_is_a_warning_and_strictly_an_error() -> None:
    """A1."""
    proto = batch_norm_model(training_mode=0)
    assert load_model(proto).warnings == (
        "looks like an export for inference: BatchNormalization says training_mode=0",
    )
    with pytest.raises(ModelError, match=r"training_mode=0\. Export the model in training mode"):
        load_model(proto, strict=True)
    assert not load_model(batch_norm_model(), strict=True).warnings


def test_folded_batch_norm_is_recognised_by_the_exporters_names() -> None:
    node = helper.make_node("Conv", ["x", "onnx::Conv_12", "onnx::Conv_13"], ["y"], name="stem")
    weights = {"onnx::Conv_12": np.ones((4, 3, 1, 1), np.float32), "onnx::Conv_13": np.ones(4, np.float32)}
    graph = load_model(make_model([node], [floats("x", (2, 3, 4, 4))], weights=weights))
    assert graph.warnings == (
        "looks like an export for inference: 1 convolutions have a batch norm folded in (first 'stem')",
    )


@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_ordinary_models_have_no_warnings(name: str) -> None:
    assert load_model(model_path(name), strict=True).warnings == ()
