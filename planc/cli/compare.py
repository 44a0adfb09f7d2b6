"""`planc compare`: all policies side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from planc.cli.options import budget, json_option
from planc.cli.output import error_document, note, print_csv, print_json, print_result, warn
from planc.cli.source import (
    batch_option,
    model_argument,
    profile_option,
    source_of,
    training_options,
    workspace_option,
)
from planc.compare import Comparison, Row, compare, policies_to_compare
from planc.errors import InfeasibleError
from planc.options import DEFAULT_PROFILE
from planc.units import format_bytes, format_ns

EXAMPLES = """\b
Examples:
  planc compare model.onnx --budget 50% --batch 64
  planc compare model.onnx --budget 8GB --policies vdnn-dyn,modnn,auto --json
  planc compare model.onnx --budget 8GB --workspace 64MiB --csv > policies.csv
"""

COLUMNS = (
    "policy",
    "makespan_ns",
    "overhead_ppm",
    "gap_ppm",
    "arena_bytes",
    "peak_bytes",
    "offloaded_bytes",
    "recomputed_bytes",
    "sub_batches",
    "compile_ns",
    "best",
)


@click.command("compare", epilog=EXAMPLES)
@model_argument
@click.option(
    "--budget", type=budget, metavar="SIZE", help="Largest arena, such as 4GB or 60%.  [default: what the device has]"
)
@batch_option
@profile_option(DEFAULT_PROFILE)
@click.option("--policies", metavar="A,B,...", help="Which ones.  [default: all; ucudnn-* only with --workspace]")
@workspace_option
@training_options
@click.option("--csv", "as_csv", is_flag=True, help="Print the table as comma-separated values.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: Path,
    budget: str | None,
    batch: int | None,
    profile: str | None,
    policies: str | None,
    workspace: str | None,
    as_csv: bool,
    as_json: bool,
    **training: Any,
) -> Comparison:
    """Set the policies side by side at one budget.

    Step times are predicted; overhead is over the ideal, everything resident with the fastest algorithms; compile time
    is measured now, on this machine. Exit code 3: no policy found a plan.
    """
    chosen = policies_to_compare(policies, workspace=workspace is not None)
    source = source_of(model, training)
    workload = source.workload(batch, profile or DEFAULT_PROFILE)
    warn(workload.warnings)
    found = compare(workload, source.options(budget=budget, workspace=workspace), chosen)
    if as_json:
        print_json(document(found))
    elif as_csv:
        print_csv(COLUMNS, ([figures(found, row)[name] for name in COLUMNS] for row in found.rows))
    else:
        print_result(table(found))
    if not as_json:
        for text in reasons(found):
            note(text)
    if found.best is None:
        ctx.exit(InfeasibleError.exit_code)
    return found


def figures(comparison: Comparison, row: Row) -> dict[str, object]:
    """A row in integers; None where there is no plan or the figure is not known."""
    known: dict[str, object] = dict.fromkeys(COLUMNS)
    known |= {"policy": row.policy, "compile_ns": row.compile_ns, "best": row is comparison.best}
    if row.plan is not None:
        predicted, ideal = row.plan.predicted, row.plan.predicted.ideal_ns
        known |= {
            "makespan_ns": predicted.makespan_ns,
            "overhead_ppm": (predicted.makespan_ns - ideal) * 10**6 // ideal if ideal else None,
            "gap_ppm": predicted.gap_ppm,
            "arena_bytes": row.plan.spaces.arena_bytes,
            "peak_bytes": predicted.peak_bytes,
            "offloaded_bytes": predicted.offloaded_bytes,
            "recomputed_bytes": predicted.recomputed_bytes,
            "sub_batches": int(row.plan.provenance.options["sub_batches"]),
        }
    return known


def reasons(comparison: Comparison) -> list[str]:
    """Why policies have no plan: one text for all with the same reason."""
    policies: dict[str, list[str]] = {}
    for row in comparison.rows:
        if row.refusal is not None:
            reason = row.refusal.message.replace(f" with policy {row.policy}", "", 1)
            policies.setdefault(reason, []).append(row.policy)
    return [f"{', '.join(names)}: {reason}" for reason, names in policies.items()]


def document(comparison: Comparison) -> dict[str, object]:
    """What --json prints."""
    best = comparison.best
    plan = best.plan if best else None
    return {
        "budget_bytes": plan.spaces.budget_bytes if plan else None,
        "keep_all_bytes": plan.predicted.keep_all_bytes if plan else None,
        "ideal_ns": plan.predicted.ideal_ns if plan else None,
        "best": best.policy if best else None,
        "policies": [
            figures(comparison, row) | {"error": None if row.refusal is None else error_document(row.refusal)}
            for row in comparison.rows
        ],
    }


def table(comparison: Comparison) -> Table:
    """A line a policy, the best one marked."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), caption_justify="left")
    shown.add_column("policy", no_wrap=True)
    for name in ("step time", "overhead", "gap", "arena", "offloaded", "recomputed", "sub-batches", "compile"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in comparison.rows:
        best = row is comparison.best
        cells = [f"{row.policy} *" if best else row.policy, *_cells(figures(comparison, row))]
        shown.add_row(*(Text(cell, style="bold" if best else "") for cell in cells))
    if comparison.best is not None and comparison.best.plan is not None:
        shown.caption = Text(f"* the best in {format_bytes(comparison.best.plan.spaces.budget_bytes)}", style="dim")
    return shown


def _cells(row: dict[str, Any]) -> list[str]:
    if row["makespan_ns"] is None:
        return ["no plan", *["-"] * 7]
    return [
        format_ns(row["makespan_ns"]),
        "-" if row["overhead_ppm"] is None else f"{row['overhead_ppm'] / 1e4:+.1f} %",
        "-" if row["gap_ppm"] is None else f"{row['gap_ppm'] / 1e4:.2f} %",
        format_bytes(row["arena_bytes"]),
        format_bytes(row["offloaded_bytes"]),
        format_bytes(row["recomputed_bytes"]),
        str(row["sub_batches"]),
        f"{row['compile_ns'] / 1e9:.2f} s",
    ]
