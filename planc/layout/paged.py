"""A paged arena: an array may lie in several runs of whole pages, mapped side by side into addresses of its own.

Memory is given out in the order of birth. What is free then stays free until somebody takes it, so that only space can
be in short supply, never space at the right time: an item that fits no gap in one run takes whole pages wherever they
are (interval colouring). Most items fit a gap, which may begin and end anywhere; only those that don't are rounded to
pages. An item that arrives in parts takes pages part by part: holding room for it would break the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from planc.layout.best_fit import best_fit
from planc.layout.placed import Placed, gaps
from planc.layout.problem import Item, Layout, Run, Span, peak_bytes
from planc.units import align_up

ORDERS: Mapping[str, Callable[[Item], tuple[int, int]]] = MappingProxyType(
    {
        "long first": lambda item: (-item.end, -item.bytes),
        "big first": lambda item: (-item.bytes, -item.end),
    }
)
"""Ways to order what is born at the same time."""

SLACK = (1, 3, 6, 10, 20, 30)
"""Thousandths of the peak that the arena may be larger, tried in turn."""

LEAST_PAGES = 2
"""An item of fewer pages lies in one run always."""

MOST_PAGES = 25_000
"""Pages that need addresses of their own, at most; of both programs together 50,000, fewer than Linux maps (65,530)."""


def paged(
    items: tuple[Item, ...],
    page_bytes: int,
    enough_bytes: int = 0,
    base_bytes: int = 0,
    *,
    most_pages: int = MOST_PAGES,
) -> Layout:
    """The smallest layout found, or one of at most `enough_bytes` that is near the peak.

    Args:
        page_bytes: a power of two; doubled until the layout maps at most `most_pages`.
        base_bytes: what lies at the arena's beginning anyway. Offsets and sizes count it, as page borders do.
    """
    while True:
        layout = _fitting(items, page_bytes, enough_bytes, base_bytes) or _smallest(items, page_bytes, base_bytes)
        if mapped_pages(layout) <= most_pages:
            return layout
        page_bytes *= 2


def mapped_pages(layout: Layout) -> int:
    """Pages of the items that lie in more than one run: those that need addresses of their own."""
    return sum(-(-run.bytes // layout.page_bytes) for runs in layout.runs if len(runs) > 1 for run in runs)


def _fitting(items: tuple[Item, ...], page_bytes: int, enough_bytes: int, base_bytes: int) -> Layout | None:
    """A layout within one of the limits to try, the tightest that is found."""
    peak = base_bytes + peak_bytes(items)
    room = enough_bytes // page_bytes * page_bytes
    limits = {align_up(peak + peak * slack // 1000, page_bytes) for slack in SLACK}
    if room >= peak:
        limits = {limit for limit in limits if limit < room} | {room}
    for limit in sorted(limits):
        for key in ORDERS.values():
            layout = _in_order(items, key, _Ground(page_bytes, base_bytes, limit), grow=False)
            if layout is not None:
                return layout
    return None


def _smallest(items: tuple[Item, ...], page_bytes: int, base_bytes: int) -> Layout:
    """The smallest layout if none keeps to a limit."""
    limit = align_up(base_bytes + peak_bytes(items), page_bytes)
    found = [_rounded(items, page_bytes, base_bytes)]
    for key in ORDERS.values():
        grown = _in_order(items, key, _Ground(page_bytes, base_bytes, limit), grow=True)
        if grown is not None:
            found.append(grown)
    return min(found, key=lambda layout: layout.arena_bytes)


def _rounded(items: tuple[Item, ...], page_bytes: int, base_bytes: int) -> Layout:
    """Small items below, by best fit; above them pages, as many as the page-rounded bytes of the big ones at most."""
    small = [index for index, item in enumerate(items) if item.bytes < LEAST_PAGES * page_bytes]
    big = [index for index, item in enumerate(items) if item.bytes >= LEAST_PAGES * page_bytes]
    low = best_fit(tuple(items[index] for index in small))
    above = tuple(Item(tuple(_in_pages(items[index], page_bytes))) for index in big)
    floor = align_up(base_bytes + low.arena_bytes, page_bytes)
    ground = _Ground(page_bytes, floor, floor + peak_bytes(above))
    high = _in_order(above, ORDERS["big first"], ground, grow=True)
    assert high is not None
    runs = {
        i: tuple(Run(0, base_bytes + r.offset, r.bytes) for r in own) for i, own in zip(small, low.runs, strict=True)
    }
    runs |= {i: _joined(own, items[i].bytes) for i, own in zip(big, high.runs, strict=True)}
    return Layout(tuple(runs[i] for i in range(len(items))), high.arena_bytes, page_bytes)


@dataclass(frozen=True, slots=True)
class _Birth:
    """Spans of item `index` that begin together: all of it, or a part of an item that arrives in parts."""

    start: int
    index: int
    spans: tuple[Span, ...]
    whole: bool


def _births(index: int, item: Item, page_bytes: int) -> Iterator[_Birth]:
    """The item, or each of its parts in whole pages."""
    if item.bytes < LEAST_PAGES * page_bytes or len({span.start for span in item.spans}) == 1:
        yield _Birth(item.start, index, item.spans, True)
        return
    for span in _in_pages(item, page_bytes):
        yield _Birth(span.start, index, (span,), False)


def _in_order(
    items: tuple[Item, ...], key: Callable[[Item], tuple[int, int]], ground: _Ground, *, grow: bool
) -> Layout | None:
    """Place items in the order of birth; None if one finds no room and the ground may not grow."""
    births = [birth for index, item in enumerate(items) for birth in _births(index, item, ground.page_bytes)]
    births.sort(key=lambda b: (b.start, *key(items[b.index]), b.index, b.spans[0].first))
    runs: list[list[Run]] = [[] for _ in items]
    for birth in births:
        own = runs[birth.index]
        found = ground.place(birth, own)
        while found is None:
            if not grow:
                return None
            ground.limit += align_up(sum(span.bytes for span in birth.spans), ground.page_bytes)
            found = ground.place(birth, own)
        own.extend(found)
    joined = tuple(_joined(own, item.bytes) for own, item in zip(runs, items, strict=True))
    return Layout(joined, align_up(ground.top, ground.page_bytes), ground.page_bytes)


class _Ground:
    """The arena between `floor` and `limit`, as it is given out in the order of birth."""

    def __init__(self, page_bytes: int, floor: int, limit: int) -> None:
        self.page_bytes = page_bytes
        self.limit = limit
        self.top = floor
        self._floor = floor
        self._placed = Placed()
        self._now = 0

    def place(self, birth: _Birth, own: list[Run]) -> list[Run] | None:
        """Where the bytes lie from now on, beside the `own` runs of the item; None if there is no room."""
        if birth.start > self._now:
            self._now = birth.start
            self._placed.forget(birth.start)
        item = Item(birth.spans)
        offset = self._gap(item) if birth.whole else None
        if offset is not None:
            for span in item.spans:
                self._placed.add(offset + span.first, span)
            self.top = max(self.top, offset + item.bytes)
            return [Run(0, offset, item.bytes)]
        if birth.whole and item.bytes < LEAST_PAGES * self.page_bytes:
            return None
        return self._scatter(item, {run.offset + run.bytes for run in own})

    def _gap(self, item: Item) -> int | None:
        """The beginning of the smallest gap that holds the item; above everything only if there is no other."""
        begins, room = gaps(*self._placed.blocked(item), self._floor)
        fits = np.flatnonzero(room >= item.bytes)
        if len(fits):
            return int(begins[fits[np.argmin(room[fits])]])
        return int(begins[-1]) if self.limit - begins[-1] >= item.bytes else None

    def _scatter(self, item: Item, ends: set[int]) -> list[Run] | None:
        """Whole free pages for every span: those that go on where a run ends, or the smallest stretch that holds it,
        or the longest ones."""
        before = self._placed.copy()
        runs: list[Run] = []
        for span in _in_pages(item, self.page_bytes):
            first, left = span.first, span.bytes
            stretches = sorted(
                self._free_pages(span), key=lambda s: (s[0] not in ends, s[1] < left, abs(s[1] - left), s[0])
            )
            for begin, size in stretches:
                part = min(left, size)
                if part:
                    self._placed.add(begin, Span(first, part, span.start, span.end))
                    runs.append(Run(first, begin, part))
                    ends.add(begin + part)
                first, left = first + part, left - part
            if left:
                self._placed = before
                return None
        self.top = max(self.top, *(run.offset + run.bytes for run in runs))
        return runs

    def _free_pages(self, span: Span) -> Iterator[tuple[int, int]]:
        """Stretches (offset, bytes) of whole pages that nobody touches while `span` is there."""
        begins, room = gaps(*self._placed.clashes(span), self._floor)
        rooms = np.append(room, self.limit - begins[-1])
        first = -(-begins // self.page_bytes) * self.page_bytes
        last = (begins + rooms) // self.page_bytes * self.page_bytes
        for index in np.flatnonzero(last > first):
            yield int(first[index]), int(last[index] - first[index])


def _by_fit(stretches: list[tuple[int, int]], size: int, ends: set[int]) -> list[tuple[int, int]]:
    """Stretches (offset, bytes) in the order in which to take `size` bytes of them: those that begin at one of `ends`
    first, then the smallest that holds all, or the longest."""
    return sorted(stretches, key=lambda s: (s[0] not in ends, s[1] < size, abs(s[1] - size), s[0]))


def _in_pages(item: Item, page_bytes: int) -> Iterator[Span]:
    """The item in whole pages. A page that several spans touch is there from the first's start to the last's end."""
    cuts = set[int]()
    for span in item.spans:
        stop = span.first + span.bytes
        cuts |= {span.first // page_bytes, -(-span.first // page_bytes), stop // page_bytes, -(-stop // page_bytes)}
    for first, stop in pairwise(sorted(cuts)):
        low, high = first * page_bytes, stop * page_bytes
        own = [span for span in item.spans if span.first < high and low < span.first + span.bytes]
        if own:
            yield Span(low, high - low, min(span.start for span in own), max(span.end for span in own))


def _joined(runs: Sequence[Run], size: int) -> tuple[Run, ...]:
    """Runs in their order, without what lies beyond byte `size`; those that continue each other are one."""
    found: list[Run] = []
    for run in sorted(runs, key=lambda run: run.first):
        part = min(run.bytes, size - run.first)
        last = found[-1] if found else None
        if last is not None and last.offset + last.bytes == run.offset:
            found[-1] = Run(last.first, last.offset, last.bytes + part)
        elif part > 0:
            found.append(Run(run.first, run.offset, part))
    return tuple(found)
