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
    """Memory for one array. Its spans lie side by side in it, come and go by themselves, and are all there once."""

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
class Run:
    """Bytes [first, first + bytes) of an item lie at `offset` of the arena."""

    first: int
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """`runs`: for each item where its bytes lie, in their order. `arena_bytes`: the end of the highest run.

    `page_bytes`: 0 = contiguous, one run an item; else items of several runs begin and continue at page borders, and
    share no page with an item that is there at the same time.
    """

    runs: tuple[tuple[Run, ...], ...]
    arena_bytes: int
    page_bytes: int = 0


def contiguous(items: tuple[Item, ...], offsets: list[int]) -> Layout:
    """Every item in one run, at its offset."""
    ends = [offset + item.bytes for item, offset in zip(items, offsets, strict=True)]
    runs = tuple((Run(0, offset, item.bytes),) for item, offset in zip(items, offsets, strict=True))
    return Layout(runs, max(ends, default=0))


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
