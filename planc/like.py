"""Like: a plan with the ranges, the order and the algorithms of another, so that results can be compared bit by bit."""

from __future__ import annotations

from dataclasses import replace

from planc.errors import UsageError
from planc.micro_batch import Configuration
from planc.model_hash import model_sha256
from planc.options import Options
from planc.passes.base import apply_passes
from planc.passes.conv_algorithm import ChooseEach, FitWorkspaces
from planc.pipeline import Draft, Workload, draft_of
from planc.plan import Plan, StepKind
from planc.policies import POLICIES
from planc.profile import profile_sha256

OWN_ALGORITHMS = frozenset({"ucudnn-wr", "ucudnn-wd", "checkpoint-sqrt"})
"""Policies of which nothing would be left with another plan's algorithms."""


def draft_like(workload: Workload, options: Options, budget: int, like: Plan) -> Draft:
    """The policy's first candidate (auto: keep-all) with the ranges, the order and the algorithms of `like`.

    Raises:
        UsageError: `like` is for another model, batch or device, or the policy chooses algorithms or ranges of its own.
        InfeasibleError: that does not fit the budget.
    """
    _check(workload, options, like)
    candidate = POLICIES[options.policy].candidates[0]
    problem = workload.problem(int(like.provenance.options["sub_batches"]), budget)
    decisions = apply_passes(problem, candidate.passes)
    configurations = _configurations_of(like)
    if [c is None for c in configurations] != [c is None for c in decisions.configurations]:
        raise UsageError(
            "--like: that plan does other work than this compilation asks for.",
            "Give the same --loss, --optimizer, --dropout and --batch-norm.",
        )
    timing = tuple(one for one in candidate.timing if not isinstance(one, (ChooseEach, FitWorkspaces)))
    decisions = apply_passes(problem, timing, replace(decisions, configurations=configurations))
    return draft_of(workload, candidate, problem, decisions)


def _check(workload: Workload, options: Options, like: Plan) -> None:
    if like.provenance.model_sha256 != model_sha256(workload.graph):
        raise UsageError("--like: that plan was made for another model or batch.", "Compile both from one file.")
    if like.provenance.profile_sha256 != profile_sha256(workload.profile):
        found = like.provenance.profile
        raise UsageError(
            f"--like: that plan was made for {found!r}, not for {workload.profile.name!r}.", "Give its --profile."
        )
    count = like.provenance.options.get("sub_batches", "")
    if not count.isdecimal() or options.sub_batches not in (None, int(count)):
        raise UsageError(
            f"--like: that plan has {count or 'no known number of'} sub-batches.", "Leave out --sub-batches."
        )
    if options.policy in OWN_ALGORITHMS:
        raise UsageError(
            f"--like: policy {options.policy} chooses its own algorithms or recomputes.",
            "Use keep-all, vdnn-* or modnn.",
        )


def _configurations_of(plan: Plan) -> tuple[Configuration | None, ...]:
    """The configuration of every launch of a plan's training program that is not a recomputation of one before it."""
    found: list[Configuration | None] = []
    seen = set[tuple[object, ...]]()
    for step in plan.train.steps:
        key = (step.op, step.samples, tuple(access.tensor for access in step.writes))
        if step.kind is not StepKind.LAUNCH or (key in seen and not step.accumulate):
            continue
        seen.add(key)
        workspace = 0 if step.workspace is None else plan.buffers[step.workspace].bytes
        configured = Configuration(step.configuration, workspace, step.duration_ns) if step.configuration else None
        found.append(configured)
    return tuple(found)
