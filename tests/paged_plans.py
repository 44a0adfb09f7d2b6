"""Plans whose arena is laid out as a test wants it, and offloads cut into parts that leave and return by themselves."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import cast

from planc.assembly import Part
from planc.finishing import finish
from planc.layout import Item, Run, Span, best_fit
from planc.passes.base import Decisions, Offload, Problem
from planc.pipeline import Draft, Workload, decide, draft_of
from planc.placement import Arena, Placement, place
from planc.plan import Plan
from planc.policies import Candidate
from planc.units import align_up
from planc.yardsticks import Yardsticks

UNLIMITED = 2**62


def with_pages(work: Workload, page_bytes: int) -> Workload:
    """The same on a device with smaller pages, so that a small model has items of several."""
    profile = replace(work.profile, page_bytes=page_bytes)
    return Workload(work.graph, work.training, work.evaluation, profile)


def drafted(work: Workload, candidate: Candidate, budget_bytes: int, sub_batches: int = 1) -> tuple[Problem, Decisions]:
    """What the candidate decides."""
    problem = work.problem(sub_batches, budget_bytes, micro_batches=candidate.micro_batches)
    return decide(problem, candidate)


def planned(work: Workload, candidate: Candidate, problem: Problem, decisions: Decisions, arena: str) -> Plan:
    """The plan of decisions, in an arena as small as can be (a `placement.Arena`), or `shuffled`."""
    roomy = replace(problem, budget_bytes=UNLIMITED)
    found = draft_of(work, candidate, roomy, decisions, enough_bytes=0)
    train, evaluate = (replace(part, placement=_placed(part, arena)) for part in (found.train, found.evaluate))
    made: Draft = replace(found, train=train, evaluate=evaluate)
    options = {"sub_batches": str(found.sub_batches)}
    return finish(work, made, UNLIMITED, options, Yardsticks(0, 0, 0))


def _placed(part: Part, arena: str) -> Placement:
    if arena == "shuffled":
        return _shuffled(part)
    return place(part.problem, part.schedule, 0, cast(Arena, arena))


def _shuffled(part: Part) -> Placement:
    """Every stay in whole pages by best fit, and then all pages of the arena in another order: what has two pages lies
    in two places."""
    page = part.problem.profile.page_bytes
    flat = place(part.problem, part.schedule, 0, "contiguous")
    pieces = part.problem.tasks.pieces
    moving = [
        number
        for number, stay in enumerate(part.schedule.stays)
        if stay.bytes and (stay.piece is None or not pieces[stay.piece].persistent)
    ]
    floor = align_up(max((r.offset + r.bytes for n, rs in enumerate(flat.runs) if n not in moving for r in rs)), page)
    stays = [part.schedule.stays[number].parts for number in moving]
    size = [align_up(sum(p.bytes for p in parts), page) for parts in stays]
    whole = [(min(p.start for p in parts), max(p.end for p in parts)) for parts in stays]
    layout = best_fit(tuple(Item((Span(0, b, *life),)) for b, life in zip(size, whole, strict=True)))
    order = list(range(layout.arena_bytes // page))
    Random(1).shuffle(order)
    runs = list(flat.runs)
    for number, own in zip(moving, layout.runs, strict=True):
        first = own[0].offset // page
        pages = order[first : first + own[0].bytes // page]
        runs[number] = tuple(Run(i * page, floor + at * page, page) for i, at in enumerate(pages))
    return replace(flat, runs=tuple(runs), arena_bytes=floor + layout.arena_bytes, page_bytes=page)


def in_parts(problem: Problem, decisions: Decisions, count: int, unit: int) -> Decisions:
    """Every offload cut into `count` parts at multiples of `unit`, whatever rows these cut through.

    The first part frees its memory first and returns last.
    """
    found: list[Offload] = []
    for offload in decisions.offloads:
        size = offload.bytes // count // unit * unit
        if not size:
            found.append(offload)
            continue
        room = offload.needed_by - offload.leaves - 1
        for number in range(count):
            freed = min(offload.leaves + 1 + number * room // (4 * count), offload.returns)
            returns = max(freed, offload.returns - number * room // (4 * count))
            first = offload.first + number * size
            stop = offload.first + offload.bytes if number == count - 1 else first + size
            found.append(replace(offload, first=first, bytes=stop - first, freed_by=freed, returns=returns))
    return replace(decisions, offloads=tuple(found))
