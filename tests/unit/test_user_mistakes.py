"""Mistakes people make: each is refused before the work, with nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from trainings import batches, compiled, workload

from planc.candidates import compile as compile_plan
from planc.candidates import compile_workload
from planc.choice import smallest_budget
from planc.cli import planc
from planc.errors import UsageError
from planc.options import Options
from planc.passes.recompute import CheckpointSqrt
from planc.pipeline import Workload
from planc.plan import StepKind
from planc.plan_json import write_plan
from planc.profile import load_profile
from planc.session import Session
from planc.zoo import ZOO


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "lenet.onnx"
    onnx.save(ZOO["lenet"](), path)
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(planc, [str(word) for word in words], prog_name="planc")


@pytest.mark.parametrize("place", [".", "/", "missing/plan.json"])
def test_a_plan_needs_a_place(model: Path, place: str) -> None:
    done = run("compile", model, "--profile", "cpu", "--batch", 4, "-o", place, "--json")
    assert done.exit_code == 2
    assert "cannot be written" in json.loads(done.stdout)["error"]["message"]


def test_a_plan_never_overwrites_its_model(model: Path) -> None:
    before = model.read_bytes()
    done = run("compile", model, "--profile", "cpu", "--batch", 4, "-o", model)
    assert done.exit_code == 2
    assert "is the model" in done.stderr
    assert model.read_bytes() == before


def test_a_trained_model_never_overwrites_its_plan(model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert run("compile", model, "--profile", "cpu", "--batch", 4, "-o", plan).exit_code == 0
    before = plan.read_bytes()
    done = run("run", plan, "--model", model, "--save", plan)
    assert done.exit_code == 2
    assert plan.read_bytes() == before


def test_weights_that_are_not_finite_are_not_saved(model: Path, tmp_path: Path) -> None:
    """The last update has no loss after it that would show it."""
    plan, trained = tmp_path / "plan.json", tmp_path / "trained.onnx"
    assert run("compile", model, "--profile", "cpu", "--batch", 4, "-o", plan).exit_code == 0
    done = run("run", plan, "--model", model, "--lr", "1e39", "--save", trained, "--json")
    assert done.exit_code == 4
    assert "not finite" in json.loads(done.stdout)["error"]["message"]
    assert not trained.exists()


def test_a_trained_model_is_onnx_whatever_its_name(model: Path, tmp_path: Path) -> None:
    plan, trained = tmp_path / "plan.json", tmp_path / "trained.json"
    assert run("compile", model, "--profile", "cpu", "--batch", 4, "-o", plan).exit_code == 0
    assert run("run", plan, "--model", model, "--save", trained).exit_code == 0
    assert len(onnx.load(trained, format="protobuf").graph.node) == len(onnx.load(model).graph.node)


def test_usage_errors_are_json_too(model: Path) -> None:
    from planc.cli import main

    assert main(["compile", str(model), "--batch", "0", "--json"]) == 2


def test_like_is_for_one_device_and_one_split() -> None:
    work = workload("lenet")
    plan = compiled(work)
    other = Workload(work.graph, work.training, work.evaluation, load_profile("v100-16gb"))
    with pytest.raises(UsageError, match="made for 'cpu'"):
        compile_workload(other, Options(policy="keep-all"), like=plan)
    with pytest.raises(UsageError, match="sub-batches"):
        compile_workload(work, Options(policy="keep-all", sub_batches=3), like=plan)
    with pytest.raises(UsageError, match="its own algorithms"):
        compile_workload(work, Options(policy="checkpoint-sqrt"), like=plan)


def test_settings_are_decimal_text(model: Path) -> None:
    with pytest.raises(UsageError, match="decimal text"):
        compile_plan(model, batch=4, profile="cpu", settings={"lr": 0.1})  # type: ignore[dict-item]


def test_a_batch_is_made_of_arrays() -> None:
    work = workload("lenet")
    session = Session(compiled(work), work.graph)
    batch = batches(work, 1)[0]
    with pytest.raises(UsageError, match="an array"):
        session.step({**batch, "images": batch["images"].tolist()})  # type: ignore[dict-item]


def test_what_is_recomputed_stands_among_the_decisions() -> None:
    work = workload("tiny_residual_cnn")
    plan = compile_workload(work, Options(budget="200%", policy="checkpoint-sqrt"))
    assert plan.predicted.recomputed_bytes > 0
    assert any(row.choice == "recompute" for row in plan.decisions)


def test_offloaded_bytes_are_those_copied_out(tmp_path: Path) -> None:
    work = workload("vgg_like")
    plan = compile_workload(work, Options(budget=str(smallest_budget(work, Options()))))
    assert any(step.kind is StepKind.PREFETCH and step.label == "images" for step in plan.train.steps)
    copied = sum(s.reads[0].stop - s.reads[0].start for s in plan.train.steps if s.kind is StepKind.OFFLOAD)
    assert plan.predicted.offloaded_bytes == copied
    write_plan(tmp_path / "plan.json", plan)


def test_every_segment_keeps_its_last_activation() -> None:
    """Also the short one at the end: the activation nearest the loss is never given up."""
    work = workload("tiny_residual_cnn")
    problem = work.problem(1, 2**62)
    from planc.passes.base import Decisions
    from planc.passes.recipes import find_recipes

    recipes = sorted(find_recipes(problem, "any"), key=lambda recipe: (recipe.tasks[-1], recipe.piece))
    decisions = CheckpointSqrt().run(problem, Decisions(tuple(None for _ in problem.tasks.tasks)))
    assert recipes[-1].piece not in {rebuild.piece for rebuild in decisions.rebuilds}
