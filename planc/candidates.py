"""Candidates x sub-batch counts, each through the pipeline: the first that fits, or the fastest simulated.

`compile` is planc's main function: model, budget and policy -> a verified Plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from planc import __version__
from planc.bounds import lower_bound
from planc.decisions_report import decision_rows
from planc.errors import InfeasibleError, InternalError, UsageError
from planc.graph import Graph
from planc.model_hash import model_sha256
from planc.onnx_loader import load_model
from planc.passes.base import Decisions, apply_passes
from planc.passes.sub_batch import largest_sub_batch, window_bytes
from planc.pipeline import UNLIMITED, Draft, Workload, draft, draft_of
from planc.plan import Plan, Predicted, Provenance, Spaces
from planc.policies import KEEP_ALL, KEEP_ALL_SMALL, MINIMUM_MEMORY, POLICIES, Candidate, SubBatches, Take
from planc.profile import Profile, load_profile, profile_sha256
from planc.simulate import Timeline, simulate
from planc.training_graph import TrainingOptions
from planc.units import format_bytes, parse_bytes
from planc.verify import verify

DEFAULT_PROFILE = "v100-16gb"
MAX_STEPS = 40_000
"""Sub-batch counts that would make more tasks than this are not tried."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a compilation depends on besides model and profile. `budget`: text as on the command line, None = the
    device's."""

    budget: str | None = None
    policy: str = "auto"
    training: TrainingOptions = field(default_factory=TrainingOptions)
    precision: str = "fp32"
    sub_batches: int | None = None
    max_steps: int = MAX_STEPS


@dataclass(frozen=True, slots=True)
class Yardsticks:
    """What percentages refer to (plan-format.md): everything resident, with fastest and with zero-workspace
    algorithms."""

    ideal_ns: int
    keep_all_bytes: int
    keep_all_zero_workspace_bytes: int


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
    like: Plan | None = None,
) -> Plan:
    """Compile `model` into a plan whose arena is at most `budget`.

    Args:
        model: an ONNX file, or a Graph already loaded.
        budget: bytes, or text such as "4GB", "4GiB", "70%" (of what keeping everything resident needs); None = what the
            profile's device has beyond its `reserved_bytes`.
        batch: samples a step; None = the file's own.
        profile: name of a shipped profile, a file, or a Profile.
        policy: a key of policies.POLICIES.
        settings: of the optimizer, as decimal text (`{"lr": "0.1"}`).
        like: reuse that plan's ranges, order and algorithms, so that results can be compared bit by bit.

    Returns:
        A plan that verifies.

    Raises:
        PlancError: whatever the user can mend; InfeasibleError if no plan was found for the budget.
    """
    if batch_norm not in ("exact", "frozen"):
        raise UsageError(f"batch norm {batch_norm!r}: unknown.", "Use exact or frozen.")
    if isinstance(model, Graph):
        graph = model
    else:
        graph = load_model(model, batch=batch, precision=precision, frozen_batch_norm=batch_norm == "frozen")
    device = profile if isinstance(profile, Profile) else load_profile(profile)
    training = TrainingOptions(loss, optimizer, settings, dropout)
    text = budget if budget is None or isinstance(budget, str) else str(budget)
    options = Options(text, policy, training, precision)
    return compile_workload(Workload.of(graph, training, device), options, like=like)


def compile_workload(workload: Workload, options: Options, *, like: Plan | None = None) -> Plan:
    """`compile` once the model is read; the workload may be shared between compilations."""
    if options.policy not in POLICIES:
        raise UsageError(f"policy {options.policy!r}: unknown.", f"Use one of: {', '.join(POLICIES)}.")
    yardsticks = measure_yardsticks(workload)
    budget = budget_bytes(options.budget, workload.profile, yardsticks.keep_all_bytes)
    if like is not None:
        chosen = _draft_like(workload, options, budget, like)
        plan = _finish(workload, options, budget, yardsticks, chosen)
    else:
        plan = _choose(workload, options, budget, yardsticks)
    violations = verify(plan)
    if violations:
        listing = "; ".join(f"{v.code}: {v.message}" for v in violations[:3])
        raise InternalError(f"the plan just made does not verify: {listing}")
    return plan


def measure_yardsticks(workload: Workload) -> Yardsticks:
    """Ideal time and the arenas of the two keep-all plans."""
    fast, small = (
        draft_of(workload, candidate, problem, apply_passes(problem, candidate.passes), enough_bytes=0)
        for problem in (workload.problem(1, UNLIMITED),)
        for candidate in (KEEP_ALL, KEEP_ALL_SMALL)
    )
    return Yardsticks(fast.train.schedule.makespan_ns(), fast.assembled.arena_bytes, small.assembled.arena_bytes)


def budget_bytes(text: str | None, profile: Profile, keep_all_bytes: int) -> int:
    """The budget in bytes; without one, what the device has beyond its reserve."""
    if text is None:
        return profile.memory_bytes - profile.reserved_bytes
    value = parse_bytes(text, whole_bytes=keep_all_bytes)
    if value < 1:
        raise UsageError(f"budget {text!r}: wanted at least one byte.")
    return value


def _choose(workload: Workload, options: Options, budget: int, yardsticks: Yardsticks) -> Plan:
    policy = POLICIES[options.policy]
    best: Draft | None = None
    best_ns = UNLIMITED
    for candidate in policy.candidates:
        if best is not None and (policy.take is Take.FIRST or candidate.last_resort or best_ns == yardsticks.ideal_ns):
            break
        for count in sub_batch_counts(workload, candidate, budget, options):
            try:
                best = draft(workload, candidate, count, budget, below_ns=best_ns)
            except InfeasibleError:
                continue
            best_ns = best.train.schedule.makespan_ns()
            break  # of a candidate's counts the first that fits
    if best is None:
        raise _infeasible(workload, options, budget)
    return _finish(workload, options, budget, yardsticks, best)


def sub_batch_counts(workload: Workload, candidate: Candidate, budget: int, options: Options) -> Iterator[int]:
    """The sub-batch counts to try for a candidate, in order."""
    if options.sub_batches is not None:
        yield options.sub_batches
        return
    batch = workload.graph.batch
    allowed = max(1, options.max_steps // max(1, len(workload.training.launches)))
    if candidate.sub_batches is SubBatches.WHOLE:
        yield 1
    elif candidate.sub_batches is SubBatches.MODNN:
        alignment = workload.profile.alignment
        yield largest_sub_batch(batch, budget, allowed, lambda count: window_bytes(workload.tasks(count), alignment))
    else:
        yield from dict.fromkeys(min(2**k, batch) for k in range(batch.bit_length() + 1) if min(2**k, batch) <= allowed)


def smallest_budget(workload: Workload, options: Options) -> int:
    """The arena of the smallest plan of the minimum-memory procedure: compile succeeds from there up.

    The procedure takes each sub-batch count in turn, lets everything leave at once and takes the smallest workspaces.
    """
    tightest = replace(MINIMUM_MEMORY, passes=MINIMUM_MEMORY.passes[:2])
    return min(
        _tightest(workload, tightest, count).assembled.arena_bytes
        for count in sub_batch_counts(workload, tightest, 0, options)
    )


def _tightest(workload: Workload, candidate: Candidate, count: int) -> Draft:
    problem = workload.problem(count, UNLIMITED)
    return draft_of(workload, candidate, problem, apply_passes(problem, candidate.passes), enough_bytes=0)


def _infeasible(workload: Workload, options: Options, budget: int) -> InfeasibleError:
    smallest = smallest_budget(workload, options)
    bound = lower_bound(workload.training)
    policy = "" if options.policy == "auto" else f" with policy {options.policy}"
    hint = f"Use --budget {smallest} or more"
    if options.policy != "auto":
        hint += " and --policy auto"
    return InfeasibleError(
        f"planc found no plan in {budget} bytes ({format_bytes(budget)}){policy}; the smallest it can make is {smallest} "
        f"bytes ({format_bytes(smallest)}); proven lower bound {bound.bytes} bytes ({format_bytes(bound.bytes)}), set by "
        f"node {bound.label!r} ({bound.op}).",
        f"{hint}, or a smaller --batch.",
        smallest_budget_bytes=smallest,
        bound_bytes=bound.bytes,
        node=bound.label,
    )


def _draft_like(workload: Workload, options: Options, budget: int, like: Plan) -> Draft:
    """A keep-all or other draft with the ranges and algorithms of `like`."""
    if like.provenance.model_sha256 != model_sha256(workload.graph):
        raise UsageError(
            "--like: that plan was made for another model or batch.", "Compile it from the same model file."
        )
    count = int(like.provenance.options["sub_batches"])
    candidate = POLICIES[options.policy].candidates[0]
    problem = workload.problem(count, budget)
    base = draft(workload, candidate, count, budget)
    launches = [step for step in like.train.steps if step.kind == "launch"]
    configurations = tuple(
        None
        if own is None
        else next(c for c in problem.costs.configurations[task] if c.parts == launches[task].configuration)
        for task, own in enumerate(base.train.decisions.configurations)
    )
    return draft_of(workload, candidate, problem, Decisions(configurations, base.train.decisions.offloads))


def _finish(workload: Workload, options: Options, budget: int, yardsticks: Yardsticks, found: Draft) -> Plan:
    """The plan of a draft, with what the simulator predicts of it."""
    made = found.assembled
    profile = workload.profile
    offloaded = sum(made.buffers[b].bytes for b in _offloaded_buffers(found))
    predicted = Predicted(
        makespan_ns=0,
        ideal_ns=yardsticks.ideal_ns,
        bound_ns=None,
        gap_ppm=None,
        peak_bytes=0,
        keep_all_bytes=yardsticks.keep_all_bytes,
        keep_all_zero_workspace_bytes=yardsticks.keep_all_zero_workspace_bytes,
        bytes_by_kind=MappingProxyType({}),
        offloaded_bytes=offloaded,
        recomputed_bytes=0,
    )
    plan = Plan(
        provenance=Provenance(
            planc=__version__,
            solver="",
            model_sha256=model_sha256(workload.graph),
            profile=profile.name,
            profile_sha256=profile_sha256(profile),
            estimated=profile.estimated,
            options=MappingProxyType(_options_text(options, found, budget)),
        ),
        semantics="exact",
        semantics_reason="",
        model=made.model,
        spaces=Spaces(
            budget_bytes=budget,
            reserved_bytes=profile.reserved_bytes,
            device_bytes=profile.memory_bytes,
            arena_bytes=made.arena_bytes,
            alignment=profile.alignment,
            page_bytes=0,
            host_bytes=made.host_bytes,
        ),
        tensors=made.tensors,
        buffers=made.buffers,
        programs=made.programs,
        predicted=predicted,
        decisions=decision_rows(found.train),
    )
    return _with_timeline(plan, simulate(plan))


def _with_timeline(plan: Plan, timeline: Timeline) -> Plan:
    by_kind = MappingProxyType({kind.value: size for kind, size in timeline.bytes_by_kind.items() if size})
    predicted = replace(
        plan.predicted,
        makespan_ns=timeline.makespan_ns,
        peak_bytes=timeline.peak_bytes,
        bytes_by_kind=by_kind,
    )
    return replace(plan, predicted=predicted)


def _offloaded_buffers(found: Draft) -> list[int]:
    ids = found.assembled.buffer_of_piece["train"]
    return [ids[offload.piece] for offload in found.train.decisions.offloads]


def _options_text(options: Options, found: Draft, budget: int) -> dict[str, str]:
    training = options.training
    return {
        "backend": found.train.problem.profile.backend,
        "budget_bytes": str(budget),
        "candidate": found.candidate.name,
        "dropout": "train" if training.dropout else "off",
        "loss": training.loss or "default",
        "max_steps": str(options.max_steps),
        "policy": options.policy,
        "precision": options.precision,
        "sub_batches": str(found.sub_batches),
    }
