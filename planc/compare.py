"""Comparison: several policies on the same workload and budget, each compiled by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns

from planc.candidates import compile_workload
from planc.errors import InfeasibleError, UsageError
from planc.options import Options
from planc.pipeline import Workload
from planc.plan import Plan
from planc.policies import POLICIES

_NEED_WORKSPACE = "ucudnn-"
"""Policies with such names are told what workspace they may use."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a policy made of the budget: a plan, or the reason that there is none.

    `compile_ns`: how long the plan took, on this machine: the only figure here that another run does not repeat. None
    without a plan: a refusal takes as long as finding the smallest budget does.
    """

    policy: str
    plan: Plan | None
    refusal: InfeasibleError | None
    compile_ns: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A row for every policy, in the order asked for. `best`: of the fastest plan, of equally fast ones the smallest;
    None if no policy found one.
    """

    rows: tuple[Row, ...]

    @property
    def best(self) -> Row | None:
        made = [(row.plan, row) for row in self.rows if row.plan is not None]
        if not made:
            return None
        return min(made, key=lambda pair: (pair[0].predicted.makespan_ns, pair[0].spaces.arena_bytes))[1]


def policies_to_compare(names: str | None, *, workspace: bool) -> tuple[str, ...]:
    """The policies in a comma list; without one all, u-cuDNN's only if they are told their `workspace`.

    Raises:
        UsageError: one is unknown, or wants a workspace that was not given.
    """
    if names is None:
        return tuple(name for name in POLICIES if workspace or not name.startswith(_NEED_WORKSPACE))
    chosen = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    unknown = [name for name in chosen if name not in POLICIES]
    if unknown or not chosen:
        shown = repr(unknown[0] if unknown else names)
        raise UsageError(f"--policies: {shown} is not a policy.", f"Use some of: {','.join(POLICIES)}.")
    without = [name for name in chosen if name.startswith(_NEED_WORKSPACE) and not workspace]
    if without:
        raise UsageError(
            f"policy {without[0]}: needs the workspace it may use.", "Add --workspace SIZE, such as 64MiB."
        )
    return chosen


def compare(workload: Workload, options: Options, policies: Sequence[str]) -> Comparison:
    """Compile `workload` by every policy in turn, each from the beginning, so that the times can be compared; only the
    smallest budget, which a refusal names, is found once."""
    rows = []
    for policy in policies:
        fresh = replace(Workload.of(workload.graph, options.training, workload.profile), smallest=workload.smallest)
        begun = perf_counter_ns()
        try:
            plan = compile_workload(fresh, replace(options, policy=policy))
        except InfeasibleError as error:
            rows.append(Row(policy, None, error, None))
        else:
            rows.append(Row(policy, plan, None, perf_counter_ns() - begun))
    return Comparison(tuple(rows))
