"""A case of the operator table as an ONNX model of one node, and as planc reads it."""

from __future__ import annotations

import onnx
from case import Case

from planc.graph import Graph
from planc.onnx_loader import load_model


def case_model(case: Case, seed: int) -> onnx.ModelProto:
    """A model in float64 of the one node; the case's weights and constants are its initializers."""

    def info(name: str, shape: tuple[int, ...] | None) -> onnx.ValueInfoProto:
        kind = onnx.TensorProto.INT64 if name in case.integers else onnx.TensorProto.DOUBLE
        return onnx.helper.make_tensor_value_info(name, kind, shape)

    values = case.values(seed)
    stored = [onnx.numpy_helper.from_array(values[name], name) for name in (*case.weights, *case.constants)]
    node = onnx.helper.make_node(case.op, case.node_inputs, case.node_outputs, name=case.id, **case.attrs)
    graph = onnx.helper.make_graph(
        [node],
        "case",
        [info(name, shape) for name, shape in case.inputs.items()],
        [info(name, None) for name in case.node_outputs],
        stored,
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", case.opset)], ir_version=8)


def load_case(case: Case, seed: int) -> Graph:
    """The case's model, read in float64."""
    return load_model(case_model(case, seed), precision="fp64")
