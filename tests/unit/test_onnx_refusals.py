"""What the reader refuses, and how the refusal reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import floats, make_model, model_path, relu, weight_model

from planc import graph_reader
from planc.errors import ModelError
from planc.onnx_loader import load_model
from planc.ops import OPS

# What is refused


@pytest.fixture
def few_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planc that has Relu and Add only."""
    monkeypatch.setattr(graph_reader, "OPS", {op: OPS[op] for op in ("Relu", "Add")})


@pytest.mark.usefixtures("few_operators")
def test_all_missing_operators_are_reported_at_once() -> None:
    """A17; shape arithmetic behind a missing operator is not reported, an operator without a use neither."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"], name="t1"),
        helper.make_node("Tanh", ["a"], ["b"], name="t2"),
        relu("b", "c"),
        helper.make_node("Shape", ["c"], ["s"]),
        helper.make_node("Gather", ["s", "i"], ["n"]),
        helper.make_node("Reshape", ["c", "n"], ["d"], name="r"),
        helper.make_node("Elu", ["x"], ["unused"]),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    with pytest.raises(ModelError) as caught:
        load_model(make_model(nodes, weights={"i": np.array([0])}))
    assert caught.value.message == (
        "model '(in memory)': 2 operators planc does not have: Reshape (1 node, 'r'), Tanh (2 nodes, first 't1')."
    )


def test_missing_operators_come_before_a_node_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_reader, "OPS", {"MatMul": OPS["MatMul"]})
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), relu("x", "r"), helper.make_node("Add", ["h", "r"], ["y"])]
    with pytest.raises(ModelError, match=r"2 operators planc does not have: Add \(1 node, 'Add_2'\), Relu"):
        load_model(make_model(nodes, weights={"w": np.ones((9, 9), np.float32)}))


def test_custom_domain_is_named() -> None:
    node = helper.make_node("FusedConv", ["x"], ["y"], domain="com.microsoft", name="f")
    proto = make_model([node])
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(ModelError, match=r"com.microsoft:FusedConv \(1 node, 'f'\)"):
        load_model(proto)


def test_sub_graph_is_refused() -> None:
    branch = helper.make_graph([relu("x", "z")], "branch", [], [floats("z", None)])
    node = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=branch, else_branch=branch)
    with pytest.raises(ModelError, match=r"If \(1 node, 'choice'; it holds a sub-graph\)"):
        load_model(make_model([node], weights={"c": np.array(True)}))


def test_quantised_model_is_refused_with_the_reason() -> None:
    """A18."""
    with pytest.raises(ModelError, match=r"quantised: DequantizeLinear \(28 nodes\).*Give the float model"):
        load_model(model_path("micro_kws_qdq"))


@pytest.mark.parametrize("op", ["QuantizeLinear", "QLinearConv", "MatMulInteger", "DynamicQuantizeLinear"])
def test_every_quantised_operator_is_recognised(op: str) -> None:
    with pytest.raises(ModelError, match=f"quantised: {op}"):
        load_model(make_model([helper.make_node(op, ["x"], ["y"])]))


def test_local_functions_are_inlined() -> None:
    twice = helper.make_function(
        "local", "Twice", ["a"], ["b"], [relu("a", "m"), relu("m", "b")], [helper.make_opsetid("", 17)]
    )
    proto = make_model([helper.make_node("Twice", ["x"], ["y"], domain="local")], functions=[twice])
    proto.opset_import.append(helper.make_opsetid("local", 1))
    assert [node.op for node in load_model(proto).nodes] == ["Relu", "Relu"]


def test_opsets_from_seven_to_the_newest_are_read() -> None:
    newest = onnx.defs.onnx_opset_version()
    for opset in range(7, newest + 1):
        assert load_model(make_model([relu()], opset=opset)).batch == 2
    for opset in (6, newest + 1):
        with pytest.raises(ModelError, match=f"opset {opset}; planc reads opsets 7 to {newest}"):
            load_model(make_model([relu()], opset=opset))


def test_newer_ir_alone_is_no_reason_to_refuse() -> None:
    """A15."""
    assert load_model(make_model([relu()], ir_version=onnx.IR_VERSION + 5)).batch == 2


def test_node_with_wrong_arity_is_a_model_error() -> None:
    with pytest.raises(ModelError, match=r"node 'bad' \(Relu\): not a valid node of opset 17"):
        load_model(make_model([helper.make_node("Relu", ["x", "x"], ["y"], name="bad")]))


def test_input_that_is_no_tensor_or_of_no_planned_type_is_refused() -> None:
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None)
    with pytest.raises(ModelError, match="input 'x' is no tensor"):
        load_model(make_model([relu()], [sequence]))
    text = helper.make_tensor_value_info("x", TensorProto.STRING, (2, 3))
    with pytest.raises(ModelError, match="input 'x' holds object"):
        load_model(make_model([relu()], [text]))


# Files


def test_file_that_is_no_model_is_a_model_error(tmp_path: Path) -> None:
    whole = make_model([relu()], weights={"w": np.ones(1000, np.float32)}).SerializeToString()
    contents = {
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "text": b"this is not a model\n" * 20,
        "zeros": bytes(1000),
        "message without a graph": onnx.ModelProto(ir_version=8).SerializeToString(),
    }
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ModelError, match=f"model '{path}'"):
            load_model(path)
    for unreadable in (tmp_path, tmp_path / "absent", f"{tmp_path}/nul\0"):
        with pytest.raises(ModelError, match="cannot be read"):
            load_model(unreadable)


def external_model(folder: Path, location: str = "weights.bin", **entries: int) -> Path:
    """A model whose one weight, 3x4 floats 0..11, lies in another file."""
    proto = weight_model("initializer")
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_is_mapped(tmp_path: Path) -> None:
    """A11."""
    values = np.arange(12, dtype=np.float32)
    (tmp_path / "weights.bin").write_bytes(b"12345678" + values.tobytes())
    value = load_model(external_model(tmp_path, offset=8, length=48)).constants["w"]
    np.testing.assert_array_equal(value, values.reshape(3, 4))
    assert isinstance(value.base, np.memmap)


def test_external_data_missing_short_or_elsewhere_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(ModelError, match=r"tensor 'w': its data file 'weights.bin' cannot be read"):
        load_model(external_model(inner))
    (inner / "weights.bin").write_bytes(bytes(47))
    with pytest.raises(ModelError, match=r"tensor 'w': its data file 'weights.bin' has 47 bytes, wanted 48"):
        load_model(external_model(inner))
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    for location in ("../secret.bin", str(tmp_path / "secret.bin"), ""):
        with pytest.raises(ModelError, match="outside the model's folder"):
            load_model(external_model(inner, location))
    with pytest.raises(ModelError, match=r"its data is in file 'weights.bin'. Give the model's path"):
        load_model(onnx.load(external_model(inner), load_external_data=False))


def test_initializer_with_too_few_bytes_is_refused() -> None:
    proto = weight_model("initializer")
    proto.graph.initializer[0].raw_data = bytes(7)
    with pytest.raises(ModelError, match="tensor 'w': its data does not fit"):
        load_model(proto)


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("emx_mixed_ops_dynamic_batch", {}),
        ("occ_test_model_0", {}),
        ("ppocr_mobile_v2_cls", {"x[2]": 48, "x[3]": 192}),
        ("vespa_dummy_bert", {"tokens": 16}),
        ("vespa_t5_random_encoder", {"tokens": 16}),
    ],
)
def test_other_exporters_models_load_or_say_what_is_missing(name: str, dims: dict[str, int]) -> None:
    try:
        batch, missing = load_model(model_path(name), batch=3, dims=dims).batch, ""
    except ModelError as error:
        batch, missing = 0, error.message
    assert batch == 3 or "planc does not have: " in missing
