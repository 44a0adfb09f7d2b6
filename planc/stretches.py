"""Stretches: the runs of launches between barriers, and the order in which ranges of samples go through them.

A launch with a batch axis that reads the finished result of a sum over samples is behind a *barrier*: every range of
the sum comes first (planning.md section 1). Between barriers the batch goes depth-first, one sub-batch after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from planc.errors import UsageError
from planc.ops.spec import BatchRule
from planc.training_graph import Launch, TrainingGraph

Slot = tuple[int, int, int]
"""One run of a launch: (launch, first sample, end of samples)."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Launches between two barriers. `late`: the whole-batch ones that wait for the last range."""

    launches: tuple[Launch, ...]
    late: frozenset[int]


def balanced_ranges(batch: int, count: int) -> tuple[tuple[int, int], ...]:
    """`count` ranges of nearly equal size, larger ones first: 10 into 3 = (0, 4), (4, 7), (7, 10)."""
    if not 1 <= count <= batch:
        raise UsageError(f"sub-batches {count}: wanted 1 to {batch}, the batch.")
    small, extra = divmod(batch, count)
    bounds = [0]
    for i in range(count):
        bounds.append(bounds[-1] + small + (i < extra))
    return tuple(pairwise(bounds))


def find_stretches(graph: TrainingGraph) -> tuple[Stretch, ...]:
    """Cut the launches of `graph`, in their order, where a barrier stands."""
    done: list[Stretch] = []
    current = _OpenStretch()
    for launch in graph.launches:
        reads = {graph.root(t) for t in launch.inputs}
        if launch.rule is not BatchRule.WHOLE and not current.finished.isdisjoint(reads):
            done.append(current.close())
            current = _OpenStretch()
        current.add(graph, launch, reads)
    done.append(current.close())
    return tuple(done)


class _OpenStretch:
    """A stretch as it grows. All sets hold root tensors."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.late = set[int]()
        self.finished = set[int]()
        """What is complete only at the end of the stretch: sums, and what whole-batch launches make of them."""
        self.read = set[int]()
        self.written = set[int]()

    def add(self, graph: TrainingGraph, launch: Launch, reads: set[int]) -> None:
        self.launches.append(launch)
        writes = {graph.root(t) for t in launch.outputs}
        if launch.rule is not BatchRule.WHOLE:
            self.read |= reads
            self.written |= writes
            self.finished.update(graph.root(t) for t in launch.outputs if not graph.spec(t).rows)
        elif not (reads.isdisjoint(self.written | self.finished) and writes.isdisjoint(self.read)):
            self.late.add(launch.index)
            self.finished |= writes

    def close(self) -> Stretch:
        return Stretch(tuple(self.launches), frozenset(self.late))


def depth_first(graph: TrainingGraph, ranges: tuple[tuple[int, int], ...]) -> Iterator[Slot]:
    """Every run of every launch, in order. With one range this is the order of the launches themselves."""
    last = len(ranges) - 1
    for stretch in find_stretches(graph):
        for number, (start, stop) in enumerate(ranges):
            for launch in stretch.launches:
                if launch.rule is not BatchRule.WHOLE:
                    yield launch.index, start, stop
                elif number == (last if launch.index in stretch.late else 0):
                    yield launch.index, 0, graph.batch
