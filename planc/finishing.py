"""Draft -> Plan: provenance, spaces, and what the simulator predicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from types import MappingProxyType

from planc import __version__
from planc.assembly import assemble
from planc.decisions_report import decision_rows
from planc.model_hash import model_sha256
from planc.pipeline import Draft, Workload
from planc.plan import Plan, Predicted, Provenance, Spaces
from planc.profile import profile_sha256
from planc.simulate import Timeline, simulate
from planc.yardsticks import Yardsticks


def finish(
    workload: Workload,
    found: Draft,
    budget_bytes: int,
    options: Mapping[str, str],
    yardsticks: Yardsticks,
    bound_ns: int | None = None,
) -> Plan:
    """The plan of a draft, with what the simulator predicts of it."""
    made = assemble(found.train, found.evaluate)
    profile = workload.profile
    changed = _changed(found)
    predicted = Predicted(
        makespan_ns=0,
        ideal_ns=yardsticks.ideal_ns,
        bound_ns=bound_ns,
        gap_ppm=None,
        peak_bytes=0,
        keep_all_bytes=yardsticks.keep_all_bytes,
        keep_all_zero_workspace_bytes=yardsticks.keep_all_zero_workspace_bytes,
        bytes_by_kind=MappingProxyType({}),
        offloaded_bytes=sum(offload.bytes for offload in found.train.decisions.offloads if offload.copied),
        recomputed_bytes=_recomputed_bytes(found),
    )
    plan = Plan(
        provenance=Provenance(
            planc=__version__,
            solver=f"highspy {version('highspy')}" if bound_ns is not None else "",
            model_sha256=model_sha256(workload.graph),
            profile=profile.name,
            profile_sha256=profile_sha256(profile),
            estimated=profile.estimated,
            options=MappingProxyType(dict(options)),
        ),
        semantics="changed" if changed else "exact",
        semantics_reason=changed,
        model=made.model,
        spaces=Spaces(
            budget_bytes=budget_bytes,
            reserved_bytes=profile.reserved_bytes,
            device_bytes=profile.memory_bytes,
            arena_bytes=made.arena_bytes,
            alignment=profile.alignment,
            page_bytes=made.page_bytes,
            host_bytes=made.host_bytes,
        ),
        tensors=made.tensors,
        buffers=made.buffers,
        programs=made.programs,
        predicted=predicted,
        decisions=decision_rows(found.train),
    )
    return _with_timeline(plan, simulate(plan))


def _changed(found: Draft) -> str:
    """Why the plan trains another function than the whole batch's; empty: it does not."""
    tasks = found.train.problem.tasks
    apart = {tasks.launch(task).layer for task in tasks.tasks if tasks.launch(task).op == "SubBatchNorm"}
    if not apart or len(tasks.ranges) == 1:
        return ""
    return f"batch norm: {len(apart)} normalise each of {len(tasks.ranges)} sub-batches by itself"


def _with_timeline(plan: Plan, timeline: Timeline) -> Plan:
    by_kind = MappingProxyType({kind.value: size for kind, size in timeline.bytes_by_kind.items() if size})
    predicted = replace(
        plan.predicted,
        makespan_ns=timeline.makespan_ns,
        gap_ppm=_gap_ppm(timeline.makespan_ns, plan.predicted.bound_ns),
        peak_bytes=timeline.peak_bytes,
        bytes_by_kind=by_kind,
    )
    return replace(plan, predicted=predicted)


def _gap_ppm(makespan_ns: int, bound_ns: int | None) -> int | None:
    """makespan / bound - 1 in parts per million, rounded up."""
    return None if not bound_ns else -(-(makespan_ns - bound_ns) * 10**6 // bound_ns)


def _recomputed_bytes(found: Draft) -> int:
    """Bytes of activations that are computed a second time, transient ones included."""
    tasks = found.train.problem.tasks
    again = {use.piece for task in tasks.tasks if task.again for use in task.writes}
    return sum(tasks.pieces[piece].bytes for piece in again)
