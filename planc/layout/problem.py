"""The layout problem: items with lifetimes, to be placed in one arena without overlap.

Lifetimes are half open in positions of the program, and those are exact in terms of happens-before: an item that starts
at another's end can only begin once the other's memory is free (schedule.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [first, first + bytes) of an item, wanted during [start, end). `first` and `bytes` are aligned."""

    first: int
    bytes: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Item:
    """Memory that must lie in one range; its spans lie side by side in it and may come and go at different times."""

    spans: tuple[Span, ...]

    @property
    def bytes(self) -> int:
        return sum(span.bytes for span in self.spans)

    @property
    def start(self) -> int:
        return min(span.start for span in self.spans)

    @property
    def end(self) -> int:
        return max(span.end for span in self.spans)


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
        for span in item.spans:
            change[span.start] += span.bytes
            change[span.end] -= span.bytes
    return int(np.cumsum(change).max())
