"""Schedule -> where every stay lies: persistent buffers first, at the same bytes for every program, the rest above
them."""

from __future__ import annotations

from dataclasses import dataclass

from planc.layout import METHODS, Item, Span, peak_bytes
from planc.passes.base import Problem
from planc.schedule import Schedule
from planc.units import align_up


@dataclass(frozen=True, slots=True)
class Placement:
    """`offsets`: one for each stay of the schedule. `peak_bytes`: the largest sum of live bytes, aligned."""

    offsets: tuple[int, ...]
    arena_bytes: int
    peak_bytes: int


def place(problem: Problem, schedule: Schedule, enough_bytes: int, method: str = "best-fit") -> Placement:
    """Place every stay of `schedule`; offsets are multiples of the profile's alignment.

    An arena of `enough_bytes` is small enough; 0 = as small as the method can make it.

    Persistent pieces are the first of every program and the same in all, so they get the same offsets.
    """
    alignment = problem.profile.alignment
    offsets = [0] * len(schedule.stays)
    base = 0
    items: list[Item] = []
    where: list[int] = []
    for number, stay in enumerate(schedule.stays):
        size = align_up(stay.bytes, alignment)
        if stay.piece is not None and problem.tasks.pieces[stay.piece].persistent:
            offsets[number] = base
            base += size
        elif size:
            spans = tuple(Span(p.first, align_up(p.bytes, alignment), p.start, p.end) for p in stay.parts)
            items.append(Item(spans))
            where.append(number)
    layout = METHODS[method](tuple(items), max(0, enough_bytes - base))
    for number, offset in zip(where, layout.offsets, strict=True):
        offsets[number] = base + offset
    return Placement(tuple(offsets), base + layout.arena_bytes, base + peak_bytes(tuple(items)))
