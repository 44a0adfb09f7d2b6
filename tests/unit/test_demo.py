"""The demo does what it says: half the memory, a falling loss, planned = measured, commands that work."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from planc.cli import demo, planc


def test_demo_trains_in_half_the_memory(tmp_path: Path) -> None:
    result = CliRunner().invoke(planc, ["demo", "--dir", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    compiled, ran = found["compile"], found["run"]
    assert compiled["arena_bytes"] <= compiled["budget_bytes"] == compiled["keep_all_bytes"] // 2
    assert found["keep_all_arena_bytes"] >= 2 * compiled["arena_bytes"]
    assert ran["measured_peak_bytes"] == ran["planned_peak_bytes"] <= compiled["arena_bytes"]
    assert ran["losses"][-1] < 0.5 * ran["losses"][0]
    assert ran["accuracy_ppm"] > 800_000  # ten classes: chance is 100,000
    names = {"tiny_residual_cnn.onnx", "digits.npz", "plan.json", "keep-all.json", "trained.onnx"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_the_commands_it_prints_work_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SAMPLES", demo.BATCH)
    monkeypatch.setattr(demo, "EPOCHS", 1)
    folder = tmp_path / "a folder's name"
    shown = CliRunner().invoke(planc, ["demo", "--dir", str(folder)])
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.partition("to try yourself:")[2].split("\n")
    commands = [shlex.split(line) for line in lines if line]
    assert [words[:2] for words in commands] == [["planc", name] for name in ("compile", "verify", "compile", "run")]
    plan = (folder / "plan.json").read_bytes()
    for words in commands[:2]:
        assert CliRunner().invoke(planc, words[1:]).exit_code == 0
    assert (folder / "plan.json").read_bytes() == plan


def test_a_folder_that_cannot_be_made_is_bad_usage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert CliRunner().invoke(planc, ["demo", "--dir", str(tmp_path / "file" / "below")]).exit_code == 2
