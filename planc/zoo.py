"""Sample models, made on the spot: small networks of the kinds people train, He-initialised by seed.

Every model takes `images` with a dynamic batch and puts out `scores`, one a class. Convolutions before a batch norm
have no bias: it would be subtracted again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 10
OPSET = 17
IR_VERSION = 8


class ModelBuilder(Protocol):
    """A sample model whose weights are drawn with `seed`."""

    def __call__(self, seed: int = 0) -> onnx.ModelProto: ...


class _Layers:
    """Nodes and initializers of a model in the making. A method adds a layer and returns the name of its output."""

    def __init__(self, name: str, image: tuple[int, int, int], seed: int) -> None:
        self.name = name
        self.image = image
        self.channels = {"images": image[0]}
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []

    def node(
        self, op: str, inputs: Sequence[str], channels: int, attrs: Mapping[str, Any] = MappingProxyType({})
    ) -> str:
        """A node of one output with `channels` channels (features) and ONNX attributes `attrs`."""
        name = f"{op.lower()}_{len(self._nodes)}"
        output = f"{name}_out"
        self._nodes.append(helper.make_node(op, list(inputs), [output], name, **attrs))
        self.channels[output] = channels
        return output

    def constant(self, name: str, value: npt.NDArray[Any]) -> str:
        full = f"{name}_{len(self._initializers)}"
        self._initializers.append(numpy_helper.from_array(value, full))
        return full

    def weight(self, name: str, shape: tuple[int, ...], gain: float = 2.0) -> str:
        """He et al., "Delving Deep into Rectifiers", ICCV 2015: variance gain / fan-in; gain 2 before a rectifier."""
        deviation = sqrt(gain / prod(shape[1:]))
        return self.constant(name, (self._random.standard_normal(shape) * deviation).astype(np.float32))

    def conv(
        self,
        x: str,
        channels: int,
        kernel: int,
        *,
        stride: int = 1,
        pad: int | None = None,
        groups: int = 1,
        bias: bool,
    ) -> str:
        """A square convolution; `pad` None keeps the size (at stride 1)."""
        inputs = [x, self.weight("weight", (channels, self.channels[x] // groups, kernel, kernel))]
        if bias:
            inputs.append(self.constant("bias", np.zeros(channels, np.float32)))
        sides = kernel // 2 if pad is None else pad
        attrs = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [sides] * 4, "group": groups}
        return self.node("Conv", inputs, channels, attrs)

    def batch_norm(self, x: str) -> str:
        channels = self.channels[x]
        starts = {"scale": 1.0, "shift": 0.0, "mean": 0.0, "variance": 1.0}
        names = [self.constant(name, np.full(channels, value, np.float32)) for name, value in starts.items()]
        return self.node("BatchNormalization", [x, *names], channels, {"epsilon": 1e-5, "momentum": 0.9})

    def relu(self, x: str) -> str:
        return self.node("Relu", [x], self.channels[x])

    def relu6(self, x: str) -> str:
        bounds = [self.constant(name, np.array(value, np.float32)) for name, value in (("low", 0), ("high", 6))]
        return self.node("Clip", [x, *bounds], self.channels[x])

    def add(self, x: str, y: str) -> str:
        return self.node("Add", [x, y], self.channels[x])

    def concat(self, parts: Sequence[str]) -> str:
        return self.node("Concat", parts, sum(self.channels[part] for part in parts), {"axis": 1})

    def pool(self, op: str, x: str, kernel: int, *, stride: int, pad: int = 0) -> str:
        attrs = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        return self.node(op, [x], self.channels[x], attrs)

    def dropout(self, x: str, ratio: float) -> str:
        return self.node("Dropout", [x, self.constant("ratio", np.array(ratio, np.float32))], self.channels[x])

    def flatten(self, x: str, pixels: int = 1) -> str:
        return self.node("Flatten", [x], self.channels[x] * pixels, {"axis": 1})

    def dense(self, x: str, features: int, gain: float = 2.0) -> str:
        weight = self.weight("weight", (features, self.channels[x]), gain)
        bias = self.constant("bias", np.zeros(features, np.float32))
        return self.node("Gemm", [x, weight, bias], features, {"transB": 1})

    def classifier(self, x: str) -> str:
        """Global average pooling and a linear layer."""
        pooled = self.node("GlobalAveragePool", [x], self.channels[x])
        return self.dense(self.flatten(pooled), CLASSES, gain=1.0)

    def conv_bn(self, x: str, channels: int, kernel: int, *, stride: int = 1, groups: int = 1) -> str:
        return self.batch_norm(self.conv(x, channels, kernel, stride=stride, groups=groups, bias=False))

    def conv_bn_relu(self, x: str, channels: int, kernel: int, *, stride: int = 1) -> str:
        return self.relu(self.conv_bn(x, channels, kernel, stride=stride))

    def model(self, output: str) -> onnx.ModelProto:
        """The model that puts out `output`, as `scores`."""
        self._nodes[-1].output[0] = "scores"
        assert output == f"{self._nodes[-1].name}_out", "the classifier is the last layer"
        graph = helper.make_graph(
            self._nodes,
            self.name,
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", *self.image])],
            [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", CLASSES])],
            self._initializers,
        )
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, producer_name="planc", opset_imports=[opset], ir_version=IR_VERSION)


def tiny_residual_cnn(seed: int = 0) -> onnx.ModelProto:
    """Images 1x16x16; eleven convolutions with batch norm in four residual blocks (He et al., CVPR 2016)."""
    net = _Layers("tiny_residual_cnn", (1, 16, 16), seed)
    x = net.conv_bn_relu("images", 16, 3)
    for channels, stride in ((16, 1), (32, 2), (32, 1), (64, 2)):
        inner = net.conv_bn(net.conv_bn_relu(x, channels, 3, stride=stride), channels, 3)
        straight = x if stride == 1 else net.conv_bn(x, channels, 1, stride=stride)
        x = net.relu(net.add(inner, straight))
    return net.model(net.classifier(x))


def lenet(seed: int = 0) -> onnx.ModelProto:
    """Images 1x28x28; two convolutions and three linear layers (after LeCun et al., Proc. IEEE 1998)."""
    net = _Layers("lenet", (1, 28, 28), seed)
    x = net.relu(net.conv("images", 6, 5, bias=True))
    x = net.pool("MaxPool", x, 2, stride=2)
    x = net.relu(net.conv(x, 16, 5, pad=0, bias=True))
    x = net.flatten(net.pool("MaxPool", x, 2, stride=2), pixels=5 * 5)
    x = net.relu(net.dense(net.relu(net.dense(x, 120)), 84))
    return net.model(net.dense(x, CLASSES, gain=1.0))


def vgg_like(seed: int = 0) -> onnx.ModelProto:
    """Images 3x32x32; pairs of 3x3 convolutions with bias, no batch norm, dropout (Simonyan, Zisserman, ICLR 2015)."""
    net = _Layers("vgg_like", (3, 32, 32), seed)
    x = "images"
    for channels in (16, 32, 64):
        for _ in range(2):
            x = net.relu(net.conv(x, channels, 3, bias=True))
        x = net.pool("MaxPool", x, 2, stride=2)
    x = net.dropout(net.relu(net.dense(net.flatten(x, pixels=4 * 4), 128)), 0.5)
    return net.model(net.dense(x, CLASSES, gain=1.0))


def inception_like(seed: int = 0) -> onnx.ModelProto:
    """Images 3x32x32; two modules of four branches, concatenated (Szegedy et al., CVPR 2015), with batch norm."""
    net = _Layers("inception_like", (3, 32, 32), seed)
    x = net.pool("MaxPool", net.conv_bn_relu("images", 16, 3), 3, stride=2, pad=1)
    for width in (8, 12):
        branches = [
            net.conv_bn_relu(x, width, 1),
            net.conv_bn_relu(net.conv_bn_relu(x, width, 1), 2 * width, 3),
            net.conv_bn_relu(net.conv_bn_relu(x, width // 2, 1), width, 5),
            net.conv_bn_relu(net.pool("MaxPool", x, 3, stride=1, pad=1), width, 1),
        ]
        x = net.concat(branches)
    return net.model(net.classifier(net.pool("AveragePool", x, 2, stride=2)))


def depthwise(seed: int = 0) -> onnx.ModelProto:
    """Images 3x32x32; inverted residual blocks of depthwise convolutions (MobileNetV2: Sandler et al., CVPR 2018)."""
    net = _Layers("depthwise", (3, 32, 32), seed)
    x = net.relu6(net.conv_bn("images", 16, 3, stride=2))
    for channels, stride in ((16, 1), (24, 2), (24, 1), (32, 2)):
        wide = 4 * net.channels[x]
        inner = net.relu6(net.conv_bn(x, wide, 1))
        inner = net.relu6(net.conv_bn(inner, wide, 3, stride=stride, groups=wide))
        inner = net.conv_bn(inner, channels, 1)
        x = net.add(x, inner) if stride == 1 else inner
    return net.model(net.classifier(net.relu6(net.conv_bn(x, 64, 1))))


def densenet_like(seed: int = 0) -> onnx.ModelProto:
    """Images 3x32x32; two dense blocks, each layer sees all before it (Huang et al., CVPR 2017)."""
    net = _Layers("densenet_like", (3, 32, 32), seed)
    growth = 8
    x = net.conv("images", 2 * growth, 3, bias=False)
    for block in range(2):
        if block:
            x = net.conv(net.relu(net.batch_norm(x)), net.channels[x] // 2, 1, bias=False)
            x = net.pool("AveragePool", x, 2, stride=2)
        for _ in range(4):
            new = net.conv(net.relu(net.batch_norm(x)), 4 * growth, 1, bias=False)
            new = net.conv(net.relu(net.batch_norm(new)), growth, 3, bias=False)
            x = net.concat([x, new])
    return net.model(net.classifier(net.relu(net.batch_norm(x))))


ZOO: Mapping[str, ModelBuilder] = MappingProxyType(
    {
        "tiny_residual_cnn": tiny_residual_cnn,
        "lenet": lenet,
        "vgg_like": vgg_like,
        "inception_like": inception_like,
        "depthwise": depthwise,
        "densenet_like": densenet_like,
    }
)
"""Name -> builder."""
