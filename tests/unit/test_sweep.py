"""Step time against memory: points are compile's, and time never rises with the budget."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from planc.candidates import compile as compile_plan
from planc.cli import planc
from planc.errors import InfeasibleError, RunError, UsageError
from planc.parallel import run_all
from planc.plan import Plan
from planc.report.plot import step_time_plot
from planc.report.svg import write_svg
from planc.source import Source
from planc.sweep import Point, carry_forward, largest_batches, parse_budgets, sweep
from planc.zoo import ZOO


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(planc, [str(argument) for argument in arguments], prog_name="planc")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "lenet.onnx"
    path.write_bytes(ZOO["lenet"]().SerializeToString())
    return path


def attempt(model: Path, **options: Any) -> Plan | InfeasibleError:
    try:
        return compile_plan(model, **options)
    except InfeasibleError as error:
        return error


BUDGETS = "40%..100%/20%"


@pytest.fixture(scope="module")
def points(model: Path) -> tuple[Point, ...]:
    return sweep(Source(model), budgets=parse_budgets(BUDGETS), batches=(8, 32), profile="cpu")


# Budgets


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10%..100%", tuple(f"{share}%" for share in range(10, 101, 10))),
        ("10%..100%/30%", ("10%", "40%", "70%", "100%")),
        ("50%..60%/4%", ("50%", "54%", "58%")),
        ("0.1%..0.3%/0.1%", ("0.1%", "0.2%", "0.3%")),
        ("1GB..3GB/1GB", ("1000000000", "2000000000", "3000000000")),
        ("1.5KB..3KB/500", ("1500", "2000", "2500", "3000")),
        ("4GB, 60%,4GB", ("4GB", "60%")),
        ("30%,50%..70%/20%", ("30%", "50%", "70%")),
    ],
)
def test_budgets(text: str, found: tuple[str, ...]) -> None:
    assert parse_budgets(text) == found


@pytest.mark.parametrize(
    "text", ["", "..", "10%..", "10%..2GB", "100%..10%", "10%..20%/0%", "1..9999999/1", "10%,x", "1%..2%/3", "5%..5%"]
)
def test_budgets_of_no_known_form_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_budgets(text)


# Points


def test_points_are_what_compile_says(model: Path, points: tuple[Point, ...]) -> None:
    assert [(point.batch, point.budget) for point in points] == [
        (batch, budget) for batch in (8, 32) for budget in ("40%", "60%", "80%", "100%")
    ]
    compared = 0
    for point in points:
        plan = attempt(model, budget=point.budget, batch=point.batch, profile="cpu")
        if isinstance(plan, InfeasibleError):
            assert point.makespan_ns is None
            assert point.smallest_budget_bytes == plan.smallest_budget_bytes
            continue
        assert point.makespan_ns is not None
        assert point.arena_bytes is not None
        assert point.budget_bytes == plan.spaces.budget_bytes
        assert point.keep_all_bytes == plan.predicted.keep_all_bytes
        assert point.ideal_ns == plan.predicted.ideal_ns
        assert point.makespan_ns <= plan.predicted.makespan_ns
        assert point.arena_bytes <= point.budget_bytes
        if point.plan_budget_bytes == point.budget_bytes:
            assert point.makespan_ns == plan.predicted.makespan_ns
            assert point.arena_bytes == plan.spaces.arena_bytes
            compared += 1
    assert compared >= 2


def test_step_time_never_rises_and_ends_at_the_ideal(points: tuple[Point, ...]) -> None:
    for batch in (8, 32):
        own = [point for point in points if point.batch == batch]
        assert [point.budget_bytes for point in own] == sorted(point.budget_bytes for point in own)
        times = [point.makespan_ns for point in own if point.makespan_ns is not None]
        assert times == sorted(times, reverse=True)
        assert own[-1].makespan_ns == own[-1].ideal_ns


def test_parallel_processes_find_the_same(model: Path, points: tuple[Point, ...]) -> None:
    again = sweep(Source(model), budgets=("80%", "100%"), batches=(8,), profile="cpu", jobs=2)
    assert again[-1] == next(point for point in points if (point.batch, point.budget) == (8, "100%"))


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.none() | st.tuples(st.integers(1, 60), st.integers(1, 99))),
        min_size=1,
        max_size=12,
        unique_by=lambda point: point[0],
    )
)
def test_carried_plans_are_the_fastest_that_fit(given_points: list[tuple[int, tuple[int, int] | None]]) -> None:
    points = []
    for size, plan in given_points:
        arena, time = (min(plan[0], size), plan[1]) if plan else (None, None)
        points.append(Point(4, str(size), size, 60, 1, makespan_ns=time, arena_bytes=arena, plan_budget_bytes=size))
    for point in carry_forward(points):
        fitting = [p for p in points if p.arena_bytes is not None and p.arena_bytes <= point.budget_bytes]
        assert point.makespan_ns == min((p.makespan_ns for p in fitting if p.makespan_ns is not None), default=None)


def test_largest_batches_are_those_with_a_plan() -> None:
    def point(batch: int, size: int, time: int | None) -> Point:
        return Point(batch, str(size), size, 1000, 1, makespan_ns=time, arena_bytes=None if time is None else size)

    points = [point(8, 10, None), point(8, 20, 5), point(8, 30, 4), point(16, 20, None), point(16, 30, 9)]
    points += [point(4, 10, 3), point(4, 30, 2)]
    assert [(row.budget_bytes, row.batch) for row in largest_batches(points)] == [(10, 4), (20, 8), (30, 16)]


# The command


def test_json_and_csv_have_the_points(model: Path, points: tuple[Point, ...]) -> None:
    words = ("sweep", model, "--budgets", BUDGETS, "--batches", "8,32", "--profile", "cpu", "--jobs", 1)
    found = json.loads(invoke(*words, "--json").stdout)
    assert [Point(**row) for row in found["points"]] == list(points)
    assert found["largest_batches"] == [
        {"budget_bytes": row.budget_bytes, "batch": row.batch} for row in largest_batches(points)
    ]
    done = invoke(*words, "--csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert list(rows[0]) == [field.name for field in fields(Point)]
    assert [row["makespan_ns"] for row in rows] == [str(p.makespan_ns or "") for p in points]
    assert done.stderr == ""  # no progress bar where it is no terminal
    shown = invoke(*words).stdout
    assert "step time over budget" in shown
    assert "largest batch of these" in shown


def test_exit_3_where_there_is_no_plan_at_all(model: Path) -> None:
    words = ("sweep", model, "--batches", 8, "--budgets", "1000,2000", "--jobs", 1)
    done = invoke(*words)
    assert done.exit_code == 3
    assert "no plan" in done.stdout
    smallest = json.loads(invoke(*words, "--json").stdout)["points"][0]["smallest_budget_bytes"]
    assert invoke("compile", model, "--batch", 8, "--budget", smallest).exit_code == 0


@pytest.mark.parametrize("batches", ["0", "8,", "a", "-8", "8.5"])
def test_batches_of_no_known_form_are_refused(model: Path, batches: str) -> None:
    assert invoke("sweep", model, f"--batches={batches}").exit_code == 2


# Pictures


def test_a_plot_has_the_step_time_of_the_largest_budget_within() -> None:
    text = step_time_plot([(25, None), (50, 8), (100, 4)], 2, 52).plain.splitlines()
    top = text[0][12:]
    assert top[:19].strip() == ""
    assert set(top[19:39]) == {"█"}
    assert top[39:].strip() == ""
    assert "100 B" in text[-2]


def test_svg_says_how_to_get_matplotlib(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = invoke("sweep", model, "--batches", 8, "--svg", tmp_path / "sweep.svg")
    assert done.exit_code == 2
    assert "planc[plot]" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_svg_is_drawn_and_repeats_itself(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib.figure")
    words = ("sweep", model, "--batches", 8, "--budgets", "100%", "--jobs", 1)
    done = invoke(*words, "--svg", tmp_path / "sweep.svg", "--csv")
    assert done.exit_code == 0
    assert f"the picture is in {tmp_path / 'sweep.svg'}" in done.stderr
    drawn = (tmp_path / "sweep.svg").read_bytes()
    assert b"batch 8" in drawn
    write_svg(tmp_path / "a.svg", "t", {"batch 1": [(2**30, 10**6)]})
    write_svg(tmp_path / "b.svg", "t", {"batch 1": [(2**30, 10**6)]})
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert invoke(*words, "--svg", tmp_path / "none" / "sweep.svg").exit_code == 2


# Processes


def test_results_come_in_the_order_of_the_calls() -> None:
    seen: list[tuple[int, int]] = []
    calls = [-3, 2, -1]
    assert run_all(abs, calls, 2, lambda done, total: seen.append((done, total))) == [3, 2, 1]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert run_all(abs, calls, 1) == [3, 2, 1]


def test_what_a_process_raises_is_raised_here() -> None:
    with pytest.raises(UsageError, match="not a size"):
        run_all(parse_budgets, ["4GB", "4 G B"], 2)


def test_a_process_that_dies_is_no_traceback() -> None:
    from os import _exit

    with pytest.raises(RunError, match="a worker process died"):
        run_all(_exit, [3, 3], 2)
