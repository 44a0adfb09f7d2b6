"""The command line: what it prints, where, and with which exit code. Whatever comes in, no traceback comes out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from planc import __version__, cli
from planc.cli import COMMANDS, main, planc
from planc.errors import InternalError
from planc.plan import BufferKind, Plan
from planc.plan_json import read_plan, write_plan
from planc.zoo import ZOO

PROGRAM = (sys.executable, "-c", "import sys; from planc.cli import main; sys.exit(main())")
COMPILE_KEYS = [
    "budget_bytes",
    "arena_bytes",
    "peak_bytes",
    "keep_all_bytes",
    "makespan_ns",
    "ideal_ns",
    "bound_ns",
    "gap_ppm",
    "sub_batches",
    "offloaded_bytes",
    "recomputed_bytes",
    "host_bytes",
    "steps",
    "policy",
    "semantics",
]
RUN_KEYS = {
    "losses",
    "step_ns",
    "predicted_ns",
    "arena_bytes",
    "planned_peak_bytes",
    "measured_peak_bytes",
    "hidden_bytes",
    "state_sha256",
}


def invoke(*arguments: object) -> Result:
    """A command that must not end in anything but an exit code."""
    result = CliRunner().invoke(planc, [str(argument) for argument in arguments], prog_name="planc")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def program(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The whole program, in a process of its own."""
    words = [*PROGRAM, *(str(argument) for argument in arguments)]
    return subprocess.run(words, capture_output=True, text=True, env=os.environ | environment, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a plan of it, and a plan that breaks a rule."""
    path = tmp_path_factory.mktemp("cli")
    (path / "lenet.onnx").write_bytes(ZOO["lenet"]().SerializeToString())
    made = invoke(
        "compile", path / "lenet.onnx", "--profile", "cpu", "--batch", 4, "--budget", "90%", "-o", path / "plan.json"
    )
    assert made.exit_code == 0, made.stderr
    write_plan(path / "broken.json", overlapping(read_plan(path / "plan.json")))
    return path


def overlapping(plan: Plan) -> Plan:
    """The plan with one parameter moved onto another."""
    first, second = [buffer for buffer in plan.buffers if buffer.kind is BufferKind.PARAMETER][:2]
    moved = replace(second, extents=(replace(second.extents[0], offset=first.extents[0].offset),))
    return replace(plan, buffers=tuple(moved if b.id == second.id else b for b in plan.buffers))


# Exit codes


def test_exit_0_and_the_version() -> None:
    done = program("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"planc {__version__}\n", "")


def test_exit_1_a_rule_is_broken(folder: Path) -> None:
    done = program("verify", folder / "broken.json", "--json")
    assert done.returncode == 1
    violations = json.loads(done.stdout)["violations"]
    assert "extent-overlap" in {violation["code"] for violation in violations}
    assert all(set(violation) == {"code", "message", "steps", "buffers"} for violation in violations)


def test_exit_2_no_such_model() -> None:
    done = program("compile", "missing.onnx", "--json")
    assert done.returncode == 2
    assert "missing.onnx" in json.loads(done.stdout)["error"]["message"]
    assert done.stderr.startswith("planc: error: model 'missing.onnx': ")


def test_exit_3_no_plan_in_the_budget(folder: Path) -> None:
    done = program("compile", folder / "lenet.onnx", "--batch", 4, "--budget", 1000, "--json")
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert error["exit_code"] == 3
    assert error["node"]
    assert 1000 < error["bound_bytes"] <= error["smallest_budget_bytes"]
    smallest = error["smallest_budget_bytes"]
    assert invoke("compile", folder / "lenet.onnx", "--batch", 4, "--budget", smallest).exit_code == 0


def test_exit_4_the_loss_is_not_finite(folder: Path) -> None:
    done = program("run", folder / "plan.json", "--model", folder / "lenet.onnx", "--lr", "1e38", "--steps", 9)
    assert done.returncode == 4
    assert "the loss is" in done.stderr
    assert "--lr" in done.stderr
    assert done.stdout == ""


def test_exit_70_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_: object) -> Plan:
        raise InternalError("an invariant does not hold")

    monkeypatch.setattr("planc.cli.verify.read_plan", broken)
    assert main(["verify", "plan.json"]) == 70
    shown = capsys.readouterr()
    assert "Traceback" in shown.err
    assert "an invariant does not hold" in shown.err
    assert shown.out == ""


def test_exit_130_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> Plan:
        raise KeyboardInterrupt

    monkeypatch.setattr("planc.cli.verify.read_plan", interrupted)
    assert main(["verify", "plan.json"]) == 130
    assert capsys.readouterr().err.strip() == "planc: interrupted"


def test_exit_141_the_reader_went_away(folder: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    words = [*PROGRAM, "inspect", str(folder / "plan.json")]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_under_stdout_is_no_bug_of_planc(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        words = [*PROGRAM, "inspect", str(folder / "plan.json"), "--json"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith("planc: error: standard output cannot be written")
    assert "Traceback" not in done.stderr


# Bad input


@pytest.mark.parametrize("size", ["4 G B", "4gb5", "-1", "nan", "1e400", "", "70 %", "-5%"])
def test_a_size_of_no_known_form_is_refused_with_the_forms(folder: Path, size: str) -> None:
    done = invoke("compile", folder / "lenet.onnx", "--batch", 4, f"--budget={size}")
    assert done.exit_code == 2
    assert "4GiB" in done.stderr


@pytest.mark.parametrize("option", ["--dim=n", "--dim=n=0", "--dim==3", "--dim=n=-1", "--lr=fast", "--epsilon=inf"])
def test_a_value_of_no_known_form_is_refused(folder: Path, option: str) -> None:
    assert invoke("compile", folder / "lenet.onnx", "--batch", 4, option).exit_code == 2


@pytest.mark.parametrize("content", [None, b"", b"\x00\xff\x08garbage", b"{}", b'{"schema": "planc-plan/99"}'])
@pytest.mark.parametrize("name", ["verify", "simulate", "inspect", "run"])
def test_an_unreadable_plan_is_bad_input(tmp_path: Path, folder: Path, name: str, content: bytes | None) -> None:
    plan = tmp_path / "plan.json"
    if content is not None:
        plan.write_bytes(content)
    extra = ("--model", folder / "lenet.onnx") if name == "run" else ()
    done = invoke(name, plan, *extra)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"planc: error: plan file {str(plan)!r}")
    assert invoke(name, tmp_path, *extra).exit_code == 2  # a folder


@pytest.mark.parametrize("content", [b"", b"\x00\xff\x08garbage"])
def test_an_unreadable_model_is_bad_input(tmp_path: Path, folder: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    assert invoke("compile", tmp_path / "model.onnx").exit_code == 2
    assert invoke("run", folder / "plan.json", "--model", tmp_path / "model.onnx").exit_code == 2


def test_a_plan_of_another_model_is_refused(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(ZOO["vgg_like"]().SerializeToString())
    done = invoke("run", folder / "plan.json", "--model", tmp_path / "other.onnx")
    assert done.exit_code == 2
    assert "plan: made for" in done.stderr


def test_a_plan_that_breaks_a_rule_does_not_run(folder: Path) -> None:
    done = invoke("run", folder / "broken.json", "--model", folder / "lenet.onnx", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"]["exit_code"] == 1


def test_there_must_be_a_folder_for_the_trained_model(tmp_path: Path, folder: Path) -> None:
    place = tmp_path / "none" / "trained.onnx"
    assert invoke("run", folder / "plan.json", "--model", folder / "lenet.onnx", "--save", place).exit_code == 2


def test_control_characters_from_a_file_name_do_not_reach_the_terminal() -> None:
    done = invoke("verify", "\x1b[31mred\x07.json")
    assert "\x1b" not in done.stderr
    assert "\x07" not in done.stderr


def test_an_unwritable_plan_is_bad_usage(tmp_path: Path, folder: Path) -> None:
    done = invoke("compile", folder / "lenet.onnx", "--batch", 4, "-o", tmp_path / "none" / "plan.json")
    assert done.exit_code == 2
    assert list(tmp_path.iterdir()) == []


# Help


def test_help_is_quick_because_it_imports_nothing_large() -> None:
    check = (
        "import sys; from planc.cli import main; code = main(['--help']);"
        "sys.exit(code or ', '.join({'numpy', 'onnx', 'rich', 'yaml'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_PLANC_COMPLETE=bash_source" in done.stdout


@pytest.mark.parametrize(("name", "module", "summary"), COMMANDS)
def test_a_command_is_what_the_table_says(name: str, module: str, summary: str) -> None:
    command = import_module(module).command
    assert command.name == name
    assert command.get_short_help_str(limit=200) == summary
    shown = invoke(name, "--help")
    assert shown.exit_code == 0
    assert "Examples:" in shown.stdout
    assert all(f"planc {name}" in line for line in shown.stdout.splitlines() if line.strip().startswith("planc "))


def test_every_command_file_is_in_the_table() -> None:
    files = {path.stem for path in Path(cli.__file__).parent.glob("*.py")} - {"__init__", "options", "output", "source"}
    assert files == {name for name, _, _ in COMMANDS}


def test_an_unknown_command_is_bad_usage() -> None:
    assert program("compil").returncode == 2


def test_the_shell_completes_commands_and_profiles() -> None:
    command = program(_PLANC_COMPLETE="bash_complete", COMP_WORDS="planc co", COMP_CWORD="1")
    assert command.stdout.split() == ["plain,compile", "plain,compare"]
    words = "planc compile --profile rtx-3"
    profile = program(_PLANC_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="3")
    assert profile.stdout.split() == ["plain,rtx-3060-12gb", "plain,rtx-3090-24gb"]


# Results


def test_compile_prints_json_with_exactly_these_keys(folder: Path) -> None:
    done = invoke("compile", folder / "lenet.onnx", "--batch", 4, "--profile", "cpu", "--budget", "90%", "--json")
    found = json.loads(done.stdout)
    assert list(found) == COMPILE_KEYS
    assert found["budget_bytes"] == found["keep_all_bytes"] * 90 // 100
    assert found["peak_bytes"] <= found["arena_bytes"] <= found["budget_bytes"]
    assert found["steps"] == len(read_plan(folder / "plan.json").train.steps)
    assert found["policy"] == "auto"
    assert found["semantics"] == "exact"


def test_compile_shows_bytes_and_says_where_the_plan_went(tmp_path: Path, folder: Path) -> None:
    shown = invoke("compile", folder / "lenet.onnx", "--batch", 4, "--budget", "1GiB", "-o", tmp_path / "plan.json")
    assert "1073741824 bytes" in shown.stdout
    assert "v100-16gb (the default), estimated" in shown.stdout
    assert shown.stderr == f"planc: the plan is in {tmp_path / 'plan.json'}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert "the plan was not written" in invoke("compile", folder / "lenet.onnx", "--batch", 4).stderr


def test_compile_warns_where_the_budget_is_more_than_the_device_has(folder: Path) -> None:
    shown = invoke("compile", folder / "lenet.onnx", "--batch", 4, "--budget", "16.9GB", "--json")
    assert shown.exit_code == 0
    assert shown.stderr.count("warning: budget 16900000000 bytes") == 1
    assert json.loads(shown.stdout)["budget_bytes"] == 16_900_000_000


def test_settings_of_the_optimizer_reach_the_plan(tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "plan.json"
    given = ("--lr", "0.50", "--momentum", "0.8", "--nesterov", "--weight-decay", "1e-4")
    assert invoke("compile", folder / "lenet.onnx", "--batch", 4, *given, "-o", out).exit_code == 0
    settings = {"name": "momentum", "lr": "0.5", "momentum": "0.8", "nesterov": "1", "weight_decay": "0.0001"}
    assert dict(read_plan(out).model.optimizer) == settings
    refused = invoke("compile", folder / "lenet.onnx", "--batch", 4, "--optimizer", "sgd", "--momentum", "0.8")
    assert refused.exit_code == 2


def test_verify_says_ok_or_lists(folder: Path) -> None:
    assert invoke("verify", folder / "plan.json").stdout == "ok\n"
    assert json.loads(invoke("verify", folder / "plan.json", "--json").stdout) == {"violations": []}
    shown = invoke("verify", folder / "broken.json")
    assert shown.exit_code == 1
    assert "extent-overlap: " in shown.stdout


def test_simulate_agrees_with_the_plan(folder: Path) -> None:
    predicted = read_plan(folder / "plan.json").predicted
    found = json.loads(invoke("simulate", folder / "plan.json", "--json", "--steps").stdout)
    assert found["makespan_ns"] == predicted.makespan_ns
    assert found["peak_bytes"] == predicted.peak_bytes
    assert len(found["timeline"]) == found["steps"]
    assert max(step["end_ns"] for step in found["timeline"]) == found["makespan_ns"]
    assert "Lanes" in invoke("simulate", folder / "plan.json", "--program", "evaluate").stdout


def test_run_prints_json_and_repeats_itself(tmp_path: Path, folder: Path) -> None:
    words = ("run", folder / "plan.json", "--model", folder / "lenet.onnx", "--init", "random:0", "--steps", 3)
    found = json.loads(invoke(*words, "--json").stdout)
    assert set(found) >= RUN_KEYS
    assert len(found["losses"]) == 3
    assert found["measured_peak_bytes"] == found["planned_peak_bytes"] <= found["arena_bytes"]
    again = json.loads(invoke(*words, "--json", "--poison", "--chaos", 1).stdout)
    assert again["state_sha256"] == found["state_sha256"]
    shown = invoke(*words, "--eval", "--save", tmp_path / "trained.onnx")
    assert found["state_sha256"] in shown.stdout
    assert "equal" in shown.stdout
    assert "accuracy" in shown.stdout
    assert shown.stderr == ""  # no progress bar where it is no terminal
    assert (tmp_path / "trained.onnx").stat().st_size > 0


def test_run_takes_data_and_epochs(tmp_path: Path, folder: Path) -> None:
    images, labels = np.zeros((9, 1, 28, 28), np.float32), np.arange(9)
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    words = ("run", folder / "plan.json", "--model", folder / "lenet.onnx", "--data", tmp_path / "data.npz", "--json")
    assert len(json.loads(invoke(*words, "--epochs", 2).stdout)["losses"]) == 4  # two full batches of 4 an epoch
    assert invoke(*words, "--epochs", 2, "--steps", 1).exit_code == 2


def test_a_gpu_plan_runs_here_only_when_told_to(tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "gpu.json"
    assert invoke("compile", folder / "lenet.onnx", "--batch", 4, "-o", out).exit_code == 0
    words = ("run", out, "--model", folder / "lenet.onnx")
    refused = invoke(*words)
    assert refused.exit_code == 4
    assert "--emulate" in refused.stderr
    emulated = invoke(*words, "--emulate")
    assert emulated.exit_code == 0
    assert "emulating" in emulated.stderr


def test_inspect_shows_memory_buffers_lanes_and_decisions(folder: Path) -> None:
    shown = invoke("inspect", folder / "plan.json", "--top", 3).stdout
    for part in ("live arena bytes over time", "Largest buffers at the peak (3 of", "Lanes", "Decisions"):
        assert part in shown
    found = json.loads(invoke("inspect", folder / "plan.json", "--json").stdout)
    assert sum(buffer["bytes"] for buffer in found["buffers_at_peak"]) == found["peak_bytes"]
    assert max(level for _, level in found["curve"]) == found["peak_bytes"]
    assert {decision["about"] for decision in found["decisions"]} >= {"activation", "convolution"}
