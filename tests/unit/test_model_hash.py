"""The structural hash: what leaves it as it is and what changes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planc.graph import Graph, Node, TensorSpec
from planc.model_hash import model_sha256


def graph(prefix: str = "", **changes: object) -> Graph:
    """Two layers; every name begins with `prefix`."""
    x, w, i, h, y = (prefix + name for name in "xwihy")
    base = Graph(
        batch=2,
        inputs=(x,),
        outputs=(y,),
        nodes=(
            Node("MatMul", prefix + "dense", (x, w), (h,), {"transB": 0}),
            Node("Gather", prefix + "pick", (h, i), (y,), {"axis": 1}),
        ),
        tensors={
            x: TensorSpec((2, 3), "float32", 1),
            w: TensorSpec((3, 4), "float32"),
            i: TensorSpec((2,), "int64"),
            h: TensorSpec((2, 4), "float32", 1),
            y: TensorSpec((2, 2), "float32", 1),
        },
        constants={w: np.zeros((3, 4), np.float32), i: np.array([0, 1])},
        initializers={w: w, i: i},
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_names_weights_and_warnings_do_not_count() -> None:
    trained = {"renamed/w": np.ones((3, 4), np.float32), "renamed/i": np.array([0, 1])}
    assert model_sha256(graph()) == model_sha256(graph("renamed/", constants=trained, warnings=("old",)))


def wired(inputs: tuple[str, str]) -> Graph:
    first, second = graph().nodes
    return graph(nodes=(replace(first, inputs=inputs), second))


@pytest.mark.parametrize(
    "other",
    [
        graph(batch=4),
        graph(outputs=("h",)),
        graph(constants={**graph().constants, "i": np.array([1, 0])}),
        graph(tensors={**graph().tensors, "x": TensorSpec((2, 3), "float32", 0)}),
        graph(tensors={**graph().tensors, "w": TensorSpec((3, 4), "float64")}),
        graph(tensors={**graph().tensors, "h": TensorSpec((2, 5), "float32", 1)}),
        graph(nodes=(replace(graph().nodes[0], op="Gemm"), graph().nodes[1])),
        graph(nodes=(replace(graph().nodes[0], attrs={"transB": 1}), graph().nodes[1])),
        wired(("w", "x")),
    ],
    ids=["batch", "output", "indices", "rows", "dtype", "shape", "operator", "attribute", "wiring"],
)
def test_everything_else_counts(other: Graph) -> None:
    assert model_sha256(other) != model_sha256(graph())
