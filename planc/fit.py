"""Fit: on which devices a batch can be trained, at what price, and which batch is the largest there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import product

from planc.bounds import lower_bound
from planc.candidates import compile_workload
from planc.choice import smallest_candidates, sub_batch_counts
from planc.collection import no_cyclic_collection
from planc.errors import InfeasibleError, ModelError
from planc.options import budget_bytes
from planc.parallel import Report, run_all
from planc.passes.base import memory_bytes
from planc.pipeline import UNLIMITED, Workload, decide, draft
from planc.policies import KEEP_ALL, MINIMUM_MEMORY
from planc.profile import Profile, load_profile, profile_names
from planc.source import Source
from planc.yardsticks import smallest_draft

UP_TO = 4096
"""The largest batch that is looked for, unless told otherwise."""


class Verdict(StrEnum):
    """How a batch fits a device."""

    AS_IT_IS = "fits as it is"
    WITH_PLAN = "fits with a plan"
    NOT = "does not fit"


@dataclass(frozen=True, slots=True)
class Answer:
    """One device. `budget_bytes`: what it has beyond its reserve.

    makespan_ns, arena_bytes: of the plan, None where there is none; then `smallest_budget_bytes` is what it would take.
    largest_as_it_is, largest_with_plan: the largest batch up to `up_to` that keeps everything resident with the fastest
    algorithms, and the largest one that planc finds any plan for; 0 = not even one sample; None = the model's batch
    cannot be changed.
    """

    profile: str
    title: str
    estimated: bool
    batch: int
    budget_bytes: int
    verdict: Verdict
    keep_all_bytes: int
    ideal_ns: int
    makespan_ns: int | None
    arena_bytes: int | None
    smallest_budget_bytes: int | None
    largest_as_it_is: int | None
    largest_with_plan: int | None
    up_to: int


@dataclass(frozen=True, slots=True)
class _Job:
    """One device to try; plain data, for another process."""

    source: Source
    batch: int
    profile: str
    policy: str
    up_to: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Devices whose plans of least memory are the same, for another process."""

    source: Source
    batch: int
    profiles: tuple[str, ...]
    up_to: int


def gpu_profiles() -> tuple[str, ...]:
    """Names of the shipped profiles of GPUs."""
    return tuple(name for name in profile_names() if load_profile(name).backend == "cudnn")


def fit(
    source: Source,
    *,
    batch: int | None = None,
    profiles: Sequence[str] = (),
    policy: str = "auto",
    up_to: int = UP_TO,
    jobs: int = 1,
    report: Report | None = None,
) -> tuple[Answer, ...]:
    """Try a batch on every device, those with least memory first.

    Args:
        batch: None = the model's own.
        profiles: names or files; none = every GPU that planc ships.
        jobs: how many processes share the work.

    Raises:
        PlancError: of model, profile or options; a device that the batch does not fit is an answer.
    """
    devices = {name: load_profile(name) for name in profiles or gpu_profiles()}
    names = sorted(devices, key=lambda name: (_room(devices[name]), name))
    size = source.graph().batch if batch is None else batch
    up_to = max(up_to, size)
    groups: dict[tuple[object, ...], list[str]] = {}
    for name in names:
        groups.setdefault(_memory_key(devices[name]), []).append(name)
    # The slowest first: least memory takes the longest search, and a group has several devices.
    calls: list[_Job | _Group] = [_Group(source, size, tuple(own), up_to) for own in groups.values()]
    calls += [_Job(source, size, name, policy, up_to) for name in names]
    results = run_all(_do, calls, jobs, report)
    largest = {name: found for result in results if isinstance(result, dict) for name, found in result.items()}
    answers = (result for result in results if isinstance(result, Answer))
    return tuple(replace(a, largest_with_plan=largest[name]) for name, a in zip(names, answers, strict=True))


def _do(call: _Job | _Group) -> Answer | dict[str, int | None]:
    with no_cyclic_collection():
        return _with_least_memory(call) if isinstance(call, _Group) else _answer(call)


def _room(profile: Profile) -> int:
    return budget_bytes(None, profile, 0)


def _memory_key(profile: Profile) -> tuple[object, ...]:
    """The plan of least memory depends on these fields alone: which algorithms there are, not how fast they are."""
    offered = tuple((name, tuple(sorted(calls))) for name, calls in sorted(profile.algorithms.items()))
    return profile.backend, profile.alignment, offered


@dataclass(frozen=True, slots=True)
class _Batches:
    """The workloads of a model at any batch, on one device."""

    source: Source
    profile: str
    known: dict[int, Workload] = field(default_factory=dict)

    def __call__(self, batch: int) -> Workload:
        if batch not in self.known:
            self.known[batch] = self.source.workload(batch, self.profile)
        return self.known[batch]

    def movable(self, batch: int) -> bool:
        """Whether the model can have another batch than `batch`."""
        try:
            self(batch + 1)
        except ModelError:
            return False
        return True


def _answer(job: _Job) -> Answer:
    """All about one device but the largest batch with a plan."""
    batches = _Batches(job.source, job.profile)
    workload = batches(job.batch)
    room = _room(workload.profile)
    kept = smallest_draft(workload, KEEP_ALL, 1)
    keep_all = kept.arena_bytes
    ideal = kept.train.schedule.makespan_ns()
    makespan, arena, smallest = None, None, None
    if keep_all <= room:
        verdict, makespan, arena = Verdict.AS_IT_IS, ideal, keep_all
    else:
        try:
            plan = compile_workload(workload, job.source.options(policy=job.policy))
            verdict, makespan, arena = Verdict.WITH_PLAN, plan.predicted.makespan_ns, plan.spaces.arena_bytes
        except InfeasibleError as error:
            verdict, smallest = Verdict.NOT, error.smallest_budget_bytes
    largest = None
    if batches.movable(job.batch):
        largest = largest_batch(
            lambda batch: _keep_all_peak(batches(batch)),
            lambda batch: smallest_draft(batches(batch), KEEP_ALL, 1).arena_bytes <= room,
            room,
            job.up_to,
            known=job.batch if keep_all <= room else 0,
        )
    return Answer(
        profile=workload.profile.name,
        title=workload.profile.title,
        estimated=workload.profile.estimated,
        batch=job.batch,
        budget_bytes=room,
        verdict=verdict,
        keep_all_bytes=keep_all,
        ideal_ns=ideal,
        makespan_ns=makespan,
        arena_bytes=arena,
        smallest_budget_bytes=smallest,
        largest_as_it_is=largest,
        largest_with_plan=None,
        up_to=job.up_to,
    )


def _keep_all_peak(workload: Workload) -> int:
    """No arena that keeps everything resident is smaller."""
    return int(memory_bytes(*decide(workload.problem(1, UNLIMITED), KEEP_ALL)).max())


def _with_least_memory(group: _Group) -> dict[str, int | None]:
    """The largest batch with a plan for each device of a group, which is in the order of their memory.

    What fits a device fits those behind it, so most searches are short.
    """
    found: dict[str, int | None] = {}
    batches = _Batches(group.source, group.profiles[0])
    if not batches.movable(group.batch):
        return dict.fromkeys(group.profiles)
    least = 0
    for name in group.profiles:
        room = _room(load_profile(name))
        least = largest_batch(
            lambda batch: _least_memory(batches(batch), group.source),
            partial(_fits_at_least, batches, room),
            room,
            group.up_to,
            known=least,
        )
        found[name] = least
    return found


def _counts(workload: Workload, source: Source) -> tuple[int, ...]:
    return tuple(sub_batch_counts(workload, MINIMUM_MEMORY, 0, source.options()))


def _least_memory(workload: Workload, source: Source) -> int:
    """No plan of the sub-batch counts that are tried needs less."""
    largest_count = max(_counts(workload, source))
    return lower_bound(workload.training, samples=-(-workload.graph.batch // largest_count)).bytes


def _fits_at_least(batches: _Batches, room: int, batch: int) -> bool:
    """Whether the minimum-memory procedure finds a plan in `room` bytes."""
    workload = batches(batch)
    candidates = smallest_candidates(batches.source.options())
    for candidate, count in product(candidates, _counts(workload, batches.source)):
        samples = -(-workload.graph.batch // count)
        if lower_bound(workload.training, samples=samples, resident=not candidate.visits).bytes > room:
            continue
        try:
            draft(workload, candidate, count, room)
        except InfeasibleError:
            continue
        return True
    return False


def largest_batch(
    needs: Callable[[int], int], fits: Callable[[int], bool], room: int, up_to: int, *, known: int = 0
) -> int:
    """The largest batch up to `up_to` that fits, 0 if there is none.

    Args:
        needs: bytes that a batch needs at least; cheap, and close to what it really needs. Grows with the batch.
        fits: whether a batch really fits; dear. Asked from where `needs` says that the end must be.
        known: a batch that fits (0 always does).
    """
    low, high = known, _last_within(needs, room, known, up_to) + 1
    step = 1
    while high - low > 1:
        batch = max(high - step, low + 1) if low == known else (low + high) // 2
        if fits(batch):
            low = batch
        else:
            high, step = batch, 2 * step
    return low


def _last_within(needs: Callable[[int], int], room: int, low: int, high: int) -> int:
    """The last batch in [low, high] that needs at most `room`; `low` is taken to.

    Interpolation finds it at once where bytes grow evenly with the batch; where that does not halve what is left, the
    middle does.
    """
    if low >= high:
        return low
    below, above = (needs(low) if low else 0), needs(high)
    if above <= room:
        return high
    while high - low > 1:
        left = high - low
        guess = low + left * (room - below) // (above - below)
        for batch in (guess, guess + 1, (low + high) // 2):
            if low < batch < high and (batch in (guess, guess + 1) or 2 * (high - low) > left):
                value = needs(batch)
                if value <= room:
                    low, below = batch, value
                else:
                    high, above = batch, value
    return low
