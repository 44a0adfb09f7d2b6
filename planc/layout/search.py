"""Search: contiguous layouts by branch and bound, for problems that best fit leaves too high.

Items are placed in the order of their offsets, each at the lowest one that those placed before leave it, so that a
search over orders is a search over layouts; a branch dies as soon as what is still to come cannot fit above what lies
there, at any one position. Where the items left don't meet in time they are problems of their own. After a number of
branches the search starts again with another preference among items: such searches either succeed soon or never.

After Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023
(canonical orders, bounds by section, decomposition); restarts after Gomes, Selman and Kautz, AAAI 1998.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from planc.layout.best_fit import best_fit
from planc.layout.placed import Longs
from planc.layout.problem import Item, Layout, contiguous, peak_bytes

NODES = 4_000
"""Branches that one search looks at: some tenths of a second."""

MOST_ITEMS = 600
"""Problems with more are left to best fit: a branch costs time in proportion to items and positions."""

_NEVER = 2**60
_SHARES = (0, 4, 8)
"""Sixteenths of the way from the peak to best fit's height: heights to try where none is given."""


def search(items: tuple[Item, ...], enough_bytes: int = 0, nodes: int = NODES) -> Layout:
    """Best fit's layout if that is small enough, else a lower one if `nodes` branches find one, else best fit's.

    Without an attainable `enough_bytes`, several heights from the peak up are tried.
    """
    start = best_fit(items, enough_bytes)
    peak = peak_bytes(items)
    if start.arena_bytes <= max(enough_bytes, peak) or len(items) > MOST_ITEMS:
        return start
    limits: tuple[int, ...] = (enough_bytes,)
    if enough_bytes < peak:
        limits = tuple(peak + (start.arena_bytes - peak) * share // 16 for share in _SHARES)
    part = _whole(items)
    for limit in limits:
        offsets = _within(part, limit, nodes // len(limits))
        if offsets is not None:
            return contiguous(items, offsets)
    return start


@dataclass(frozen=True, slots=True)
class _Part:
    """Items that are searched together, sorted by start, over sections: stretches of time in which nothing changes.

    index:  of each item in the whole problem. start, end: its sections [start, end). bytes: its height.
    rise:   rise[i, j] = how far above item i's offset item j's must at least be, j placed after i (-_NEVER: they don't
            meet). Not i's height if their spans, which come and go separately, let them interlock.
    first:  first[s, j] = byte of item j at which its spans in section s begin (_NEVER: none there).
    wanted: wanted[s, j] = its bytes in section s. rank: the preference among items; lower first.
    """

    index: Longs
    start: Longs
    end: Longs
    bytes: Longs
    rise: Longs
    first: Longs
    wanted: Longs
    rank: Longs

    def of(self, keep: Longs) -> _Part:
        """The part of items `keep` alone, on the sections they touch."""
        a, b = int(self.start[keep].min()), int(self.end[keep].max())
        return _Part(
            self.index[keep],
            self.start[keep] - a,
            self.end[keep] - a,
            self.bytes[keep],
            self.rise[np.ix_(keep, keep)],
            self.first[a:b, keep],
            self.wanted[a:b, keep],
            self.rank[keep],
        )

    def ranked(self, rank: Longs) -> _Part:
        return _Part(self.index, self.start, self.end, self.bytes, self.rise, self.first, self.wanted, rank)


def _whole(items: tuple[Item, ...]) -> _Part:
    order = sorted(range(len(items)), key=lambda i: (items[i].start, items[i].end, i))
    times = sorted({time for item in items for span in item.spans for time in (span.start, span.end)})
    at = {time: section for section, time in enumerate(times)}
    count, sections = len(items), len(times) - 1
    first = np.full((sections, count), _NEVER, np.int64)
    stop = np.full((sections, count), -_NEVER, np.int64)
    wanted = np.zeros((sections, count), np.int64)
    for number, index in enumerate(order):
        for span in items[index].spans:
            there = slice(at[span.start], at[span.end])
            first[there, number] = np.minimum(first[there, number], span.first)
            stop[there, number] = np.maximum(stop[there, number], span.first + span.bytes)
            wanted[there, number] += span.bytes
    rise = np.full((count, count), -_NEVER, np.int64)
    for number in range(count):
        mine = stop[:, number] > -_NEVER
        gap = np.where(first[mine] < _NEVER, stop[mine, number][:, None] - first[mine], -_NEVER)
        rise[number] = gap.max(axis=0)
        rise[number, number] = -_NEVER
    return _Part(
        index=np.array(order, np.int64),
        start=np.array([at[items[i].start] for i in order], np.int64),
        end=np.array([at[items[i].end] for i in order], np.int64),
        bytes=np.array([items[i].bytes for i in order], np.int64),
        rise=rise,
        first=first,
        wanted=wanted,
        rank=np.arange(count),
    )


def _within(part: _Part, limit: int, nodes: int) -> list[int] | None:
    """Offsets within `limit`, if `nodes` branches find them."""
    for rank, most in _preferences(part):
        found = _Search(limit, min(most, nodes))
        if found.solve(part.ranked(rank), np.zeros(len(part.bytes), np.int64), np.zeros(len(part.first), np.int64)):
            return [offset for _, offset in sorted(found.offsets.items())]
        nodes -= found.looked
        if nodes <= 0:
            return None
    return None


def _preferences(part: _Part) -> Iterator[tuple[Longs, int]]:
    """Ranks and how many branches each is worth: first by length, area and fullest section; then these disturbed."""
    count = len(part.bytes)
    length = (part.end - part.start).astype(np.float64)
    area = length * part.bytes
    total = part.wanted.sum(axis=1)
    fullest = np.array([total[a:b].max() for a, b in zip(part.start, part.end, strict=True)], np.float64)
    for keys in ((length, area, fullest), (fullest, length, area), (fullest, area, length)):
        yield _rank(keys), 16 * count
    random = Random(1)
    while True:
        for spread in (0.5, 1.0):
            for key, other in ((length, area), (area, length)):
                noise = np.array([1 + spread * random.random() for _ in range(count)])
                yield _rank((key * noise, other, fullest)), 2 * count


def _rank(keys: tuple[npt.NDArray[np.float64], ...]) -> Longs:
    """Position of each item when sorted by the first key, largest first, then by the next ones."""
    rank = np.empty(len(keys[0]), np.int64)
    rank[np.lexsort(tuple(-key for key in reversed(keys)))] = np.arange(len(rank))
    return rank


@dataclass(slots=True)
class _Node:
    """A state of the search: every item's lowest offset (_NEVER: placed), what lies how high and what is still wanted
    in each section, and the items to try next."""

    lowest: Longs
    floor: Longs
    wanted: Longs
    choices: list[int]


class _Search:
    """One depth-first search under a limit of bytes and one of branches; `looked` counts these."""

    def __init__(self, limit: int, most: int) -> None:
        self.offsets: dict[int, int] = {}
        self.looked = 0
        self._limit = limit
        self._most = most

    def solve(self, part: _Part, lowest: Longs, floor: Longs) -> bool:
        """Place the items of `part`; their offsets go into `offsets`."""
        stack = [_Node(lowest, floor, part.wanted.sum(axis=1), _choices(part, lowest))]
        path: list[tuple[int, int]] = []
        while stack:
            node = stack[-1]
            if not node.choices:
                stack.pop()
                if path:
                    path.pop()
                continue
            if self.looked >= self._most:
                return False
            self.looked += 1
            item = node.choices.pop()
            offset = int(node.lowest[item])
            child = self._place(part, node, item, offset)
            if child is None:
                continue
            left = np.flatnonzero(child.lowest < _NEVER)
            groups = _groups(part, left)
            if len(groups) == 1 and 2 * len(left) > len(part.bytes):
                child.choices = _choices(part, child.lowest)
                path.append((item, offset))
                stack.append(child)
            elif self._solve_groups(part, child, groups):
                for placed, at in (*path, (item, offset)):
                    self.offsets[int(part.index[placed])] = at
                return True
        return False

    def _place(self, part: _Part, node: _Node, item: int, offset: int) -> _Node | None:
        """The state after `item` was placed; None if the rest cannot fit then."""
        top = offset + int(part.bytes[item])
        if top > self._limit:
            return None
        meets = (part.rise[item] > -_NEVER) & (node.lowest < _NEVER)
        if not meets.any():
            node.choices.clear()  # nothing comes above it: if it leads nowhere, the others don't either
        lowest = np.maximum(node.lowest, offset)
        lowest[meets] = np.maximum(lowest[meets], offset + part.rise[item][meets])
        lowest[item] = _NEVER
        there = slice(part.start[item], part.end[item])
        own = part.wanted[there, item]
        floor, wanted = node.floor.copy(), node.wanted.copy()
        tops = np.where(own > 0, offset + part.first[there, item] + own, 0)
        floor[there] = np.maximum(floor[there], tops)
        wanted[there] -= own
        low = np.maximum(floor, (part.first + lowest).min(axis=1))
        if ((low + wanted > self._limit) & (wanted > 0)).any():
            return None
        return _Node(lowest, floor, wanted, [])

    def _solve_groups(self, part: _Part, node: _Node, groups: list[Longs]) -> bool:
        """Whether every group of items, which meet no other, can be placed. The smallest fail soonest."""
        for group in sorted(groups, key=len):
            own = part.of(group)
            sections = slice(int(part.start[group].min()), int(part.end[group].max()))
            if not self.solve(own, node.lowest[group], node.floor[sections]):
                return False
        return True


def _choices(part: _Part, lowest: Longs) -> list[int]:
    """Items to place next, the best one last: lowest first, then by rank. None that leaves room for another below it:
    that one would have come before."""
    found = np.flatnonzero(lowest < (lowest + part.bytes).min())
    order: list[int] = found[np.lexsort((part.rank[found], lowest[found]))].tolist()
    return order[::-1]


def _groups(part: _Part, left: Longs) -> list[Longs]:
    """The items `left` in groups that share no section."""
    if not len(left):
        return []
    reach = np.maximum.accumulate(part.end[left])
    return np.split(left, np.flatnonzero(reach[:-1] <= part.start[left][1:]) + 1)
