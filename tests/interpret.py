"""Runs a training graph launch by launch on plain arrays: no plan, no arena. The harness for operators.

Every launch with a batch axis runs on each of the given ranges, so that a wrong batch rule shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planc.gradient_flow import GradientFlow
from planc.graph import FLOATS, Graph
from planc.graph_builder import GraphBuilder
from planc.ops import OPS
from planc.ops.spec import BatchRule, TensorKind
from planc.runtime.kernels import KERNELS
from planc.runtime.launch import Array, Hyper, Launch
from planc.training import backpropagate
from planc.training_graph import BACKWARD, TrainingGraph

_HYPER = Hyper(0, 1, 0.01)
Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Result:
    outputs: dict[str, Array]
    gradients: dict[str, Array]
    constants: dict[str, Array]
    """Values of the constants afterwards (running statistics are updated in training)."""


def execute(
    graph: TrainingGraph, values: dict[int, Array], ranges: Ranges, *, hyper: Hyper = _HYPER
) -> dict[int, Array]:
    """Run every launch; `values` maps root tensors to arrays and is added to."""
    written = set[int]()

    def array(tensor: int, start: int, stop: int) -> Array:
        item = graph.tensors[tensor]
        if item.root not in values:
            spec = graph.tensors[item.root].spec
            values[item.root] = np.full(spec.shape, 77, dtype=spec.dtype)
        whole = values[item.root].reshape(item.spec.shape)
        return whole[start * item.spec.rows : stop * item.spec.rows] if item.spec.rows else whole

    for launch in graph.launches:
        parts = ((0, graph.batch),) if launch.rule is BatchRule.WHOLE else ranges
        for start, stop in parts:
            sums = [t for t in launch.outputs if not graph.spec(t).rows]
            accumulate = launch.rule is BatchRule.SUM and any(graph.root(t) in written for t in sums)
            KERNELS[launch.op](
                Launch(
                    op=launch.op,
                    attrs=launch.attrs,
                    inputs=tuple(array(t, start, stop) for t in launch.inputs),
                    outputs=tuple(array(t, start, stop) for t in launch.outputs),
                    workspace=np.empty(0, np.uint8),
                    accumulate=accumulate,
                    first_sample=start,
                    batch=graph.batch,
                    configuration=(),
                ),
                hyper,
            )
            written.update(graph.root(t) for t in launch.outputs)
    return values


def interpret(
    graph: Graph,
    inputs: Mapping[str, Array],
    *,
    cotangents: Mapping[str, Array] | None = None,
    values: Mapping[str, Array] | None = None,
    ranges: Ranges | None = None,
    training: bool = True,
    seed: int = 0,
) -> Result:
    """Outputs of `graph`, and with `cotangents` (one for each output) the gradients of sum(output * cotangent).

    Gradients are those of every float input and of every constant an operator calls a parameter.
    """
    flow = _everything(graph)
    builder = GraphBuilder(graph, flow, training=training, dropout=True)
    saved = builder.forward(frozenset(range(len(graph.nodes))))
    gradients: dict[str, int] = {}
    arrays: dict[int, Array] = {}
    if cotangents is not None:
        builder.phase, builder.kind = BACKWARD, TensorKind.GRADIENT
        seeds = []
        for name, cotangent in cotangents.items():
            tensor = builder._add(name, graph.tensors[name], TensorKind.INPUT)
            arrays[tensor] = np.asarray(cotangent)
            seeds.append((name, tensor))
        gradients = backpropagate(builder, flow, saved, tuple(seeds), "sgd", {})
    made = TrainingGraph(
        batch=graph.batch,
        training=training,
        tensors=tuple(builder.tensors),
        launches=tuple(builder.launches),
        persistent=tuple(builder.persistent),
        inputs=tuple(builder.inputs),
        labels=(),
        outputs=tuple((name, builder.tensor(name)) for name in graph.outputs),
        loss=("", 0),
        loss_kind="none",
        optimizer={},
        frozen=(),
    )
    for name, tensor in builder.inputs:
        arrays[tensor] = np.ascontiguousarray(inputs[name])
    for item in builder.persistent:
        name = tuple(graph.constants)[item.position]
        value = graph.constants[name] if values is None or name not in values else values[name]
        arrays[item.tensor] = np.array(value, dtype=graph.tensors[name].dtype)
    execute(made, arrays, ranges or ((0, graph.batch),), hyper=Hyper(seed, 1, 0.01))

    def value(tensor: int) -> Array:
        item = made.tensors[tensor]
        return arrays[item.root].reshape(item.spec.shape)

    return Result(
        outputs={name: value(tensor) for name, tensor in made.outputs},
        gradients={name: value(tensor) for name, tensor in gradients.items()},
        constants={name: value(builder.tensor(name)) for name in graph.constants},
    )


def _everything(graph: Graph) -> GradientFlow:
    """A flow in which every differentiable value is wanted and nothing is updated."""
    wanted = set[str]()
    for node in graph.nodes:
        spec = OPS[node.op]
        if spec.gradient is not None:
            chosen = range(len(node.inputs)) if spec.differentiable is None else spec.differentiable
            wanted.update(node.inputs[i] for i in chosen if i < len(node.inputs) and node.inputs[i])
            wanted.update(node.outputs)
    wanted = {name for name in wanted if graph.tensors[name].dtype in FLOATS}
    statistics = {node.inputs[i] for node in graph.nodes for i in OPS[node.op].statistics if i < len(node.inputs)}
    return GradientFlow(
        frozenset(wanted - statistics),
        frozenset(),
        frozenset(statistics),
        (),
        frozenset(range(len(graph.nodes))),
    )
