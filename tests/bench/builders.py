"""Graphs of any size for the benchmarks: chains of convolution blocks, and a GPT-like stack of transformer blocks.

Every model takes a dynamic batch. Weights are zeros without memory where planc reads them so: planning looks at shapes
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 17, 8
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT_MODELS = tuple(sorted(path.stem for path in LIGHT.glob("*.onnx")))


class _Net:
    """Nodes and initializers of a model in the making. A method adds a node and returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name, **attrs))
        return f"{name}_out"

    def weight(self, *shape: int) -> str:
        """A trainable tensor, as a ConstantOfShape: a model of gigabytes of weights stays a small file."""
        return self.node("ConstantOfShape", self.integers(*shape), value=_scalar(0.01))

    def integers(self, *values: int) -> str:
        return self.initializer(np.array(values, np.int64))

    def number(self, value: float) -> str:
        return self.initializer(np.array(value, np.float32))

    def initializer(self, value: np.ndarray) -> str:
        name = f"value_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def dense(self, x: str, inside: int, outside: int) -> str:
        return self.node("Add", self.node("MatMul", x, self.weight(inside, outside)), self.weight(outside))

    def conv(self, x: str, width: int, channels: int, taps: int) -> str:
        attrs = {"kernel_shape": [taps] * 2, "pads": [taps // 2] * 4}
        return self.node("Conv", x, self.weight(width, channels, taps, taps), **attrs)

    def batch_norm(self, x: str, width: int) -> str:
        return self.node("BatchNormalization", x, *(self.weight(width) for _ in range(4)))

    def classifier(self, x: str, width: int, classes: int = 10) -> str:
        pooled = self.node("Flatten", self.node("GlobalAveragePool", x), axis=1)
        return self.dense(pooled, width, classes)

    def model(self, shape: Sequence[int], output: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "benchmark",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *shape])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self.initializers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _scalar(value: float) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array([value], np.float32))


def plain_chain(blocks: int, width: int = 16, edge: int = 56) -> onnx.ModelProto:
    """Convolution and ReLU, `blocks` times: six training steps a block."""
    net = _Net()
    x = net.node("Relu", net.conv("x", width, 3, 3))
    for _ in range(blocks - 1):
        x = net.node("Relu", net.conv(x, width, width, 3))
    return net.model((3, edge, edge), net.classifier(x, width))


def residual_chain(blocks: int, width: int = 16, edge: int = 56) -> onnx.ModelProto:
    """Residual blocks of one convolution with batch norm and ReLU: about nineteen training steps a block."""
    net = _Net()
    x = net.node("Relu", net.batch_norm(net.conv("x", width, 3, 3), width))
    for _ in range(blocks):
        inner = net.node("Relu", net.batch_norm(net.conv(x, width, width, 3), width))
        x = net.node("Add", x, inner)
    return net.model((3, edge, edge), net.classifier(x, width))


def gpt_like(blocks: int, width: int = 1024, heads: int = 16, length: int = 256) -> onnx.ModelProto:
    """Transformer blocks on embedded tokens (N, length, width), layer norm before each half (GPT-2), SiLU for GELU."""
    net = _Net()
    x = "x"
    for _ in range(blocks):
        x = net.node("Add", x, _attention(net, _layer_norm(net, x, width), width, heads, length))
        inner = net.dense(_layer_norm(net, x, width), width, 4 * width)
        inner = net.node("Mul", inner, net.node("Sigmoid", inner))
        x = net.node("Add", x, net.dense(inner, 4 * width, width))
    pooled = net.node("ReduceMean", _layer_norm(net, x, width), axes=[1], keepdims=0)
    return net.model((length, width), net.dense(pooled, width, 10))


def _layer_norm(net: _Net, x: str, width: int) -> str:
    """By its parts: planc knows ReduceMean and arithmetic."""
    centred = net.node("Sub", x, net.node("ReduceMean", x, axes=[-1], keepdims=1))
    variance = net.node("ReduceMean", net.node("Mul", centred, centred), axes=[-1], keepdims=1)
    deviation = net.node("Sqrt", net.node("Add", variance, net.number(1e-5)))
    scaled = net.node("Mul", net.node("Div", centred, deviation), net.weight(width))
    return net.node("Add", scaled, net.weight(width))


def _attention(net: _Net, x: str, width: int, heads: int, length: int) -> str:
    depth = width // heads
    shape = net.integers(-1, length, heads, depth)
    query, key, value = (net.node("Reshape", net.dense(x, width, width), shape) for _ in range(3))
    query = net.node("Transpose", query, perm=[0, 2, 1, 3])
    key = net.node("Transpose", key, perm=[0, 2, 3, 1])
    value = net.node("Transpose", value, perm=[0, 2, 1, 3])
    scores = net.node("Mul", net.node("MatMul", query, key), net.number(depth**-0.5))
    mixed = net.node("MatMul", net.node("Softmax", scores, axis=-1), value)
    mixed = net.node("Transpose", mixed, perm=[0, 2, 1, 3])
    return net.dense(net.node("Reshape", mixed, net.integers(-1, length, width)), width, width)


CHAINS: Mapping[str, Callable[[int], onnx.ModelProto]] = MappingProxyType(
    {"plain": plain_chain, "residual": residual_chain, "gpt": gpt_like}
)
"""Name -> a model of so many blocks."""
