"""planc.compile: model, budget and policy -> a verified Plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from planc.choice import choose
from planc.collection import no_cyclic_collection
from planc.errors import InternalError, UsageError
from planc.finishing import finish
from planc.graph import Graph
from planc.like import draft_like
from planc.onnx_loader import load_model
from planc.options import DEFAULT_PROFILE, Options, budget_bytes
from planc.pipeline import Draft, Workload
from planc.placement import ARENAS, Arena
from planc.plan import Plan
from planc.profile import Profile, load_profile
from planc.training_graph import TrainingOptions
from planc.units import parse_bytes
from planc.verify import verify
from planc.yardsticks import measure_yardsticks


def compile(  # noqa: A001 - the name users expect: planc.compile
    model: str | Path | Graph,
    *,
    budget: str | int | None = None,
    batch: int | None = None,
    profile: str | Path | Profile = DEFAULT_PROFILE,
    policy: str = "auto",
    loss: str | None = None,
    optimizer: str = "momentum",
    settings: Mapping[str, str] = MappingProxyType({}),
    precision: str = "fp32",
    dropout: bool = True,
    batch_norm: str = "exact",
    workspace: str | int | None = None,
    sub_batches: int | None = None,
    recompute: str = "any",
    host_parameters: str = "auto",
    host_budget: str | int | None = None,
    arena: Arena = "auto",
    like: Plan | None = None,
) -> Plan:
    """Compile `model` into a plan whose arena is at most `budget`, and that verifies.

    Args:
        model: an ONNX file, or a Graph already loaded.
        budget: bytes, or text such as "4GB", "4GiB", "70%" (of what keeping everything resident needs); None = what the
            profile's device has beyond its `reserved_bytes`.
        batch: samples a step; None = the file's own.
        profile: name of a shipped profile, a file, or a Profile.
        policy: a key of policies.POLICIES.
        settings: of the optimizer, as decimal text.
        workspace, host_budget: bytes or text; for ucudnn-wr (a call) and ucudnn-wd (in all); of all host buffers.
        batch_norm: "exact"; "per-sub-batch", which changes the function trained; "frozen", constant statistics.
        recompute: what may be computed again: "any", "cheap" (no convolutions, no products) or "none".
        host_parameters: "auto" (parameters and state live on the host where nothing else fits), "always", "never".
        arena: "contiguous", "paged", or "auto", the first of them that fits.
        sub_batches: into how many the batch is cut; None = as the policy finds best.
        like: reuse that plan's ranges, order and algorithms, so that results can be compared bit by bit.

    Raises:
        PlancError: whatever the user can mend; InfeasibleError if no plan was found for the budget.
    """
    training = TrainingOptions(loss, optimizer, settings, dropout)
    options = Options(
        budget=None if budget is None else str(budget),
        policy=policy,
        training=training,
        precision=precision,
        batch_norm=batch_norm,
        sub_batches=sub_batches,
        recompute=recompute,
        host_parameters=host_parameters,
        host_budget=None if host_budget is None else str(host_budget),
        workspace=None if workspace is None else str(workspace),
    )
    options.check()
    graph = _load(model, batch, options)
    _check_arena(arena)
    device = profile if isinstance(profile, Profile) else load_profile(profile)
    return compile_workload(Workload.of(graph, training, device, arena), options, like=like)


def _check_arena(arena: str) -> None:
    if arena not in ARENAS:
        raise UsageError(f"arena {arena!r}: unknown.", f"Use one of: {', '.join(ARENAS)}.")


def _load(model: str | Path | Graph, batch: int | None, options: Options) -> Graph:
    if isinstance(model, Graph):
        if batch not in (None, model.batch):
            raise UsageError(f"batch {batch}: the graph given has batch {model.batch}.", "Give the file instead.")
        return model
    return load_model(model, batch=batch, precision=options.precision, batch_norm=options.batch_norm)


def compile_workload(workload: Workload, options: Options, *, like: Plan | None = None) -> Plan:
    """`compile` once the model is read; the workload may be shared between compilations."""
    with no_cyclic_collection():
        return _compile(workload, options, like)


def _compile(workload: Workload, options: Options, like: Plan | None) -> Plan:
    options.check()
    if options.host_budget is not None:
        workload = replace(workload, host_bytes=parse_bytes(options.host_budget))
    warnings: list[str] = []
    yardsticks = measure_yardsticks(workload)
    budget = budget_bytes(options.budget, workload.profile, yardsticks.keep_all_bytes)
    if like is not None:
        chosen, bound_ns = draft_like(workload, options, budget, like), None
    else:
        chosen, bound_ns = choose(workload, options, budget, yardsticks, warnings)
    text = _options_text(options, chosen, budget) | ({"solver": "; ".join(warnings)} if warnings else {})
    plan = finish(workload, chosen, budget, text, yardsticks, bound_ns)
    violations = verify(plan)
    if violations:
        listing = "; ".join(f"{v.code}: {v.message}" for v in violations[:3])
        raise InternalError(f"the plan just made does not verify: {listing}")
    return plan


def _options_text(options: Options, found: Draft, budget: int) -> dict[str, str]:
    training = options.training
    return {
        "arena": found.arena,
        "backend": found.train.problem.profile.backend,
        "batch_norm": options.batch_norm,
        "budget_bytes": str(budget),
        "candidate": found.candidate.name,
        "dropout": "train" if training.dropout else "off",
        "host_bytes": "" if options.host_budget is None else str(parse_bytes(options.host_budget)),
        "host_parameters": options.host_parameters,
        "loss": (training.loss if isinstance(training.loss, str) else " ".join(training.loss or ())) or "default",
        "max_steps": str(options.max_steps),
        "policy": options.policy,
        "precision": options.precision,
        "recompute": options.recompute,
        "sub_batches": str(found.sub_batches),
        "workspace_bytes": "" if options.workspace is None else str(parse_bytes(options.workspace)),
    }
