"""Decisions -> steps on lanes, with waits, and the stays of every buffer that the layout must place.

Two steps are ordered by their lane or by a chain of waits, by nothing else. A wait that such a chain already implies is
not written. Memory is given back in terms of tasks: what is freed at position s may be taken by whatever begins at
position s or later, because the launch of task s, and every copy in that begins there, waits for the copies out that
free it.
"""

from __future__ import annotations

from dataclasses import dataclass

from planc.errors import InternalError
from planc.passes.base import Decisions, Offload, Problem, stays
from planc.plan import Lane, StepKind


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step before buffers have places. `task` for launches; `offload` (index into Decisions.offloads) for copies."""

    id: int
    lane: Lane
    kind: StepKind
    task: int | None
    offload: int | None
    waits: tuple[int, ...]
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes [first, first + bytes) of a stay during [start, end) in positions, and the steps that begin and end that.

    `born` None: there before the program. `freed` empty: there until its end.
    """

    first: int
    bytes: int
    start: int
    end: int
    born: int | None
    freed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stay:
    """A time a buffer is on the device: a piece's, or the workspace of task `task`. Its parts lie side by side."""

    piece: int | None
    task: int | None
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Schedule:
    steps: tuple[ScheduledStep, ...]
    stays: tuple[Stay, ...]

    def makespan_ns(self) -> int:
        """When all lanes are empty: what simulation will say of the plan, before there is one."""
        free = dict.fromkeys(Lane, 0)
        ended: list[int] = []
        for step in self.steps:
            start = max(free[step.lane], max((ended[w] for w in step.waits), default=0))
            free[step.lane] = start + step.duration_ns
            ended.append(free[step.lane])
        return max(ended, default=0)


def make_schedule(problem: Problem, decisions: Decisions) -> Schedule:
    """Lay the tasks and copies out on lanes; every wait that data or memory needs, and no redundant one."""
    lanes = _Lanes()
    offloads = decisions.offloads
    freed_by, returns, after = _group(offloads)
    launch_of: list[int] = []
    out_of: dict[int, int] = {}
    into_of: dict[int, int] = {}
    arriving: dict[int, list[int]] = {}
    for number in after.pop(-1, ()):
        if offloads[number].copied:
            out_of[number] = lanes.copy_out(problem, offloads[number], number, None)
    for task in problem.tasks.tasks:
        index = task.index
        gate = [launch_of[-1]] if launch_of else []
        memory = [out_of[n] for n in freed_by.get(index, ()) if n in out_of]
        for number in returns.get(index, ()):
            offload = offloads[number]
            own = [out_of[number]] if offload.copied else []
            into_of[number] = lanes.copy_in(problem, offload, number, [*gate, *memory, *own])
            arriving.setdefault(offload.needed_by, []).append(into_of[number])
        duration = problem.costs.duration_ns(index, decisions.configurations[index])
        launch = lanes.add(Lane.COMPUTE, StepKind.LAUNCH, index, None, [*memory, *arriving.pop(index, ())], duration)
        launch_of.append(launch)
        for number in after.get(index, ()):
            if offloads[number].copied:
                begin = offloads[number].after
                wait = launch_of[begin] if begin >= 0 else None
                out_of[number] = lanes.copy_out(problem, offloads[number], number, wait)
    if len(into_of) != sum(offload.comes_back for offload in offloads):
        raise InternalError("what leaves the device and is wanted again never returns")
    return Schedule(tuple(lanes.steps), _stays(problem, decisions, launch_of, out_of, into_of))


_Groups = tuple[dict[int, list[int]], dict[int, list[int]], dict[int, list[int]]]


def _group(offloads: tuple[Offload, ...]) -> _Groups:
    """Offloads by the task that frees, at which they return, after which they leave; each in the order of its lane."""
    freed_by: dict[int, list[int]] = {}
    returns: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    numbered = tuple(enumerate(offloads))
    begin = -1
    for number, offload in sorted(numbered, key=lambda item: (item[1].leaves, item[1].piece, item[1].first)):
        freed_by.setdefault(offload.freed_by, []).append(number)
        # The lane keeps to the order of last uses, so a copy comes no earlier than those that go before it.
        begin = max(begin, offload.after)
        after.setdefault(begin, []).append(number)
    for number, offload in sorted(numbered, key=lambda item: (item[1].needed_by, item[1].piece, item[1].first)):
        returns.setdefault(offload.returns, []).append(number)
    return freed_by, returns, after


class _Lanes:
    """Steps as they are added. `known[step]`: per lane how many of its steps have ended before the step starts."""

    def __init__(self) -> None:
        self.steps: list[ScheduledStep] = []
        self.known: list[dict[Lane, int]] = []
        self.ordinal: list[int] = []
        self.last: dict[Lane, int] = {}

    def add(
        self, lane: Lane, kind: StepKind, task: int | None, offload: int | None, waits: list[int], duration_ns: int
    ) -> int:
        index = len(self.steps)
        before = self.last.get(lane)
        if before is None:
            known, ordinal = dict.fromkeys(Lane, 0), 0
        else:
            ordinal = self.ordinal[before] + 1
            known = {**self.known[before], lane: ordinal}
        needed = []
        for wait in sorted(set(waits), reverse=True):
            if self.ordinal[wait] >= known[self.steps[wait].lane]:
                needed.append(wait)
                self._learn(known, wait)
        self.ordinal.append(ordinal)
        self.known.append(known)
        self.last[lane] = index
        waits_of = tuple(w for w in reversed(needed) if self.steps[w].lane is not lane)
        self.steps.append(ScheduledStep(index, lane, kind, task, offload, waits_of, duration_ns))
        return index

    def _learn(self, known: dict[Lane, int], step: int) -> None:
        for lane, count in self.known[step].items():
            known[lane] = max(known[lane], count)
        known[self.steps[step].lane] = max(known[self.steps[step].lane], self.ordinal[step] + 1)

    def copy_out(self, problem: Problem, offload: Offload, number: int, launch: int | None) -> int:
        duration = problem.costs.d2h_ns(offload.bytes)
        waits = [] if launch is None else [launch]
        return self.add(Lane.D2H, StepKind.OFFLOAD, None, number, waits, duration)

    def copy_in(self, problem: Problem, offload: Offload, number: int, waits: list[int]) -> int:
        duration = problem.costs.h2d_ns(offload.bytes)
        return self.add(Lane.H2D, StepKind.PREFETCH, None, number, waits, duration)


def _stays(
    problem: Problem, decisions: Decisions, launch_of: list[int], out_of: dict[int, int], into_of: dict[int, int]
) -> tuple[Stay, ...]:
    """Every stay of every piece, then every workspace."""
    found = []
    for piece, own in zip(problem.tasks.pieces, stays(problem, decisions.offloads), strict=True):
        made = None if piece.born < 0 else launch_of[piece.born]
        last = () if piece.kept or not piece.uses else (launch_of[piece.uses[-1]],)
        for spans in own:
            parts = []
            for span in spans:
                born = made if span.arrives is None else into_of[span.arrives]
                freed: tuple[int, ...] = last
                if span.departs is not None:
                    offload = decisions.offloads[span.departs]
                    freed = (launch_of[offload.leaves],)
                    if offload.copied:
                        # Where the copy out itself waits for the last use, it alone frees the memory.
                        freed = freed if offload.leaves > offload.after else ()
                        freed = (*freed, out_of[span.departs])
                parts.append(Part(span.first, span.bytes, span.start, span.end, born, freed))
            found.append(Stay(piece.index, None, tuple(parts)))
    for task, configuration in enumerate(decisions.configurations):
        if configuration is not None and configuration.workspace_bytes:
            launch = launch_of[task]
            part = Part(0, configuration.workspace_bytes, task, task + 1, launch, (launch,))
            found.append(Stay(None, task, (part,)))
    return tuple(found)
