"""Sweep: step time against memory: a model compiled at several batches and budgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache

from planc.candidates import compile_workload
from planc.errors import InfeasibleError, UsageError
from planc.options import DEFAULT_PROFILE, budget_bytes
from planc.parallel import Report, run_all
from planc.pipeline import Workload
from planc.source import Source
from planc.units import is_share, parse_bytes
from planc.yardsticks import Yardsticks, measure_yardsticks

DEFAULT_BUDGETS = "10%..100%"
POINTS = 10
"""In a range without a step."""

MOST_POINTS = 1000


@dataclass(frozen=True, slots=True)
class Point:
    """One batch at one budget.

    `budget`: as asked for. `makespan_ns` and what follows are of the plan; None where there is none.
    `plan_budget_bytes`: what the plan was compiled for: another budget, where compiling for this one gave nothing as
    fast. `smallest_budget_bytes`: where there is no plan, what planc needs.
    """

    batch: int
    budget: str
    budget_bytes: int
    keep_all_bytes: int
    ideal_ns: int
    makespan_ns: int | None = None
    arena_bytes: int | None = None
    offloaded_bytes: int | None = None
    recomputed_bytes: int | None = None
    sub_batches: int | None = None
    gap_ppm: int | None = None
    plan_budget_bytes: int | None = None
    smallest_budget_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Largest:
    """From `budget_bytes` up, `batch` is the largest of the batches of a sweep that has a plan."""

    budget_bytes: int
    batch: int


@dataclass(frozen=True, slots=True)
class Job:
    """A point to compile; plain data, for another process."""

    source: Source
    batch: int
    budget: str
    profile: str
    policy: str


def parse_budgets(text: str) -> tuple[str, ...]:
    """The budgets in a comma list of sizes and ranges: `4GB,60%`, `10%..100%`, `2GB..8GB/1GB`.

    Raises:
        UsageError: one has another form.
    """
    found = [budget for part in text.split(",") for budget in _budgets(part.strip())]
    if len(found) > MOST_POINTS:
        raise UsageError(
            f"--budgets {text!r}: {len(found)} budgets; wanted at most {MOST_POINTS}.", "Take larger steps."
        )
    return tuple(dict.fromkeys(found))


def _budgets(part: str) -> list[str]:
    first, dots, rest = part.partition("..")
    if not dots:
        parse_bytes(part, whole_bytes=1)
        return [part]
    last, slash, step_text = rest.partition("/")
    words = [first, last, step_text] if slash else [first, last]
    for word in words:
        parse_bytes(word, whole_bytes=1)
    shares = {is_share(word) for word in words}
    if len(shares) > 1:
        raise UsageError(f"--budgets {part!r}: shares and sizes in one range.", "Give 10%..100% or 2GB..8GB/1GB.")
    share = shares.pop()
    low, high, *steps = (Decimal(word[:-1]) if share else Decimal(parse_bytes(word)) for word in words)
    step = steps[0] if steps else (high - low) / (POINTS - 1)
    if step <= 0 or (high - low) / step > MOST_POINTS:
        raise UsageError(
            f"--budgets {part!r}: not a range with at most {MOST_POINTS} steps.", "Give LOW..HIGH or LOW..HIGH/STEP."
        )
    values = [low + step * i for i in range(int((high - low) / step + Decimal("1e-9")) + 1)]
    return [_text(value, share) for value in values]


def _text(value: Decimal, share: bool) -> str:
    rounded = value.quantize(Decimal("1e-6") if share else Decimal(1), ROUND_HALF_UP)
    return f"{rounded.normalize():f}%" if share else str(rounded)


def sweep(
    source: Source,
    *,
    budgets: Sequence[str],
    batches: Sequence[int | None] = (None,),
    profile: str = DEFAULT_PROFILE,
    policy: str = "auto",
    jobs: int = 1,
    report: Report | None = None,
) -> tuple[Point, ...]:
    """Compile every batch at every budget; points in the order of the batches, the budgets from small to large.

    A plan keeps to every budget from its arena up, so it stands for those where compiling finds none as fast: step time
    never rises with the budget.

    Args:
        batches: None = the model's own.
        jobs: how many processes share the work.

    Raises:
        PlancError: of model, profile or options; a budget without a plan is a point.
    """
    sizes = [source.graph().batch if batch is None else batch for batch in dict.fromkeys(batches)]
    calls = [Job(source, batch, budget, profile, policy) for batch in dict.fromkeys(sizes) for budget in budgets]
    return carry_forward(run_all(compile_point, calls, jobs, report))


def carry_forward(points: Iterable[Point]) -> tuple[Point, ...]:
    """Points sorted by budget within each batch, each with the fastest of all the batch's plans that keeps to it."""
    by_batch: dict[int, list[Point]] = {}
    for point in points:
        by_batch.setdefault(point.batch, []).append(point)
    return tuple(
        replace(_fastest_within(point, own), budget=point.budget, budget_bytes=point.budget_bytes)
        for own in by_batch.values()
        for point in sorted(own, key=lambda p: p.budget_bytes)
    )


def _fastest_within(point: Point, others: Sequence[Point]) -> Point:
    """The point with the fastest plan within `point`'s budget, itself if there is no faster one than its own."""
    plans = [(p.makespan_ns, p is not point, p.arena_bytes, p) for p in others if _fits(p, point.budget_bytes)]
    return min(plans, key=lambda found: found[:3])[3] if plans else point


def _fits(point: Point, size: int) -> bool:
    return point.arena_bytes is not None and point.arena_bytes <= size


def largest_batches(points: Sequence[Point]) -> tuple[Largest, ...]:
    """For every budget of the sweep from which on a larger batch has a plan: that batch."""
    found: list[Largest] = []
    for point in sorted(points, key=lambda p: (p.budget_bytes, -p.batch)):
        if point.makespan_ns is not None and (not found or point.batch > found[-1].batch):
            found.append(Largest(point.budget_bytes, point.batch))
    return tuple(found)


def compile_point(job: Job) -> Point:
    """Compile one point; the model is read once in every process."""
    known = _known(job.source, job.batch, job.profile)
    if known.yardsticks is not None and known.smallest_bytes is not None:
        wanted = budget_bytes(job.budget, known.workload.profile, known.yardsticks.keep_all_bytes)
        if wanted < known.smallest_bytes:
            return _without_plan(job, known.workload, known.yardsticks, known.smallest_bytes)
    try:
        plan = compile_workload(known.workload, job.source.options(budget=job.budget, policy=job.policy))
    except InfeasibleError as error:
        known.yardsticks = known.yardsticks or measure_yardsticks(known.workload)
        known.smallest_bytes = error.smallest_budget_bytes
        return _without_plan(job, known.workload, known.yardsticks, known.smallest_bytes)
    predicted = plan.predicted
    return Point(
        batch=job.batch,
        budget=job.budget,
        budget_bytes=plan.spaces.budget_bytes,
        keep_all_bytes=predicted.keep_all_bytes or 0,
        ideal_ns=predicted.ideal_ns or 0,
        makespan_ns=predicted.makespan_ns,
        arena_bytes=plan.spaces.arena_bytes,
        offloaded_bytes=predicted.offloaded_bytes,
        recomputed_bytes=predicted.recomputed_bytes,
        sub_batches=int(plan.provenance.options["sub_batches"]),
        gap_ppm=predicted.gap_ppm,
        plan_budget_bytes=plan.spaces.budget_bytes,
    )


def _without_plan(job: Job, workload: Workload, yardsticks: Yardsticks, smallest_bytes: int | None) -> Point:
    return Point(
        batch=job.batch,
        budget=job.budget,
        budget_bytes=budget_bytes(job.budget, workload.profile, yardsticks.keep_all_bytes),
        keep_all_bytes=yardsticks.keep_all_bytes,
        ideal_ns=yardsticks.ideal_ns,
        smallest_budget_bytes=smallest_bytes,
    )


@dataclass(slots=True)
class _Known:
    """What a process knows of a batch so far: the smallest budget, once one was too small."""

    workload: Workload
    yardsticks: Yardsticks | None = None
    smallest_bytes: int | None = None


@lru_cache(maxsize=4)
def _known(source: Source, batch: int, profile: str) -> _Known:
    return _Known(source.workload(batch, profile))
