"""Schedule -> where every stay lies: persistent buffers first, at the same bytes for every program, the rest above
them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planc.layout import METHODS, Item, Layout, Run, Span, best_fit, paged, peak_bytes
from planc.passes.base import Decisions, Problem
from planc.schedule import Schedule
from planc.units import align_up

Arena = Literal["auto", "contiguous", "paged"]
"""contiguous: every stay in one run of bytes. paged: in runs of pages, each stay with addresses of its own. auto: the
first that fits."""

ARENAS: tuple[Arena, ...] = ("auto", "contiguous", "paged")


@dataclass(frozen=True, slots=True)
class Placement:
    """`runs`: for each stay of the schedule where its bytes lie, in their order.

    `peak_bytes`: the largest sum of live bytes, aligned. `page_bytes`: of a paged arena; 0 = contiguous.
    """

    runs: tuple[tuple[Run, ...], ...]
    arena_bytes: int
    peak_bytes: int
    page_bytes: int = 0


def place(problem: Problem, schedule: Schedule, enough_bytes: int, arena: Arena = "auto") -> Placement:
    """Place every stay of `schedule`; offsets are multiples of the profile's alignment.

    An arena of `enough_bytes` is small enough; 0 = as small as can be.

    Persistent pieces are the first of every program and the same in all, and those that do not visit stay in all, so
    they get the same offsets.
    """
    alignment = problem.profile.alignment
    runs: list[tuple[Run, ...]] = [()] * len(schedule.stays)
    base = 0
    items: list[Item] = []
    where: list[int] = []
    for number, stay in enumerate(schedule.stays):
        size = align_up(stay.bytes, alignment)
        resident = stay.piece is not None and problem.tasks.pieces[stay.piece].persistent
        if resident and all(part.born is None for part in stay.parts):
            runs[number] = (Run(0, base, size),)
            base += size
        elif size:
            spans = tuple(Span(p.first, align_up(p.bytes, alignment), p.start, p.end) for p in stay.parts)
            items.append(Item(spans))
            where.append(number)
        else:
            runs[number] = (Run(0, base, 0),)
    layout = _layout(tuple(items), problem.profile.page_bytes, base, enough_bytes, arena)
    for number, own in zip(where, layout.runs, strict=True):
        runs[number] = own
    return Placement(tuple(runs), layout.arena_bytes, base + peak_bytes(tuple(items)), layout.page_bytes)


def host_pool_bytes(problem: Problem, decisions: Decisions) -> int:
    """What the host buffers of a program take: a home for what visits and for inputs that wait, and a place of its own
    for whatever is copied out (host bytes are not reused)."""
    homes, alignment = set[int](), problem.profile.alignment
    copies = 0
    for offload in decisions.offloads:
        if offload.copied and not problem.tasks.pieces[offload.piece].persistent:
            copies += align_up(offload.bytes, alignment)
        else:
            homes.add(offload.piece)
    return copies + sum(problem.bytes(problem.tasks.pieces[piece]) for piece in homes)


def _layout(items: tuple[Item, ...], page_bytes: int, base: int, enough_bytes: int, arena: Arena) -> Layout:
    """The items above `base`: contiguous where that fits, else paged where that fits, else the smaller.

    Search takes longer than paging, which fits more: it is for those who cannot have pages.
    """
    methods = {"auto": (best_fit,), "contiguous": tuple(METHODS.values()), "paged": ()}[arena]
    found: list[Layout] = []
    for method in methods:
        found.append(_above(base, method(items, max(0, enough_bytes - base))))
        if found[-1].arena_bytes <= enough_bytes:
            return found[-1]
    if arena != "contiguous":
        found.append(paged(items, page_bytes, enough_bytes, base))
    return min(found, key=lambda layout: layout.arena_bytes)


def _above(base: int, layout: Layout) -> Layout:
    runs = tuple(tuple(Run(run.first, base + run.offset, run.bytes) for run in own) for own in layout.runs)
    return Layout(runs, base + layout.arena_bytes)
