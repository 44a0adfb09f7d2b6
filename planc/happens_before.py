"""HappensBefore: which steps of a program have ended when another starts, whatever the timing.

Lanes and waits alone decide it: a step follows the step before it on its lane and every step in its `waits`, and what
these follow. Each step gets a vector clock (Fidge 1988, Mattern 1989): per lane, how many of its steps have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from planc.plan import Lane, Step


class HappensBefore:
    """The order of `steps`, which are in a topological order (every wait names an earlier step)."""

    __slots__ = ("_clock", "_lane", "_place")

    def __init__(self, steps: Sequence[Step]) -> None:
        lanes = {lane: number for number, lane in enumerate(Lane)}
        self._lane = [lanes[step.lane] for step in steps]
        self._place = list[int]()
        self._clock = list[tuple[int, ...]]()
        ended = list[tuple[int, ...]]()
        front = [(0,) * len(lanes)] * len(lanes)
        for step, lane in zip(steps, self._lane, strict=True):
            clock = front[lane]
            for wait in step.waits:
                clock = tuple(map(max, clock, ended[wait]))
            place = clock[lane] + 1
            front[lane] = (*clock[:lane], place, *clock[lane + 1 :])
            ended.append(front[lane])
            self._clock.append(clock)
            self._place.append(place)

    def before(self, first: int, second: int) -> bool:
        """Whether step `first` has ended when step `second` starts, in every timing."""
        return self._place[first] <= self._clock[second][self._lane[first]]

    def lane(self, step: int) -> int:
        """The lane of a step, as a number below len(Lane)."""
        return self._lane[step]
