"""`planc simulate`: what happens when, predicted from a plan alone."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from planc.cli.options import json_option, plan_argument
from planc.cli.output import print_json, print_result
from planc.plan import Plan
from planc.plan_json import read_plan
from planc.report.terminal import lanes_table
from planc.simulate import Timeline, simulate
from planc.units import format_bytes, format_ns

EXAMPLES = """\b
Examples:
  planc simulate plan.json
  planc simulate plan.json --steps | less
  planc simulate plan.json --program evaluate --json
"""


@click.command("simulate", epilog=EXAMPLES)
@plan_argument
@click.option("--program", type=click.Choice(["train", "evaluate"]), default="train", show_default=True)
@click.option("--steps", is_flag=True, help="List every step with its times.")
@json_option
def command(plan: Path, program: str, steps: bool, as_json: bool) -> Timeline:
    """Predict a plan's time, stalls and peak memory.

    The times are the plan's own durations, put together by its lanes and waits.
    """
    found = read_plan(plan)
    timeline = simulate(found, program)
    if as_json:
        print_json(_document(found, timeline, steps))
        return timeline
    print_result(
        Text(f"program   {program}, {len(timeline.start_ns)} steps"),
        Text(f"makespan  {format_ns(timeline.makespan_ns)}"),
        Text(
            f"peak      {format_bytes(timeline.peak_bytes)} ({timeline.peak_bytes} bytes), "
            f"first after {format_ns(timeline.peak_ns)}"
        ),
        Text(f"stalls    {len(timeline.stalls)}, {format_ns(sum(s.ns for s in timeline.stalls))} in all"),
        Text(""),
        lanes_table(timeline),
    )
    if steps:
        print_result(Text(""), _steps_table(found, timeline))
    return timeline


def _document(plan: Plan, timeline: Timeline, steps: bool) -> dict[str, object]:
    document: dict[str, object] = {
        "program": timeline.program,
        "makespan_ns": timeline.makespan_ns,
        "busy_ns": {lane.value: ns for lane, ns in timeline.busy_ns.items()},
        "stall_ns": sum(stall.ns for stall in timeline.stalls),
        "stalls": [{"step": s.step, "waited_for": s.waited_for, "ns": s.ns} for s in timeline.stalls],
        "peak_bytes": timeline.peak_bytes,
        "peak_ns": timeline.peak_ns,
        "bytes_by_kind": {kind.value: size for kind, size in timeline.bytes_by_kind.items()},
        "steps": len(timeline.start_ns),
    }
    if steps:
        document["timeline"] = [
            {"step": step.id, "lane": step.lane.value, "label": step.label, "start_ns": start, "end_ns": end}
            for step, start, end in zip(
                plan.programs[timeline.program].steps, timeline.start_ns, timeline.end_ns, strict=True
            )
        ]
    return document


def _steps_table(plan: Plan, timeline: Timeline) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("step", justify="right")
    table.add_column("lane")
    table.add_column("what", no_wrap=True)
    table.add_column("of", overflow="fold")
    table.add_column("samples")
    table.add_column("start", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    for step, start in zip(plan.programs[timeline.program].steps, timeline.start_ns, strict=True):
        cells = (str(step.id), step.lane.value, step.op or step.kind.value, step.label)
        samples = f"{step.samples[0]}-{step.samples[1]}"
        table.add_row(*(Text(cell) for cell in cells), samples, format_ns(start), format_ns(step.duration_ns))
    return table
