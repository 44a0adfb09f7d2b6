"""The schedule: lanes, the waits that data and memory need and no others, stays of buffers."""

from __future__ import annotations

from functools import cache

import pytest
from trainings import workload

from planc.errors import InternalError
from planc.passes.base import Decisions, Offload, Problem, apply_passes, gaps
from planc.passes.conv_algorithm import ChooseEach, fastest
from planc.passes.offload import OffloadWith, any_piece, leave_at_once
from planc.passes.prefetch import OneLayerAhead
from planc.pipeline import UNLIMITED
from planc.plan import Lane, StepKind
from planc.schedule import Schedule, ScheduledStep, make_schedule
from planc.tasks import Piece


@cache
def problem(sub_batches: int = 1) -> Problem:
    return workload("tiny_residual_cnn", batch=6).problem(sub_batches, UNLIMITED)


def kept() -> Decisions:
    return apply_passes(problem(), (ChooseEach(fastest),))


def moved(*offloads: Offload) -> Schedule:
    return make_schedule(problem(), Decisions(kept().configurations, offloads))


def a_gap() -> tuple[Piece, int, int]:
    """The longest time that an activation is not wanted."""
    return max((gap for gap in gaps(problem()) if gap[0].written), key=lambda gap: gap[2] - gap[1])


def step(schedule: Schedule, kind: StepKind, task: int | None = None) -> ScheduledStep:
    (found,) = (s for s in schedule.steps if s.kind is kind and s.task == task)
    return found


def launch(schedule: Schedule, task: int) -> int:
    return step(schedule, StepKind.LAUNCH, task).id


def test_without_copies_there_is_one_lane_and_no_wait() -> None:
    schedule = make_schedule(problem(), kept())
    assert [s.task for s in schedule.steps] == list(range(len(problem().tasks.tasks)))
    assert {s.lane for s in schedule.steps} == {Lane.COMPUTE}
    assert not any(s.waits for s in schedule.steps)
    assert schedule.makespan_ns() == sum(s.duration_ns for s in schedule.steps)


def test_the_waits_of_one_offload_and_its_prefetch() -> None:
    """Copy out after the task that wrote; the task that may take the memory after the copy out; copy in when the task
    before its begin has been; the task that needs it after the copy in."""
    piece, leaves, needed_by = a_gap()
    freed_by, returns = leaves + 2, needed_by - 2
    made = max(task for task in piece.written if task <= leaves)
    schedule = moved(Offload(piece.index, 0, piece.bytes, made, leaves, freed_by, returns, needed_by))
    out, into = step(schedule, StepKind.OFFLOAD), step(schedule, StepKind.PREFETCH)
    assert (out.lane, into.lane) == (Lane.D2H, Lane.H2D)
    assert out.waits == (launch(schedule, made),)
    assert into.waits == (launch(schedule, returns - 1),)
    assert out.id in schedule.steps[launch(schedule, freed_by)].waits
    assert schedule.steps[launch(schedule, needed_by)].waits == (into.id,)
    assert sum(len(s.waits) for s in schedule.steps) == 4
    costs = problem().costs
    assert (out.duration_ns, into.duration_ns) == (costs.d2h_ns(piece.bytes), costs.h2d_ns(piece.bytes))


def test_the_stays_of_what_was_away() -> None:
    piece, leaves, needed_by = a_gap()
    offload = leave_at_once(piece, leaves, needed_by)
    schedule = moved(offload)
    before, behind = (stay for stay in schedule.stays if stay.piece == piece.index)
    out, into = step(schedule, StepKind.OFFLOAD), step(schedule, StepKind.PREFETCH)
    assert before.parts[0].born == launch(schedule, piece.born)
    assert set(before.parts[0].freed) == {out.id, launch(schedule, leaves)}
    assert (before.parts[0].start, before.parts[0].end) == (piece.born, leaves + 1)
    assert behind.parts[0].born == into.id
    assert behind.parts[0].freed == (launch(schedule, piece.uses[-1]),)
    assert (behind.parts[0].start, behind.parts[0].end) == (needed_by, piece.uses[-1] + 1)


def test_a_piece_in_parts_leaves_in_order_and_each_part_frees_its_own_bytes() -> None:
    piece, leaves, needed_by = a_gap()
    half = piece.bytes // 2
    parts = [
        Offload(piece.index, first, half, leaves - 1, leaves, leaves + 1 + n, needed_by - n, needed_by)
        for n, first in enumerate((0, half))
    ]
    schedule = moved(*parts)
    outs = [s for s in schedule.steps if s.kind is StepKind.OFFLOAD]
    assert [s.offload for s in outs] == [0, 1]
    before = next(stay for stay in schedule.stays if stay.piece == piece.index)
    assert [(part.first, part.end) for part in before.parts] == [(0, leaves + 1), (half, leaves + 2)]
    assert before.bytes == piece.bytes
    needed = schedule.steps[launch(schedule, needed_by)]
    last = max(s.id for s in schedule.steps if s.kind is StepKind.PREFETCH)
    assert needed.waits == (last,), "the lane already says that the other part came before"


def test_the_makespan_is_the_end_of_the_last_lane() -> None:
    """Trailing copies count; a wait delays."""
    decisions = apply_passes(problem(), (ChooseEach(fastest), OffloadWith(any_piece), OneLayerAhead()))
    schedule = make_schedule(problem(), decisions)
    ends: dict[int, int] = {}
    for s in schedule.steps:
        same_lane = [ends[o.id] for o in schedule.steps[: s.id] if o.lane is s.lane]
        ends[s.id] = max([0, *same_lane, *(ends[w] for w in s.waits)]) + s.duration_ns
    assert schedule.makespan_ns() == max(ends.values())
    assert schedule.makespan_ns() > sum(s.duration_ns for s in schedule.steps if s.lane is Lane.COMPUTE)


@pytest.mark.parametrize("sub_batches", [1, 3])
def test_steps_come_after_what_they_wait_for(sub_batches: int) -> None:
    decisions = apply_passes(problem(sub_batches), (ChooseEach(fastest), OffloadWith(any_piece), OneLayerAhead()))
    schedule = make_schedule(problem(sub_batches), decisions)
    kinds = [s.kind for s in schedule.steps]
    assert kinds.count(StepKind.OFFLOAD) == kinds.count(StepKind.PREFETCH) == len(decisions.offloads) > 5
    for number, s in enumerate(schedule.steps):
        assert s.id == number
        assert all(wait < number and schedule.steps[wait].lane is not s.lane for wait in s.waits)
        assert len(s.waits) == len({schedule.steps[wait].lane for wait in s.waits}), "one wait a lane says it all"


def test_a_workspace_lives_for_its_call() -> None:
    schedule = make_schedule(problem(), kept())
    workspaces = {stay.task: stay for stay in schedule.stays if stay.task is not None}
    wanted = {t for t, c in enumerate(kept().configurations) if c is not None and c.workspace_bytes}
    assert set(workspaces) == wanted
    assert wanted
    for task, stay in workspaces.items():
        (part,) = stay.parts
        assert (part.start, part.end, part.born, part.freed) == (task, task + 1, task, (task,))


def test_what_never_returns_is_a_bug() -> None:
    piece, leaves, needed_by = a_gap()
    beyond = len(problem().tasks.tasks) + 5
    with pytest.raises(InternalError, match="never returns"):
        moved(Offload(piece.index, 0, piece.bytes, leaves - 1, leaves, leaves + 1, beyond, needed_by))
