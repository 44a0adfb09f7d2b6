"""Dropout: the generator's known answers, masks that depend on positions alone, and their statistics."""

from __future__ import annotations

from collections.abc import Sequence
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
from planc.runtime.kernels import random
from planc.runtime.launch import Hyper

SHAPE = (7, 3, 5)


def _graph(shape: Sequence[int] = SHAPE, *, opset: int = 13, ratio: Any = None, twice: bool = False) -> Graph:
    """One dropout, or two of the same input, added up."""
    stored = [] if ratio is None or opset < 12 else [onnx.numpy_helper.from_array(np.array(ratio), "ratio")]
    attrs = {"ratio": ratio} if ratio is not None and opset < 12 else {}
    names = ["x", *(tensor.name for tensor in stored)]
    nodes = [onnx.helper.make_node("Dropout", names, ["y"], name="the node", **attrs)]
    if twice:
        nodes.append(onnx.helper.make_node("Dropout", names, ["z"], **attrs))
    outputs = ["y", "z"] if twice else ["y"]
    graph = onnx.helper.make_graph(
        nodes,
        "graph",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, shape)],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, None) for name in outputs],
        stored,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    return load_model(model, precision="fp64")


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0_A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(counter: tuple[int, ...], key: int, block: tuple[int, ...]) -> None:
    """Answers published with Random123 (kat_vectors, philox4x32 with 10 rounds)."""
    words = np.zeros((6, 1), np.uint64)
    words[:4, 0] = counter
    random.philox4x32(words, key)
    assert tuple(words[:4, 0].tolist()) == block


def _mask(stream: random.Stream, first: int, samples: int, elements: int, drop: float = 0.5) -> Any:
    mask = np.zeros((samples, elements), np.int8)
    for tile in random.keep_tiles(stream, first, samples, elements, drop):
        mask[tile.first : tile.last, tile.start : tile.stop] += np.where(tile.keep, 2, 1).astype(np.int8)
    assert set(np.unique(mask)) <= {1, 2}  # every element drawn exactly once
    return mask == 2


STREAM = random.Stream(seed=2**63 + 12345, step=17, node=3)


@pytest.mark.parametrize("elements", [1, 6, 4096, 50001])
def test_a_mask_depends_on_positions_alone(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _mask(STREAM, 0, 9, elements)
    parts = [_mask(STREAM, first, count, elements) for first, count in ((0, 1), (1, 5), (6, 3))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    monkeypatch.setattr(random, "TILE", 4099)
    np.testing.assert_array_equal(_mask(STREAM, 0, 9, elements), whole)


def test_streams_and_samples_differ() -> None:
    """Two independent masks of 4,096 elements agree in 2,048 of them, within 5 standard deviations of 32."""
    masks = [
        _mask(stream, first, 1, 4096)
        for stream, first in (
            (STREAM, 0),
            (STREAM, 1),
            (random.Stream(STREAM.seed + 1, STREAM.step, STREAM.node), 0),
            (random.Stream(STREAM.seed + 2**32, STREAM.step, STREAM.node), 0),
            (random.Stream(STREAM.seed, STREAM.step + 1, STREAM.node), 0),
            (random.Stream(STREAM.seed, STREAM.step, STREAM.node + 1), 0),
        )
    ]
    for i, mask in enumerate(masks):
        for other in masks[:i]:
            assert abs(int((mask == other).sum()) - 2048) < 5 * 32


@pytest.mark.parametrize("drop", [0.1, 0.5, 0.8])
def test_the_share_kept_is_right(drop: float) -> None:
    """A binomial count leaves 4.5 standard deviations for 7 in a million seeds; the seed is fixed."""
    kept, count = int(_mask(STREAM, 0, 40, 5000, drop).sum()), 200_000
    assert abs(kept - count * (1 - drop)) < 4.5 * np.sqrt(count * drop * (1 - drop))


def test_neighbours_are_independent() -> None:
    """Chi-square over the 16 patterns of four elements in a row, and of the same element in four samples.

    15 degrees of freedom: 44.3 is exceeded by 1 in 10,000 seeds; the seed is fixed.
    """
    mask = _mask(STREAM, 0, 400, 800)
    for fours in (mask.reshape(-1, 4), mask.T.reshape(-1, 4), mask[:, 2:-2].reshape(-1, 4)):
        patterns = np.bincount(fours @ np.array([1, 2, 4, 8]), minlength=16)
        wanted = len(fours) / 16
        assert ((patterns - wanted) ** 2 / wanted).sum() < 44.3


RANGES: Sequence[Sequence[tuple[int, int]]] = (((0, 7),), ((0, 2), (2, 7)), ((0, 1), (1, 3), (3, 7)))


@pytest.mark.parametrize("ranges", RANGES)
def test_backward_has_the_mask_of_forward(ranges: Sequence[tuple[int, int]]) -> None:
    x, dy = np.ones(SHAPE), np.arange(105.0).reshape(SHAPE) + 1
    whole = interpret(_graph(ratio=0.25), {"x": x}, seed=5).outputs["y"]
    result = interpret(_graph(ratio=0.25), {"x": x}, cotangents={"y": dy}, ranges=ranges, seed=5)
    np.testing.assert_array_equal(result.outputs["y"], whole)
    assert set(np.unique(whole)) == {0.0, 1 / 0.75}
    np.testing.assert_array_equal(result.gradients["x"], np.where(whole > 0, dy * (1 / 0.75), 0))


def test_two_dropouts_of_one_tensor_draw_differently() -> None:
    """Contrastive losses feed a batch through a network twice and rely on it."""
    result = interpret(_graph((64, 10), twice=True), {"x": np.ones((64, 10))})
    agree = float((result.outputs["y"] == result.outputs["z"]).mean())
    assert 0.4 < agree < 0.6  # 5 standard deviations of 640 coins


def _lowered(graph: Graph, *, training: bool) -> tuple[GraphBuilder, dict[int, tuple[int, ...]]]:
    flow = GradientFlow(frozenset(("x", "y")), frozenset(), frozenset(), (), frozenset((0,)))
    builder = GraphBuilder(graph, flow, training=training, dropout=True)
    return builder, builder.forward(frozenset((0,)))


@pytest.mark.parametrize(("ratio", "training"), [(0.5, False), (0.0, True)])
def test_where_nothing_is_dropped_there_is_no_launch(ratio: float, training: bool) -> None:
    builder, _ = _lowered(_graph(ratio=ratio), training=training)
    assert builder.launches == []
    assert builder.tensor("y") == builder.tensor("x")


def test_backward_reads_nothing_but_the_gradient() -> None:
    builder, saved = _lowered(_graph(), training=True)
    from planc.ops import OPS

    dy = builder.view(builder.tensor("y"), builder.spec(builder.tensor("y")))
    OPS["Dropout"].gradient(builder, builder.graph.nodes[0], saved[0], (dy,))  # type: ignore[misc]
    assert builder.launches[-1].inputs == (dy,)


@pytest.mark.parametrize(("opset", "ratio", "text"), [(7, 0.1, "0.1"), (12, np.float32(0.1), "0.1"), (22, None, "0.5")])
def test_every_opset_says_its_ratio(opset: int, ratio: Any, text: str) -> None:
    assert _graph(opset=opset, ratio=ratio).nodes[0].attrs == {"ratio": text}


def test_a_ratio_of_one_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'the node' \(Dropout\): ratio 1; a number in \[0, 1\) was expected"):
        _graph(ratio=1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3, 40000), (5000, 17)])
def test_in_place_and_within_the_allowance(shape: tuple[int, int], dtype: Any) -> None:
    x, y = np.random.default_rng(0).standard_normal(shape).astype(dtype), np.empty(shape, dtype)
    attrs = {"ratio": "0.3", "node": 4, "elements": shape[1]}
    hyper = Hyper(seed=1, step=2, lr=0.0)
    assert call("Dropout", (x,), (y,), attrs, hyper=hyper) < ALLOWANCE_BYTES
    call("Dropout", (x,), (x,), attrs, hyper=hyper)
    np.testing.assert_array_equal(x, y)
