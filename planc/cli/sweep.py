"""`planc sweep`: step time against memory."""

from __future__ import annotations

import shutil
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from planc.cli.options import FILE, json_option
from planc.cli.output import note, print_csv, print_json, print_result, progress
from planc.cli.source import model_argument, profile_option, source_of, training_options
from planc.errors import InfeasibleError, UsageError
from planc.options import DEFAULT_PROFILE
from planc.parallel import default_jobs
from planc.policies import POLICIES
from planc.report.plot import step_time_plot
from planc.report.svg import require_matplotlib, write_svg
from planc.sweep import DEFAULT_BUDGETS, Point, largest_batches, parse_budgets, sweep
from planc.units import format_bytes, format_ns

EXAMPLES = """\b
Examples:
  planc sweep model.onnx
  planc sweep model.onnx --budgets 20%..100%/5% --batches 32,64,128 --csv > sweep.csv
  planc sweep model.onnx --budgets 2GB,4GB,8GB --policy vdnn-dyn --svg sweep.svg
"""

_WIDTH = 100


def _batches(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int | None, ...]:
    """A comma list of batches; (None,) for the model's own."""
    if text is None:
        return (None,)
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and 0 < int(word[:10]) < 2**31 for word in words):
        raise UsageError(f"--batches {text!r}: not a list of batches.", "Give numbers, such as 32,64,128.")
    return tuple(int(word) for word in words)


@click.command("sweep", epilog=EXAMPLES)
@model_argument
@click.option(
    "--budgets",
    default=DEFAULT_BUDGETS,
    show_default=True,
    metavar="LIST",
    callback=lambda _, __, text: parse_budgets(text),
    help="Sizes and ranges LOW..HIGH[/STEP], such as 4GB,8GB or 10%..100%/5%. Shares are of each batch's own need.",
)
@click.option("--batches", callback=_batches, metavar="N,N,...", help="Batches.  [default: the model's own]")
@profile_option(DEFAULT_PROFILE)
@click.option(
    "--policy",
    type=click.Choice([name for name in POLICIES if not name.startswith("ucudnn")]),
    default="auto",
    show_default=True,
    help="How to plan.",
)
@training_options
@click.option("--jobs", type=click.IntRange(min=1), help="Processes.  [default: one a processor]")
@click.option("--svg", type=FILE, metavar="FILE", help="Draw the curves there (needs the extra `plot`).")
@click.option("--csv", "as_csv", is_flag=True, help="Print the points as comma-separated values.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: Path,
    budgets: tuple[str, ...],
    batches: tuple[int | None, ...],
    profile: str | None,
    policy: str,
    jobs: int | None,
    svg: Path | None,
    as_csv: bool,
    as_json: bool,
    **training: Any,
) -> tuple[Point, ...]:
    """Plot step time against memory.

    Each batch is compiled at each budget, in parallel processes. A plan stands for every budget that holds its arena,
    so step time never rises with the budget. Exit code 3: no batch has a plan at any budget.
    """
    if svg is not None:
        require_matplotlib()
    device = profile or DEFAULT_PROFILE
    with progress("sweep") as report:
        points = sweep(
            source_of(model, training),
            budgets=budgets,
            batches=batches,
            profile=device,
            policy=policy,
            jobs=jobs or default_jobs(),
            report=report,
        )
    if svg is not None:
        write_svg(svg, f"{model.stem} on {device}, policy {policy}", _curves(points))
        note(f"the picture is in {svg}")
    if as_json:
        print_json(document(points))
    elif as_csv:
        names = [field.name for field in fields(Point)]
        print_csv(names, (list(asdict(point).values()) for point in points))
    else:
        print_result(*_parts(points))
    if all(point.makespan_ns is None for point in points):
        ctx.exit(InfeasibleError.exit_code)
    return points


def document(points: tuple[Point, ...]) -> dict[str, object]:
    """What --json prints."""
    return {
        "points": [asdict(point) for point in points],
        "largest_batches": [asdict(largest) for largest in largest_batches(points)],
    }


def _by_batch(points: tuple[Point, ...]) -> dict[int, list[Point]]:
    found: dict[int, list[Point]] = {}
    for point in points:
        found.setdefault(point.batch, []).append(point)
    return found


def _curves(points: tuple[Point, ...]) -> dict[str, list[tuple[int, int]]]:
    return {
        f"batch {batch}": [(p.budget_bytes, p.makespan_ns) for p in own if p.makespan_ns is not None]
        for batch, own in _by_batch(points).items()
    }


def _parts(points: tuple[Point, ...]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    for batch, own in _by_batch(points).items():
        curve = [(p.budget_bytes, p.makespan_ns) for p in own]
        parts += [_table(batch, own), Text("")]
        if any(ns is not None for _, ns in curve):
            parts.append(step_time_plot(curve, own[0].ideal_ns, width))
    rows = largest_batches(points)
    if rows:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("from budget", justify="right")
        table.add_column("largest batch of these", justify="right")
        for row in rows:
            table.add_row(format_bytes(row.budget_bytes), str(row.batch))
        parts.append(table)
    return parts


def _table(batch: int, own: list[Point]) -> Table:
    table = Table(
        title=f"batch {batch}, keep-all {format_bytes(own[0].keep_all_bytes)}",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name in ("budget", "bytes", "step time", "overhead", "arena", "offloaded", "recomputed", "sub-batches"):
        table.add_column(name, justify="right", no_wrap=True)
    for point in own:
        table.add_row(point.budget, str(point.budget_bytes), *_cells(point))
    return table


def _cells(point: Point) -> list[str]:
    if point.makespan_ns is None:
        least = "" if point.smallest_budget_bytes is None else f"needs {format_bytes(point.smallest_budget_bytes)}"
        return ["no plan", "", least, "", "", ""]
    return [
        format_ns(point.makespan_ns),
        f"{point.makespan_ns / point.ideal_ns - 1:+.1%}",
        format_bytes(point.arena_bytes or 0),
        format_bytes(point.offloaded_bytes or 0),
        format_bytes(point.recomputed_bytes or 0),
        str(point.sub_batches),
    ]
