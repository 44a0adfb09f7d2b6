"""`planc run`: train a model by a plan."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from planc.cli.options import FILE, decimal, json_option, plan_argument
from planc.cli.output import note, print_json, print_result
from planc.cli.verify import line
from planc.errors import UsageError, VerificationError
from planc.plan import Plan
from planc.plan_json import read_plan
from planc.runtime.backend import BACKENDS
from planc.training_run import Progress as Report
from planc.training_run import RunOptions, RunReport, run
from planc.units import format_bytes, format_ns
from planc.verify import verify

EXAMPLES = """\b
Examples:
  planc run plan.json --model model.onnx --init random:0 --steps 10
  planc run plan.json --model model.onnx --data train.npz --epochs 3 --eval --save trained.onnx
  planc run gpu-plan.json --model model.onnx --emulate --json

\b
--data: an .npz file with arrays named like the model's inputs, and `labels`; samples along axis 0. Without it, one
batch is drawn at random from --seed and trained on again and again.
"""


@click.command("run", epilog=EXAMPLES)
@plan_argument
@click.option("--model", type=FILE, required=True, metavar="MODEL.onnx", help="The model the plan was compiled from.")
@click.option("--backend", type=click.Choice(list(BACKENDS)), default="numpy", show_default=True)
@click.option("--data", type=FILE, metavar="TRAIN.npz", help="What to train on.")
@click.option("--steps", type=click.IntRange(min=1), help="Training steps.  [default: 1]")
@click.option("--epochs", type=click.IntRange(min=1), help="Rounds through the data, in place of --steps.")
@click.option("--lr", type=decimal, metavar="NUMBER", help="Learning rate.  [default: the plan's]")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of random data, order and dropout."
)
@click.option("--init", metavar="random:SEED", help="Draw the weights (He et al. 2015) and leave the model's own.")
@click.option("--eval", "evaluate", is_flag=True, help="Evaluate on the data at the end.")
@click.option("--save", type=FILE, metavar="TRAINED.onnx", help="Write the trained model there.")
@click.option("--poison", is_flag=True, help="Debug: fill each buffer with NaN before its first write.")
@click.option("--chaos", type=click.IntRange(min=0), metavar="SEED", help="Debug: delay steps at random.")
@click.option(
    "--emulate", is_flag=True, help="Run a GPU plan here: its buffers, lanes and waits with other convolutions."
)
@json_option
def command(plan: Path, model: Path, lr: str | None, as_json: bool, **options: Any) -> RunReport:
    """Train a model by a plan.

    The plan is verified, a dry run measures which bytes of the arena a step touches and what it allocates besides, and
    then the training steps run. Exit code 4: the run failed.
    """
    found = read_plan(plan)
    _verify(found)
    _check_place(options["save"], {"plan": plan, "model": model, "data": options["data"]})
    if options["emulate"]:
        note("emulating: the plan's buffers, lanes and waits, with convolutions that need no workspace.")
    with progress_bar(enabled=sys.stderr.isatty()) as report:
        result = run(found, model, RunOptions(lr=None if lr is None else float(lr), **options), progress=report)
    if as_json:
        print_json(document(result))
    else:
        print_result(summary(result))
    return result


def _verify(plan: Plan) -> None:
    violations = verify(plan)
    if violations:
        raise VerificationError(
            f"the plan breaks {len(violations)} rule(s), the first: {line(violations[0])}",
            "Run planc verify on it to see them all, and compile it again.",
        )


def _check_place(save: Path | None, inputs: Mapping[str, Path | None]) -> None:
    """Find out before the training, not after it, that its result has no place of its own."""
    if save is None:
        return
    if not save.absolute().parent.is_dir():
        raise UsageError(f"--save {str(save)!r}: there is no such folder.", "Make it first.")
    if save.is_dir() or not save.name:
        raise UsageError(f"--save {str(save)!r}: is a folder.", "Give a file's name.")
    for name, given in inputs.items():
        if given is not None and save.exists() and given.exists() and save.samefile(given):
            raise UsageError(f"--save {str(save)!r}: is the {name}.", "Choose another place.")


@contextmanager
def progress_bar(*, enabled: bool) -> Iterator[Report | None]:
    """A bar with the loss on stderr; None where nobody would see it."""
    if not enabled:
        yield None
        return
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4g}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=None, loss=float("nan"))

        def report(done: int, total: int, loss: float) -> None:
            bar.update(task, completed=done, total=total, loss=loss)

        yield report


def document(report: RunReport) -> dict[str, object]:
    """What --json prints."""
    document: dict[str, object] = {
        "losses": list(report.losses),
        "step_ns": report.step_ns,
        "predicted_ns": report.predicted_ns,
        "arena_bytes": report.arena_bytes,
        "planned_peak_bytes": report.planned_peak_bytes,
        "measured_peak_bytes": report.measured_peak_bytes,
        "hidden_bytes": report.hidden_bytes,
        "process_bytes": report.process_bytes,
        "state_sha256": report.state_sha256,
    }
    if report.evaluate_loss is not None:
        document |= {"evaluate_loss": report.evaluate_loss, "accuracy_ppm": report.accuracy_ppm}
    return document


def summary(report: RunReport) -> Table:
    """Prediction and measurement side by side."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(report):
        table.add_row(Text(name, style="bold"), Text(text))
    return table


def _rows(report: RunReport) -> list[tuple[str, str]]:
    first, last = report.losses[0], report.losses[-1]
    same = "equal" if report.measured_peak_bytes == report.planned_peak_bytes else "DIFFERENT"
    rows = [
        ("loss", f"{first:.4g} -> {last:.4g} in {len(report.losses)} step(s)"),
        ("step time", f"{format_ns(report.step_ns)} measured (median), {format_ns(report.predicted_ns)} predicted"),
        (
            "peak",
            f"{report.measured_peak_bytes} bytes measured, {report.planned_peak_bytes} planned: {same} "
            f"(arena {format_bytes(report.arena_bytes)})",
        ),
        ("beside it", f"{format_bytes(report.hidden_bytes)} allocated outside arena and host pool"),
        ("state", f"sha256 {report.state_sha256}"),
    ]
    if report.evaluate_loss is not None:
        accuracy = "" if report.accuracy_ppm is None else f", accuracy {report.accuracy_ppm / 10_000:.2f} %"
        rows.append(("evaluation", f"loss {report.evaluate_loss:.4g}{accuracy}"))
    return rows
