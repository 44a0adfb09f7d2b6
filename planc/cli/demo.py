"""`planc demo`: the whole way on a small network, by the commands a user would type."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from planc.cli import compile as compile_
from planc.cli import run, verify
from planc.cli.options import FILE, json_option
from planc.cli.output import print_json, print_lines
from planc.digits import digits
from planc.errors import UsageError
from planc.plan import Plan
from planc.training_run import RunReport
from planc.units import format_bytes
from planc.zoo import ZOO

MODEL = "tiny_residual_cnn"
SAMPLES, BATCH, EPOCHS = 512, 64, 6
"""Enough that the loss falls for all to see, and little enough for half a minute on two cores."""

EXAMPLES = """\b
Examples:
  planc demo
  planc demo --dir /tmp/planc-demo
"""


@dataclass(frozen=True, slots=True)
class Files:
    """What the demo writes."""

    model: Path
    data: Path
    plan: Path
    keep_all: Path
    trained: Path

    @classmethod
    def below(cls, folder: Path) -> Files:
        names = (f"{MODEL}.onnx", "digits.npz", "plan.json", "keep-all.json", "trained.onnx")
        return cls(*(folder / name for name in names))


@click.command("demo", epilog=EXAMPLES)
@click.option("--dir", "folder", type=FILE, default="planc-demo", show_default=True, help="Where its files go.")
@json_option
def command(folder: Path, as_json: bool) -> None:
    """See it work: a small network at half its memory.

    Writes a residual CNN and images of digits, compiles it for this machine's CPU at half of what keeping everything in
    memory needs, verifies the plan, trains by it, and prints the commands it used; each works when pasted.
    """
    files = Files.below(folder)
    commands: list[str] = []

    def do(subcommand: click.Command, *arguments: object) -> Any:
        words = [str(argument) for argument in arguments]
        commands.append(shlex.join(["planc", str(subcommand.name), *words]))
        print_lines("", f"$ {commands[-1]}")
        return subcommand.main(words, prog_name=f"planc {subcommand.name}", standalone_mode=False)

    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        write_inputs(files)
        print_lines(f"Wrote {files.model} (a residual CNN) and {files.data} ({SAMPLES} images of digits).")
        plan, keep_all, report = _commands(files, do)
        if not as_json:
            print_lines("", *_conclusion(plan, keep_all, report))
            print_lines("", "The commands, to try yourself:", *(f"  {line}" for line in commands))
    if as_json:
        print_json(_document(plan, keep_all, report, commands))


def _commands(files: Files, do: Callable[..., Any]) -> tuple[Plan, Plan, RunReport]:
    what = (files.model, "--profile", "cpu", "--batch", BATCH)
    plan: Plan = do(compile_.command, *what, "--budget", "50%", "-o", files.plan)
    do(verify.command, files.plan)
    keep_all: Plan = do(compile_.command, *what, "--policy", "keep-all", "-o", files.keep_all)
    data = ("--data", files.data, "--epochs", EPOCHS, "--eval", "--save", files.trained)
    report: RunReport = do(run.command, files.plan, "--model", files.model, *data)
    return plan, keep_all, report


def write_inputs(files: Files) -> None:
    """Write the model and its training data.

    Raises:
        UsageError: the folder cannot be written to.
    """
    images, labels = digits(SAMPLES)
    try:
        files.model.parent.mkdir(parents=True, exist_ok=True)
        _write(files.model, lambda place: place.write_bytes(ZOO[MODEL]().SerializeToString()))
        _write(files.data, lambda place: np.savez(place, images=images, labels=labels))
    except OSError as error:
        raise UsageError(
            f"folder {str(files.model.parent)!r}: cannot be written to ({error.strerror}).",
            "Choose another with --dir.",
        ) from error


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the target, then rename, so that a half-written file is never taken for a whole one."""
    beside = path.with_name(f".{path.stem}.part{path.suffix}")
    write(beside)
    beside.replace(path)


def _conclusion(plan: Plan, keep_all: Plan, report: RunReport) -> list[str]:
    arena, whole = plan.spaces.arena_bytes, keep_all.spaces.arena_bytes
    peaks = f"{report.planned_peak_bytes} bytes planned, {report.measured_peak_bytes} measured"
    accuracy = (report.accuracy_ppm or 0) / 10_000
    return [
        f"Trained in {format_bytes(arena)}, keeping everything takes {format_bytes(whole)} ({arena / whole:.1%}).",
        f"Peak: {peaks}.",
        f"Loss: {report.losses[0]:.3f} -> {report.losses[-1]:.3f}; accuracy on the training images {accuracy:.1f} %.",
    ]


def _document(plan: Plan, keep_all: Plan, report: RunReport, commands: list[str]) -> dict[str, object]:
    return {
        "compile": compile_.document(plan),
        "keep_all_arena_bytes": keep_all.spaces.arena_bytes,
        "run": run.document(report),
        "commands": commands,
    }
