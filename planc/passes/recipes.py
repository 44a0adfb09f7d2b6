"""Recipes: how an activation that was given up is computed again in the backward pass, and what that takes.

A piece has at most one recipe: the forward tasks that wrote it run again, and with them those that make whatever these
read and is no longer there. What they read and is there, or can be brought back, are the recipe's *ancestors*: pieces
that still hold, until the recipe has run, the content that it reads. Everything else it makes is transient, gone when
the recipe ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from planc.micro_batch import Configuration
from planc.ops import LAUNCHES
from planc.ops.spec import BatchRule, Recompute
from planc.passes.base import Problem, gaps
from planc.tasks import Piece, Task
from planc.training_graph import FORWARD
from planc.units import align_up

LONGEST_RECIPE = 12
"""Tasks in a recipe: a bottleneck block of a residual network is 10. A longer chain costs more than a copy would."""

WORKSPACE_SHARE = 8
"""A call in a recipe runs in the fastest configuration whose workspace is at most this part of what it writes.

The workspace stands beside the piece and its transients where memory is short, so it may not be what decides.
"""

RECOMPUTE: Mapping[str, frozenset[Recompute]] = MappingProxyType(
    {
        "any": frozenset({Recompute.CHEAP, Recompute.COSTLY}),
        "cheap": frozenset({Recompute.CHEAP}),
        "none": frozenset(),
    }
)
"""`--recompute` -> launches that may run a second time."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How piece `piece` is made again at any time in (`leaves`, `needed_by`].

    leaves:      the last task that uses it before its gap; needed_by: the first one behind.
    tasks:       what runs again, in order.
    ancestors:   pieces it reads, sorted; their content lasts beyond `needed_by`, if they are on the device.
    transients:  pieces of which it makes a copy for itself, sorted.
    configurations: one a task, None: not a convolution call. durations_ns: one a task, in these configurations.
    extra_bytes: for each task what is live beside the piece, workspace included; less the piece's own bytes as long as
        that is not there (all aligned).
    """

    piece: int
    leaves: int
    needed_by: int
    tasks: tuple[int, ...]
    ancestors: tuple[int, ...]
    transients: tuple[int, ...]
    configurations: tuple[Configuration | None, ...]
    durations_ns: tuple[int, ...]
    extra_bytes: tuple[int, ...]

    @property
    def duration_ns(self) -> int:
        return sum(self.durations_ns)


def find_recipes(problem: Problem, recompute: str) -> tuple[Recipe, ...]:
    """The recipe of every piece with a gap that has one, in the order of gaps.

    `recompute`: a key of RECOMPUTE.
    """
    allowed = RECOMPUTE[recompute]
    if not allowed:
        return ()
    finder = _Finder(problem, allowed)
    found = (finder.recipe(piece, leaves, needed_by) for piece, leaves, needed_by in gaps(problem))
    return tuple(recipe for recipe in found if recipe is not None)


def recipe_configuration(problem: Problem, task: Task) -> Configuration | None:
    """The configuration in which `task` runs in a recipe. Its first run must then have the same, for the same bits."""
    options = problem.costs.configurations[task.index]
    if not options:
        return None
    limit = sum(use.stop - use.start for use in task.writes) // WORKSPACE_SHARE
    return next((c for c in options if c.workspace_bytes <= limit), options[-1])


@dataclass(frozen=True, slots=True)
class _Finder:
    problem: Problem
    allowed: frozenset[Recompute]

    def recipe(self, piece: Piece, leaves: int, needed_by: int) -> Recipe | None:
        found = self._closure(piece, leaves, needed_by)
        if found is None:
            return None
        order, ancestors = found
        tasks = [self.problem.tasks.tasks[t] for t in order]
        configurations = tuple(recipe_configuration(self.problem, task) for task in tasks)
        durations_ns = (self.problem.costs.duration_ns(t, c) for t, c in zip(order, configurations, strict=True))
        made = {use.piece for task in tasks for use in task.writes}
        return Recipe(
            piece=piece.index,
            leaves=leaves,
            needed_by=needed_by,
            tasks=order,
            ancestors=tuple(sorted(ancestors)),
            transients=tuple(sorted(made - {piece.index})),
            configurations=configurations,
            durations_ns=tuple(durations_ns),
            extra_bytes=tuple(self._extra_bytes(piece, tasks, configurations)),
        )

    def _closure(self, piece: Piece, leaves: int, needed_by: int) -> tuple[tuple[int, ...], set[int]] | None:
        """The tasks to run again, sorted, and the pieces they read as they are; None if there is no way."""
        chosen = set[int]()
        wanted = self._writers(piece, leaves + 1)
        ancestors = set[int]()
        while not wanted <= chosen:
            chosen |= wanted
            if len(chosen) > LONGEST_RECIPE or not all(self._may_run(t) for t in chosen):
                return None
            made = {use.piece for t in chosen for use in self.problem.tasks.tasks[t].writes}
            ancestors = set()
            for t in chosen:
                for use in self.problem.tasks.tasks[t].reads:
                    source = self.problem.tasks.pieces[use.piece]
                    root = self.problem.tasks.graph.root(use.tensor)
                    if use.piece not in made and self._lasts(source, root, t, needed_by):
                        ancestors.add(use.piece)
                    elif source.born < 0:
                        return None  # nothing writes it, so nothing can write it again
                    else:
                        wanted = wanted | self._writers(source, t)
        return (tuple(sorted(chosen)), ancestors) if chosen else None

    def _writers(self, piece: Piece, before: int) -> set[int]:
        return {t for t in piece.written if t < before}

    def _may_run(self, index: int) -> bool:
        task = self.problem.tasks.tasks[index]
        launch = self.problem.tasks.launch(task)
        return (
            launch.rule is BatchRule.PER_SAMPLE
            and launch.phase == FORWARD
            and not task.again
            and LAUNCHES[launch.op].recompute in self.allowed
            and not any(self.problem.tasks.pieces[use.piece].kept for use in task.writes)
        )

    def _lasts(self, piece: Piece, root: int, read: int, needed_by: int) -> bool:
        """Whether `piece` holds the tensor `root`, which task `read` reads, until `needed_by`, if it is there."""
        alive = piece.kept or (bool(piece.uses) and piece.uses[-1] >= needed_by)
        held = [tensor for tensor, since in zip(piece.tensors, piece.since, strict=True) if since < needed_by]
        return alive and held[-1] == root and not any(read <= t < needed_by for t in piece.written)

    def _extra_bytes(
        self, piece: Piece, tasks: list[Task], configurations: Iterable[Configuration | None]
    ) -> Iterator[int]:
        """Task by task what is live beside the piece, less the piece's bytes until it exists."""
        pieces = self.problem.tasks.pieces
        size = {use.piece: self.problem.bytes(pieces[use.piece]) for task in tasks for use in task.writes}
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, task in enumerate(tasks):
            for use in (*task.reads, *task.writes):
                if use.piece in size:
                    first.setdefault(use.piece, position)
                    last[use.piece] = position
        for position, configuration in enumerate(configurations):
            live = sum(size[p] for p in size.keys() - {piece.index} if first[p] <= position <= last[p])
            own = 0 if first[piece.index] <= position else -size[piece.index]
            workspace = configuration.workspace_bytes if configuration else 0
            yield live + own + align_up(workspace, self.problem.profile.alignment)
