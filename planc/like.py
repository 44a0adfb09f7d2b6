"""Like: a plan with the ranges, the order and the algorithms of another, so that results can be compared bit by bit."""

from __future__ import annotations

from dataclasses import replace

from planc.errors import UsageError
from planc.micro_batch import Configuration
from planc.model_hash import model_sha256
from planc.options import Options
from planc.passes.base import apply_passes
from planc.pipeline import Draft, Workload, draft_of
from planc.plan import Plan, StepKind
from planc.policies import POLICIES


def draft_like(workload: Workload, options: Options, budget: int, like: Plan) -> Draft:
    """The policy's first candidate with the ranges, the order and the algorithms of `like`."""
    if like.provenance.model_sha256 != model_sha256(workload.graph):
        raise UsageError(
            "--like: that plan was made for another model or batch.", "Compile it from the same model file."
        )
    candidate = POLICIES[options.policy].candidates[0]
    problem = workload.problem(int(like.provenance.options["sub_batches"]), budget)
    decisions = apply_passes(problem, candidate.passes)
    configurations = _configurations_of(like)
    if [c is None for c in configurations] != [c is None for c in decisions.configurations]:
        raise UsageError(
            "--like: that plan does other work than this compilation asks for.",
            "Give the same --loss, --optimizer, --dropout and --batch-norm.",
        )
    return draft_of(workload, candidate, problem, replace(decisions, configurations=configurations))


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
