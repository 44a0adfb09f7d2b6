"""Choice: candidates x sub-batch counts, each through the pipeline; the first that fits, or the fastest simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from planc.bounds import lower_bound
from planc.errors import InfeasibleError, UsageError
from planc.options import Options
from planc.passes.base import memory_bytes
from planc.passes.flow_milp import SolverFailure, relaxed_bound_ns
from planc.passes.sub_batch import largest_sub_batch, window_bytes
from planc.pipeline import UNLIMITED, Draft, HostMemoryError, Workload, decide, draft
from planc.policies import (
    MINIMUM_DEVICE,
    MINIMUM_MEMORY,
    POLICIES,
    Candidate,
    Policy,
    SubBatches,
    Take,
    with_recompute,
)
from planc.units import format_bytes, parse_bytes
from planc.yardsticks import Yardsticks, smallest_draft

GOOD_PERCENT = 110
"""Of the ideal time: a plan this fast with the whole batch is not worth solving the program for more sub-batches."""

FEW = (1, 2, 4)
"""Sub-batch counts that the flow program is solved for, all of them."""


def choose(
    workload: Workload, options: Options, budget: int, yardsticks: Yardsticks, warnings: list[str]
) -> tuple[Draft, int | None]:
    """The draft that the policy chooses, and the bound of its class over the sub-batch counts tried, if proven."""
    policy = POLICIES[options.policy]
    workspace = None if options.workspace is None else parse_bytes(options.workspace)
    best: Draft | None = None
    best_ns = UNLIMITED
    bounds: dict[int, int] = {}
    short_of_host = False
    for named in _allowed(policy, options):
        candidate = with_recompute(named, options.recompute)
        if best is not None and (policy.take is Take.FIRST or candidate.last_resort or best_ns == yardsticks.ideal_ns):
            break
        for count in sub_batch_counts(workload, candidate, budget, options, best_ns):
            if candidate.proves and best is not None:
                if count > FEW[-1] or best_ns * 100 <= yardsticks.ideal_ns * GOOD_PERCENT:
                    break
                bounds[count] = _cheap_bound(workload, candidate, count, options, budget, best_ns)
                if bounds[count] >= best_ns:
                    continue
            try:
                best = draft(workload, candidate, count, budget, below_ns=best_ns, workspace_bytes=workspace)
            except InfeasibleError as error:
                short_of_host |= isinstance(error, HostMemoryError)
                bounds |= {} if error.bound_ns is None else {count: error.bound_ns}
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
        raise _infeasible(workload, options, budget, short_of_host=short_of_host)
    in_class = best.sub_batches in bounds and not best.candidate.beyond_class
    return best, min(bounds.values()) if in_class else None


def _allowed(policy: Policy, options: Options) -> tuple[Candidate, ...]:
    """The candidates that put parameters and optimizer state where the options want them."""
    wanted = {"auto": (False, True), "always": (True,), "never": (False,)}[options.host_parameters]
    found = tuple(candidate for candidate in policy.candidates if bool(candidate.visits) in wanted)
    if not found:
        raise UsageError(
            f"host parameters 'always': policy {options.policy} keeps parameters on the device.", "Use --policy auto."
        )
    return found


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


def sub_batch_counts(
    workload: Workload, candidate: Candidate, budget: int, options: Options, below_ns: int = UNLIMITED
) -> Iterator[int]:
    """The sub-batch counts to try for a candidate, in order; moDNN's is left out where computing alone takes `below_ns`
    or more.
    """
    if options.sub_batches is not None:
        yield options.sub_batches
        return
    batch = workload.graph.batch
    allowed = max(1, options.max_steps // max(1, len(workload.training.launches)))
    if candidate.sub_batches is SubBatches.WHOLE:
        yield 1
    elif candidate.sub_batches is SubBatches.MODNN:
        # Smaller ranges only use the device less well (costs.py): computing alone takes no less in more sub-batches.
        count = largest_sub_batch(
            batch,
            budget,
            allowed,
            lambda count: window_bytes(workload.tasks(count), workload.profile.alignment),
            lambda count: sum(workload.problem(count, budget).costs.durations) < below_ns,
        )
        if count is not None:
            yield count
    elif candidate.sub_batches is SubBatches.FEW:
        yield from (count for count in (*FEW, 8, 16, 32, 64, 128) if count <= min(batch, allowed))
    else:
        yield from dict.fromkeys(min(2**k, batch) for k in range(batch.bit_length() + 1) if min(2**k, batch) <= allowed)


def smallest_budget(workload: Workload, options: Options) -> int:
    """The arena of the smallest plan of the minimum-memory procedure: compile succeeds from there up."""
    key = options.sub_batches, options.max_steps, options.host_parameters
    if key not in workload.smallest:
        workload.smallest[key] = minimum_memory(workload, options).arena_bytes
    return workload.smallest[key]


def minimum_memory(workload: Workload, options: Options) -> Draft:
    """The smallest plan of the minimum-memory procedure, which lets everything leave at once, with the smallest
    workspaces, in each of the sub-batch counts that there may be. Host memory is not bounded.

    The largest count comes first; others are built only as far as they can still need less.
    """
    batch = workload.graph.batch
    workload = replace(workload, host_bytes=UNLIMITED)
    best: Draft | None = None
    for candidate, count in product(smallest_candidates(options), _counts_downwards(workload, options)):
        smallest = UNLIMITED if best is None else best.arena_bytes
        resident = not candidate.visits
        if lower_bound(workload.training, samples=-(-batch // count), resident=resident).bytes >= smallest:
            continue
        problem, decisions = decide(workload.problem(count, UNLIMITED), candidate)
        if int(memory_bytes(problem, decisions).max()) >= smallest:
            continue  # no layout is smaller than what is live
        found = smallest_draft(workload, candidate, count)
        if found.arena_bytes < smallest:
            best = found
    assert best is not None, "there is always a count to try"
    return best


def smallest_candidates(options: Options) -> tuple[Candidate, ...]:
    """The candidates of the minimum-memory procedure, the one that needs less first."""
    both = {"auto": (MINIMUM_DEVICE, MINIMUM_MEMORY), "always": (MINIMUM_DEVICE,), "never": (MINIMUM_MEMORY,)}
    return both[options.host_parameters]


def _counts_downwards(workload: Workload, options: Options) -> tuple[int, ...]:
    return tuple(reversed(tuple(sub_batch_counts(workload, MINIMUM_MEMORY, 0, options))))


def _infeasible(workload: Workload, options: Options, budget: int, *, short_of_host: bool) -> InfeasibleError:
    smallest = smallest_budget(workload, options)
    bound = lower_bound(workload.training, resident=options.host_parameters == "never")
    if short_of_host:
        return InfeasibleError(
            f"planc found plans in {_size(budget)}, but none with host memory of {_size(workload.host_bytes)}.",
            "Use a larger --host-budget, or a larger --budget, so that less has to leave the device.",
            smallest_budget_bytes=smallest,
            bound_bytes=bound.bytes,
            node=bound.label,
        )
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
