"""Initial values of parameters: He's, by what the model does with each; for models whose weights are placeholders."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod, sqrt

import numpy as np
import numpy.typing as npt

from planc.graph import Graph, Node
from planc.runtime.data import normal_pieces

_CONSTANT = {
    ("BatchNormalization", 1): 1.0,
    ("BatchNormalization", 2): 0.0,
    ("BatchNormalization", 3): 0.0,
    ("BatchNormalization", 4): 1.0,
    ("Conv", 2): 0.0,
    ("Gemm", 2): 0.0,
    ("PRelu", 1): 0.25,
}
"""(operator, input) -> the value all elements start with: scale 1, bias 0, mean 0, variance 1, slope 0.25."""

_ADDED = frozenset({"Add", "Sub", "Sum"})
_SCALED = frozenset({"Mul", "Div", "Pow"})
_PRODUCTS = frozenset({"Gemm", "MatMul"})


def initial_values(graph: Graph, position: int, seed: int) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """Values of the constant at `position` of `graph.constants`, flattened, in pieces: (position of the first, values).

    Filters and matrices are normal with deviation sqrt(2 / fan in) (He et al., ICCV 2015); biases are 0, scales 1. The
    draw depends on the seed and the position only, so that renaming a model changes nothing.
    """
    name = list(graph.constants)[position]
    spec = graph.tensors[name]
    node, argument = next(((node, node.inputs.index(name)) for node in graph.nodes if name in node.inputs), (None, 0))
    value = _constant(node, argument, len(spec.shape))
    if value is not None:
        yield from _repeat(value, spec.elements)
        return
    deviation = sqrt(2 / max(1, _fan_in(node, argument, spec.shape)))
    for start, piece in normal_pieces(spec.elements, np.random.default_rng((seed, position))):
        yield start, piece * deviation


def _constant(node: Node | None, argument: int, rank: int) -> float | None:
    """The one value that all elements get; None: they are drawn."""
    if node is not None:
        if (node.op, argument) in _CONSTANT:
            return _CONSTANT[node.op, argument]
        if node.op in _ADDED or node.op in _SCALED:
            return float(node.op in _SCALED)
        if node.op in _PRODUCTS:
            return None
    return 0.0 if rank < 2 else None


def _fan_in(node: Node | None, argument: int, shape: tuple[int, ...]) -> int:
    """How many products an output sums: the filter's elements, or the length of the axis a matrix product sums over."""
    if node is not None and node.op in _PRODUCTS:
        transposed = bool(node.attrs.get("trans_b" if argument else "trans_a", 0))
        return shape[-2] if len(shape) > 1 and bool(argument) != transposed else shape[-1]
    return prod(shape[1:])


def _repeat(value: float, count: int) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    piece = np.full(min(count, 1 << 15), value)
    for start in range(0, count, 1 << 15):
        yield start, piece[: count - start]
