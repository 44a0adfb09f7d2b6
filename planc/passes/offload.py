"""Which activations leave the device, and when their memory is free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from planc.passes.base import (
    CONFIGURED,
    OFFLOADED,
    RETURNED,
    Decisions,
    Offload,
    Problem,
    every_gap,
    gaps,
    memory_bytes,
)
from planc.tasks import Piece


def any_piece(_problem: Problem, _piece: Piece) -> bool:
    """vDNN-all: the input of every layer, so everything the backward pass wants again."""
    return True


def convolution_input(problem: Problem, piece: Piece) -> bool:
    """vDNN-conv: what a forward convolution reads."""
    graph, tasks = problem.tasks.graph, problem.tasks.tasks
    return any(
        graph.launches[tasks[use].launch].op == "Conv" and tasks[use].reads[0].piece == piece.index
        for use in piece.uses
    )


@dataclass(frozen=True, slots=True)
class OffloadWith:
    """Copy each chosen activation out while its last forward layer runs; the next layer waits (Rhu et al., MICRO 2016).

    The copy in is put as late as it can be, at the layer that needs it; a prefetch pass moves it forward.
    """

    choose: Callable[[Problem, Piece], bool]
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset({OFFLOADED, RETURNED})

    @property
    def name(self) -> str:
        return f"offload.{self.choose.__name__}"

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        found = []
        for piece, leaves, needed_by in gaps(problem):
            if self.choose(problem, piece):
                found.append(leave_at_once(piece, leaves, needed_by))
        return replace(decisions, offloads=tuple(found))


def leave_at_once(piece: Piece, leaves: int, needed_by: int) -> Offload:
    """The shortest stay there is: gone by the task after the last use, back at the task that needs it."""
    after = max(last_write(piece, leaves), leaves - 1)
    return Offload(piece.index, 0, piece.bytes, after, leaves, leaves + 1, needed_by, needed_by)


def last_write(piece: Piece, leaves: int) -> int:
    """The last task up to `leaves` that writes a piece, -1 if it was there before: a copy out may begin after it."""
    return max((task for task in piece.written if task <= leaves), default=-1)


@dataclass(frozen=True, slots=True)
class OffloadEverything:
    """Whatever is not wanted leaves at once, gradients too, and is back when it is wanted: the least memory."""

    name: str = "offload.OffloadEverything"
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset({OFFLOADED, RETURNED})

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        away = (leave_at_once(piece, before, behind) for piece, before, behind in every_gap(problem))
        # It may have come back for its last use, so that the copy out has to wait for that.
        return replace(decisions, offloads=tuple(replace(offload, after=offload.leaves) for offload in away))


@dataclass(frozen=True, slots=True)
class OffloadOldest:
    """moDNN's: walk through the tasks; where memory is short, the oldest outputs that are not wanted soon leave.

    Chen et al., TPDS 2019. Workspaces give way first (conv_algorithm.FitWorkspaces runs before with what is resident).
    """

    name: str = "offload.OffloadOldest"
    requires: frozenset[str] = frozenset({CONFIGURED})
    ensures: frozenset[str] = frozenset({OFFLOADED, RETURNED})

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        live = memory_bytes(problem, decisions)
        candidates = sorted(gaps(problem), key=lambda gap: (gap[0].born, gap[0].index))
        chosen: list[Offload] = []
        for task in range(len(live)):
            if live[task] <= problem.budget_bytes:
                continue
            for gap in tuple(candidates):
                piece, leaves, needed_by = gap
                if leaves < task < needed_by:
                    candidates.remove(gap)
                    after = last_write(piece, leaves)
                    chosen.append(Offload(piece.index, 0, piece.bytes, after, leaves, task, needed_by, needed_by))
                    live[task:needed_by] -= problem.bytes(piece)
                    if live[task] <= problem.budget_bytes:
                        break
        return replace(decisions, offloads=tuple(chosen))
