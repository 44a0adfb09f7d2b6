"""Small ONNX models made on the spot, and where the sample models lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT_MODELS = sorted(path.stem for path in LIGHT.glob("*.onnx"))
SHARED = Path(__file__).resolve().parents[2] / "shared" / "models"
SHARED_MODELS = ["mnist_cntk_autopad", "micro_kws_fp32", "ultraface_rfb320", "onnx2c_mnist_pytorch"]


def model_path(name: str) -> Path:
    path = LIGHT / f"{name}.onnx" if name.startswith("light_") else SHARED / f"{name}.onnx"
    if not path.is_file():
        pytest.skip(f"{path} is not here; it comes with the onnx package or the folder of sample models")
    return path


def floats(name: str, shape: Sequence[int | str | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[str] = ("y",),
    *,
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
    **others: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "model",
        inputs or [floats("x", (2, 3))],
        [floats(name, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **others)


def relu(source: str = "x", target: str = "y", name: str = "") -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [target], name=name)


def weight_model(kind: str) -> onnx.ModelProto:
    value = np.full((3, 4), 0.25, np.float32)
    dense = helper.make_node("MatMul", ["x", "w"], ["y"])
    if kind == "initializer":
        return make_model([dense], weights={"w": value})
    if kind == "Constant":
        return make_model([helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(value)), dense])
    fill = numpy_helper.from_array(np.array([0.25], np.float32))
    node = helper.make_node("ConstantOfShape", ["shape"], ["w"], value=fill)
    return make_model([node, dense], weights={"shape": np.array([3, 4])})
