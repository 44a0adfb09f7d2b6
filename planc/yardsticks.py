"""Yardsticks: what the percentages of a plan refer to (README, "The plan file")."""

from __future__ import annotations

from dataclasses import dataclass

from planc.pipeline import UNLIMITED, Draft, Workload, decide, draft_of
from planc.policies import KEEP_ALL, KEEP_ALL_SMALL, Candidate


@dataclass(frozen=True, slots=True)
class Yardsticks:
    """Everything resident, lifetimes reused: with the fastest and with the smallest algorithms.

    `ideal_ns`: the time with the fastest ones. `keep_all_bytes`: the smallest arena found that reaches it.
    """

    ideal_ns: int
    keep_all_bytes: int
    keep_all_zero_workspace_bytes: int


def measure_yardsticks(workload: Workload) -> Yardsticks:
    """Ideal time and the arenas of the two keep-all plans."""
    fast, small = smallest_draft(workload, KEEP_ALL, 1), smallest_draft(workload, KEEP_ALL_SMALL, 1)
    return Yardsticks(fast.train.schedule.makespan_ns(), fast.arena_bytes, small.arena_bytes)


def smallest_draft(workload: Workload, candidate: Candidate, sub_batches: int) -> Draft:
    """The candidate without a budget, in the smallest arena that the layout can make of it."""
    problem = workload.problem(sub_batches, UNLIMITED, micro_batches=candidate.micro_batches)
    return draft_of(workload, candidate, *decide(problem, candidate), enough_bytes=0)
