"""Batch norm in its parts and local response normalization: what the operator table cannot say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from interpret import interpret
from kernel_call import ALLOWANCE_BYTES, call

from planc.errors import ModelError
from planc.gradient_flow import GradientFlow
from planc.graph import Graph
from planc.graph_builder import GraphBuilder
from planc.onnx_loader import load_model
from planc.ops import LAUNCHES
from planc.ops.spec import Recompute

SHAPE = (7, 5, 4, 3)
RANGES: Sequence[Sequence[tuple[int, int]]] = (((0, 7),), ((0, 3), (3, 7)), ((0, 1), (1, 6), (6, 7)))


def _draw(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float64) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _model(op: str, shape: Sequence[int], stored: Mapping[str, Any], opset: int = 15, **attrs: Any) -> onnx.ModelProto:
    node = onnx.helper.make_node(op, ["x", *stored], ["y"], name="the node", **attrs)
    graph = onnx.helper.make_graph(
        [node],
        "graph",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)


def _stored(channels: int = SHAPE[1]) -> dict[str, Any]:
    return {
        "scale": _draw((channels,), 1),
        "bias": _draw((channels,), 2),
        "mean": _draw((channels,), 3),
        "variance": _draw((channels,), 4) ** 2 + 0.1,
    }


def _graph(*, batch_norm: str = "exact", **attrs: Any) -> Graph:
    model = _model("BatchNormalization", SHAPE, _stored(), **attrs)
    return load_model(model, precision="fp64", batch_norm=batch_norm)


def _along(vector: Any) -> Any:
    return vector[:, None, None]


def _moments(x: Any, ranges: Sequence[tuple[int, int]]) -> Any:
    moments = np.full((3, x.shape[1]), np.nan, x.dtype)
    for start, stop in ranges:
        call("BatchNormStatistics", (x[start:stop],), (moments,), accumulate=start > 0)
    return moments


@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("shape", [SHAPE, (7, 5), (7, 3, 5000), (7, 1500, 2)])
def test_statistics_do_not_depend_on_ranges(shape: tuple[int, ...], ranges: Sequence[tuple[int, int]]) -> None:
    x = _draw(shape) * 3 + 10 * np.arange(7).reshape(-1, *(1,) * (len(shape) - 1))
    rest = (0, *range(2, len(shape)))
    count, mean, squares = _moments(x, ranges)
    assert set(count) == {x.size / x.shape[1]}
    np.testing.assert_allclose(mean, x.mean(axis=rest), rtol=1e-12)
    np.testing.assert_allclose(squares, x.var(axis=rest) * count, rtol=1e-12)


@pytest.mark.parametrize("deviation", [1, 0.01])
def test_statistics_in_float32_survive_a_large_mean(deviation: float) -> None:
    """Sums of squares would cancel all of float32's 7 digits: the mean is 3,000 or 300,000 standard deviations from 0.

    At the latter the mean, rounded to float32, is off by a hundredth of a deviation, which the sums are corrected for.
    """
    x = (_draw((32, 3, 40, 40)) * deviation + 3000).astype(np.float32)
    wanted = x.astype(np.float64)
    count, mean, squares = _moments(x, ((0, 32),))
    np.testing.assert_allclose(mean, wanted.mean(axis=(0, 2, 3)), rtol=2e-7)  # the last digit of float32
    np.testing.assert_allclose(squares / count, wanted.var(axis=(0, 2, 3)), rtol=2e-6)  # some roundings of float32


@pytest.mark.parametrize("ranges", RANGES)
def test_running_statistics_follow_onnx(ranges: Sequence[tuple[int, int]]) -> None:
    x, stored = _draw(SHAPE) + 2, _stored()
    result = interpret(_graph(momentum=0.75), {"x": x}, ranges=ranges)
    for name, found in (("mean", x.mean(axis=(0, 2, 3))), ("variance", x.var(axis=(0, 2, 3)))):
        np.testing.assert_allclose(result.constants[name], stored[name] * 0.75 + found * 0.25, rtol=1e-12)
    np.testing.assert_array_equal(result.constants["scale"], stored["scale"])


def _launches(graph: Graph, *, training: bool) -> tuple[GraphBuilder, dict[int, tuple[int, ...]]]:
    names = frozenset(graph.tensors)
    flow = GradientFlow(names, frozenset(), frozenset(("mean", "variance")), (), frozenset((0,)))
    builder = GraphBuilder(graph, flow, training=training, dropout=True)
    return builder, builder.forward(frozenset((0,)))


def test_only_the_update_moves_running_statistics_and_it_is_never_run_twice() -> None:
    builder, _ = _launches(_graph(), training=True)
    statistics = {builder.tensor("mean"), builder.tensor("variance")}
    writers = [launch.op for launch in builder.launches if statistics & set(launch.outputs)]
    assert writers == ["BatchNormUpdate"]
    assert LAUNCHES["BatchNormUpdate"].recompute is Recompute.NEVER
    assert LAUNCHES["BatchNormStatistics"].recompute is Recompute.NEVER


@pytest.mark.parametrize(
    ("batch_norm", "training"), [("frozen", True), ("frozen", False), ("per-sub-batch", False), ("exact", False)]
)
def test_frozen_and_evaluated_nodes_save_and_update_nothing(batch_norm: str, training: bool) -> None:
    graph = _graph(batch_norm=batch_norm, epsilon=0.5)
    builder, saved = _launches(graph, training=training)
    assert [launch.op for launch in builder.launches] == ["BatchNormInference"]
    assert saved == {0: ()}
    x, stored = _draw(SHAPE), _stored()
    result = interpret(graph, {"x": x}, training=training, ranges=RANGES[2])
    wanted = (x - _along(stored["mean"])) / np.sqrt(_along(stored["variance"]) + 0.5)
    wanted = wanted * _along(stored["scale"]) + _along(stored["bias"])
    np.testing.assert_allclose(result.outputs["y"], wanted, rtol=1e-12, atol=1e-12)
    for name, value in stored.items():
        np.testing.assert_array_equal(result.constants[name], value)


def test_a_frozen_node_has_a_gradient_of_its_input_alone() -> None:
    x, dy, stored = _draw(SHAPE), _draw(SHAPE, 9), _stored()
    result = interpret(_graph(batch_norm="frozen"), {"x": x}, cotangents={"y": dy}, ranges=RANGES[1])
    assert set(result.gradients) == {"x"}
    wanted = dy * _along(stored["scale"] / np.sqrt(stored["variance"] + 1e-5))
    np.testing.assert_allclose(result.gradients["x"], wanted, rtol=1e-12)


IN_PLACE: dict[str, tuple[tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    "BatchNormNormalize": ((SHAPE, (5,), (5,), (2, 5)), {}),
    "BatchNormInference": ((SHAPE, (5,), (5,), (5,), (5,)), {"epsilon": "1e-05"}),
    "BatchNormInputGradient": ((SHAPE, SHAPE, (2, 5), (5,), (5,), (5,)), {"count": 84}),
    "BatchNormInferenceGradient": ((SHAPE, (5,), (5,)), {"epsilon": "1e-05"}),
    "LRN": ((SHAPE,), {"size": 3, "alpha": "0.5", "beta": "0.75", "bias": "1"}),
    "LRNBackward": ((SHAPE, SHAPE), {"size": 3, "alpha": "0.5", "beta": "0.6", "bias": "1"}),
}


@pytest.mark.parametrize(("op", "pair"), [(op, pair) for op in IN_PLACE for pair in LAUNCHES[op].inplace])
def test_in_place(op: str, pair: tuple[int, int]) -> None:
    shapes, attrs = IN_PLACE[op]
    inputs = [np.abs(_draw(shape, seed)) for seed, shape in enumerate(shapes)]
    apart = np.empty(SHAPE)
    call(op, inputs, (apart,), attrs)
    call(op, inputs, (inputs[pair[0]],), attrs)
    np.testing.assert_array_equal(inputs[pair[0]], apart)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3, 64, 40, 41), (40, 3000), (2, 3, 300, 301)])
def test_kernels_allocate_less_than_the_allowance(shape: tuple[int, ...], dtype: Any) -> None:
    channels = shape[1]
    x, dy, out = _draw(shape, 0, dtype), _draw(shape, 1, dtype), np.empty(shape, dtype)
    vectors = [np.abs(_draw((channels,), seed, dtype)) for seed in range(4)]
    sums = [np.empty(channels, dtype) for _ in range(2)]
    moments, stat = np.ones((3, channels), dtype), np.ones((2, channels), dtype)
    epsilon, lrn = {"epsilon": "1e-05"}, {"size": 5, "alpha": "0.1", "beta": "0.75", "bias": "1"}
    took = {
        "statistics": call("BatchNormStatistics", (x,), (moments,)),
        "finalize": call("BatchNormFinalize", (moments,), (stat,), epsilon),
        "update": call("BatchNormUpdate", (moments, *vectors[2:]), vectors[2:], {"momentum": "0.9"}),
        "normalize": call("BatchNormNormalize", (x, *vectors[:2], stat), (out,)),
        "inference": call("BatchNormInference", (x, *vectors), (out,), epsilon),
        "reduce": call("BatchNormReduce", (x, dy, stat), sums),
        "gradient": call("BatchNormInputGradient", (dy, x, stat, *vectors[:3]), (out,), {"count": 99}),
        "inference gradient": call("BatchNormInferenceGradient", (dy, *vectors[:2]), (out,), epsilon),
        "sub-batch": call("SubBatchNorm", (x, *vectors[:2]), (out,), epsilon),
        "sub-batch update": call("SubBatchNormUpdate", (x, *vectors[2:]), vectors[2:], {"momentum": "0.9"}),
        "sub-batch gradient": call("SubBatchNormGradient", (dy, x, vectors[0]), (*sums, out), epsilon),
        "lrn": call("LRN", (x,), (out,), lrn),
        "lrn backward": call("LRNBackward", (dy, x), (out,), lrn),
    }
    assert {name: size for name, size in took.items() if size >= ALLOWANCE_BYTES} == {}


@pytest.mark.parametrize("beta", ["0.75", "0.5"])
@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_lrn_is_its_definition_for_windows_of_any_size(size: int, beta: str) -> None:
    x, y = _draw((2, 6, 700)), np.empty((2, 6, 700))
    call("LRN", (x,), (y,), {"size": size, "alpha": "0.5", "beta": beta, "bias": "2"})
    for c in range(6):
        window = x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1]
        scale = 2 + 0.5 / size * (window**2).sum(axis=1)
        np.testing.assert_allclose(y[:, c], x[:, c] / scale ** float(beta), rtol=1e-13)


def test_lrn_saves_its_input_alone() -> None:
    builder, saved = _launches(load_model(_model("LRN", SHAPE, {}, size=3), precision="fp64"), training=True)
    assert saved == {0: (builder.tensor("x"),)}


@pytest.mark.parametrize(
    ("shape", "stored", "opset", "attrs", "message"),
    [
        (SHAPE, _stored(4), 15, {}, r"'the node'.*its scale has shape \[4\]; \[5\], the channels, was expected"),
        ((7,), _stored(7), 15, {}, "a batch axis and a channel axis were expected"),
        (SHAPE, _stored(), 7, {"spatial": 0}, "spatial=0 keeps statistics for every position"),
    ],
)
def test_what_batch_norm_cannot_read(
    shape: tuple[int, ...], stored: Mapping[str, Any], opset: int, attrs: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(_model("BatchNormalization", shape, stored, opset, **attrs), precision="fp64")
