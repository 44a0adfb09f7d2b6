"""Recomputation, copies in parts, inputs on the host, everything away: the same training to the last bit.

Each way of saving memory is taken through the whole flow on a small residual network and run on NumPy with poison and
chaos; its state must be that of the plan that keeps everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from trainings import batches, workload

from planc.finishing import finish
from planc.passes.base import Decisions, Problem, Rebuild, apply_passes, every_gap, gaps, memory_bytes
from planc.passes.conv_algorithm import ChooseEach, smallest
from planc.passes.gate import Gate
from planc.passes.inputs import HostInputs
from planc.passes.offload import OffloadEverything
from planc.passes.prefetch import AsEarlyAsFits
from planc.pipeline import UNLIMITED, Draft, Workload, draft_of
from planc.plan import BufferKind, Plan, Space, StepKind
from planc.policies import Candidate
from planc.rebuild import with_rebuilds
from planc.session import Session
from planc.verify import verify
from planc.yardsticks import Yardsticks, measure_yardsticks

SUB_BATCHES = (1, 3)
_CANDIDATE = Candidate("test", ())


@cache
def work() -> Workload:
    return workload("tiny_residual_cnn")


@cache
def yardsticks() -> Yardsticks:
    return measure_yardsticks(work())


def plan_of(problem: Problem, decisions: Decisions) -> Plan:
    made: Draft = draft_of(work(), _CANDIDATE, replace(problem, budget_bytes=UNLIMITED), decisions)
    plan = finish(work(), made, UNLIMITED, {}, yardsticks())
    assert verify(plan) == ()
    return plan


def state(plan: Plan, **switches: object) -> str:
    session = Session(plan, work().graph, **switches)  # type: ignore[arg-type]
    for batch in batches(work(), 2):
        session.step(batch)
    return session.state_sha256()


def kept(sub_batches: int) -> tuple[Problem, Decisions]:
    problem = work().problem(sub_batches, UNLIMITED)
    return problem, apply_passes(problem, (ChooseEach(smallest),))


@cache
def kept_state(sub_batches: int) -> str:
    return state(plan_of(*kept(sub_batches)))


def normalised(problem: Problem) -> Iterator[Rebuild]:
    """Rebuild every activation that batch norm and ReLU made of what is kept, just before it is wanted."""
    wanted = {piece.index for piece, _, _ in gaps(problem)}
    for piece, leaves, needed_by in gaps(problem):
        recipe = [task for task in piece.written if task <= leaves]
        launches = [problem.tasks.launch(problem.tasks.tasks[task]).op for task in recipe]
        reads = {use.piece for task in recipe for use in problem.tasks.tasks[task].reads} - {piece.index}
        there = all(read in wanted or problem.tasks.pieces[read].persistent for read in reads)
        if launches == ["BatchNormNormalize", "Relu"] and there:
            yield Rebuild(piece.index, leaves, needed_by, needed_by, tuple(recipe))


def check(plan: Plan, sub_batches: int) -> None:
    assert state(plan) == kept_state(sub_batches)
    assert state(plan, poison=True, chaos=1) == kept_state(sub_batches)


@pytest.mark.parametrize("sub_batches", SUB_BATCHES)
def test_recomputation_changes_no_bit_and_saves_memory(sub_batches: int) -> None:
    problem, decisions = kept(sub_batches)
    rebuilds = tuple(normalised(problem))
    assert len(rebuilds) >= 3
    made = with_rebuilds(problem, replace(decisions, rebuilds=rebuilds))
    again = [task for task in made.problem.tasks.tasks if task.again]
    assert len(again) == 2 * len(rebuilds)
    assert memory_bytes(made.problem, made.decisions).max() < memory_bytes(problem, decisions).max()
    check(plan_of(made.problem, made.decisions), sub_batches)


@pytest.mark.parametrize("sub_batches", SUB_BATCHES)
def test_running_statistics_are_updated_once_under_recomputation(sub_batches: int) -> None:
    problem, decisions = kept(sub_batches)
    made = with_rebuilds(problem, replace(decisions, rebuilds=tuple(normalised(problem))))
    plan = plan_of(made.problem, made.decisions)
    statistics = {item.buffer for item in plan.model.persistent if item.kind is BufferKind.STATISTIC}
    written = [access.buffer for step in plan.train.steps for access in step.writes if access.buffer in statistics]
    assert sorted(written) == sorted(statistics)


@pytest.mark.parametrize("sub_batches", SUB_BATCHES)
@pytest.mark.parametrize("share", [85, 70])
def test_copies_in_parts_keep_to_the_budget(sub_batches: int, share: int) -> None:
    """Parts of 4 KiB, so that activations of this small network fall into several."""
    problem, decisions = kept(sub_batches)
    problem = replace(problem, budget_bytes=int(memory_bytes(problem, decisions).max()) * share // 100)
    timed = apply_passes(problem, (Gate(part_bytes=4096), AsEarlyAsFits()), decisions)
    assert len({offload.piece for offload in timed.offloads}) < len(timed.offloads)
    assert memory_bytes(problem, timed).max() <= problem.budget_bytes
    check(plan_of(problem, timed), sub_batches)


def test_what_nobody_waits_for_stays() -> None:
    problem, decisions = kept(1)
    assert apply_passes(problem, (Gate(),), decisions).offloads == ()


@pytest.mark.parametrize("sub_batches", SUB_BATCHES)
def test_inputs_on_the_host_take_no_device_memory_before_they_are_wanted(sub_batches: int) -> None:
    problem, decisions = kept(sub_batches)
    plan = plan_of(problem, apply_passes(problem, (HostInputs(),), decisions))
    for port in (*plan.model.inputs, *plan.model.labels):
        assert all(plan.buffers[buffer].space is Space.HOST for buffer in port.train)
    assert not any(step.kind is StepKind.OFFLOAD for step in plan.train.steps)
    check(plan, sub_batches)


@pytest.mark.parametrize("sub_batches", SUB_BATCHES)
def test_everything_away_is_the_least_memory(sub_batches: int) -> None:
    problem, decisions = kept(sub_batches)
    passes = (OffloadEverything(), HostInputs())
    away = apply_passes(problem, passes, decisions)
    assert {offload.leaves for offload in away.offloads if offload.leaves >= 0} == {
        before for _, before, _ in every_gap(problem)
    }
    assert memory_bytes(problem, away).max() < memory_bytes(problem, decisions).max() * 0.7
    check(plan_of(problem, away), sub_batches)
