"""Recomputation made part of the task list: recipe tasks stand where they run, a rebuilt piece is two pieces.

After this nothing behind it knows of recomputation: schedule, layout and runtime see more tasks and more, shorter-lived
pieces. The piece ends with its last forward use; a second piece with the same tensors begins with the recipe's tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planc.costs import CostTable
from planc.passes.base import Decisions, Problem, Rebuild
from planc.tasks import Piece, Task, Use
from planc.training_graph import TrainingGraph


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A problem with its recomputations as tasks. Pieces keep their index; `task_of`: the new index of every task."""

    problem: Problem
    decisions: Decisions
    task_of: tuple[int, ...]


def with_rebuilds(problem: Problem, decisions: Decisions) -> Rewritten:
    """Put the recipes of `decisions.rebuilds` into the task list.

    A recomputed convolution takes the configuration it had the first time, so that it gives the same bits.

    `decisions.offloads` must be empty: when copies go is decided on the rewritten list.
    """
    writer = _Writer(problem, len(problem.tasks.tasks))
    pending: dict[int, list[Rebuild]] = {}
    for rebuild in decisions.rebuilds:
        pending.setdefault(rebuild.before, []).append(rebuild)
    for task in problem.tasks.tasks:
        for rebuild in pending.get(task.index, ()):
            writer.rebuild(rebuild)
        writer.copy(task)
    tasks = tuple(writer.tasks)
    source = writer.source
    costs = CostTable(
        tuple(problem.costs.durations[t] for t in source),
        tuple(problem.costs.configurations[t] for t in source),
        problem.costs.profile,
    )
    configurations = tuple(decisions.configurations[origin] for origin in source)
    pieces = _pieces(problem.tasks.graph, problem.tasks.pieces, writer.origin, tasks)
    made = replace(problem, tasks=replace(problem.tasks, tasks=tasks, pieces=pieces), costs=costs)
    return Rewritten(
        made, Decisions(configurations, leaving=decisions.leaving, bound_ns=decisions.bound_ns), tuple(writer.task_of)
    )


class _Writer:
    """Tasks in their new order. `current`: where the content of each original piece is now."""

    def __init__(self, problem: Problem, count: int) -> None:
        self.old = problem.tasks.tasks
        self.tasks: list[Task] = []
        self.source: list[int] = []
        self.task_of = [0] * count
        self.current = list(range(len(problem.tasks.pieces)))
        self.origin = list(range(len(problem.tasks.pieces)))
        """For every new piece the original one it takes tensors, samples and bytes from."""

    def copy(self, task: Task) -> None:
        self.task_of[task.index] = len(self.tasks)
        self._add(task, {}, again=task.again)

    def rebuild(self, rebuild: Rebuild) -> None:
        """Run the recipe: what it writes are new pieces; the rebuilt one is current from now on."""
        made: dict[int, int] = {}
        for index in rebuild.recipe:
            for use in self.old[index].writes:
                if use.piece not in made:
                    made[use.piece] = len(self.origin)
                    self.origin.append(use.piece)
            self._add(self.old[index], made, again=True)
        self.current[rebuild.piece] = made[rebuild.piece]

    def _add(self, task: Task, made: dict[int, int], *, again: bool) -> None:
        def moved(uses: Sequence[Use]) -> tuple[Use, ...]:
            return tuple(use._replace(piece=made.get(use.piece, self.current[use.piece])) for use in uses)

        index = len(self.tasks)
        self.source.append(task.index)
        self.tasks.append(replace(task, index=index, reads=moved(task.reads), writes=moved(task.writes), again=again))


def _pieces(
    graph: TrainingGraph, old: Sequence[Piece], origin: Sequence[int], tasks: Sequence[Task]
) -> tuple[Piece, ...]:
    """Pieces with the uses they have now; a piece holds those of its tensors that a task still touches in it."""
    uses: list[list[int]] = [[] for _ in origin]
    written: list[list[int]] = [[] for _ in origin]
    since: list[dict[int, int]] = [{} for _ in origin]
    for task in tasks:
        wrote = {use.piece for use in task.writes}
        for use in (*task.reads, *task.writes):
            since[use.piece].setdefault(graph.root(use.tensor), task.index)
        for touched in wrote.union(use.piece for use in task.reads):
            uses[touched].append(task.index)
        for touched in wrote:
            written[touched].append(task.index)
    made = []
    for index, source in enumerate(origin):
        piece = old[source]
        tensors = tuple(root for root in piece.tensors if root in since[index]) or piece.tensors
        given = piece.born < 0
        made.append(
            replace(
                piece,
                index=index,
                tensors=tensors,
                since=tuple(since[index].get(root, -1) for root in tensors),
                born=-1 if given else written[index][0],
                uses=tuple(uses[index]),
                written=tuple(written[index]),
            )
        )
    return tuple(made)
