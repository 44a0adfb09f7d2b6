"""Placed: spans that have their place, and the gaps among them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planc.layout.problem import Item, Span

Longs = npt.NDArray[np.int64]


class Placed:
    """Spans at their offsets, kept sorted by these so that gaps are found by one running maximum."""

    def __init__(self) -> None:
        self._count = 0
        self._table = np.empty((4, 64), np.int64)

    def copy(self) -> Placed:
        """The same spans, to go on from separately."""
        made = Placed()
        made._count, made._table = self._count, self._table.copy()
        return made

    def add(self, offset: int, span: Span) -> None:
        """Put `span` at `offset`."""
        n = self._count
        if n == self._table.shape[1]:
            self._table = np.concatenate((self._table, np.empty_like(self._table)), axis=1)
        table = self._table
        at = int(np.searchsorted(table[0, :n], offset))
        table[:, at + 1 : n + 1] = table[:, at:n]
        table[:, at] = (offset, offset + span.bytes, span.start, span.end)
        self._count += 1

    def forget(self, before: int) -> None:
        """Drop the spans that have ended at position `before`; nothing placed from now on starts earlier."""
        n = self._count
        alive = self._table[3, :n] > before
        self._count = int(np.count_nonzero(alive))
        if self._count < n:
            self._table[:, : self._count] = self._table[:, :n][:, alive]

    def clashes(self, span: Span) -> tuple[Longs, Longs]:
        """Offsets [low, high) of what is there at any time that `span` is, sorted by `low`."""
        low, high, start, end = self._table[:, : self._count]
        together = (start < span.end) & (end > span.start)
        return low[together], high[together]

    def blocked(self, item: Item) -> tuple[Longs, Longs]:
        """Where the item may not lie in one run: [low, high) sorted by `low`, as `clashes` for all its bytes."""
        if len(item.spans) == 1:
            return self.clashes(item.spans[0])
        # Spans that come and go at different times: what blocks a span blocks the item's offset `first` bytes lower.
        low, high = [], []
        for span in item.spans:
            below, above = self.clashes(span)
            low.append(below - span.first + item.bytes - span.bytes)
            high.append(above - span.first)
        lows, highs = np.concatenate(low), np.concatenate(high)
        order = np.argsort(lows, kind="stable")
        return lows[order], np.maximum(highs[order], 0)


def gaps(low: Longs, high: Longs, floor: int) -> tuple[Longs, Longs]:
    """Gaps from `floor` up among [low, high) sorted by `low`: where each begins, and its bytes (below 0: none).

    One more begin than gaps: where what lies highest ends.
    """
    begins = np.empty(len(low) + 1, np.int64)
    begins[0], begins[1:] = floor, high
    begins = np.maximum.accumulate(begins)
    return begins, low - begins[:-1]
