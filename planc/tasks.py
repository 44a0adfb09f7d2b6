"""TrainingGraph x sub-batches -> ordered tasks on ranges of samples, and the pieces of memory they touch.

A *piece* is memory for a range of samples of a tensor, or of several tensors one after the other where launches work in
place. All its bytes are wanted at the same times, so a piece is what planners keep, offload or recompute.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from planc.ops import LAUNCHES
from planc.ops.spec import PERSISTENT, BatchRule, TensorKind
from planc.stretches import Slot, balanced_ranges, depth_first
from planc.training_graph import Launch, TrainingGraph

_GIVEN = PERSISTENT | {TensorKind.INPUT, TensorKind.LABEL}
"""Kinds that are there before the first task."""


class Use(NamedTuple):
    """One argument of a task: tensor (as seen, perhaps a view), piece, and bytes [start, stop) of the piece.

    A tuple because a large task list has hundreds of thousands.
    """

    tensor: int
    piece: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Task:
    """Launch `launch` on samples [start, stop).

    `accumulate`: adds to sums that earlier tasks have begun. `again`: computes once more what a task before it
    computed.
    """

    index: int
    launch: int
    start: int
    stop: int
    accumulate: bool
    reads: tuple[Use, ...]
    writes: tuple[Use, ...]
    again: bool = False

    @property
    def samples(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Piece:
    """Memory for samples [start, stop) of the tensors `tensors` (roots, one after the other in place).

    `born`: the first task that writes it, -1 if it is there before the first task. `uses`: every task that touches it,
    in order. `written`: those that write. `since`: for each tensor the first task that touches it.
    `kept`: its bytes are wanted after the last task (persistent tensors, outputs, the loss).
    """

    index: int
    tensors: tuple[int, ...]
    since: tuple[int, ...]
    kind: TensorKind
    start: int
    stop: int
    bytes: int
    born: int
    uses: tuple[int, ...]
    written: tuple[int, ...]
    kept: bool

    @property
    def persistent(self) -> bool:
        return self.kind in PERSISTENT


@dataclass(frozen=True, slots=True)
class TaskList:
    """Tasks in the order they run, the pieces they touch, and the ranges the batch was cut into."""

    graph: TrainingGraph
    ranges: tuple[tuple[int, int], ...]
    tasks: tuple[Task, ...]
    pieces: tuple[Piece, ...]

    def launch(self, task: Task) -> Launch:
        return self.graph.launches[task.launch]


def make_tasks(graph: TrainingGraph, sub_batches: int) -> TaskList:
    """Order the launches of `graph`, with the batch in `sub_batches` ranges, and find the pieces of memory.

    Every count computes the same function: sums accumulate over ranges, whole-batch launches wait for all of them.
    """
    ranges = balanced_ranges(graph.batch, sub_batches)
    order = tuple(depth_first(graph, ranges))
    parts = _cut(graph, order)
    rough = _rough_tasks(graph, order, parts)
    home = _share_memory(graph, rough, parts)
    return TaskList(graph, ranges, *_settle(graph, rough, parts, home))


@dataclass(slots=True)
class _Part:
    """A range of samples of one root, before parts that share memory become one piece."""

    root: int
    start: int
    stop: int
    bytes: int
    kept: bool
    uses: list[int]
    written: list[int]


def _cut(graph: TrainingGraph, order: Sequence[Slot]) -> tuple[_Part, ...]:
    """Every root in parts such that no access crosses from one part into the next."""
    ranges: dict[int, set[tuple[int, int]]] = {}
    whole = (0, graph.batch)
    for index, start, stop in order:
        launch = graph.launches[index]
        for tensor in (*launch.inputs, *launch.outputs):
            covered = (start, stop) if graph.spec(tensor).rows else whole
            ranges.setdefault(graph.root(tensor), set()).add(covered)
    wanted = {graph.root(tensor) for _, tensor in (*graph.outputs, graph.loss)}
    parts = []
    for item in graph.tensors:
        root, spec = item.index, item.spec
        if item.root != root or (root not in ranges and item.kind not in PERSISTENT and root not in wanted):
            continue
        points = _cut_points(ranges.get(root, ()), graph.batch) if spec.rows else whole
        kept = root in wanted or item.kind in PERSISTENT
        for start, stop in pairwise(points):
            parts.append(_Part(root, start, stop, spec.range_bytes(stop - start), kept, [], []))
    return tuple(parts)


def _cut_points(ranges: Iterable[tuple[int, int]], batch: int) -> tuple[int, ...]:
    points, end = [0], 0
    for start, stop in sorted(ranges):
        if start >= end and start > 0:
            points.append(start)
        end = max(end, stop)
    return (*points, batch)


def _rough_tasks(graph: TrainingGraph, order: Sequence[Slot], parts: Sequence[_Part]) -> tuple[Task, ...]:
    """Tasks whose uses still name parts; notes in every part who uses it."""
    finder = _PartFinder(graph, parts)
    begun = set[int]()
    tasks = []
    for index, (number, start, stop) in enumerate(order):
        launch = graph.launches[number]
        reads = tuple([finder.use(t, start, stop) for t in launch.inputs])
        writes = tuple([finder.use(t, start, stop) for t in launch.outputs])
        accumulate = False
        if launch.rule is BatchRule.SUM:
            sums = {graph.tensors[t].root for t in launch.outputs if not graph.tensors[t].spec.rows}
            accumulate = not begun.isdisjoint(sums)
            begun |= sums
        tasks.append(Task(index, number, start, stop, accumulate, reads, writes))
        written = {use.piece for use in writes}
        for touched in written.union([use.piece for use in reads]):
            parts[touched].uses.append(index)
        for touched in written:
            parts[touched].written.append(index)
    return tuple(tasks)


class _PartFinder:
    """Which part, and which bytes of it, a range of samples of a tensor is."""

    def __init__(self, graph: TrainingGraph, parts: Sequence[_Part]) -> None:
        self.parts = parts
        self.of_root: dict[int, list[int]] = {}
        for number, part in enumerate(parts):
            self.of_root.setdefault(part.root, []).append(number)
        self.starts = {root: [parts[n].start for n in numbers] for root, numbers in self.of_root.items()}
        self.root = [tensor.root for tensor in graph.tensors]
        self.rows = [tensor.spec.rows for tensor in graph.tensors]
        self.sample_bytes = [tensor.spec.sample_bytes for tensor in graph.tensors]

    def use(self, tensor: int, start: int, stop: int) -> Use:
        root = self.root[tensor]
        numbers = self.of_root[root]
        if not self.rows[tensor]:
            return Use(tensor, numbers[0], 0, self.parts[numbers[0]].bytes)
        number = numbers[0] if len(numbers) == 1 else numbers[bisect_right(self.starts[root], start) - 1]
        sample, offset = self.sample_bytes[root], self.parts[number].start
        return Use(tensor, number, (start - offset) * sample, (stop - offset) * sample)


def _share_memory(graph: TrainingGraph, tasks: Sequence[Task], parts: Sequence[_Part]) -> tuple[int, ...]:
    """For every part the part whose memory it takes: in place, an output takes that of an input that dies."""
    home = list(range(len(parts)))
    for task in tasks:
        taken = set[int]()
        read = [u.piece for u in task.reads]
        for i, j in LAUNCHES[graph.launches[task.launch].op].inplace:
            if i >= len(task.reads) or j >= len(task.writes):
                continue
            old, new = task.reads[i].piece, task.writes[j].piece
            if old == new or old in taken or new in taken or read.count(old) > 1:
                continue
            if _dies_into(graph, parts[old], parts[new], task.index):
                home[new] = home[old]
                taken |= {old, new}
    return tuple(home)


def _dies_into(graph: TrainingGraph, old: _Part, new: _Part, task: int) -> bool:
    kind = graph.tensors[old.root].kind
    return (
        kind not in _GIVEN
        and not old.kept
        and old.bytes == new.bytes
        and (old.start, old.stop) == (new.start, new.stop)
        and old.uses[-1] == task
        and new.uses[0] == task
    )


def _settle(
    graph: TrainingGraph, rough: Sequence[Task], parts: Sequence[_Part], home: Sequence[int]
) -> tuple[tuple[Task, ...], tuple[Piece, ...]]:
    """Parts that share memory become one piece; tasks name pieces."""
    members: dict[int, list[int]] = {}
    for number, owner in enumerate(home):
        members.setdefault(owner, []).append(number)
    number_of = {owner: index for index, owner in enumerate(members)}
    settled_piece = [number_of[owner] for owner in home]
    pieces = []
    for index, group in enumerate(members.values()):
        inside = sorted((parts[n] for n in group), key=lambda part: part.uses[0] if part.uses else -1)
        last = graph.tensors[inside[-1].root]
        written = tuple(sorted({task for part in inside for task in part.written}))
        given = last.kind in _GIVEN
        pieces.append(
            Piece(
                index=index,
                tensors=tuple(part.root for part in inside),
                since=tuple(part.uses[0] if part.uses else -1 for part in inside),
                kind=last.kind,
                start=inside[0].start,
                stop=inside[0].stop,
                bytes=inside[0].bytes,
                born=-1 if given or not written else written[0],
                uses=tuple(sorted({task for part in inside for task in part.uses})),
                written=written,
                kept=any(part.kept for part in inside),
            )
        )

    def settled(uses: tuple[Use, ...]) -> tuple[Use, ...]:
        return tuple([Use(tensor, settled_piece[part], start, stop) for tensor, part, start, stop in uses])

    tasks = tuple(
        Task(t.index, t.launch, t.start, t.stop, t.accumulate, settled(t.reads), settled(t.writes)) for t in rough
    )
    return tasks, tuple(pieces)
