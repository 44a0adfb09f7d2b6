"""Best fit by several orders: big items first, each into the smallest gap that holds it; the best order wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from planc.layout.problem import Item, Layout, Span, peak_bytes

Longs = npt.NDArray[np.int64]
_ZERO = np.zeros(1, dtype=np.int64)

ORDERS: Mapping[str, Callable[[Item], tuple[int, ...]]] = MappingProxyType(
    {
        "size": lambda item: (-item.bytes, item.start, -item.end),
        "area": lambda item: (-item.bytes * (item.end - item.start), item.start),
        "length": lambda item: (item.start - item.end, -item.bytes, item.start),
        "birth": lambda item: (item.start, -item.bytes, -item.end),
    }
)
"""Ways to order the items, tried in turn until one leaves no byte unused."""


def best_fit(items: tuple[Item, ...], enough_bytes: int = 0) -> Layout:
    """The smallest layout that the orders in ORDERS give, or the first one of at most `enough_bytes`."""
    least = max(peak_bytes(items), enough_bytes)
    best: Layout | None = None
    for key in ORDERS.values():
        layout = place_in_order(items, sorted(range(len(items)), key=lambda i: (*key(items[i]), i)))
        if best is None or layout.arena_bytes < best.arena_bytes:
            best = layout
        if best.arena_bytes <= least:
            break
    return best if best is not None else Layout((), 0)


def place_in_order(items: tuple[Item, ...], order: list[int]) -> Layout:
    """Place items one by one, each at the lowest byte of the smallest gap among those already placed that it fits."""
    offsets = [0] * len(items)
    placed = _Placed(sum(len(item.spans) for item in items))
    for index in order:
        item = items[index]
        offsets[index] = _lowest(item, placed)
        for span in item.spans:
            placed.add(offsets[index] + span.first, span)
    arena = max((offset + item.bytes for offset, item in zip(offsets, items, strict=True)), default=0)
    return Layout(tuple(offsets), arena)


def _lowest(item: Item, placed: _Placed) -> int:
    if len(item.spans) == 1:
        return _smallest_gap(*placed.clashes(item.spans[0]), item.bytes)
    # Spans that come and go at different times: what blocks a span blocks the item's offset `first` bytes lower.
    low, high = [], []
    for span in item.spans:
        below, above = placed.clashes(span)
        low.append(below - span.first + item.bytes - span.bytes)
        high.append(above - span.first)
    lows, highs = np.concatenate(low), np.concatenate(high)
    blocked = np.argsort(lows, kind="stable")
    return _smallest_gap(lows[blocked], np.maximum(highs[blocked], 0), item.bytes)


class _Placed:
    """Spans that have their place, kept sorted by offset so that gaps are found by one running maximum."""

    def __init__(self, capacity: int) -> None:
        self.count = 0
        self.low, self.high = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        self.start, self.end = np.empty(capacity, np.int64), np.empty(capacity, np.int64)

    def clashes(self, span: Span) -> tuple[Longs, Longs]:
        """Offsets [low, high) of what is there at any time that `span` is, sorted by `low`."""
        n = self.count
        together = (self.start[:n] < span.end) & (self.end[:n] > span.start)
        return self.low[:n][together], self.high[:n][together]

    def add(self, offset: int, span: Span) -> None:
        n = self.count
        at = int(np.searchsorted(self.low[:n], offset))
        values = (offset, offset + span.bytes, span.start, span.end)
        for array, value in zip((self.low, self.high, self.start, self.end), values, strict=True):
            array[at + 1 : n + 1] = array[at:n]
            array[at] = value
        self.count += 1


def _smallest_gap(low: Longs, high: Longs, size: int) -> int:
    """The lowest byte of the smallest gap of at least `size` bytes between [low, high) ranges sorted by `low`."""
    if not len(low):
        return 0
    top = np.maximum.accumulate(high)
    begins = np.concatenate((_ZERO, top[:-1]))
    room = low - begins
    fits = np.flatnonzero(room >= size)
    if not len(fits):
        return int(top[-1])
    return int(begins[fits[np.argmin(room[fits])]])
