"""Policies side by side: every figure is what compile says of that policy alone."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from planc.candidates import compile as compile_plan
from planc.cli import planc
from planc.cli.compare import COLUMNS
from planc.cli.output import error_document
from planc.compare import compare, policies_to_compare
from planc.errors import InfeasibleError, UsageError
from planc.plan import Plan
from planc.policies import POLICIES
from planc.source import Source
from planc.zoo import ZOO

BATCH = 8


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(planc, [str(argument) for argument in arguments], prog_name="planc")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def attempt(model: Path, **options: Any) -> Plan | InfeasibleError:
    try:
        return compile_plan(model, **options)
    except InfeasibleError as error:
        return error


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "lenet.onnx"
    path.write_bytes(ZOO["lenet"]().SerializeToString())
    return path


@pytest.fixture(scope="module")
def tight(model: Path) -> dict[str, dict[str, object]]:
    """At 85 % of keep-all some policies have a plan and some have none."""
    done = invoke("compare", model, "--batch", BATCH, "--profile", "cpu", "--budget", "85%", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    return {row["policy"]: row for row in found["policies"]}


def test_all_policies_are_compared_but_those_that_need_a_workspace(tight: dict[str, dict[str, object]]) -> None:
    assert list(tight) == [name for name in POLICIES if not name.startswith("ucudnn")]
    assert [row["best"] for row in tight.values()].count(True) == 1
    (best,) = (row for row in tight.values() if row["best"])
    assert best["makespan_ns"] == tight["auto"]["makespan_ns"]
    assert {row["error"] is None for row in tight.values()} == {True, False}


@pytest.mark.parametrize("policy", [name for name in POLICIES if not name.startswith("ucudnn")])
def test_a_row_says_what_compile_says(model: Path, tight: dict[str, dict[str, object]], policy: str) -> None:
    row = tight[policy]
    plan = attempt(model, budget="85%", batch=BATCH, profile="cpu", policy=policy)
    if isinstance(plan, InfeasibleError):
        assert row["makespan_ns"] is None
        assert row["compile_ns"] is None
        assert row["error"] == error_document(plan)
        return
    predicted = plan.predicted
    assert isinstance(row["compile_ns"], int)
    assert row["compile_ns"] > 0
    assert row["error"] is None
    assert row["makespan_ns"] == predicted.makespan_ns
    assert row["overhead_ppm"] == predicted.makespan_ns * 10**6 // (predicted.ideal_ns or 0) - 10**6
    assert row["gap_ppm"] == predicted.gap_ppm
    assert row["arena_bytes"] == plan.spaces.arena_bytes
    assert row["offloaded_bytes"] == predicted.offloaded_bytes
    assert row["recomputed_bytes"] == predicted.recomputed_bytes
    assert row["sub_batches"] == int(plan.provenance.options["sub_batches"])


def test_the_best_is_the_fastest_and_of_equals_the_smallest(model: Path) -> None:
    source = Source(model)
    found = compare(source.workload(BATCH, "cpu"), source.options(budget="100%"), ("keep-all", "vdnn-all", "auto"))
    assert found.best is not None
    plans = [row.plan for row in found.rows if row.plan is not None]
    assert len(plans) == 3
    keys = [(plan.predicted.makespan_ns, plan.spaces.arena_bytes) for plan in plans]
    assert found.best is found.rows[keys.index(min(keys))]


def test_csv_has_a_line_a_policy(model: Path) -> None:
    words = ("compare", model, "--batch", BATCH, "--profile", "cpu", "--budget", "85%", "--policies", "keep-all,auto")
    done = invoke(*words, "--csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert tuple(rows[0]) == COLUMNS
    assert [row["policy"] for row in rows] == ["keep-all", "auto"]
    assert rows[0]["makespan_ns"] == ""
    assert int(rows[1]["arena_bytes"]) > 0
    assert done.stderr.startswith("planc: keep-all: planc found no plan in")
    shown = invoke(*words)
    assert "auto" in shown.stdout
    assert " * " in shown.stdout
    assert "no plan" in shown.stdout


def test_a_workspace_brings_in_the_policies_that_use_it(model: Path) -> None:
    words = ("compare", model, "--batch", BATCH, "--budget", "1GiB", "--policies", "ucudnn-wr,ucudnn-wd", "--json")
    found = json.loads(invoke(*words, "--workspace", "1MiB").stdout)
    assert {row["error"] for row in found["policies"]} == {None}
    for row in found["policies"]:
        plan = compile_plan(model, budget="1GiB", batch=BATCH, policy=row["policy"], workspace="1MiB")
        assert row["makespan_ns"] == plan.predicted.makespan_ns
    assert invoke(*words).exit_code == 2
    assert policies_to_compare(None, workspace=True) == tuple(POLICIES)


def test_exit_3_where_no_policy_has_a_plan(model: Path) -> None:
    done = invoke("compare", model, "--batch", BATCH, "--budget", 1000, "--policies", "keep-all,vdnn-all", "--json")
    assert done.exit_code == 3
    found = json.loads(done.stdout)
    assert found["best"] is None
    assert all(row["error"]["exit_code"] == 3 for row in found["policies"])


@pytest.mark.parametrize("names", ["fast", "auto,fast", ",", ""])
def test_an_unknown_policy_is_refused(names: str) -> None:
    with pytest.raises(UsageError, match="is not a policy"):
        policies_to_compare(names, workspace=False)


def test_compile_takes_a_workspace_and_a_number_of_sub_batches(model: Path) -> None:
    words = ("compile", model, "--batch", BATCH, "--budget", "1GiB", "--json")
    assert json.loads(invoke(*words, "--sub-batches", 4).stdout)["sub_batches"] == 4
    assert invoke(*words, "--sub-batches", BATCH + 1).exit_code == 2
    assert invoke(*words, "--policy", "ucudnn-wr").exit_code == 2
    found = json.loads(invoke(*words, "--policy", "ucudnn-wr", "--workspace", "1MiB").stdout)
    assert found["policy"] == "ucudnn-wr"
