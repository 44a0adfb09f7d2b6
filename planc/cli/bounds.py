"""`planc bounds`: what a model needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from planc.bounds import LowerBound
from planc.capabilities import Bounds, bounds
from planc.cli.options import json_option
from planc.cli.output import print_json, print_result, warn
from planc.cli.source import batch_option, model_argument, profile_option, source_of, training_options
from planc.options import DEFAULT_PROFILE
from planc.units import format_bytes, format_ns

EXAMPLES = """\b
Examples:
  planc bounds model.onnx --batch 64
  planc bounds model.onnx --batch 64 --profile titan-x-12gb --optimizer adam
  planc bounds model.onnx --json
"""

SUMMARIES = {
    "resident": "everything resident, fastest algorithms",
    "algorithms": "+ smallest workspaces",
    "offload": "+ offload of what is not wanted",
    "recompute": "+ recomputation (it saves time)",
    "sub-batches": "+ sub-batches, batch norm exact",
    "host parameters": "+ parameters and state on the host",
}


@click.command("bounds", epilog=EXAMPLES)
@model_argument
@batch_option
@profile_option(DEFAULT_PROFILE)
@training_options
@json_option
def command(model: Path, batch: int | None, profile: str | None, as_json: bool, **training: Any) -> Bounds:
    """Show what a model needs, by what planc may do about it.

    Each line adds a capability to those above it and gives the smallest budget then, with the step time of the plan
    that needs so little; more budget makes it faster. Below the table stand what no plan gets below (proven), and
    moDNN's lower bound.
    """
    source = source_of(model, training)
    workload = source.workload(batch, profile or DEFAULT_PROFILE)
    warn(workload.warnings)
    found = bounds(workload, source.options())
    if as_json:
        print_json(document(found))
    else:
        print_result(_capabilities(found), Text(""), _limits(found))
    return found


def document(found: Bounds) -> dict[str, object]:
    """What --json prints."""
    return {
        "batch": found.batch,
        "keep_all_bytes": found.keep_all_bytes,
        "keep_all_zero_workspace_bytes": found.keep_all_zero_workspace_bytes,
        "smallest_budget_bytes": found.smallest_budget_bytes,
        "bound_bytes": found.proven.bytes,
        "bound_node": found.proven.label,
        "modnn_bound_bytes": found.modnn.bytes,
        "modnn_bound_node": found.modnn.label,
        "ideal_ns": found.ideal_ns,
        "bound_ns": found.bound_ns,
        "capabilities": {row.name: row.smallest_budget_bytes for row in found.capabilities},
        "makespan_ns": {row.name: row.makespan_ns for row in found.capabilities},
        "sub_batches": {row.name: row.sub_batches for row in found.capabilities},
    }


def _capabilities(found: Bounds) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(f"batch {found.batch}")
    for name in ("smallest budget", "bytes", "of keep-all", "saving", "step time"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.capabilities:
        table.add_row(
            SUMMARIES[row.name],
            format_bytes(row.smallest_budget_bytes),
            str(row.smallest_budget_bytes),
            f"{row.smallest_budget_bytes / found.keep_all_bytes:.1%}",
            f"{found.keep_all_zero_workspace_bytes / row.smallest_budget_bytes:.1f}x",
            format_ns(row.makespan_ns),
        )
    return table


def _limits(found: Bounds) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    rows = (
        ("proven lower bound", _limit(found.proven, "running statistics and constants")),
        ("moDNN's lower bound", _limit(found.modnn, "parameters, state and gradients of parameters")),
        ("ideal step time", f"{format_ns(found.ideal_ns)}, everything resident with the fastest algorithms"),
        ("step time bound", f"{format_ns(found.bound_ns)}, whatever the budget, batch in one range"),
        ("saving", "against everything resident with the smallest workspaces"),
    )
    for name, text in rows:
        table.add_row(Text(name, style="bold"), Text(text))
    return table


def _limit(bound: LowerBound, resident: str) -> str:
    return (
        f"{format_bytes(bound.bytes)} ({bound.bytes} bytes): {resident} {format_bytes(bound.persistent_bytes)}, "
        f"and node {bound.label!r} ({bound.op}) at one sample"
    )
