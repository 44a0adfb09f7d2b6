"""Reports: slices of the memory curve, who is there at the peak, and the plot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_builder import mlp_plan

from planc.plan import Plan
from planc.report.memory import highest_in_slices, live_at_peak
from planc.report.terminal import memory_plot
from planc.simulate import simulate


def budgeted(budget_bytes: int) -> Plan:
    plan = mlp_plan()
    return replace(plan, spaces=replace(plan.spaces, budget_bytes=budget_bytes))


def test_slices_show_the_highest_level_in_each() -> None:
    curve = ((0, 5), (10, 9), (11, 2), (90, 4))
    assert highest_in_slices(curve, 100, 10) == (5, 9, 2, 2, 2, 2, 2, 2, 2, 4)


@given(
    steps=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 99)), min_size=1, max_size=20),
    count=st.integers(1, 40),
)
def test_slices_agree_with_looking_at_every_instant(steps: list[tuple[int, int]], count: int) -> None:
    curve, levels = [], list[int]()
    for duration, level in steps:
        curve.append((len(levels), level))
        levels += [level] * duration
    end = len(levels)
    # Each ns in `count` parts, so that every slice is a whole number of parts.
    fine = [level for level in levels for _ in range(count)]
    slices = [max(fine[i * end : (i + 1) * end]) for i in range(count)]
    assert highest_in_slices(curve, end, count) == tuple(slices)


def test_a_program_of_no_duration_has_slices() -> None:
    assert highest_in_slices(((0, 7),), 0, 3)[0] == 7


@pytest.mark.parametrize("program", ["train", "evaluate"])
def test_buffers_at_the_peak_add_up_to_it(program: str) -> None:
    plan = mlp_plan()
    timeline = simulate(plan, program)
    live = live_at_peak(plan, timeline)
    assert sum(entry.bytes for entry in live) == timeline.peak_bytes
    assert [entry.bytes for entry in live] == sorted((entry.bytes for entry in live), reverse=True)


def test_the_plot_is_as_wide_as_asked_and_draws_a_budget_in_reach() -> None:
    timeline = simulate(mlp_plan())
    near = memory_plot(budgeted(timeline.peak_bytes * 3 // 2), timeline, 80).plain
    lines = near.splitlines()
    assert max(len(line) for line in lines[:14]) == 80
    assert "╌" in near
    assert "the dashed line" in near
    far = memory_plot(budgeted(timeline.peak_bytes * 1000), timeline, 80).plain
    assert "╌" not in far
    assert "above this plot" in far


def test_a_narrow_terminal_still_gets_a_plot() -> None:
    timeline = simulate(mlp_plan())
    assert "█" in memory_plot(mlp_plan(), timeline, 5).plain
