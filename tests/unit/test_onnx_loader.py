"""Reading ONNX files: shapes, batch, order, labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_models import LIGHT_MODELS, SHARED_MODELS, floats, make_model, model_path, relu

from planc.errors import ModelError, UsageError
from planc.model_hash import model_sha256
from planc.onnx_loader import load_model

# Shapes


def inferred_shapes(path: Path, batch: int | None = None) -> dict[str, tuple[int, ...]]:
    """What ONNX infers once all saved shapes are gone; `batch` replaces the 1 that these files bake into the input and
    into the leading place of Reshape targets."""
    proto = onnx.load(path)
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    if batch is not None:
        weights = {tensor.name: tensor for tensor in proto.graph.initializer}
        for entry in proto.graph.input:
            if entry.name not in weights:
                entry.type.tensor_type.shape.dim[0].dim_value = batch
        for node in proto.graph.node:
            if node.op_type == "Reshape" and node.input[0] not in weights:
                target = numpy_helper.to_array(weights[node.input[1]]).copy()
                if target[0] == 1:
                    target[0] = batch
                    weights[node.input[1]].CopyFrom(numpy_helper.from_array(target, node.input[1]))
    done = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True).graph
    return {
        entry.name: tuple(dim.dim_value for dim in entry.type.tensor_type.shape.dim)
        for entry in (*done.value_info, *done.output)
    }


@pytest.mark.parametrize("batch", [None, 7])
@pytest.mark.parametrize("name", [*LIGHT_MODELS, *SHARED_MODELS])
def test_every_shape_is_the_one_onnx_infers(name: str, batch: int | None) -> None:
    path = model_path(name)
    graph = load_model(path, batch=batch)
    expected = inferred_shapes(path, batch)
    computed = [output for node in graph.nodes for output in node.outputs if output]
    assert {output: graph.tensors[output].shape for output in computed} == {
        output: expected[output] for output in computed
    }


@pytest.mark.parametrize("name", [*LIGHT_MODELS, *SHARED_MODELS])
def test_outputs_keep_the_batch_in_front_at_any_batch(name: str) -> None:
    path = model_path(name)
    single, many = load_model(path, batch=1), load_model(path, batch=32)
    assert many.batch == 32
    assert [many.tensors[name].rows for name in many.outputs] == [
        single.tensors[name].shape[0] for name in many.outputs
    ]
    assert model_sha256(single) != model_sha256(many)


def test_nine_light_models_are_there() -> None:
    assert len(LIGHT_MODELS) == 9


def test_no_saved_shape_is_trusted() -> None:
    """A8: the file claims shapes for an inner tensor and the output that contradict the input."""
    proto = make_model([relu("x", "h"), relu("h", "y")])
    proto.graph.value_info.append(floats("h", (99, 98)))
    proto.graph.output[0].CopyFrom(floats("y", (97,)))
    graph = load_model(proto, batch=4)
    assert graph.tensors["h"].shape == graph.tensors["y"].shape == (4, 3)


# Batch and other dimensions


@pytest.mark.parametrize("saved", ["N", None, -1, 0, 2])
def test_batch_is_rebound_whatever_the_file_says(saved: str | int | None) -> None:
    graph = load_model(make_model([relu()], [floats("x", (saved, 3))]), batch=5)
    assert (graph.batch, graph.tensors["x"].shape, graph.tensors["x"].rows) == (5, (5, 3), 1)


def test_batch_is_the_files_own_unless_given() -> None:
    assert load_model(make_model([relu()], [floats("x", (6, 3))])).batch == 6


@pytest.mark.parametrize("saved", ["N", None])
def test_unknown_batch_names_tensor_and_flag(saved: str | None) -> None:
    with pytest.raises(ModelError, match=r"input 'x', dimension 0 \(the batch\).*--batch N"):
        load_model(make_model([relu()], [floats("x", (saved, 3))]))


def test_unknown_dimension_names_tensor_dimension_and_flag() -> None:
    proto = make_model([relu()], [floats("x", ("N", "length", None))])
    with pytest.raises(ModelError, match=r"input 'x', dimension 1 is 'length' in the file.*--dim length=N"):
        load_model(proto, batch=2)
    with pytest.raises(ModelError, match=r"input 'x', dimension 2 is unknown in the file.*--dim x\[2\]=N"):
        load_model(proto, batch=2, dims={"length": 4})
    assert load_model(proto, batch=2, dims={"length": 4, "x[2]": 5}).tensors["y"].shape == (2, 4, 5)
    assert load_model(proto, dims={"N": 3, "length": 4, "x[2]": 5}).batch == 3


@pytest.mark.parametrize(
    ("batch", "dims", "message"),
    [(0, {}, "batch 0"), (1, {"rows": 2}, "no such open dimension. Open are: x"), (1, {"N": 0}, "at least 1")],
)
def test_wrong_sizes_are_refused(batch: int, dims: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_model(make_model([relu()], [floats("x", ("N", 3))]), batch=batch, dims=dims)


def test_input_without_any_shape_is_refused() -> None:
    with pytest.raises(ModelError, match="input 'x' has no shape"):
        load_model(make_model([relu()], [floats("x", None)]), batch=2)


def test_second_input_is_rebound_only_if_it_has_the_batch() -> None:
    nodes = [helper.make_node("Add", ["x", "a"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    graph = load_model(make_model(nodes, [floats("x", (2, 3)), floats("a", (2, 3)), floats("b", (1, 3))]), batch=8)
    assert [(graph.tensors[name].shape, graph.tensors[name].rows) for name in "xab"] == [
        ((8, 3), 1),
        ((8, 3), 1),
        ((1, 3), 0),
    ]


def test_initializers_that_are_also_inputs_are_no_data() -> None:
    """A7: as IR version 3 had it."""
    proto = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [floats("w", (3, 4)), floats("x", (2, 3))],
        weights={"w": np.ones((3, 4), np.float32)},
        ir_version=3,
    )
    graph = load_model(proto)
    assert graph.inputs == ("x",)
    assert list(graph.constants) == ["w"]


# Order, names


def test_nodes_out_of_order_are_sorted_and_sorted_ones_stay() -> None:
    """A14."""
    nodes = [relu("b", "y", "third"), relu("x", "a", "first"), relu("a", "b", "second")]
    assert [node.name for node in load_model(make_model(nodes)).nodes] == ["first", "second", "third"]
    both = [relu("x", "a", "one"), relu("x", "b", "two"), helper.make_node("Add", ["b", "a"], ["y"], name="sum")]
    assert [node.name for node in load_model(make_model(both)).nodes] == ["one", "two", "sum"]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [relu("b", "a", "p"), relu("a", "b", "q"), relu("b", "y", "r")],
            r"cycle: node '[pq]' reads tensor '[ab]'.*'[pq]'",
        ),
        ([relu("ghost", "y", "p")], "node 'p' .Relu.: reads tensor 'ghost', which no node"),
        ([relu("x", "y", "p"), relu("x", "y", "q")], "tensor 'y' is defined twice, by 'p' and 'q'"),
        ([relu("x", "x", "p"), relu("x", "y", "q")], "tensor 'x' is an input or initializer and also defined by 'p'"),
        ([relu("x", "z", "p")], "output 'y' is defined by no node"),
    ],
)
def test_broken_wiring_names_node_and_tensor(nodes: list[onnx.NodeProto], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(make_model(nodes))


def test_labels_are_unique_with_missing_and_double_names() -> None:
    """A13."""
    nodes = [relu("x", "a"), relu("a", "b", "same"), relu("b", "c", "same"), relu("c", "y", "Relu_0")]
    labels = [node.name for node in load_model(make_model(nodes)).nodes]
    assert labels == ["Relu_0_", "same_1", "same_2", "Relu_0"]


def test_twenty_thousand_nodes_in_reverse_order() -> None:
    """A24: no recursion; a quadratic step would take minutes here."""
    count = 20_000
    nodes = [relu(f"t{i}" if i else "x", f"t{i + 1}" if i + 1 < count else "y") for i in reversed(range(count))]
    assert len(load_model(make_model(nodes)).nodes) == count


def test_dead_nodes_and_unread_inputs_are_left_out() -> None:
    nodes = [relu("x", "y", "live"), relu("z", "dead", "dead")]
    graph = load_model(make_model(nodes, [floats("x", (2, 3)), floats("z", (2, 3))]))
    assert [node.name for node in graph.nodes] == ["live"]
    assert graph.inputs == ("x",)
    assert graph.warnings == ("input 'z' is read by no operator; it is left out",)


def test_constant_output_is_left_out_with_a_warning() -> None:
    nodes = [relu(), helper.make_node("Constant", [], ["k"], value_float=2.0)]
    graph = load_model(make_model(nodes, outputs=["y", "k"]))
    assert graph.outputs == ("y",)
    assert graph.warnings == ("output 'k' does not depend on the inputs; it is left out",)
