"""Where gradients flow: from the loss back to the parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from planc.errors import ModelError
from planc.graph import FLOATS, Graph, Node
from planc.losses import LossChoice
from planc.ops import OPS
from planc.training_graph import NO_PATH


@dataclass(frozen=True, slots=True)
class GradientFlow:
    """Where gradients flow: which values want one, which constants are trained, which nodes the loss depends on."""

    wanted: frozenset[str]
    trainable: frozenset[str]
    statistics: frozenset[str]
    frozen: tuple[tuple[str, str], ...]
    on_path: frozenset[int]

    @classmethod
    def of(cls, graph: Graph, choices: Sequence[LossChoice]) -> GradientFlow:
        reached, on_path = {choice.scores for choice in choices}, set[int]()
        needed = set(reached)
        for position in range(len(graph.nodes) - 1, -1, -1):
            node = graph.nodes[position]
            if not needed.isdisjoint(node.outputs):
                on_path.add(position)
                needed.update(name for name in node.inputs if name)
            if not reached.isdisjoint(node.outputs) and OPS[node.op].gradient is not None:
                reached.update(node.inputs[i] for i in _differentiable(node))
        candidates, statistics, frozen = _classify_constants(graph, reached)
        depends = set(candidates)
        floats = frozenset(name for name, spec in graph.tensors.items() if spec.dtype in FLOATS)
        blocked: Counter[str] = Counter()
        first: dict[str, str] = {}
        for node in graph.nodes:
            if OPS[node.op].gradient is None:
                if depends & set(node.inputs) and set(node.outputs) & needed & floats:
                    blocked[node.op] += 1
                    first.setdefault(node.op, node.name)
                continue
            if any(node.inputs[i] in depends for i in _differentiable(node)):
                depends.update(node.outputs)
        if blocked:
            listing = "; ".join(f"{op} ({count}, first {first[op]!r})" for op, count in sorted(blocked.items()))
            raise ModelError(f"operators without a gradient lie between parameters and the loss: {listing}.")
        return cls(frozenset(reached & depends), candidates, statistics, frozen, frozenset(on_path))


def _differentiable(node: Node) -> tuple[int, ...]:
    positions = OPS[node.op].differentiable
    chosen = range(len(node.inputs)) if positions is None else positions
    return tuple(i for i in chosen if i < len(node.inputs) and node.inputs[i])


def _parameter_positions(node: Node) -> tuple[int, ...]:
    if node.attrs.get("mode") == "frozen":  # a frozen batch norm updates nothing (field-cases A2)
        return ()
    positions = OPS[node.op].parameters
    return tuple(i for i in _differentiable(node) if positions is None or i in positions)


def _classify_constants(
    graph: Graph, reached: set[str]
) -> tuple[frozenset[str], frozenset[str], tuple[tuple[str, str], ...]]:
    """(trainable, running statistics, frozen with reason) of the constants, in the order of the graph."""
    trainable, statistics, literal, held = set[str](), set[str](), set[str](), set[str]()
    for node in graph.nodes:
        spec = OPS[node.op]
        statistics.update(node.inputs[i] for i in spec.statistics if i < len(node.inputs))
        if node.attrs.get("mode") == "frozen":
            held.update(node.inputs)
        for i in _parameter_positions(node):
            name = node.inputs[i]
            if name in graph.constants and name in reached and graph.tensors[name].dtype in FLOATS:
                scalar = spec.literal_scalars and graph.tensors[name].elements == 1
                (literal if scalar else trainable).add(name)
    trainable -= statistics
    frozen = []
    for name in graph.constants:
        if name in trainable or name in statistics:
            continue
        if graph.tensors[name].dtype not in FLOATS:
            reason = "not a floating-point tensor"
        elif name in held:
            reason = "of a frozen batch norm"
        elif name in literal:
            reason = "a single number in arithmetic, taken as a literal"
        else:
            reason = NO_PATH
        frozen.append((graph.initializers.get(name, name), reason))
    return frozenset(trainable), frozenset(statistics), tuple(frozen)
