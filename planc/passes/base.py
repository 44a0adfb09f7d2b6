"""What passes share: the problem they solve, the decisions they make, and the memory that decisions need.

Positions are task indices: a lifetime [s, e) holds memory from the start of task s until the start of task e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from planc.costs import CostTable
from planc.errors import InternalError
from planc.micro_batch import Configuration
from planc.profile import Profile
from planc.tasks import Piece, TaskList
from planc.units import align_up

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Problem:
    """Tasks, what they cost, and the budget in bytes that their arena must keep to."""

    tasks: TaskList
    costs: CostTable
    profile: Profile
    budget_bytes: int

    def bytes(self, piece: Piece) -> int:
        """What a piece takes in the arena."""
        return align_up(piece.bytes, self.profile.alignment)


@dataclass(frozen=True, slots=True)
class Offload:
    """A piece leaves the device and comes back, once, between two of its uses.

    after:     the copy out may begin when this task has ended (it wrote the piece last, or runs later).
    leaves:    the last task that uses the piece before it leaves.
    freed_by:  the first task that may have its memory: it waits for the copy to end. After `leaves`.
    returns:   the copy in may begin when this task may begin; the memory is taken from then on. At or after `freed_by`.
    needed_by: the first task that uses the piece again; it waits for the copy in.
    """

    piece: int
    after: int
    leaves: int
    freed_by: int
    returns: int
    needed_by: int


@dataclass(frozen=True, slots=True)
class Decisions:
    """`configurations`: one for each task, None unless it is a convolution call. `offloads`: in the order they were
    made."""

    configurations: tuple[Configuration | None, ...]
    offloads: tuple[Offload, ...] = ()

    def with_configuration(self, task: int, configuration: Configuration) -> Decisions:
        chosen = (*self.configurations[:task], configuration, *self.configurations[task + 1 :])
        return replace(self, configurations=chosen)


class Pass(Protocol):
    """A step of planning. `requires` and `ensures` name facts that hold before and after it."""

    @property
    def name(self) -> str: ...
    @property
    def requires(self) -> frozenset[str]: ...
    @property
    def ensures(self) -> frozenset[str]: ...

    def run(self, problem: Problem, decisions: Decisions) -> Decisions: ...


CONFIGURED = "every convolution call has a configuration"
OFFLOADED = "what leaves the device is chosen"
RETURNED = "every copy in has its time"


def apply_passes(problem: Problem, passes: Sequence[Pass]) -> Decisions:
    """Run `passes` in order from nothing decided.

    Raises:
        InternalError: a pass requires a fact that no pass before it ensured; names it and those that ran.
    """
    decisions = Decisions(tuple(None for _ in problem.tasks.tasks))
    facts, ran = set[str](), list[str]()
    for step in passes:
        missing = step.requires - facts
        if missing:
            raise InternalError(
                f"pass {step.name} requires {sorted(missing)}; ran before it: {', '.join(ran) or 'none'}"
            )
        decisions = step.run(problem, decisions)
        facts |= step.ensures
        ran.append(step.name)
    return decisions


def gaps(problem: Problem) -> tuple[tuple[Piece, int, int], ...]:
    """Where activations could be away: (piece, last use of the forward part, first use of the backward part).

    A gap lies between two neighbouring uses of a piece, the first forward, the second not, with another task between.
    """
    graph, tasks = problem.tasks.graph, problem.tasks.tasks
    found = []
    for piece in problem.tasks.pieces:
        if piece.kept or not piece.bytes:
            continue
        for before, behind in pairwise(piece.uses):
            forward = graph.launches[tasks[before].launch].phase == "forward"
            if forward and graph.launches[tasks[behind].launch].phase != "forward":
                if behind > before + 1:
                    found.append((piece, before, behind))
                break
    return tuple(found)


def lifetimes(problem: Problem, offloads: Sequence[Offload]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For every piece the stays [start, end) it has on the device, in order."""
    away: dict[int, list[Offload]] = {}
    for offload in offloads:
        away.setdefault(offload.piece, []).append(offload)
    count = len(problem.tasks.tasks)
    stays = []
    for piece in problem.tasks.pieces:
        start = max(piece.born, 0)
        own = []
        for offload in sorted(away.get(piece.index, ()), key=lambda o: o.leaves):
            own.append((start, offload.freed_by))
            start = offload.returns
        last = piece.uses[-1] + 1 if piece.uses else start
        own.append((start, count if piece.kept else last))
        stays.append(tuple(own))
    return tuple(stays)


def resident_bytes(problem: Problem, offloads: Sequence[Offload]) -> Longs:
    """Bytes of pieces on the device during each task, workspaces left out."""
    change = np.zeros(len(problem.tasks.tasks) + 1, dtype=np.int64)
    for piece, stays in zip(problem.tasks.pieces, lifetimes(problem, offloads), strict=True):
        size = problem.bytes(piece)
        for start, end in stays:
            change[start] += size
            change[end] -= size
    return np.cumsum(change)[:-1]


def workspace_bytes(problem: Problem, decisions: Decisions) -> Longs:
    """Bytes of workspace during each task."""
    alignment = problem.profile.alignment
    sizes = [0 if c is None else align_up(c.workspace_bytes, alignment) for c in decisions.configurations]
    return np.array(sizes, dtype=np.int64)


def memory_bytes(problem: Problem, decisions: Decisions) -> Longs:
    """Live bytes of the arena during each task."""
    return resident_bytes(problem, decisions.offloads) + workspace_bytes(problem, decisions)
