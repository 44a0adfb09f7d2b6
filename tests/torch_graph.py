"""planc's forward graph in PyTorch: a tiny interpreter of the operators the sample models use; autograd does the rest.

It reads the graph's nodes and attributes and shares no code with planc's operators, kernels or gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from planc.graph import Attrs, Graph

torch.set_num_threads(1)  # test processes share the cores

Tensor = torch.Tensor


class TorchGraph:
    """A graph with weights of its own.

    Attributes:
        weights: by the graph's name; float constants. Running statistics are among them and have no gradient.
        elements: batch norm's running variance -> how many values each of its statistics is taken over.
        margin: how near a value has come to a point where an operator has no derivative (a kink of ReLU or Clip, two
            equal maxima). Nearer than rounding, two right implementations take different sides.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.weights = {name: torch.tensor(np.array(value)) for name, value in graph.constants.items()}
        self.elements: dict[str, int] = {}
        self.momentum: dict[str, float] = {}
        self.margin = float("inf")
        statistics = {name for node in graph.nodes if node.op == "BatchNormalization" for name in node.inputs[3:5]}
        for name, value in self.weights.items():
            if value.is_floating_point() and name not in statistics:
                value.requires_grad_()

    def parameters(self) -> list[Tensor]:
        return [value for value in self.weights.values() if value.requires_grad]

    def scores(self, inputs: Mapping[str, Any]) -> Tensor:
        """The one output, in training mode; running statistics move."""
        values = {**self.weights, **{name: torch.tensor(value) for name, value in inputs.items()}}
        for node in self.graph.nodes:
            arguments = [values[name] if name else None for name in node.inputs]
            if node.op in _MARGINS:
                margin = _MARGINS[node.op](arguments[0].detach(), node.attrs)
                self.margin = min(self.margin, float(margin))
            if node.op == "BatchNormalization":
                values[node.outputs[0]] = self._batch_norm(node.inputs, arguments, node.attrs)
            else:
                values[node.outputs[0]] = _OPS[node.op](arguments, node.attrs)
        return values[self.graph.outputs[0]]

    def population_statistics(self, steps: int) -> dict[str, Any]:
        """Running statistics after `steps` steps as ONNX defines them.

        PyTorch's running variance takes the unbiased variance, N / (N - 1) of the population's; of the initial value
        momentum^steps is left and is not scaled.
        """
        found = {}
        for name, count in self.elements.items():
            left = np.array(self.graph.constants[name]) * self.momentum[name] ** steps
            found[name] = left + (self.weights[name].numpy() - left) * (count - 1) / count
        return found

    def _batch_norm(self, names: tuple[str, ...], arguments: list[Any], attrs: Attrs) -> Tensor:
        x, scale, bias, mean, variance = arguments
        self.elements[names[4]] = x.numel() // x.shape[1]
        self.momentum[names[4]] = float(str(attrs["momentum"]))
        weight = 1 - self.momentum[names[4]]
        epsilon = float(str(attrs["epsilon"]))
        return functional.batch_norm(x, mean, variance, scale, bias, training=True, momentum=weight, eps=epsilon)


def _ints(attrs: Attrs, name: str) -> list[int]:
    value = attrs[name]
    assert isinstance(value, tuple)
    return [int(v) for v in value]


def _padded(x: Tensor, attrs: Attrs, value: float) -> Tensor:
    """`x` with ONNX's pads (all begins, then all ends); PyTorch's go from the last axis to the first."""
    pads = _ints(attrs, "pads")
    half = len(pads) // 2
    sides = [side for axis in reversed(range(half)) for side in (pads[axis], pads[half + axis])]
    return functional.pad(x, sides, value=value)


def _conv(arguments: list[Any], attrs: Attrs) -> Tensor:
    x, weight, *bias = arguments
    x = _padded(x, attrs, 0.0)
    strides, dilations = _ints(attrs, "strides"), _ints(attrs, "dilations")
    return functional.conv2d(x, weight, bias[0] if bias else None, strides, 0, dilations, int(str(attrs["group"])))


def _max_pool(arguments: list[Any], attrs: Attrs) -> Tensor:
    x = _padded(arguments[0], attrs, float("-inf"))
    return functional.max_pool2d(x, _ints(attrs, "kernel_shape"), _ints(attrs, "strides"))


def _average_pool(arguments: list[Any], attrs: Attrs) -> Tensor:
    assert not any(_ints(attrs, "pads")), "the sample models do not pad here"
    return functional.avg_pool2d(arguments[0], _ints(attrs, "kernel_shape"), _ints(attrs, "strides"))


def _gemm(arguments: list[Any], attrs: Attrs) -> Tensor:
    x, weight, bias = arguments
    assert (attrs["trans_a"], attrs["alpha"], attrs["beta"]) == (0, "1", "1")
    return functional.linear(x, weight if attrs["trans_b"] else weight.T, bias)


def _clip(arguments: list[Any], attrs: Attrs) -> Tensor:
    return arguments[0].clamp(float(str(attrs["min"])), float(str(attrs["max"])))


def _relu_margin(x: Tensor, attrs: Attrs) -> Tensor:
    return x.abs().min()


def _clip_margin(x: Tensor, attrs: Attrs) -> Tensor:
    return torch.minimum((x - float(str(attrs["min"]))).abs(), (x - float(str(attrs["max"]))).abs()).min()


def _max_pool_margin(x: Tensor, attrs: Attrs) -> Tensor:
    """The smallest lead of a window's largest value. Exact ties do not count: they are zeros from ReLU, which lets no
    gradient through there, or copies of one value that an earlier pooling made, and all take the first of those."""
    x = _padded(x, attrs, float("-inf"))
    kernel, strides = _ints(attrs, "kernel_shape"), _ints(attrs, "strides")
    windows = x.unfold(2, kernel[0], strides[0]).unfold(3, kernel[1], strides[1]).flatten(4)
    first, second = windows.topk(2).values.unbind(-1)
    return (first - second)[first != second].min()


_MARGINS: Mapping[str, Callable[[Tensor, Attrs], Tensor]] = {
    "Clip": _clip_margin,
    "MaxPool": _max_pool_margin,
    "Relu": _relu_margin,
}

_OPS: Mapping[str, Callable[[list[Any], Attrs], Tensor]] = {
    "Add": lambda a, attrs: a[0] + a[1],
    "AveragePool": _average_pool,
    "Clip": _clip,
    "Concat": lambda a, attrs: torch.cat(a, int(str(attrs["axis"]))),
    "Conv": _conv,
    "Flatten": lambda a, attrs: a[0].reshape(_ints(attrs, "shape")),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda a, attrs: a[0].mean((2, 3), keepdim=True),
    "MaxPool": _max_pool,
    "Relu": lambda a, attrs: functional.relu(a[0]),
}
