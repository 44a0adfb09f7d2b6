"""Which configuration each convolution call uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from planc.micro_batch import Configuration
from planc.passes.base import CONFIGURED, Decisions, Problem, resident_bytes
from planc.units import align_up


def fastest(options: tuple[Configuration, ...]) -> Configuration:
    """The fastest, of equally fast ones that with the smallest workspace (options are Pareto-optimal, fastest
    first)."""
    return options[0]


def smallest(options: tuple[Configuration, ...]) -> Configuration:
    """The one with the smallest workspace."""
    return options[-1]


@dataclass(frozen=True, slots=True)
class ChooseEach:
    """Every call by itself: `fastest` (performance-optimal in vDNN's words) or `smallest` (memory-optimal)."""

    choose: Callable[[tuple[Configuration, ...]], Configuration]
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset({CONFIGURED})

    @property
    def name(self) -> str:
        return f"conv_algorithm.{self.choose.__name__}"

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        chosen = (self.choose(options) if options else None for options in problem.costs.configurations)
        return replace(decisions, configurations=tuple(chosen))


@dataclass(frozen=True, slots=True)
class FitWorkspaces:
    """A call whose workspace does not fit beside what is live takes the fastest one that does.

    vDNN's greedy downgrade and moDNN's least time lost per byte come to the same here: a workspace lives during its own
    call only, so each call is downgraded by itself, and by no more than it must.
    """

    name: str = "conv_algorithm.FitWorkspaces"
    requires: frozenset[str] = frozenset({CONFIGURED})
    ensures: frozenset[str] = frozenset({CONFIGURED})

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        free = problem.budget_bytes - resident_bytes(problem, decisions.offloads)
        alignment = problem.profile.alignment
        # A recomputation has its call's configuration, so the fuller moment of the two decides.
        room: dict[tuple[int, int], int] = {}
        for task in problem.tasks.tasks:
            call = (task.launch, task.start)
            room[call] = min(room.get(call, int(free[task.index])), int(free[task.index]))
        chosen = list(decisions.configurations)
        for task in problem.tasks.tasks:
            current = chosen[task.index]
            most = room[task.launch, task.start]
            if current is not None and align_up(current.workspace_bytes, alignment) > most:
                options = problem.costs.configurations[task.index]
                fits = (c for c in options if align_up(c.workspace_bytes, alignment) <= most)
                chosen[task.index] = next(fits, options[-1])
        return replace(decisions, configurations=tuple(chosen))
