"""Candidates x sub-batch counts, each through the pipeline: the first that fits, or the fastest simulated.

`compile` is planc's main function: model, budget and policy -> a verified Plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from planc.bounds import lower_bound
from planc.errors import InfeasibleError, InternalError, UsageError
from planc.finishing import finish
from planc.graph import Graph
from planc.micro_batch import Configuration
from planc.model_hash import model_sha256
from planc.onnx_loader import load_model
from planc.passes.base import apply_passes, memory_bytes
from planc.passes.sub_batch import largest_sub_batch, window_bytes
from planc.pipeline import UNLIMITED, Draft, Workload, decide, draft, draft_of
from planc.plan import Plan, StepKind
from planc.policies import MINIMUM_MEMORY, POLICIES, Candidate, SubBatches, Take
from planc.profile import Profile, load_profile
from planc.training_graph import TrainingOptions
from planc.units import format_bytes, parse_bytes
from planc.verify import verify
from planc.yardsticks import Yardsticks, measure_yardsticks, smallest_draft

DEFAULT_PROFILE = "v100-16gb"
MAX_STEPS = 40_000
"""Sub-batch counts that would make more tasks than this are not tried."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a compilation depends on besides model and profile; sizes are text as on the command line.

    budget: None = what the device has. workspace: what u-cuDNN's policies may use.
    sub_batches: None = as the policy finds best. max_steps: no sub-batch count that makes more tasks is tried.
    """

    budget: str | None = None
    policy: str = "auto"
    training: TrainingOptions = field(default_factory=TrainingOptions)
    precision: str = "fp32"
    batch_norm: str = "exact"
    sub_batches: int | None = None
    max_steps: int = MAX_STEPS
    workspace: str | None = None


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
        workspace: bytes or text; what the policies ucudnn-wr (a call) and ucudnn-wd (in all) may use.
        sub_batches: into how many the batch is cut; None = as the policy finds best.
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
    options = Options(
        budget=None if budget is None else str(budget),
        policy=policy,
        training=training,
        precision=precision,
        batch_norm=batch_norm,
        sub_batches=sub_batches,
        workspace=None if workspace is None else str(workspace),
    )
    return compile_workload(Workload.of(graph, training, device), options, like=like)


def compile_workload(workload: Workload, options: Options, *, like: Plan | None = None) -> Plan:
    """`compile` once the model is read; the workload may be shared between compilations."""
    if options.policy not in POLICIES:
        raise UsageError(f"policy {options.policy!r}: unknown.", f"Use one of: {', '.join(POLICIES)}.")
    yardsticks = measure_yardsticks(workload)
    budget = budget_bytes(options.budget, workload.profile, yardsticks.keep_all_bytes)
    if like is not None:
        chosen = _draft_like(workload, options, budget, like)
    else:
        chosen = _choose(workload, options, budget, yardsticks)
    plan = finish(workload, chosen, budget, _options_text(options, chosen, budget), yardsticks)
    violations = verify(plan)
    if violations:
        listing = "; ".join(f"{v.code}: {v.message}" for v in violations[:3])
        raise InternalError(f"the plan just made does not verify: {listing}")
    return plan


def budget_bytes(text: str | None, profile: Profile, keep_all_bytes: int) -> int:
    """The budget in bytes; without one, what the device has beyond its reserve."""
    if text is None:
        return profile.memory_bytes - profile.reserved_bytes
    value = parse_bytes(text, whole_bytes=keep_all_bytes)
    if value < 1:
        raise UsageError(f"budget {text!r}: wanted at least one byte.")
    return value


def _choose(workload: Workload, options: Options, budget: int, yardsticks: Yardsticks) -> Draft:
    policy = POLICIES[options.policy]
    workspace = None if options.workspace is None else parse_bytes(options.workspace)
    best: Draft | None = None
    best_ns = UNLIMITED
    for candidate in policy.candidates:
        if best is not None and (policy.take is Take.FIRST or candidate.last_resort or best_ns == yardsticks.ideal_ns):
            break
        for count in sub_batch_counts(workload, candidate, budget, options):
            try:
                best = draft(workload, candidate, count, budget, below_ns=best_ns, workspace_bytes=workspace)
            except InfeasibleError:
                continue
            best_ns = best.train.schedule.makespan_ns()
            break  # of a candidate's counts the first that fits
    if best is None:
        raise _infeasible(workload, options, budget)
    return best


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
    peaks = []
    for count in sub_batch_counts(workload, MINIMUM_MEMORY, 0, options):
        problem, decisions = decide(workload.problem(count, UNLIMITED), MINIMUM_MEMORY)
        peaks.append((int(memory_bytes(problem, decisions).max()), count))
    smallest = UNLIMITED
    for peak, count in sorted(peaks):
        if peak >= smallest:
            break  # no layout is smaller than what is live
        smallest = min(smallest, smallest_draft(workload, MINIMUM_MEMORY, count).assembled.arena_bytes)
    return smallest


def _infeasible(workload: Workload, options: Options, budget: int) -> InfeasibleError:
    smallest = smallest_budget(workload, options)
    bound = lower_bound(workload.training)
    policy, hint = "", f"Use --budget {smallest} or more"
    if options.policy != "auto":
        policy, hint = f" with policy {options.policy}", f"{hint} and --policy auto"
    return InfeasibleError(
        f"planc found no plan in {_size(budget)}{policy}; the smallest it can make is {_size(smallest)}; "
        f"proven lower bound {_size(bound.bytes)}, set by node {bound.label!r} ({bound.op}).",
        f"{hint}, or a smaller --batch.",
        smallest_budget_bytes=smallest,
        bound_bytes=bound.bytes,
        node=bound.label,
    )


def _size(value: int) -> str:
    return f"{value} bytes ({format_bytes(value)})"


def _draft_like(workload: Workload, options: Options, budget: int, like: Plan) -> Draft:
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


def _options_text(options: Options, found: Draft, budget: int) -> dict[str, str]:
    training = options.training
    return {
        "backend": found.train.problem.profile.backend,
        "batch_norm": options.batch_norm,
        "budget_bytes": str(budget),
        "candidate": found.candidate.name,
        "dropout": "train" if training.dropout else "off",
        "loss": training.loss or "default",
        "max_steps": str(options.max_steps),
        "policy": options.policy,
        "precision": options.precision,
        "sub_batches": str(found.sub_batches),
        "workspace_bytes": "" if options.workspace is None else str(parse_bytes(options.workspace)),
    }
