"""Plots of block characters, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text

from planc.units import format_bytes, format_ns

LABEL_WIDTH = 10
_BLOCKS = " ▁▂▃▄▅▆▇█"
_ROWS = 12
_SMALLEST = 20


def columns_of(width: int) -> int:
    """How many columns a plot has in a terminal of `width` characters."""
    return max(width - LABEL_WIDTH - 2, _SMALLEST)


def block_plot(levels: Sequence[int], top: int, dashed: int | None, show: Callable[[int], str]) -> Text:
    """A column for each of `levels`, filled in eighths of a row, on an axis from 0 to `top`.

    Args:
        dashed: level of a dashed line, where nothing else is; None = no line.
        show: a level as text, for the axis.
    """
    dashed_row = None if dashed is None else _ROWS - 1 - min(dashed * _ROWS // top, _ROWS - 1)
    text = Text()
    for row in range(_ROWS):
        cells = _row(levels, _ROWS - 1 - row, top)
        label = show(top * (_ROWS - row) // _ROWS) if row % 3 == 0 else ""
        text.append(f"{label:>{LABEL_WIDTH}} ┤" if label else " " * LABEL_WIDTH + " │")
        text.append(cells.replace(" ", "╌") if row == dashed_row else cells, style="cyan")
        text.append("\n")
    text.append(f"{show(0):>{LABEL_WIDTH}} └{'─' * len(levels)}\n")
    return text


def _row(levels: Sequence[int], row: int, top: int) -> str:
    """Row `row` from the bottom: a column is filled up to its level, in eighths of a row; what is there shows."""
    eighths = [-(-level * _ROWS * 8 // top) for level in levels]
    return "".join(_BLOCKS[min(max(eighth - 8 * row, 0), 8)] for eighth in eighths)


def step_time_plot(curve: Sequence[tuple[int, int | None]], ideal_ns: int, width: int) -> Text:
    """Step time over the budget, from 0 to the largest one.

    Args:
        curve: (budget in bytes, step time in ns, None where there is no plan), at least one, budgets from small to
            large. A budget between two has the smaller one's plan.
    """
    columns = columns_of(width)
    end = curve[-1][0]
    levels = []
    for column in range(columns):
        inside = [ns for size, ns in curve if size * columns <= (column + 1) * end and ns is not None]
        levels.append(inside[-1] if inside else 0)
    text = block_plot(levels, max(*levels, ideal_ns, 1), ideal_ns, lambda ns: format_ns(ns) if ns else "0")
    text.append(f"{'':{LABEL_WIDTH}}  0{format_bytes(end):>{columns - 1}}\n")
    text.append(f"{'':{LABEL_WIDTH}}  step time over budget; ideal {format_ns(ideal_ns)}: the dashed line\n")
    return text
