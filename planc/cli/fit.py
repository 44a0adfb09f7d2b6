"""`planc fit`: which GPU does it take?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from planc.cli.options import complete_profile, json_option
from planc.cli.output import print_json, print_result, progress
from planc.cli.source import batch_option, model_argument, source_of, training_options
from planc.errors import InfeasibleError
from planc.fit import UP_TO, Answer, Verdict, fit
from planc.parallel import default_jobs
from planc.policies import POLICIES
from planc.units import format_bytes, format_ns

EXAMPLES = """\b
Examples:
  planc fit model.onnx --batch 256
  planc fit model.onnx --batch 256 --profile v100-16gb --profile t4-16gb --json
  planc fit model.onnx --batch 256 --policy vdnn-dyn
"""


@click.command("fit", epilog=EXAMPLES)
@model_argument
@batch_option
@click.option(
    "--profile",
    "profiles",
    metavar="NAME|FILE",
    multiple=True,
    shell_complete=complete_profile,
    help="Device; may be repeated.  [default: every GPU that planc ships]",
)
@click.option(
    "--policy",
    type=click.Choice([name for name in POLICIES if not name.startswith("ucudnn")]),
    default="auto",
    show_default=True,
    help="How to plan.",
)
@click.option(
    "--up-to", type=click.IntRange(min=1), default=UP_TO, show_default=True, help="Look for no larger batch than this."
)
@training_options
@click.option("--jobs", type=click.IntRange(min=1), help="Processes.  [default: one a processor]")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: Path,
    batch: int | None,
    profiles: tuple[str, ...],
    policy: str,
    up_to: int,
    jobs: int | None,
    as_json: bool,
    **training: Any,
) -> tuple[Answer, ...]:
    """Tell on which GPUs a model can be trained, and at what price.

    A line a device: does the batch fit as it is (everything resident, fastest algorithms), with a plan (and how much
    longer a step takes then), or not (and what is missing); and the largest batch either way, whatever the time, with
    host memory taken as unlimited. Exit code 3: the batch fits no device.
    """
    with progress("devices") as report:
        answers = fit(
            source_of(model, training),
            batch=batch,
            profiles=profiles,
            policy=policy,
            up_to=up_to,
            jobs=jobs or default_jobs(),
            report=report,
        )
    if as_json:
        print_json({"devices": [asdict(answer) for answer in answers]})
    else:
        print_result(table(answers))
    if all(answer.verdict is Verdict.NOT for answer in answers):
        ctx.exit(InfeasibleError.exit_code)
    return answers


def table(answers: tuple[Answer, ...]) -> Table:
    """A line a device."""
    first = answers[0]
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), caption_justify="left")
    shown.add_column("device", no_wrap=True)
    shown.add_column("has", justify="right", no_wrap=True)
    shown.add_column(f"batch {first.batch}", no_wrap=True)
    shown.add_column("step time", justify="right", no_wrap=True)
    shown.add_column("largest batch as it is", justify="right")
    shown.add_column("with a plan", justify="right")
    for answer in answers:
        time = "-" if answer.makespan_ns is None else format_ns(answer.makespan_ns)
        cells = (answer.profile, format_bytes(answer.budget_bytes), _verdict(answer), time)
        largest = (_largest(answer.largest_as_it_is, answer), _largest(answer.largest_with_plan, answer))
        shown.add_row(*(Text(cell) for cell in (*cells, *largest)))
    if any(answer.estimated for answer in answers):
        shown.caption = Text("Step times are estimates from datasheets.", style="dim")
    return shown


def _verdict(answer: Answer) -> str:
    if answer.makespan_ns is not None:
        if answer.verdict is Verdict.AS_IT_IS:
            return answer.verdict.value
        return f"{answer.verdict.value} at {answer.makespan_ns / answer.ideal_ns - 1:+.1%}"
    if answer.smallest_budget_bytes is None:
        return answer.verdict.value
    missing = answer.smallest_budget_bytes - answer.budget_bytes
    if missing > 0:
        return f"{answer.verdict.value}: {format_bytes(missing)} missing"
    return f"{answer.verdict.value} by this policy"


def _largest(batch: int | None, answer: Answer) -> str:
    if batch is None:
        return "-"
    return f"{batch} or more" if batch == answer.up_to else str(batch)
