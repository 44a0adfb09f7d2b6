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
from planc.passes.flow_milp import SolverFailure, relaxed_bound_ns
from planc.passes.recipes import RECOMPUTE
from planc.passes.sub_batch import largest_sub_batch, window_bytes
from planc.pipeline import UNLIMITED, Draft, Workload, decide, draft, draft_of
from planc.placement import ARENAS, Arena
from planc.plan import Plan, StepKind
from planc.policies import MINIMUM_MEMORY, POLICIES, Candidate, SubBatches, Take, with_recompute
from planc.profile import Profile, load_profile
from planc.training_graph import TrainingOptions
from planc.units import format_bytes, parse_bytes
from planc.verify import verify
from planc.yardsticks import Yardsticks, measure_yardsticks, smallest_draft

DEFAULT_PROFILE = "v100-16gb"
FEW = (1, 2, 4)
"""Sub-batch counts that the flow program is solved for, all of them."""
MAX_STEPS = 40_000
"""Sub-batch counts that would make more tasks than this are not tried."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a compilation depends on besides model and profile; sizes are text as on the command line.

    budget: None = what the device has. workspace: what u-cuDNN's policies may use.
    recompute: what may be computed again: any, cheap (no convolutions, no products) or none.
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
    recompute: str = "any"


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
    arena: Arena = "auto",
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
        recompute: what may be computed again: "any", "cheap" (no convolutions, no products) or "none".
        arena: "contiguous", "paged", or "auto", the first of them that fits.
        sub_batches: into how many the batch is cut; None = as the policy finds best.
        like: reuse that plan's ranges, order and algorithms, so that results can be compared bit by bit.

    Returns:
        A plan that verifies.

    Raises:
        PlancError: whatever the user can mend; InfeasibleError if no plan was found for the budget.
    """
    if recompute not in RECOMPUTE:
        raise UsageError(f"recompute {recompute!r}: unknown.", f"Use one of: {', '.join(RECOMPUTE)}.")
    if arena not in ARENAS:
        raise UsageError(f"arena {arena!r}: unknown.", f"Use one of: {', '.join(ARENAS)}.")
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
        recompute=recompute,
        workspace=None if workspace is None else str(workspace),
    )
    return compile_workload(Workload.of(graph, training, device, arena), options, like=like)


def compile_workload(workload: Workload, options: Options, *, like: Plan | None = None) -> Plan:
    """`compile` once the model is read; the workload may be shared between compilations."""
    if options.policy not in POLICIES:
        raise UsageError(f"policy {options.policy!r}: unknown.", f"Use one of: {', '.join(POLICIES)}.")
    warnings: list[str] = []
    yardsticks = measure_yardsticks(workload)
    budget = budget_bytes(options.budget, workload.profile, yardsticks.keep_all_bytes)
    if like is not None:
        chosen, bound_ns = _draft_like(workload, options, budget, like), None
    else:
        chosen, bound_ns = _choose(workload, options, budget, yardsticks, warnings)
    text = _options_text(options, chosen, budget) | ({"solver": "; ".join(warnings)} if warnings else {})
    plan = finish(workload, chosen, budget, text, yardsticks, bound_ns)
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


def _choose(
    workload: Workload, options: Options, budget: int, yardsticks: Yardsticks, warnings: list[str]
) -> tuple[Draft, int | None]:
    """The draft that the policy chooses, and the bound of its class over the sub-batch counts tried, if proven."""
    policy = POLICIES[options.policy]
    workspace = None if options.workspace is None else parse_bytes(options.workspace)
    best: Draft | None = None
    best_ns = UNLIMITED
    bounds: dict[int, int] = {}
    for named in policy.candidates:
        candidate = with_recompute(named, options.recompute)
        if best is not None and (policy.take is Take.FIRST or candidate.last_resort or best_ns == yardsticks.ideal_ns):
            break
        if best is not None and not _may_win(workload, candidate, budget, best_ns):
            continue
        for count in sub_batch_counts(workload, candidate, budget, options):
            if candidate.proves and best is not None:
                if count > FEW[-1]:
                    break
                bounds[count] = _cheap_bound(workload, candidate, count, options, budget, best_ns)
                if bounds[count] >= best_ns:
                    continue
            try:
                best = draft(workload, candidate, count, budget, below_ns=best_ns, workspace_bytes=workspace)
            except InfeasibleError:
                continue
            except SolverFailure as failure:
                warnings.append(f"{candidate.name}: {failure}; the plan comes from the heuristics")
                continue
            best_ns = best.train.schedule.makespan_ns()
            if best.train.decisions.bound_ns is not None:
                bounds[count] = best.train.decisions.bound_ns
            if not candidate.proves:
                break  # of a candidate's counts the first that fits
    if best is None:
        raise _infeasible(workload, options, budget)
    in_class = best.sub_batches in bounds and not best.candidate.beyond_class
    return best, min(bounds.values()) if in_class else None


def _may_win(workload: Workload, candidate: Candidate, budget: int, best_ns: int) -> bool:
    """False for moDNN's candidate where it would cut the batch and computing two halves alone takes longer than the
    best plan does: smaller ranges only use the device less well (costs.py), so more of them take no less.
    """
    if candidate.sub_batches is not SubBatches.MODNN or workload.graph.batch == 1:
        return True
    if window_bytes(workload.tasks(1), workload.profile.alignment) <= budget:
        return True
    return sum(workload.problem(2, budget).costs.durations) < best_ns


def _cheap_bound(
    workload: Workload, candidate: Candidate, count: int, options: Options, budget: int, enough_ns: int
) -> int:
    """No plan with that many sub-batches is faster: than its tasks at their fastest, and where that is not enough, than
    the relaxation; UNLIMITED where nothing of the class fits.
    """
    problem = workload.problem(count, budget, micro_batches=candidate.micro_batches)
    computing_ns = sum(problem.costs.durations)
    if computing_ns >= enough_ns:
        return computing_ns
    relaxed = relaxed_bound_ns(problem, recompute=options.recompute)
    return UNLIMITED if relaxed is None else max(relaxed, computing_ns)


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
    elif candidate.sub_batches is SubBatches.FEW:
        yield from (count for count in (*FEW, 8, 16, 32, 64, 128) if count <= min(batch, allowed))
    else:
        yield from dict.fromkeys(min(2**k, batch) for k in range(batch.bit_length() + 1) if min(2**k, batch) <= allowed)


def smallest_budget(workload: Workload, options: Options) -> int:
    """The arena of the smallest plan of the minimum-memory procedure: compile succeeds from there up."""
    key = options.sub_batches, options.max_steps
    if key not in workload.smallest:
        workload.smallest[key] = minimum_memory(workload, options).assembled.arena_bytes
    return workload.smallest[key]


def minimum_memory(workload: Workload, options: Options) -> Draft:
    """The smallest plan of the minimum-memory procedure, which lets everything leave at once, with the smallest
    workspaces, in each of the sub-batch counts that there may be.

    The largest count comes first; others are built only as far as they can still need less.
    """
    batch = workload.graph.batch
    best: Draft | None = None
    for count in reversed(tuple(sub_batch_counts(workload, MINIMUM_MEMORY, 0, options))):
        smallest = UNLIMITED if best is None else best.assembled.arena_bytes
        if lower_bound(workload.training, samples=-(-batch // count)).bytes >= smallest:
            continue
        problem, decisions = decide(workload.problem(count, UNLIMITED), MINIMUM_MEMORY)
        if int(memory_bytes(problem, decisions).max()) >= smallest:
            continue  # no layout is smaller than what is live
        found = smallest_draft(workload, MINIMUM_MEMORY, count)
        if found.assembled.arena_bytes < smallest:
            best = found
    assert best is not None, "there is always a count to try"
    return best


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
        "arena": found.arena,
        "backend": found.train.problem.profile.backend,
        "batch_norm": options.batch_norm,
        "budget_bytes": str(budget),
        "candidate": found.candidate.name,
        "dropout": "train" if training.dropout else "off",
        "loss": training.loss or "default",
        "max_steps": str(options.max_steps),
        "policy": options.policy,
        "precision": options.precision,
        "recompute": options.recompute,
        "sub_batches": str(found.sub_batches),
        "workspace_bytes": "" if options.workspace is None else str(parse_bytes(options.workspace)),
    }
