"""Trained weights go back into the file they came from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planc import onnx_writer
from planc.errors import ModelError, RunError
from planc.onnx_loader import load_model
from planc.onnx_writer import save_trained


def chain(ir_version: int = 8, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """x @ a @ b @ c @ copy: weights from an initializer, a Constant, a ConstantOfShape and an Identity of `a`."""
    array = helper.tensor_dtype_to_np_dtype(dtype)
    three = np.arange(9, dtype=array).reshape(3, 3)
    fill = numpy_helper.from_array(np.array([0.02], array))
    nodes = [
        helper.make_node("Constant", [], ["b"], value=numpy_helper.from_array(three)),
        helper.make_node("ConstantOfShape", ["shape"], ["c"], value=fill),
        helper.make_node("Identity", ["a"], ["copy"]),
        helper.make_node("MatMul", ["x", "a"], ["xa"], name="first"),
        helper.make_node("MatMul", ["xa", "b"], ["xb"]),
        helper.make_node("MatMul", ["xb", "c"], ["xc"]),
        helper.make_node("MatMul", ["xc", "copy"], ["y"]),
    ]
    weights = [numpy_helper.from_array(three, "a"), numpy_helper.from_array(np.array([3, 3]), "shape")]
    inputs = [helper.make_tensor_value_info("x", dtype, (2, 3))]
    if ir_version < 4:
        inputs += [helper.make_tensor_value_info(w.name, w.data_type, tuple(w.dims)) for w in weights]
    output = helper.make_tensor_value_info("y", dtype, (2, 3))
    graph = helper.make_graph(nodes, "chain", inputs, [output], weights, doc_string="kept")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=ir_version)


@pytest.mark.parametrize("ir_version", [3, 8])
def test_every_weight_comes_back_and_the_checker_is_content(tmp_path: Path, ir_version: int) -> None:
    source, out = tmp_path / "model.onnx", tmp_path / "trained.onnx"
    onnx.save(chain(ir_version), source)
    before = source.read_bytes()
    graph = load_model(source)
    trained = {name: value + position + 1 for position, (name, value) in enumerate(graph.constants.items())}
    assert sorted(trained) == ["a", "b", "c", "copy"]
    save_trained(source, {graph.initializers[name]: value for name, value in trained.items()}, out)
    onnx.checker.check_model(out, full_check=True)
    again = load_model(out)
    assert {name: value.tolist() for name, value in again.constants.items()} == {
        name: value.tolist() for name, value in trained.items()
    }
    saved = onnx.load(out).graph
    assert saved.doc_string == "kept"
    assert [node.op_type for node in saved.node] == ["MatMul"] * 4
    assert "shape" not in {tensor.name for tensor in saved.initializer}
    assert source.read_bytes() == before


def test_what_is_not_given_stays(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(chain(), source)
    save_trained(source, {"a": np.zeros((3, 3))}, source)
    graph = load_model(source)
    assert not graph.constants["a"].any()
    assert graph.constants["b"].tolist() == np.arange(9.0).reshape(3, 3).tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16])
def test_values_are_cast_back_to_the_files_types(tmp_path: Path, dtype: int) -> None:
    source, out = tmp_path / "model.onnx", tmp_path / "trained.onnx"
    onnx.save(chain(dtype=dtype), source)
    save_trained(source, {name: np.full((3, 3), 1.5, np.float32) for name in ("a", "b", "c", "copy")}, out)
    saved = {tensor.name: tensor for tensor in onnx.load(out).graph.initializer}
    assert {tensor.data_type for tensor in saved.values()} == {dtype}
    assert all((numpy_helper.to_array(tensor) == 1.5).all() for tensor in saved.values())


def test_external_data_in_and_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model too large for one protobuf message gets its weights in a file beside it."""
    source, out = tmp_path / "model.onnx", tmp_path / "trained.onnx"
    onnx.save(chain(), source, save_as_external_data=True, location="weights.bin", size_threshold=0)
    save_trained(source, {"b": np.ones((3, 3))}, out)
    assert not out.with_name("trained.onnx.data").exists()
    assert load_model(out).constants["a"].tolist() == np.arange(9.0).reshape(3, 3).tolist()
    monkeypatch.setattr(onnx_writer, "INLINE_LIMIT_BYTES", 0)
    big = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)
    proto = chain()
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros_like(big), "big"))
    onnx.save(proto, source)
    save_trained(source, {"big": big}, out)
    assert out.with_name("trained.onnx.data").stat().st_size >= big.nbytes
    saved = {tensor.name: tensor for tensor in onnx.load(out).graph.initializer}
    np.testing.assert_array_equal(numpy_helper.to_array(saved["big"]), big)


def test_unknown_name_and_wrong_shape_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    source, out = tmp_path / "model.onnx", tmp_path / "trained.onnx"
    onnx.save(chain(), source)
    with pytest.raises(ModelError, match="no initializer or constant 'ghost'"):
        save_trained(source, {"ghost": np.zeros(3)}, out)
    with pytest.raises(ModelError, match=r"'a' has shape \(3, 3\), the trained one \(9,\)"):
        save_trained(source, {"a": np.zeros(9)}, out)
    assert not out.exists()


def test_folder_that_is_not_there_is_a_run_error(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(chain(), source)
    with pytest.raises(RunError, match="cannot be written: No such file"):
        save_trained(source, {"a": np.zeros((3, 3))}, tmp_path / "absent" / "trained.onnx")
