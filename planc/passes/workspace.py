"""u-cuDNN's two policies (Oyama et al., IEEE Cluster 2018): workspace reuse, one limit a call; workspace division, one
total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planc.errors import UsageError
from planc.micro_batch import Configuration
from planc.passes.base import CONFIGURED, Decisions, Problem


def _limit(problem: Problem, policy: str) -> int:
    if problem.workspace_bytes is None:
        raise UsageError(f"policy {policy}: needs the workspace it may use.", "Add --workspace SIZE, such as 64MiB.")
    return problem.workspace_bytes


@dataclass(frozen=True, slots=True)
class WorkspaceReuse:
    """WR: every call by itself takes the fastest configuration within the limit."""

    name: str = "workspace.WorkspaceReuse"
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset({CONFIGURED})

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        limit = _limit(problem, "ucudnn-wr")
        chosen = (_fastest_within(options, limit) if options else None for options in problem.costs.configurations)
        return replace(decisions, configurations=tuple(chosen))


def _fastest_within(options: Sequence[Configuration], limit: int) -> Configuration:
    return next((c for c in options if c.workspace_bytes <= limit), options[-1])


@dataclass(frozen=True, slots=True)
class WorkspaceDivision:
    """WD: the calls share one total; see `divide`."""

    name: str = "workspace.WorkspaceDivision"
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset({CONFIGURED})

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        limit = _limit(problem, "ucudnn-wd")
        calls = [task for task, options in enumerate(problem.costs.configurations) if options]
        picked = divide([problem.costs.configurations[task] for task in calls], limit)
        chosen = list(decisions.configurations)
        for task, configuration in zip(calls, picked, strict=True):
            chosen[task] = configuration
        return replace(decisions, configurations=tuple(chosen))


def divide(calls: Sequence[Sequence[Configuration]], total_bytes: int) -> tuple[Configuration, ...]:
    """One configuration for each call: least sum of times with a sum of workspaces of at most `total_bytes`.

    A multiple-choice knapsack, solved exactly: walk through the calls and keep the Pareto-optimal (time, workspace)
    pairs of all choices so far. Pruning is exact because both add up (Nemhauser and Ullmann, Management Science 1969).
    Where even the smallest workspaces exceed the total, these are taken. Ties: least workspace, then earlier options.
    """
    smallest = [min(options, key=lambda c: (c.workspace_bytes, c.duration_ns)) for options in calls]
    if sum(c.workspace_bytes for c in smallest) > total_bytes:
        return tuple(smallest)
    rest = [0]
    for configuration in reversed(smallest):
        rest.append(rest[-1] + configuration.workspace_bytes)
    rest.reverse()
    front: list[_Choice] = [_Choice(0, 0, None, None)]
    for position, options in enumerate(calls):
        room = total_bytes - rest[position + 1]
        grown = [
            _Choice(choice.duration_ns + c.duration_ns, choice.workspace_bytes + c.workspace_bytes, c, choice)
            for choice in front
            for c in options
            if choice.workspace_bytes + c.workspace_bytes <= room
        ]
        front = _front(grown)
    return front[0].chain()


@dataclass(frozen=True, slots=True)
class _Choice:
    """Choices for the calls so far: their sums, the last one made, and the choices before it."""

    duration_ns: int
    workspace_bytes: int
    last: Configuration | None
    before: _Choice | None

    def chain(self) -> tuple[Configuration, ...]:
        found: list[Configuration] = []
        choice: _Choice | None = self
        while choice is not None and choice.last is not None:
            found.append(choice.last)
            choice = choice.before
        return tuple(reversed(found))


def _front(choices: list[_Choice]) -> list[_Choice]:
    """The Pareto-optimal choices, fastest first."""
    kept: list[_Choice] = []
    for choice in sorted(choices, key=lambda c: (c.duration_ns, c.workspace_bytes)):
        if not kept or choice.workspace_bytes < kept[-1].workspace_bytes:
            kept.append(choice)
    return kept
