"""Timeline: what happens when, predicted from a plan alone.

An event simulation of lanes in integers. It follows durations, waits and the order of each lane, and knows nothing
else: a step starts when its lane is free and every step it waits for has finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from planc.errors import VerificationError
from planc.plan import BufferKind, Lane, Plan, Space, Step

_REMEDY = "Run planc verify on the plan and compile it again."


@dataclass(frozen=True, slots=True)
class Stall:
    """Step `step` of the compute lane waited `ns` after the step before it, in the end for step `waited_for`."""

    step: int
    waited_for: int
    ns: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """One program in time; times are ns from its start, steps are positions.

    busy_ns:       per lane, the time it executes steps.
    curve:         (time, live arena bytes from then on) wherever they change, the first at 0. Two points at one time:
                   bytes of the first were alive for no time at all, during steps of duration 0.
    peak_bytes:    the largest sum of live bytes; `peak_ns` is when it is first reached, `bytes_by_kind` what it is made
                   of.
    stalls:        where the compute lane waited for another lane, in order.
    """

    program: str
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    makespan_ns: int
    busy_ns: Mapping[Lane, int]
    curve: tuple[tuple[int, int], ...]
    peak_bytes: int
    peak_ns: int
    bytes_by_kind: Mapping[BufferKind, int]
    stalls: tuple[Stall, ...]


def simulate(plan: Plan, program: str = "train") -> Timeline:
    """The timeline of one program of `plan`.

    An extent is live from the start of the step it is born by (None: from 0) until the last of the steps that free it
    has ended (none: to the end). Lives are half-open: what ends when something else starts is not there together with
    it.

    Raises:
        VerificationError: the plan has no such program, or a step waits for one that does not come before it.
    """
    if program not in plan.programs:
        raise VerificationError(f"plan: has no program {program!r}, only {', '.join(sorted(plan.programs)) or 'none'}.")
    steps = plan.programs[program].steps
    start, end, stalls = _run(steps)
    busy = dict.fromkeys(Lane, 0)
    for step in steps:
        busy[step.lane] += step.duration_ns
    changes = _changes(plan, program, start, end)
    curve, peak, instant, by_kind = _sweep(changes)
    return Timeline(
        program=program,
        start_ns=tuple(start),
        end_ns=tuple(end),
        makespan_ns=max(end, default=0),
        busy_ns=MappingProxyType(busy),
        curve=curve,
        peak_bytes=peak,
        peak_ns=instant,
        bytes_by_kind=MappingProxyType(by_kind),
        stalls=stalls,
    )


def _run(steps: Sequence[Step]) -> tuple[list[int], list[int], tuple[Stall, ...]]:
    """Start and end of every step. The order of a program is topological, so one pass is the whole simulation."""
    start, end = list[int](), list[int]()
    stalls = list[Stall]()
    free = dict.fromkeys(Lane, 0)
    for position, step in enumerate(steps):
        begin, cause = free[step.lane], -1
        for wait in step.waits:
            if not 0 <= wait < position:
                raise VerificationError(
                    f"plan: step {position} waits for step {wait}, which does not come before it; neither would start.",
                    _REMEDY,
                )
            if end[wait] > begin:
                begin, cause = end[wait], wait
        if cause >= 0 and step.lane is Lane.COMPUTE:
            stalls.append(Stall(position, cause, begin - free[step.lane]))
        start.append(begin)
        end.append(begin + step.duration_ns)
        free[step.lane] = end[position]
    return start, end, tuple(stalls)


_Instant = tuple[int, int, int, int]
"""(time, group, step, edge): a total order of the starts and ends of steps. At one time, steps that began earlier end
first (half-open lives); then the others start, and those of duration 0 end, in the order of the program."""

_BEFORE: _Instant = (0, -1, -1, 0)
_Change = tuple[_Instant, int, BufferKind]


def _changes(plan: Plan, program: str, start: Sequence[int], end: Sequence[int]) -> list[_Change]:
    """Births (+bytes) and deaths (-bytes) of the arena's extents in order of time."""
    changes = list[_Change]()
    for buffer in plan.buffers:
        if buffer.space is not Space.ARENA or buffer.program not in (program, "all"):
            continue
        for extent in buffer.extents:
            if not all(
                0 <= step < len(start) for step in (*extent.freed, *(() if extent.born is None else (extent.born,)))
            ):
                raise VerificationError(
                    f"plan: buffer {buffer.id} lives from step {extent.born} to {list(extent.freed)}; "
                    f"{program} has {len(start)} steps.",
                    _REMEDY,
                )
            born = _BEFORE if extent.born is None else (start[extent.born], 1, extent.born, 0)
            freed = max(((end[f], int(start[f] == end[f]), f, 1) for f in extent.freed), default=None)
            if freed is not None and freed <= born:
                continue
            changes.append((born, extent.bytes, buffer.kind))
            if freed is not None:
                changes.append((freed, -extent.bytes, buffer.kind))
    changes.sort(key=lambda change: change[0])
    return changes


def _sweep(changes: Sequence[_Change]) -> tuple[tuple[tuple[int, int], ...], int, int, dict[BufferKind, int]]:
    """The memory curve, its peak, the time of the peak and the bytes by kind there."""
    curve = [(0, 0)]
    live = peak = peak_ns = peak_count = count = 0
    for time, together in groupby(changes, key=lambda change: change[0][0]):
        highest = 0
        for _, amount, _ in together:
            live += amount
            count += 1
            highest = max(highest, live if amount > 0 else 0)
            if live > peak:
                peak, peak_ns, peak_count = live, time, count
        if time == 0:
            curve.clear()
        if highest > live:
            curve.append((time, highest))
        if not curve or curve[-1][1] != live:
            curve.append((time, live))
    by_kind = dict.fromkeys(BufferKind, 0)
    for _, amount, kind in changes[:peak_count]:
        by_kind[kind] += amount
    return tuple(curve), peak, peak_ns, {kind: size for kind, size in by_kind.items() if size}
