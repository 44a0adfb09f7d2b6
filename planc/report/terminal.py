"""Terminal: a plan in tables and a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from planc.plan import Decision, Lane, Plan
from planc.report.memory import LiveBuffer, highest_in_slices
from planc.report.plot import LABEL_WIDTH, block_plot, columns_of
from planc.simulate import Timeline
from planc.units import format_bytes, format_ns


def memory_plot(plan: Plan, timeline: Timeline, width: int) -> Text:
    """Live arena bytes over one step in `width` columns, with the budget as a line where it is in reach."""
    columns = columns_of(width)
    levels = highest_in_slices(timeline.curve, timeline.makespan_ns, columns)
    budget = plan.spaces.budget_bytes
    in_reach = budget <= 2 * timeline.peak_bytes
    top = max(timeline.peak_bytes, budget if in_reach else 0, 1)
    text = block_plot(levels, top, budget if in_reach else None, format_bytes)
    end = format_ns(timeline.makespan_ns)
    text.append(f"{'':{LABEL_WIDTH}}  0{end:>{columns - 1}}\n")
    where = "the dashed line" if in_reach else "above this plot"
    text.append(f"{'':{LABEL_WIDTH}}  live arena bytes over time; budget {format_bytes(budget)}: {where}\n")
    return text


def buffers_table(live: Sequence[LiveBuffer], peak_bytes: int, count: int) -> Table:
    """The `count` largest buffers at the peak."""
    table = _table(f"Largest buffers at the peak ({min(count, len(live))} of {len(live)})")
    for name, justify in (("buffer", "right"), ("kind", "left"), ("tensor", "left"), ("samples", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("of peak", justify="right", no_wrap=True)
    for entry in live[:count]:
        samples = f"{entry.samples[0]}-{entry.samples[1]}" if entry.samples[1] else ""
        share = f"{entry.bytes / peak_bytes:.1%}"
        cells = (str(entry.buffer), entry.kind.value, entry.label, samples, format_bytes(entry.bytes), share)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def lanes_table(timeline: Timeline) -> Table:
    """How busy each lane is."""
    table = _table("Lanes")
    table.add_column("lane")
    table.add_column("busy", justify="right")
    table.add_column("of the step", justify="right")
    for lane, busy in timeline.busy_ns.items():
        table.add_row(lane.value, format_ns(busy), f"{busy / max(timeline.makespan_ns, 1):.1%}")
    stalled = sum(stall.ns for stall in timeline.stalls)
    share = stalled / max(timeline.makespan_ns, 1)
    table.add_row(f"{Lane.COMPUTE} waits", format_ns(stalled), f"{share:.1%}", style="dim")
    return table


def stalls_by_copy(plan: Plan, timeline: Timeline) -> Mapping[str, int]:
    """What the compute lane waited for, `prefetch 'conv1'` -> ns in all, the longest first."""
    steps = plan.programs[timeline.program].steps
    waits = Counter[str]()
    for stall in timeline.stalls:
        step = steps[stall.waited_for]
        waits[f"{step.kind} {step.label!r}"] += stall.ns
    return dict(waits.most_common())


def stalls_table(waits: Mapping[str, int], count: int) -> Table:
    """The `count` copies that the compute lane waited for longest."""
    table = _table(f"Waiting for copies ({min(count, len(waits))} of {len(waits)})")
    table.add_column("copy", overflow="fold")
    table.add_column("waited", justify="right", no_wrap=True)
    for copy, ns in list(waits.items())[:count]:
        table.add_row(Text(copy), format_ns(ns))
    return table


def choices_table(decisions: Sequence[Decision]) -> Table:
    """How often each thing was chosen."""
    table = _table("Decisions")
    table.add_column("about")
    table.add_column("choice", overflow="fold")
    table.add_column("times", justify="right")
    counts = Counter((decision.about, _without_size(decision.choice)) for decision in decisions)
    for (about, choice), times in sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0][1])):
        table.add_row(Text(about), Text(choice), str(times))
    return table


def _without_size(choice: str) -> str:
    """`winograd x32 (1048576 B)` -> `winograd x32`: workspaces differ from call to call."""
    return choice.partition(" (")[0]


def costs_table(decisions: Sequence[Decision], count: int) -> Table:
    """The `count` decisions with most at stake: what the runner-up would take more (less, where memory was short)."""
    known = [decision for decision in decisions if decision.cost_ns is not None]
    known.sort(key=lambda decision: (-abs(decision.cost_ns or 0), decision.about, decision.subject))
    table = _table(f"Decisions with most at stake ({min(count, len(known))} of {len(known)})")
    table.add_column("about")
    for name in ("of", "choice", "runner-up"):
        table.add_column(name, overflow="fold")
    table.add_column("runner-up costs", justify="right", no_wrap=True)
    for decision in known[:count]:
        cost = decision.cost_ns or 0
        shown = f"{'+' if cost >= 0 else '-'}{format_ns(abs(cost))}"
        cells = (decision.about, decision.label, decision.choice, decision.runner_up or "", shown)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
