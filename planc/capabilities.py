"""Bounds: what a model needs, by what planc may do about it, and what no plan and no method gets below."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from planc.bounds import LowerBound, lower_bound, working_set
from planc.choice import minimum_memory
from planc.collection import no_cyclic_collection
from planc.conv_algorithms import conv_call
from planc.costs import CALLS, convolution_options
from planc.graph import TensorSpec
from planc.ops.spec import BatchRule, TensorKind
from planc.options import Options
from planc.pipeline import UNLIMITED, Draft, Workload
from planc.policies import KEEP_ALL, KEEP_ALL_SMALL
from planc.training_graph import Launch, TrainingGraph
from planc.units import align_up
from planc.yardsticks import smallest_draft


@dataclass(frozen=True, slots=True)
class Capability:
    """The smallest budget with what `name` says and everything above it in the table.

    `makespan_ns`: predicted step time of the plan that needs so little; `sub_batches`: of it. More budget is faster.
    """

    name: str
    smallest_budget_bytes: int
    makespan_ns: int
    sub_batches: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a model needs at a batch, on a device.

    keep_all_bytes, keep_all_zero_workspace_bytes, ideal_ns: as in a plan (yardsticks.py).
    bound_ns: no plan that runs the batch in one range is faster, whatever its budget.
    proven: no plan needs less. modnn: moDNN's bound, which counts the gradient of every parameter as resident.
    """

    batch: int
    keep_all_bytes: int
    keep_all_zero_workspace_bytes: int
    ideal_ns: int
    bound_ns: int
    capabilities: tuple[Capability, ...]
    proven: LowerBound
    modnn: LowerBound

    @property
    def smallest_budget_bytes(self) -> int:
        """compile finds a plan from there up."""
        return self.capabilities[-1].smallest_budget_bytes


def _whole_batch(workload: Workload, options: Options) -> Draft:
    """Everything is away that a task does not touch. To compute it again would leave no more room, only sooner."""
    return minimum_memory(workload, replace(options, sub_batches=1, host_parameters="never"))


def _split(workload: Workload, options: Options) -> Draft:
    return minimum_memory(workload, replace(options, host_parameters="never"))


CAPABILITIES: Mapping[str, Callable[[Workload, Options], Draft]] = MappingProxyType(
    {
        "resident": lambda workload, _: smallest_draft(workload, KEEP_ALL, 1),
        "algorithms": lambda workload, _: smallest_draft(workload, KEEP_ALL_SMALL, 1),
        "offload": _whole_batch,
        "recompute": _whole_batch,
        "sub-batches": _split,
        "host parameters": minimum_memory,
    }
)
"""Name -> the smallest plan with this capability and those before it."""


def bounds(workload: Workload, options: Options) -> Bounds:
    """What `workload` needs. `options`: of its training; how many steps a plan may have."""
    with no_cyclic_collection():
        made = {smallest: smallest(workload, options) for smallest in dict.fromkeys(CAPABILITIES.values())}
    drafts = {name: made[smallest] for name, smallest in CAPABILITIES.items()}
    rows: list[Capability] = []
    best: Draft | None = None
    for name, found in drafts.items():
        if best is None or found.arena_bytes < best.arena_bytes:
            best = found
        makespan = best.train.schedule.makespan_ns()
        rows.append(Capability(name, best.arena_bytes, makespan, best.sub_batches))
    return Bounds(
        batch=workload.graph.batch,
        keep_all_bytes=drafts["resident"].arena_bytes,
        keep_all_zero_workspace_bytes=drafts["algorithms"].arena_bytes,
        ideal_ns=drafts["resident"].train.schedule.makespan_ns(),
        bound_ns=sum(workload.problem(1, UNLIMITED, micro_batches="powers").costs.durations),
        capabilities=tuple(rows),
        proven=lower_bound(workload.training),
        modnn=modnn_bound(workload),
    )


def modnn_bound(workload: Workload) -> LowerBound:
    """Weights, their gradients and optimizer state, plus the largest working set of any task at one sample with its
    smallest workspace (Chen et al., TPDS 2019).

    planc goes below it where gradients of parameters wait on the host until they are wanted.
    """
    graph = workload.training
    resident = lower_bound(graph, resident=True).persistent_bytes + sum(
        t.spec.bytes for t in graph.tensors if t.kind is TensorKind.PARAMETER_GRADIENT and t.root == t.index
    )
    sets = [_modnn_working_set(workload, launch) for launch in graph.launches]
    largest = graph.launches[sets.index(max(sets))]
    return LowerBound(resident + max(sets), resident, largest.label, largest.op)


def _modnn_working_set(workload: Workload, launch: Launch) -> int:
    graph = workload.training
    roots = {graph.root(t) for t in (*launch.inputs, *launch.outputs)}
    counted = (graph.tensors[root] for root in roots)
    gradients = sum(t.spec.bytes for t in counted if t.kind is TensorKind.PARAMETER_GRADIENT)
    return working_set(graph, launch, 1) - gradients + smallest_workspace(workload, launch, 1)


def smallest_workspace(workload: Workload, launch: Launch, samples: int) -> int:
    """Bytes of workspace, aligned, that `launch` on that many samples takes at least."""
    if launch.op not in CALLS:
        return 0
    graph = workload.training
    samples = graph.batch if launch.rule is BatchRule.WHOLE else samples
    reads, writes = (
        tuple(_seen(graph, tensor, samples) for tensor in side) for side in (launch.inputs, launch.outputs)
    )
    options = convolution_options(conv_call(launch.op, launch.attrs, reads, writes), workload.profile, launch.label)
    return align_up(options[-1].workspace_bytes, workload.profile.alignment)


def _seen(graph: TrainingGraph, tensor: int, samples: int) -> TensorSpec:
    spec = graph.spec(tensor)
    return TensorSpec(spec.range_shape(samples), spec.dtype, spec.rows)
