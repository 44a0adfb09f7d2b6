"""When the copies in begin."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planc.passes.base import OFFLOADED, RETURNED, Decisions, Offload, Problem, memory_bytes
from planc.units import align_up


@dataclass(frozen=True, slots=True)
class OneLayerAhead:
    """Begin with the layer before the one that needs the activation (Rhu et al., MICRO 2016), whatever the memory
    says."""

    name: str = "prefetch.OneLayerAhead"
    requires: frozenset[str] = frozenset({OFFLOADED})
    ensures: frozenset[str] = frozenset({RETURNED})

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        begins = _layer_begins(problem)
        moved = []
        for offload in decisions.offloads:
            if not offload.comes_back:
                moved.append(offload)
                continue
            here = begins[offload.needed_by]
            ahead = begins[here - 1] if here else here
            moved.append(replace(offload, returns=max(min(ahead, offload.needed_by), offload.freed_by)))
        return replace(decisions, offloads=tuple(moved))


def _layer_begins(problem: Problem) -> list[int]:
    """For every task the first task of the run of tasks of the same layer and phase that it is in."""
    begins: list[int] = []
    previous = None
    for task in problem.tasks.tasks:
        launch = problem.tasks.launch(task)
        key = (launch.layer, launch.phase == "forward", task.start)
        begins.append(begins[-1] if key == previous else task.index)
        previous = key
    return begins


@dataclass(frozen=True, slots=True)
class AsEarlyAsFits:
    """Begin each copy in, first needed first, at the earliest task from which it fits at every task until its need.

    `window_percent`: of all tasks; no earlier than half of them before the need (moDNN's half-window). None = any time.
    """

    window_percent: int | None = None
    name: str = "prefetch.AsEarlyAsFits"
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset({RETURNED})

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        live = memory_bytes(problem, decisions)
        count = len(live)
        window = count if self.window_percent is None else max(1, count * self.window_percent // 200)
        moved: list[Offload] = []
        earliest = 0
        for offload in sorted(decisions.offloads, key=lambda o: (o.needed_by, o.piece, o.first)):
            if not offload.comes_back:
                moved.append(offload)
                continue
            size = align_up(offload.bytes, problem.profile.alignment)
            floor = min(max(offload.freed_by, offload.needed_by - window, earliest), offload.returns)
            full = np.flatnonzero(live[floor : offload.returns] + size > problem.budget_bytes)
            begin = floor + int(full[-1]) + 1 if len(full) else floor
            live[begin : offload.returns] += size
            earliest = max(earliest, begin)  # one direction of the link is first-in first-out
            moved.append(replace(offload, returns=begin))
        return replace(decisions, offloads=tuple(moved))
