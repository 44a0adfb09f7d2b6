"""Pooling against its definition, window by window, and what only planc's form of it has."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from interpret import interpret
from kernel_call import ALLOWANCE_BYTES, call

from planc.errors import ModelError
from planc.gradient_flow import GradientFlow
from planc.graph import Graph
from planc.graph_builder import GraphBuilder
from planc.onnx_loader import load_model


def _graph(op: str, shape: tuple[int, ...], opset: int = 22, **attrs: Any) -> Graph:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, ["x"], ["y"], name="the node", **attrs)],
        "graph",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, None)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    return load_model(model, precision="fp64")


def _launch_attrs(graph: Graph) -> Mapping[str, Any]:
    return {name: value for name, value in graph.nodes[0].attrs.items() if name != "ceil_mode"}


def _places(
    attrs: Mapping[str, Any], size: tuple[int, ...], window: tuple[int, ...]
) -> list[tuple[int, tuple[int, ...]]]:
    """(number, position) of the taps of a window that lie inside the input."""
    inside = []
    for number, tap in enumerate(product(*(range(taps) for taps in attrs["kernel_shape"]))):
        rule = zip(window, tap, attrs["strides"], attrs["dilations"], attrs["pads"])
        place = tuple(w * stride - pad + t * dilation for w, t, stride, dilation, pad in rule)
        if all(0 <= p < extent for p, extent in zip(place, size)):
            inside.append((number, place))
    return inside


def _padded_count(attrs: Mapping[str, Any], size: tuple[int, ...], window: tuple[int, ...]) -> int:
    count = 1
    for axis, extent in enumerate(size):
        first = window[axis] * attrs["strides"][axis]
        taps = [first + tap * attrs["dilations"][axis] for tap in range(attrs["kernel_shape"][axis])]
        count *= sum(tap < extent + attrs["pads"][axis] + attrs["pads"][axis + len(size)] for tap in taps)
    return count


@st.composite
def _windows(draw: st.DrawFn) -> tuple[tuple[int, ...], dict[str, Any]]:
    rank = draw(st.integers(1, 2))
    size = draw(st.lists(st.integers(1, 7), min_size=rank, max_size=rank))

    def ints(low: int, high: int, count: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    attrs = {
        "kernel_shape": ints(1, 3),
        "strides": ints(1, 3),
        "dilations": ints(1, 2),
        "pads": ints(0, 2, 2 * rank),
        "ceil_mode": draw(st.integers(0, 1)),
    }
    return (2, 2, *size), attrs


def _load(op: str, shape: tuple[int, ...], attrs: Mapping[str, Any]) -> Graph:
    """The graph; windows that hold nothing but padding are not planc's to compute."""
    try:
        return _graph(op, shape, **attrs)
    except ModelError as error:
        assume("padding alone" not in str(error) and "larger than" not in str(error))
        raise


@given(_windows())
def test_max_pool_is_its_definition(drawn: tuple[tuple[int, ...], dict[str, Any]]) -> None:
    shape, attrs = drawn
    graph = _load("MaxPool", shape, attrs)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, shape).astype(np.float64)  # few values: ties in most windows
    normal, y_shape = _launch_attrs(graph), graph.tensors["y"].shape
    y, index, dy, dx = np.empty(y_shape), np.empty(y_shape, np.uint8), rng.standard_normal(y_shape), np.empty(shape)
    call("MaxPool", (x,), (y, index), normal)
    call("MaxPoolBackward", (dy, index), (dx,), normal)
    gradient = np.zeros(shape)
    for window in np.ndindex(*y_shape[2:]):
        places = _places(normal, shape[2:], window)
        for maps in np.ndindex(*shape[:2]):
            number, place = max(places, key=lambda entry: (x[maps + entry[1]], -entry[0]))
            assert (y[maps + window], index[maps + window]) == (x[maps + place], number)
            gradient[maps + place] += dy[maps + window]
    np.testing.assert_allclose(dx, gradient, atol=1e-14)
    alone = np.empty(y_shape)
    call("MaxPool", (x,), (alone,), normal)
    np.testing.assert_array_equal(alone, y)


@given(_windows(), st.integers(0, 1))
def test_average_pool_is_its_definition(drawn: tuple[tuple[int, ...], dict[str, Any]], include: int) -> None:
    shape, attrs = drawn
    graph = _load("AveragePool", shape, {**attrs, "count_include_pad": include})
    rng = np.random.default_rng(0)
    normal, y_shape = _launch_attrs(graph), graph.tensors["y"].shape
    x, y, dy, dx = rng.standard_normal(shape), np.empty(y_shape), rng.standard_normal(y_shape), np.empty(shape)
    call("AveragePool", (x,), (y,), normal)
    call("AveragePoolBackward", (dy,), (dx,), normal)
    gradient = np.zeros(shape)
    for window in np.ndindex(*y_shape[2:]):
        places = _places(normal, shape[2:], window)
        count = _padded_count(normal, shape[2:], window) if include else len(places)
        total = np.zeros(shape[:2])
        for _, place in places:
            total += x[(..., *place)]
            gradient[(..., *place)] += dy[(..., *window)] / count
        np.testing.assert_allclose(y[(..., *window)], total / count, atol=1e-14)
    np.testing.assert_allclose(dx, gradient, atol=1e-14)


LARGE = [
    ((2, 3, 50001), {"kernel_shape": [4], "strides": [3], "pads": [2, 1]}),
    ((1, 2, 300, 310), {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 0, 1]}),
    ((1, 1, 2, 40000), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((9, 130, 14, 13), {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1]}),
    ((2, 2, 60, 60), {"kernel_shape": [17, 16], "strides": [1, 1]}),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "attrs"), LARGE)
def test_tiles_are_seamless_and_allocate_less_than_the_allowance(
    shape: tuple[int, ...], attrs: Mapping[str, Any], dtype: Any
) -> None:
    """Arrays of many blocks against NumPy's own windows; integers, so that sums are exact in any order."""
    max_graph, average_graph = (
        _graph("MaxPool", shape, **attrs),
        _graph("AveragePool", shape, count_include_pad=1, **attrs),
    )
    rng = np.random.default_rng(1)
    x, y_shape = rng.integers(1, 50, shape).astype(dtype), max_graph.tensors["y"].shape
    y, dx, dy = np.empty(y_shape, dtype), np.empty(shape, dtype), rng.integers(0, 9, y_shape).astype(dtype)
    index = np.empty(y_shape, np.int32 if attrs["kernel_shape"][0] > 16 else np.uint8)
    pads = attrs.get("pads", [0] * 2 * (len(shape) - 2))
    around = [(0, 0), (0, 0), *zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True)]
    axes = tuple(range(2, len(shape)))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, around), attrs["kernel_shape"], axes)
    windows = windows[(..., *(slice(None, None, step) for step in attrs["strides"]), *(slice(None),) * len(axes))]
    inner = tuple(range(-len(axes), 0))
    took = [call("MaxPool", (x,), (y, index), _launch_attrs(max_graph))]
    np.testing.assert_array_equal(y, windows.max(axis=inner))
    took.append(call("MaxPoolBackward", (dy, index), (dx,), _launch_attrs(max_graph)))
    assert dx.sum(dtype=np.float64) == dy.sum(dtype=np.float64)
    assert not dx[x < y.min()].any()
    took.append(call("AveragePool", (x,), (y,), _launch_attrs(average_graph)))
    np.testing.assert_allclose(y, windows.mean(axis=inner, dtype=np.float64), rtol=1e-6)
    took.append(call("AveragePoolBackward", (dy,), (dx,), _launch_attrs(average_graph)))
    # Adjoint: sum(dx * x) = sum(dy * y), to float32's rounding of some hundred thousand terms.
    np.testing.assert_allclose(np.vdot(dx.astype(float), x), np.vdot(dy.astype(float), y), rtol=1e-5)
    assert max(took) < ALLOWANCE_BYTES


def test_global_kernels_allocate_less_than_the_allowance() -> None:
    x, y, index = np.ones((40, 300, 5, 5)), np.empty((40, 300, 1, 1)), np.empty((40, 300, 1, 1), np.int32)
    took = [
        call("GlobalMaxPool", (x,), (y, index)),
        call("GlobalMaxPoolBackward", (y, index), (x,)),
        call("GlobalAveragePool", (x,), (y,)),
        call("GlobalAveragePoolBackward", (y,), (x,)),
    ]
    assert max(took) < ALLOWANCE_BYTES
    np.testing.assert_array_equal(x, np.full(x.shape, 1 / 625))  # 1 -> its place in the map -> mean -> spread


@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_windows_of_nothing_but_infinity_or_nan_pass_it_on(value: float) -> None:
    """A diverged run must be seen, and the gradient must go to an element of the window all the same."""
    x, y, index, dx = np.full((1, 1, 4), value), np.empty((1, 1, 3)), np.empty((1, 1, 3), np.uint8), np.empty((1, 1, 4))
    attrs = {"kernel_shape": (2,), "strides": (2,), "dilations": (1,), "pads": (1, 1)}
    call("MaxPool", (x,), (y, index), attrs)
    np.testing.assert_array_equal(y, np.full((1, 1, 3), value))
    call("MaxPoolBackward", (np.array([[[1.0, 2.0, 4.0]]]), index), (dx,), attrs)
    assert dx.sum() == 7


def _lowered(graph: Graph, *, training: bool) -> tuple[GraphBuilder, tuple[int, ...]]:
    flow = GradientFlow(frozenset(("x", "y")), frozenset(), frozenset(), (), frozenset((0,)))
    builder = GraphBuilder(graph, flow, training=training, dropout=True)
    return builder, builder.forward(frozenset((0,)))[0]


@pytest.mark.parametrize(
    ("kernel", "launch", "dtype"),
    [
        ([3, 5], "MaxPool", "uint8"),
        ([15, 17], "MaxPool", "uint8"),
        ([16, 16], "MaxPool", "int32"),
        ([18, 18], "GlobalMaxPool", "int32"),
    ],
)
def test_max_pool_saves_the_place_of_the_maximum_alone(kernel: list[int], launch: str, dtype: str) -> None:
    graph = _graph("MaxPool", (2, 3, 18, 18), kernel_shape=kernel)
    builder, saved = _lowered(graph, training=True)
    assert [made.op for made in builder.launches] == [launch]
    assert [builder.spec(tensor).dtype for tensor in saved] == [dtype]
    assert builder.spec(saved[0]).shape == graph.tensors["y"].shape
    builder, saved = _lowered(graph, training=False)
    assert [len(made.outputs) for made in builder.launches] == [1]
    assert saved == ()


@pytest.mark.parametrize("op", ["AveragePool", "GlobalAveragePool"])
def test_averages_save_nothing(op: str) -> None:
    attrs = {"kernel_shape": [2, 2]} if op == "AveragePool" else {}
    assert _lowered(_graph(op, (2, 3, 5, 4), **attrs), training=True)[1] == ()


def test_one_window_over_the_whole_map_is_global_pooling() -> None:
    builder, _ = _lowered(_graph("AveragePool", (2, 3, 7, 6), kernel_shape=[7, 6], strides=[7, 6]), training=True)
    assert [launch.op for launch in builder.launches] == ["GlobalAveragePool"]
    builder, _ = _lowered(_graph("AveragePool", (2, 3, 7, 6), kernel_shape=[7, 6], pads=[0, 0, 1, 0]), training=True)
    assert [launch.op for launch in builder.launches] == ["AveragePool"]


def test_auto_pad_overrules_pads() -> None:
    graph = _graph(
        "MaxPool", (1, 1, 6, 5), 11, kernel_shape=[3, 2], strides=[2, 1], auto_pad="SAME_UPPER", pads=[0] * 4
    )
    assert graph.nodes[0].attrs["pads"] == (0, 0, 1, 1)
    assert graph.tensors["y"].shape == (1, 1, 3, 5)


def test_global_maximum_takes_the_first_of_equals() -> None:
    x = np.zeros((1, 2, 2, 3))
    x[0, 0, 1, :2] = 5
    result = interpret(_graph("GlobalMaxPool", x.shape), {"x": x}, cotangents={"y": np.ones((1, 2, 1, 1))})
    wanted = np.zeros_like(x)
    wanted[0, 0, 1, 0] = wanted[0, 1, 0, 0] = 1
    np.testing.assert_array_equal(result.gradients["x"], wanted)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"kernel_shape": [2, 2], "pads": [2, 0, 0, 0]}, r"'the node'.*spatial axis 0 that lies in the padding alone"),
        ({"kernel_shape": [9, 2]}, "window is larger than the padded input"),
        ({"kernel_shape": [2]}, "the ranks don't fit"),
        ({"kernel_shape": [2, 2], "strides": [0, 1]}, r"strides \[0, 1\]: not the 2 values"),
    ],
)
def test_what_pooling_cannot_read(attrs: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        _graph("MaxPool", (2, 2, 6, 6), **attrs)
