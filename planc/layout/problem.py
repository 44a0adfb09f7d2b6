"""The layout problem: items with lifetimes, to be placed in one arena without overlap.

Lifetimes are half open in positions of the program, and those are exact in terms of happens-before: an item that starts
at another's end can only begin once the other's memory is free (schedule.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Item:
    """`bytes` are a multiple of the arena's alignment and at least 1; wanted during [start, end)."""

    bytes: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """`offsets`: one for each item, in bytes; `arena_bytes`: the end of the highest item."""

    offsets: tuple[int, ...]
    arena_bytes: int


def peak_bytes(items: tuple[Item, ...]) -> int:
    """The largest sum of bytes wanted at one position: no layout needs less."""
    if not items:
        return 0
    change = np.zeros(max(item.end for item in items) + 1, dtype=np.int64)
    for item in items:
        change[item.start] += item.bytes
        change[item.end] -= item.bytes
    return int(np.cumsum(change).max())
