"""The simulator against timelines worked out by hand, and against a slow second opinion."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import verify_plans as plans
from verify_plans import Draft, bare_model, chain_plan, edit_buffer, edit_extent, edit_step, training_plan, with_steps

from planc.errors import VerificationError
from planc.plan import BufferKind, Lane, Plan, Space, StepKind
from planc.simulate import Stall, Timeline, simulate


def _blocks(
    *stays: tuple[int, int | None, tuple[int, ...]], durations: tuple[int, ...], kind: str = "activation"
) -> Plan:
    """Compute steps of the given durations, and buffers of (bytes, born, freed) somewhere."""
    d = Draft(1)
    for size, born, freed in stays:
        d.buffer(BufferKind(kind), [], size, (0, born, freed))
    for duration in durations:
        d.launch("Step", [], [], duration_ns=duration)
    return d.plan(bare_model(1), 1000, 0)


def test_lanes_waits_and_durations() -> None:
    """Copies take 25 ns, launches 10. The offloads run beside the compute lane until Relu waits for the last one."""
    timeline = simulate(training_plan())
    at = dict(enumerate(zip(timeline.start_ns, timeline.end_ns, strict=True)))
    assert at[plans.RELU_ONE] == (40, 50)
    assert at[plans.OUT_FIRST] == (50, 75)
    assert at[plans.H_TWO_MADE] == (50, 60)
    assert at[plans.OUT_SECOND] == (75, 100)
    assert at[plans.OUT_TWO] == (100, 125)
    assert at[plans.RELU_TWO] == (125, 135)
    assert at[plans.GRAD_TWO] == (145, 155)
    assert at[plans.BACK] == (155, 180)
    assert at[plans.DW_TWO] == (155, 165)
    assert at[plans.LOSS_ONE] == (180, 190)
    assert at[plans.UPDATE] == (210, 220)
    assert timeline.makespan_ns == 220
    assert timeline.busy_ns == {Lane.COMPUTE: 140, Lane.D2H: 75, Lane.H2D: 25}
    assert timeline.stalls == (
        Stall(plans.RELU_TWO, plans.OUT_TWO, 65),
        Stall(plans.LOSS_ONE, plans.BACK, 15),
    )


def test_the_programs_have_their_own_timelines() -> None:
    timeline = simulate(training_plan(), "evaluate")
    assert timeline.program == "evaluate"
    assert timeline.makespan_ns == 20
    assert timeline.stalls == ()
    # w, m, r = 132 bytes; x 64 until the product has ended; h, then y in its place, to the end.
    assert timeline.curve == ((0, 260), (10, 196))
    assert timeline.peak_bytes == 260
    assert timeline.bytes_by_kind == {
        BufferKind.PARAMETER: 64,
        BufferKind.STATE: 64,
        BufferKind.STATISTIC: 4,
        BufferKind.INPUT: 64,
        BufferKind.OUTPUT: 64,
    }


def test_a_trailing_copy_counts_in_the_makespan() -> None:
    plan = training_plan()
    last = plan.train.steps[plans.OUT_TWO]
    plan = with_steps(plan, (*plan.train.steps, replace(last, id=18, waits=(plans.UPDATE,))))
    assert simulate(plan).makespan_ns == 220 + 25


def test_a_stall_names_the_step_that_ended_last() -> None:
    plan = edit_step(training_plan(), plans.LOSS_ONE, waits=(plans.OUT_TWO, plans.BACK, plans.OUT_FIRST))
    assert simulate(plan).stalls[-1] == Stall(plans.LOSS_ONE, plans.BACK, 15)


def test_lives_are_half_open() -> None:
    """What is freed when a step ends and what is born when the next one starts are not there together."""
    timeline = simulate(_blocks((100, 0, (0,)), (70, 1, (1,)), durations=(5, 5)))
    assert timeline.curve == ((0, 100), (5, 70), (10, 0))
    assert (timeline.peak_bytes, timeline.peak_ns) == (100, 0)


def test_the_last_of_several_steps_frees() -> None:
    timeline = simulate(_blocks((100, None, (2, 0)), durations=(5, 5, 5)))
    assert timeline.curve == ((0, 100), (15, 0))


def test_what_is_never_freed_lives_to_the_end() -> None:
    timeline = simulate(_blocks((100, None, ()), (1, 1, ()), durations=(5, 5)))
    assert timeline.curve == ((0, 100), (5, 101))
    assert (timeline.peak_bytes, timeline.peak_ns) == (101, 5)


def test_steps_that_take_no_time_hold_their_memory() -> None:
    timeline = simulate(_blocks((100, 1, (1,)), (30, 0, (2,)), durations=(5, 0, 5)))
    assert timeline.curve == ((0, 30), (5, 130), (5, 30), (10, 0))
    assert (timeline.peak_bytes, timeline.peak_ns) == (130, 5)


def test_steps_that_take_no_time_free_before_those_after_them() -> None:
    timeline = simulate(_blocks((100, 0, (0,)), (100, 1, (1,)), durations=(0, 0)))
    assert timeline.peak_bytes == 100
    assert timeline.curve == ((0, 100), (0, 0))


def test_what_leaves_and_returns_is_there_twice_or_not_at_all() -> None:
    d = Draft(1)
    d.buffer(BufferKind.ACTIVATION, [], 10, (0, 0, (1,)), (0, 3, (4,)))
    for kind, waits in (
        (StepKind.LAUNCH, ()),
        (StepKind.OFFLOAD, (0,)),
        (StepKind.LAUNCH, ()),
        (StepKind.PREFETCH, (2, 1)),
        (StepKind.LAUNCH, (3,)),
    ):
        d.step(kind, "step", [], [], waits=waits, duration_ns=10)
    plan = d.plan(bare_model(1), 100, 0)
    timeline = simulate(plan)
    # It has left at 20 and comes back at 20; there is a gap only if the copy back starts later.
    assert timeline.curve == ((0, 10), (40, 0))
    assert timeline.peak_bytes == 10
    assert simulate(edit_step(plan, 2, duration_ns=15)).curve == ((0, 10), (20, 0), (25, 10), (45, 0))


def test_host_memory_and_the_other_program_are_not_in_the_arena() -> None:
    plan = training_plan()
    peak = simulate(plan).peak_bytes
    more = edit_buffer(edit_extent(plan, plans.HOST_ONE, bytes=10**6), plans.HOST_TWO, bytes=10**6)
    other = next(buffer.id for buffer in plan.buffers if buffer.program == "evaluate")
    assert simulate(edit_extent(more, other, bytes=10**6)).peak_bytes == peak


@pytest.mark.parametrize("plan", [training_plan(), chain_plan(9)], ids=["training", "chain"])
def test_the_peak_is_what_counting_at_every_instant_finds(plan: Plan) -> None:
    timeline = simulate(plan)
    live = {time_ns: _live(plan, timeline, time_ns) for time_ns in range(timeline.makespan_ns)}
    assert timeline.peak_bytes == max(live.values())
    assert timeline.peak_ns == min(time_ns for time_ns, size in live.items() if size == timeline.peak_bytes)
    assert sum(timeline.bytes_by_kind.values()) == timeline.peak_bytes
    for (start, size), (stop, _) in zip(timeline.curve, (*timeline.curve[1:], (timeline.makespan_ns, 0)), strict=True):
        assert {live[time_ns] for time_ns in range(start, stop)} <= {size}
    assert timeline.peak_bytes <= plan.spaces.arena_bytes


def _live(plan: Plan, timeline: Timeline, time_ns: int) -> int:
    """Bytes alive at an instant, counted one extent at a time."""
    total = 0
    for buffer in plan.buffers:
        for extent in buffer.extents:
            start = 0 if extent.born is None else timeline.start_ns[extent.born]
            stop = max((timeline.end_ns[f] for f in extent.freed), default=timeline.makespan_ns + 1)
            counted = buffer.space is Space.ARENA and buffer.program in ("train", "all")
            total += extent.bytes * (counted and start <= time_ns < stop)
    return total


def test_a_wait_that_never_ends_is_an_error_not_a_hang() -> None:
    plan = training_plan()
    with pytest.raises(VerificationError, match="step 12 waits for step 14, which does not come before it"):
        simulate(edit_step(plan, plans.BACK, waits=(plans.LOSS_ONE,)))
    with pytest.raises(VerificationError, match="step 12 waits for step 12"):
        simulate(edit_step(plan, plans.BACK, waits=(plans.BACK,)))
    with pytest.raises(VerificationError, match="step 12 waits for step -1"):
        simulate(edit_step(plan, plans.BACK, waits=(-1,)))


def test_a_life_by_a_step_there_is_not_is_an_error() -> None:
    with pytest.raises(VerificationError, match=r"buffer 4 lives from step 3 to \[99\]; train has 18 steps"):
        simulate(edit_extent(training_plan(), plans.H_ONE, freed=(99,)))


def test_a_program_there_is_not_is_an_error() -> None:
    with pytest.raises(VerificationError, match="no program 'test', only evaluate, train"):
        simulate(training_plan(), "test")


def test_an_empty_program_takes_no_time() -> None:
    timeline = simulate(_blocks((7, None, ()), durations=()))
    assert (timeline.makespan_ns, timeline.curve, timeline.peak_bytes) == (0, ((0, 7),), 7)
    assert simulate(_blocks(durations=())).curve == ((0, 0),)


def test_twelve_thousand_steps_take_less_than_a_second() -> None:
    """It takes 0.05 s; twenty times that tells a quadratic algorithm from a busy machine."""
    plan = chain_plan(4000)
    assert len(plan.train.steps) > 11_900
    started = time.process_time()
    simulate(plan)
    assert time.process_time() - started < 1
