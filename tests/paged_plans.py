"""Plans whose arena is laid out as a test wants it, and offloads cut into parts that leave and return by themselves."""

from __future__ import annotations

from dataclasses import replace

from planc.assembly import assemble
from planc.finishing import finish
from planc.passes.base import Decisions, Offload, Problem
from planc.pipeline import Draft, Workload, decide, draft_of
from planc.placement import Arena, place
from planc.plan import Plan
from planc.policies import Candidate
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


def planned(
    work: Workload, candidate: Candidate, problem: Problem, decisions: Decisions, arena: Arena, enough_bytes: int = 0
) -> Plan:
    """The plan of decisions, in an arena as small as can be or of `enough_bytes`."""
    roomy = replace(problem, budget_bytes=UNLIMITED)
    found = draft_of(work, candidate, roomy, decisions, enough_bytes=0)
    train, evaluate = (
        replace(part, placement=place(part.problem, part.schedule, enough_bytes, arena))
        for part in (found.train, found.evaluate)
    )
    made: Draft = replace(found, train=train, evaluate=evaluate, assembled=assemble(train, evaluate))
    options = {"sub_batches": str(found.sub_batches)}
    return finish(work, made, UNLIMITED, options, Yardsticks(0, 0, 0))


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
