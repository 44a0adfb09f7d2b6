"""`planc inspect`: where a plan's memory and time go."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
from rich.console import RenderableType
from rich.text import Text

from planc.cli.options import json_option, plan_argument
from planc.cli.output import print_json, print_result
from planc.plan import Plan
from planc.plan_json import read_plan
from planc.report import terminal
from planc.report.memory import LiveBuffer, live_at_peak
from planc.simulate import Timeline, simulate
from planc.units import format_bytes, format_ns

EXAMPLES = """\b
Examples:
  planc inspect plan.json
  planc inspect plan.json --top 30
  planc inspect plan.json --json
"""

_WIDTH = 100


@click.command("inspect", epilog=EXAMPLES)
@plan_argument
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Rows in each table.")
@json_option
def command(plan: Path, top: int, as_json: bool) -> None:
    """Show a plan's memory, largest buffers and decisions.

    The plot is the arena over one training step; the tables say what fills it at its fullest, how busy the lanes are,
    which copies are waited for, and what was decided with what at stake.
    """
    found = read_plan(plan)
    timeline = simulate(found)
    live = live_at_peak(found, timeline)
    waits = terminal.stalls_by_copy(found, timeline)
    if as_json:
        print_json(_document(found, timeline, live))
        return
    parts: list[RenderableType] = [
        Text(_headline(found, timeline)),
        terminal.memory_plot(found, timeline, shutil.get_terminal_size((_WIDTH, 24)).columns),
        terminal.buffers_table(live, timeline.peak_bytes, top),
        Text(""),
        terminal.lanes_table(timeline),
        Text(""),
    ]
    if waits:
        parts += [terminal.stalls_table(waits, top), Text("")]
    print_result(*parts, terminal.choices_table(found.decisions), Text(""), terminal.costs_table(found.decisions, top))


def _headline(plan: Plan, timeline: Timeline) -> str:
    spaces, options = plan.spaces, plan.provenance.options
    estimated = " (estimated)" if plan.provenance.estimated else ""
    return (
        f"{plan.provenance.profile}{estimated}, policy {options.get('policy', '?')}, batch {plan.model.batch}: "
        f"peak {format_bytes(timeline.peak_bytes)}, arena {format_bytes(spaces.arena_bytes)} "
        f"({spaces.arena_bytes} bytes), budget {format_bytes(spaces.budget_bytes)}, "
        f"step {format_ns(timeline.makespan_ns)}\n"
    )


def _document(plan: Plan, timeline: Timeline, live: tuple[LiveBuffer, ...]) -> dict[str, object]:
    return {
        "budget_bytes": plan.spaces.budget_bytes,
        "arena_bytes": plan.spaces.arena_bytes,
        "peak_bytes": timeline.peak_bytes,
        "peak_ns": timeline.peak_ns,
        "makespan_ns": timeline.makespan_ns,
        "curve": [list(point) for point in timeline.curve],
        "buffers_at_peak": [
            {"buffer": b.buffer, "kind": b.kind.value, "tensor": b.label, "samples": list(b.samples), "bytes": b.bytes}
            for b in live
        ],
        "busy_ns": {lane.value: ns for lane, ns in timeline.busy_ns.items()},
        "stalls_ns": dict(terminal.stalls_by_copy(plan, timeline)),
        "decisions": [
            {
                "about": d.about,
                "subject": d.subject,
                "label": d.label,
                "choice": d.choice,
                "runner_up": d.runner_up,
                "cost_ns": d.cost_ns,
            }
            for d in plan.decisions
        ],
    }
