"""What passes share: the problem they solve, the decisions they make, and the memory that decisions need.

Positions are task indices: a lifetime [s, e) holds memory from the start of task s until the start of task e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """Tasks, what they cost, and the budget in bytes that their arena must keep to.

    `workspace_bytes`: what u-cuDNN's policies may use (`--workspace`).
    """

    tasks: TaskList
    costs: CostTable
    profile: Profile
    budget_bytes: int
    workspace_bytes: int | None = None

    def bytes(self, piece: Piece) -> int:
        """What a piece takes in the arena."""
        return align_up(piece.bytes, self.profile.alignment)


@dataclass(frozen=True, slots=True)
class Offload:
    """Bytes [first, first + bytes) of a piece leave the device and come back, once, between two of its uses.

    The offloads of a piece at one gap cover it, so that all of it leaves; they are the parts it is copied in.

    after:     the copy out may begin when this task has ended (it wrote the piece last, or runs later).
    leaves:    the last task that uses the piece before it leaves.
    freed_by:  the first task that may have its memory: it waits for the copy to end. After `leaves`.
    returns:   the copy in may begin when this task may begin; the memory is taken from then on. At or after `freed_by`.
    needed_by: the first task that uses the piece again; it waits for the copy in.
    copied:    False where the host has these bytes still, so that nothing is copied out: an input, or a parameter that
        has not been updated. With `leaves` -1 the piece is on the host when the program starts.

    A persistent piece that visits (visits.py) begins and ends on the host: its last offload returns and is needed by
    NEVER, and so is its only one if no task uses it.
    """

    piece: int
    first: int
    bytes: int
    after: int
    leaves: int
    freed_by: int
    returns: int
    needed_by: int
    copied: bool = True

    @property
    def comes_back(self) -> bool:
        return self.returns != NEVER


NEVER = 2**62
"""A task that no program has: what returns by it stays on the host."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A piece gives its memory back after its last forward use and is computed again before it is needed.

    leaves:  the last task that uses the piece before its memory is given back.
    before:  the task immediately before which the recipe runs; the piece is there from then on.
    needed_by: the first task that uses the piece again; at or after `before`.
    recipe:  tasks that run again, in their order; the last ones write the piece, the others make what these need.
    """

    piece: int
    leaves: int
    before: int
    needed_by: int
    recipe: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """What passes have decided so far.

    configurations: one for each task, None unless it is a convolution call.
    offloads, rebuilds: in the order they were made; a piece has at most one of them.
    leaving: pieces chosen to leave the device, before it is decided when (None: nothing was chosen).
    bound_ns: no plan of the stated class is faster (flow_milp.py), where a pass has proved that.
    """

    configurations: tuple[Configuration | None, ...]
    offloads: tuple[Offload, ...] = ()
    rebuilds: tuple[Rebuild, ...] = ()
    leaving: frozenset[int] | None = None
    bound_ns: int | None = None


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


def apply_passes(problem: Problem, passes: Sequence[Pass], known: Decisions | None = None) -> Decisions:
    """Run `passes` in order from nothing decided, or from `known` decisions with a configuration for every call.

    Raises:
        InternalError: a pass requires a fact that no pass before it ensured; names it and those that ran.
    """
    decisions = known or Decisions(tuple(None for _ in problem.tasks.tasks))
    facts, ran = {CONFIGURED} if known else set[str](), list[str]()
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
    forward = [graph.launches[task.launch].phase == "forward" and not task.again for task in tasks]
    found = []
    for piece in problem.tasks.pieces:
        if piece.kept or not piece.bytes:
            continue
        for before, behind in pairwise(piece.uses):
            if forward[before] and not forward[behind]:
                if behind > before + 1:
                    found.append((piece, before, behind))
                break
    return tuple(found)


def every_gap(problem: Problem) -> tuple[tuple[Piece, int, int], ...]:
    """Every time a piece is not wanted: (piece, use before, use behind) with a task or more between."""
    return tuple(
        (piece, before, behind)
        for piece in problem.tasks.pieces
        if not piece.persistent and piece.bytes
        for before, behind in pairwise(piece.uses)
        if behind > before + 1
    )


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [first, first + bytes) of a piece are on the device during [start, end).

    `arrives`: the offload that brings them back, `departs`: the one that ends the span (indices into the offloads).
    """

    first: int
    bytes: int
    start: int
    end: int
    arrives: int | None = None
    departs: int | None = None


def stays(problem: Problem, offloads: Sequence[Offload]) -> tuple[tuple[tuple[Span, ...], ...], ...]:
    """For every piece its stays on the device, between the times it was away; a stay is spans side by side."""
    away: dict[int, dict[int, list[int]]] = {}
    for number, offload in enumerate(offloads):
        away.setdefault(offload.piece, {}).setdefault(offload.leaves, []).append(number)
    count = len(problem.tasks.tasks)
    found: list[tuple[tuple[Span, ...], ...]] = []
    for piece in problem.tasks.pieces:
        start = max(piece.born, 0)
        end = count if piece.kept else (piece.uses[-1] + 1 if piece.uses else start)
        gaps_of = away.get(piece.index, {})
        if not gaps_of:
            found.append(((Span(0, piece.bytes, start, end),),))
            continue
        own = []
        arrives: list[int] | None = None
        for leaves in sorted(gaps_of):
            departs = sorted(gaps_of[leaves], key=lambda n: offloads[n].first)
            if leaves >= 0:
                own.append(_stay(offloads, start, end, arrives, departs))
            arrives = departs
        if arrives is None or offloads[arrives[0]].comes_back:
            own.append(_stay(offloads, start, end, arrives, None))
        found.append(tuple(own))
    return tuple(found)


def _stay(
    offloads: Sequence[Offload], start: int, end: int, arrives: list[int] | None, departs: list[int] | None
) -> tuple[Span, ...]:
    """A stay that begins with the copies in of `arrives` (None: at `start`) and ends with those of `departs`."""
    spans = []
    for position, number in enumerate(arrives or departs or ()):
        part = offloads[number]
        begin = start if arrives is None else offloads[arrives[position]].returns
        finish = end if departs is None else offloads[departs[position]].freed_by
        came = None if arrives is None else arrives[position]
        goes = None if departs is None else departs[position]
        spans.append(Span(part.first, part.bytes, begin, finish, came, goes))
    return tuple(spans)


def resident_bytes(problem: Problem, offloads: Sequence[Offload]) -> Longs:
    """Bytes of pieces on the device during each task, workspaces left out."""
    alignment = problem.profile.alignment
    change = np.zeros(len(problem.tasks.tasks) + 1, dtype=np.int64)
    for own in stays(problem, offloads):
        for spans in own:
            for span in spans:
                size = align_up(span.bytes, alignment)
                change[span.start] += size
                change[span.end] -= size
    return np.cumsum(change)[:-1]


def workspace_bytes(problem: Problem, decisions: Decisions) -> Longs:
    """Bytes of workspace during each task."""
    alignment = problem.profile.alignment
    sizes = [0 if c is None else align_up(c.workspace_bytes, alignment) for c in decisions.configurations]
    return np.array(sizes, dtype=np.int64)


def memory_bytes(problem: Problem, decisions: Decisions) -> Longs:
    """Live bytes of the arena during each task."""
    return resident_bytes(problem, decisions.offloads) + workspace_bytes(problem, decisions)
