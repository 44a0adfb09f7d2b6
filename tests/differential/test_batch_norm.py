"""Batch norm in training against PyTorch: outputs, gradients, and running statistics over several steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from interpret import interpret

from planc.onnx_loader import load_model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TOLERANCE = 1e-9
"""float64 carries 2e-16, and no sum here has more than some thousand terms."""

RANGES: Sequence[Sequence[tuple[int, int]]] = (((0, 8),), ((0, 5), (5, 8)), ((0, 3), (3, 4), (4, 8)))
SHAPES = ((8, 6), (8, 3, 10), (8, 4, 5, 6))


def _model(shape: Sequence[int], values: dict[str, Any], **attrs: Any) -> onnx.ModelProto:
    names = ("scale", "bias", "mean", "variance")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("BatchNormalization", ["x", *names], ["y"], **attrs)],
        "graph",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(values[name].astype(np.float32), name) for name in names],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 15)], ir_version=8)


def _values(shape: Sequence[int], steps: int) -> dict[str, Any]:
    """`x` and `dy` have one more axis in front: the steps."""
    rng = np.random.default_rng(3)
    channels = shape[1]
    return {
        "x": rng.standard_normal((steps, *shape)) * 2 + 3,
        "dy": rng.standard_normal((steps, *shape)),
        "scale": rng.uniform(0.5, 2, channels),
        "bias": rng.standard_normal(channels),
        "mean": rng.standard_normal(channels),
        "variance": rng.uniform(0.5, 2, channels),
    }


def _error(found: Any, wanted: Any) -> float:
    """Largest difference over largest value."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("momentum", [0.9, 0.25])
def test_three_training_steps(shape: Sequence[int], ranges: Sequence[tuple[int, int]], momentum: float) -> None:
    """PyTorch's momentum weighs the new value, and its running variance is the unbiased one: both converted here."""
    values = _values(shape, 3)
    graph = load_model(_model(shape, values, momentum=momentum), precision="fp64")
    state = {name: values[name] for name in ("scale", "bias", "mean", "variance")}
    running = {name: torch.tensor(values[name]) for name in ("mean", "variance")}
    count = values["x"][0].size // shape[1]
    for x, dy in zip(values["x"], values["dy"], strict=True):
        leaves = {"x": torch.tensor(x), "scale": torch.tensor(state["scale"]), "bias": torch.tensor(state["bias"])}
        for leaf in leaves.values():
            leaf.requires_grad_()
        unbiased = running["variance"] * 0
        mean = running["mean"].clone()
        y = torch.nn.functional.batch_norm(
            leaves["x"], mean, unbiased, leaves["scale"], leaves["bias"], training=True, momentum=1 - momentum
        )
        y.backward(torch.tensor(dy))
        population = unbiased / (1 - momentum) * (count - 1) / count
        running = {"mean": mean, "variance": running["variance"] * momentum + population * (1 - momentum)}
        result = interpret(graph, {"x": x}, cotangents={"y": dy}, values=state, ranges=ranges)
        assert _error(result.outputs["y"], y.detach()) < TOLERANCE
        for name, leaf in leaves.items():
            assert _error(result.gradients[name], leaf.grad) < TOLERANCE, name
        for name, wanted in running.items():
            assert _error(result.constants[name], wanted) < TOLERANCE, name
        state = {**state, **{name: result.constants[name] for name in ("mean", "variance")}}


def test_float32_is_about_as_accurate_as_pytorchs() -> None:
    """Both against PyTorch in float64. At a mean of 50 standard deviations rounding the mean costs some digits."""
    shape = (8, 4, 40, 40)
    values = _values(shape, 1)
    values = {name: value.astype(np.float32) for name, value in values.items()}
    values["x"] += 100
    graph = load_model(_model(shape, values), precision="fp32")
    state = {name: values[name] for name in ("scale", "bias", "mean", "variance")}
    result = interpret(graph, {"x": values["x"][0]}, cotangents={"y": values["dy"][0]}, values=state, ranges=RANGES[1])

    def by_torch(dtype: Any) -> list[Any]:
        leaves = [torch.tensor(values[name], dtype=dtype) for name in ("scale", "bias")]
        leaves.insert(0, torch.tensor(values["x"][0], dtype=dtype))
        for leaf in leaves:
            leaf.requires_grad_()
        y = torch.nn.functional.batch_norm(leaves[0], None, None, leaves[1], leaves[2], training=True)
        y.backward(torch.tensor(values["dy"][0], dtype=dtype))
        return [y.detach(), *(leaf.grad for leaf in leaves)]

    found = [result.outputs["y"], *(result.gradients[name] for name in ("x", "scale", "bias"))]
    for ours, theirs, exact in zip(found, by_torch(torch.float32), by_torch(torch.float64), strict=True):
        assert _error(ours, exact) <= max(2 * _error(theirs, exact), 4 * 2.0**-23)
