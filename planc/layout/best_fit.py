"""Best fit by several orders: big items first, each into the smallest gap that holds it; the best order wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from planc.layout.placed import Longs, Placed, gaps
from planc.layout.problem import Item, Layout, contiguous, peak_bytes

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
    return best if best is not None else contiguous((), [])


def place_in_order(items: tuple[Item, ...], order: list[int]) -> Layout:
    """Place items one by one, each at the lowest byte of the smallest gap among those already placed that it fits."""
    offsets = [0] * len(items)
    placed = Placed()
    for index in order:
        item = items[index]
        offsets[index] = _smallest_gap(*placed.blocked(item), item.bytes)
        for span in item.spans:
            placed.add(offsets[index] + span.first, span)
    return contiguous(items, offsets)


def _smallest_gap(low: Longs, high: Longs, size: int) -> int:
    """The lowest byte of the smallest gap of at least `size` bytes between [low, high) ranges sorted by `low`."""
    begins, room = gaps(low, high, 0)
    fits = np.flatnonzero(room >= size)
    if not len(fits):
        return int(begins[-1])
    return int(begins[fits[np.argmin(room[fits])]])
