"""Waits taken out of real plans one at a time (field cases C1, C2): the verifier misses every one that can change a
result, and one that it does not miss changes nothing, however late the steps around it are.

A schedule writes no wait that lanes and other waits already imply. Some order nothing all the same: a task waits for
the copies out that free what it may take, whether or not the layout then puts something there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest
from trainings import batches, compiled, train, workload

from planc.pipeline import Workload
from planc.plan import Lane, Plan, Program, Step
from planc.verify import verify

LATE_S = 0.03
"""Longer than any three steps of these plans take."""

TRIED = 12
"""Of the waits that the verifier does not miss so many are tried, evenly spread over the plan."""

KINDS = {
    "whole batch": {"policy": "vdnn-all"},
    "convolutions": {"policy": "vdnn-conv"},
    "3 sub-batches": {"policy": "vdnn-all", "sub_batches": 3},
    "state on the host": {"budget": "60%", "host_parameters": "always"},
    "parameters on the host": {"budget": "smallest", "sub_batches": 2},
}


@dataclass(frozen=True)
class Removal:
    """A plan without one wait: step `step` no longer waits for step `wait`."""

    step: int
    wait: int
    plan: Plan


def removals(plan: Plan) -> Iterator[Removal]:
    for step in plan.train.steps:
        for wait in step.waits:
            yield Removal(step.id, wait, with_waits(plan, step.id, [w for w in step.waits if w != wait]))


def with_waits(plan: Plan, number: int, waits: list[int]) -> Plan:
    steps = list(plan.train.steps)
    steps[number] = replace(steps[number], waits=tuple(waits))
    return replace(plan, programs=MappingProxyType({**plan.programs, "train": Program(tuple(steps))}))


def made(kind: str) -> tuple[Workload, Plan]:
    work = workload("tiny_residual_cnn", batch=6)
    plan = compiled(work, **KINDS[kind])  # type: ignore[arg-type]
    assert verify(plan) == ()
    return work, plan


def ends_before(steps: tuple[Step, ...]) -> list[set[int]]:
    """For every step all steps that have ended when it starts: the closure, written out. Slow, and its own."""
    found: list[set[int]] = []
    last: dict[Lane, int] = {}
    for step in steps:
        direct = {*step.waits, *([last[step.lane]] if step.lane in last else [])}
        found.append(direct.union(*(found[other] for other in direct)))
        last[step.lane] = step.id
    return found


def redundant_waits(steps: tuple[Step, ...]) -> list[tuple[int, int]]:
    """(step, wait) where the lane or the step's other waits already imply the wait."""
    found = []
    before = ends_before(steps)
    last: dict[Lane, int] = {}
    for step in steps:
        direct = {*step.waits, *([last[step.lane]] if step.lane in last else [])}
        found += [(step.id, w) for w in step.waits if any(w in before[other] for other in direct - {w})]
        found += [(step.id, w) for w in step.waits if steps[w].lane is step.lane]
        last[step.lane] = step.id
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_plans_have_no_redundant_wait(kind: str) -> None:
    _, plan = made(kind)
    for program in plan.programs.values():
        assert redundant_waits(program.steps) == []
    assert sum(len(step.waits) for step in plan.train.steps) > 20


def test_a_redundant_wait_is_found() -> None:
    _, plan = made("whole batch")
    steps = plan.train.steps
    step = next(step for step in steps if step.lane == Lane.H2D and step.waits)
    earlier = next(other.id for other in steps if other.lane == Lane.COMPUTE)
    assert earlier not in step.waits
    assert redundant_waits(with_waits(plan, step.id, [earlier, *step.waits]).train.steps) == [(step.id, earlier)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_removed_wait_is_missed_or_harmless(kind: str) -> None:
    work, plan = made(kind)
    accepted = [removal for removal in removals(plan) if not verify(removal.plan)]
    assert len(accepted) < 0.8 * sum(len(step.waits) for step in plan.train.steps)
    data = batches(work, 1)
    expected = train(plan, work, data).state_sha256
    for removal in accepted[:: len(accepted) // TRIED + 1]:
        for late in late_sides(removal):
            state = train(removal.plan, work, data, directed=late).state_sha256
            assert state == expected, f"step {removal.step} does need its wait for step {removal.wait}"


def late_sides(removal: Removal) -> tuple[dict[int, float], ...]:
    """Delays directed at the ends of the removed wait: the step waited for comes late, or the one that waits does."""
    return {removal.wait: LATE_S}, {removal.step: LATE_S}


def test_directed_delays_do_reveal_a_missing_wait() -> None:
    """What the runs above are worth: without waits that the verifier misses, the result really changes."""
    work, plan = made("whole batch")
    steps = plan.train.steps
    data = batches(work, 1)
    expected = train(plan, work, data).state_sha256
    back = [r for r in removals(plan) if (steps[r.wait].lane, steps[r.step].lane) == (Lane.H2D, Lane.COMPUTE)]
    away = [r for r in removals(plan) if (steps[r.wait].lane, steps[r.step].lane) == (Lane.COMPUTE, Lane.D2H)]
    for removal in (back[0], back[-1], away[0], away[-1]):
        assert verify(removal.plan)
        assert train(removal.plan, work, data, directed={removal.wait: LATE_S}).state_sha256 != expected
