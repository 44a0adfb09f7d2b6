"""Best fit by several orders: big items first, each into the smallest gap that holds it; the best order wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from planc.layout.problem import Item, Layout, peak_bytes

ORDERS: Mapping[str, Callable[[Item], tuple[int, ...]]] = MappingProxyType(
    {
        "size": lambda item: (-item.bytes, item.start, -item.end),
        "area": lambda item: (-item.bytes * (item.end - item.start), item.start),
        "length": lambda item: (item.start - item.end, -item.bytes, item.start),
        "birth": lambda item: (item.start, -item.bytes, -item.end),
    }
)
"""Ways to order the items, tried in turn until one leaves no byte unused."""


def best_fit(items: tuple[Item, ...]) -> Layout:
    """The smallest layout that the orders in ORDERS give; equally small ones: the first."""
    least = peak_bytes(items)
    best: Layout | None = None
    for key in ORDERS.values():
        layout = place_in_order(items, sorted(range(len(items)), key=lambda i: (*key(items[i]), i)))
        if best is None or layout.arena_bytes < best.arena_bytes:
            best = layout
        if best.arena_bytes == least:
            break
    return best if best is not None else Layout((), 0)


def place_in_order(items: tuple[Item, ...], order: list[int]) -> Layout:
    """Place items one by one, each at the lowest byte of the smallest gap among those already placed that it fits."""
    count = len(items)
    offsets = np.zeros(count, dtype=np.int64)
    # The placed items, kept sorted by offset so that gaps are found by one running maximum.
    low, high = np.empty(count, np.int64), np.empty(count, np.int64)
    start, end = np.empty(count, np.int64), np.empty(count, np.int64)
    for placed, index in enumerate(order):
        item = items[index]
        clash = (start[:placed] < item.end) & (end[:placed] > item.start)
        offset = _smallest_gap(low[:placed][clash], high[:placed][clash], item.bytes)
        offsets[index] = offset
        at = int(np.searchsorted(low[:placed], offset))
        for array, value in ((low, offset), (high, offset + item.bytes), (start, item.start), (end, item.end)):
            array[at + 1 : placed + 1] = array[at:placed]
            array[at] = value
    arena = max((int(offsets[i]) + items[i].bytes for i in range(count)), default=0)
    return Layout(tuple(int(offset) for offset in offsets), arena)


def _smallest_gap(low: np.ndarray, high: np.ndarray, size: int) -> int:
    """The lowest byte of the smallest gap of at least `size` bytes between [low, high) ranges sorted by `low`."""
    if not len(low):
        return 0
    top = np.maximum.accumulate(high)
    begins = np.concatenate(([0], top[:-1]))
    room = low - begins
    fits = np.flatnonzero(room >= size)
    if not len(fits):
        return int(top[-1])
    return int(begins[fits[np.argmin(room[fits])]])
