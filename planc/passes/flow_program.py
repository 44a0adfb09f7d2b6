"""A linear program as it is written down, and two shapes that cumulative sums take in it.

Plain arrays, rows one after the other, as the solver takes them: through PuLP the same program costs twice as much
time again to build and hand over (ResNet-50: 0.13 s beside 0.07 s), and the dive needs the solver itself anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Terms = list[tuple[int, float]]
"""Sum of columns: (column, coefficient)."""

INFINITE = float("inf")


@dataclass(slots=True)
class Program:
    """Minimise cost * x with lower <= x <= upper and row_lower <= A x <= row_upper.

    Row r of A: `index` and `value` from start[r] to start[r + 1].
    """

    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    start: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def column(self, cost: float = 0.0, *, lower: float = 0.0, upper: float = INFINITE, integer: bool = False) -> int:
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.cost) - 1

    def binary(self, cost: float = 0.0) -> int:
        return self.column(cost, upper=1.0, integer=True)

    def row(self, terms: Iterable[tuple[int, float]], lower: float, upper: float) -> int:
        """Add lower <= sum of terms <= upper; a column may stand in it more than once."""
        merged: dict[int, float] = {}
        for column, value in terms:
            merged[column] = merged.get(column, 0.0) + value
        self.index.extend(column for column, value in merged.items() if value)
        self.value.extend(value for value in merged.values() if value)
        self.start.append(len(self.index))
        self.row_lower.append(lower)
        self.row_upper.append(upper)
        return len(self.row_lower) - 1

    def at_most(self, terms: Iterable[tuple[int, float]], upper: float) -> int:
        return self.row(terms, -INFINITE, upper)

    def at_least(self, terms: Iterable[tuple[int, float]], lower: float) -> int:
        return self.row(terms, lower, INFINITE)


class Direction:
    """Cumulative bytes that one direction of the link has moved, at the instants at which they matter.

    `elapsed` and `elapsed_constant`: the time since the last instant, as it adds up.
    """

    def __init__(self, program: Program, bytes_per_ns: float, *, rising: bool) -> None:
        self.program = program
        self.bytes_per_ns = bytes_per_ns
        self.rising = rising
        self.last: int | None = None
        self.elapsed: Terms = []
        self.elapsed_constant = 0.0

    def elapse(self, terms: Terms, constant: float) -> None:
        self.elapsed.extend(terms)
        self.elapsed_constant += constant

    def instant(self) -> int:
        """The column of what has been moved by now: C3, no more than the link moves in the time since the last."""
        column = self.program.column()
        since = [(column, 1.0)] if self.last is None else [(column, 1.0), (self.last, -1.0)]
        moved = ((c, -self.bytes_per_ns * value) for c, value in self.elapsed)
        self.program.at_most([*since, *moved], self.bytes_per_ns * self.elapsed_constant)
        if self.rising and self.last is not None:
            self.program.at_least(since, 0.0)
        self.last = column
        self.elapsed, self.elapsed_constant = [], 0.0
        return column


class Level:
    """A sum over decisions that changes from phase to phase: a column of its own whenever it is read after a change."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.last: int | None = None
        self.pending: Terms = []

    def add(self, terms: Iterable[tuple[int, float]]) -> None:
        self.pending.extend(terms)

    def terms(self, sign: float) -> Terms:
        """`sign` times the sum so far."""
        if self.pending:
            column = self.program.column()
            before = [] if self.last is None else [(self.last, -1.0)]
            self.program.row([(column, 1.0), *before, *((c, -value) for c, value in self.pending)], 0.0, 0.0)
            self.last, self.pending = column, []
        return [] if self.last is None else [(self.last, sign)]
