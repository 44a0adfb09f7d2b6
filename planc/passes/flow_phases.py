"""What the flow program speaks of: the pieces that may be away, the times they may come back, and the phases of a step.

Before each task stands one phase for each recipe that may run there, then the task itself. Tasks that can neither run
out of memory nor change what may be copied are one phase together with their neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planc.errors import InternalError
from planc.micro_batch import Configuration
from planc.passes.base import Longs, Problem, gaps, resident_bytes, stays
from planc.passes.offload import last_write
from planc.passes.recipes import Recipe
from planc.units import align_up

DEPTH = 2
"""How far a need is passed on: x may be rebuilt for v, that for u, and so on, this many times; see `Visitor`.

Measured on ResNet-50 at 50 and 35 % of its need: overhead 5.5 and 19.5 % without, 5.3 and 9.5 % passed on once, 5.3 and
9.2 % twice, and no better with more, at several times the size.
"""

COARSENESS = 4_000_000
"""A moment, see `_prune`, is the time all tasks take, times the number of phases, over this.

So that there are a few hundred rows of memory however many tasks there are; no bound measured moves by it.
"""

IGNORED_SHARE = 4096
"""Pieces so small that together they are at most this part of the budget are not decided about: see `FlowFacts`."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """A piece that may be away between task `leaves` and task `needed_by`.

    piece:   its index. bytes: what it takes in the arena.
    written: the last task that writes it before it leaves, -1 if it is there before the first task.
    recipe:  how it is made again, None if it cannot be.
    fetched_for: the tasks by whose start a copy of it may have to be back, rising; the last is `needed_by`, the others
             are those before which a recipe that reads it may run.
    rebuilt_at: the tasks before which its recipe may run, rising, the last is `needed_by`; the others are times at
             which a recipe that reads it may run, passed on at most DEPTH times. Empty without a recipe.
    """

    piece: int
    bytes: int
    written: int
    leaves: int
    needed_by: int
    recipe: Recipe | None
    fetched_for: tuple[int, ...]
    rebuilt_at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the compute lane: a task of the step, or of a recipe; or several tasks in which nothing matters.

    task:    the task that runs (the first of several), or the one that the recipe stands before.
    visitor: index of the visitor whose recipe runs, None: tasks of the step. place: which task of the recipe.
    duration_ns: of the run, for a task with choices that of the first one.
    resident_bytes: bytes of pieces on the device while it runs if none is ever away, without workspace.
    extra_bytes: what else a recipe takes there, its piece apart.
    tight:   whether memory has to be watched in it.
    options: configurations of a convolution call between which is chosen, fastest first; empty if nothing is.
    """

    task: int
    visitor: int | None
    duration_ns: int
    resident_bytes: int
    tight: bool
    place: int = 0
    extra_bytes: int = 0
    options: tuple[Configuration, ...] = ()


@dataclass(frozen=True, slots=True)
class FlowFacts:
    """Everything the flow program is built from.

    limit_bytes: the budget rounded up to the arena's alignment, plus the bytes of all pieces that are not decided about
        (`ignored_bytes`). Every offset is a multiple of the alignment, so live bytes rounded up to it fit that
        limit in any plan, even in one in which the ignored pieces were away: the program stays a relaxation.
    fixed: the configuration of every convolution call that has no choice.
    """

    visitors: tuple[Visitor, ...]
    phases: tuple[Phase, ...]
    fixed: Mapping[int, Configuration]
    limit_bytes: int
    ignored_bytes: int


def gather_facts(problem: Problem, recipes: Sequence[Recipe]) -> FlowFacts:
    """Visitors and phases of a problem with these recipes."""
    found = sorted(gaps(problem), key=lambda gap: (problem.bytes(gap[0]), gap[0].index))
    ignored_bytes, few = 0, problem.budget_bytes // IGNORED_SHARE
    while found and ignored_bytes + problem.bytes(found[0][0]) <= few:
        ignored_bytes += problem.bytes(found.pop(0)[0])
    recipe_of = {recipe.piece: recipe for recipe in recipes}
    away = {piece.index: (leaves, needed_by) for piece, leaves, needed_by in found}
    fetched_for, rebuilt_at = _times(away, {p: recipe_of[p] for p in away if p in recipe_of})
    visitors = tuple(
        Visitor(
            piece.index,
            problem.bytes(piece),
            last_write(piece, leaves),
            leaves,
            needed_by,
            recipe_of.get(piece.index),
            tuple(sorted(fetched_for[piece.index])),
            tuple(sorted(rebuilt_at.get(piece.index, ()))),
        )
        for piece, leaves, needed_by in sorted(found, key=lambda gap: (gap[1], gap[0].index))
    )
    limit = align_up(problem.budget_bytes, problem.profile.alignment) + ignored_bytes
    phases, fixed = _Phases(problem, visitors, limit).make()
    return FlowFacts(visitors, phases, fixed, limit, ignored_bytes)


_Times = dict[int, set[int]]


def _times(away: Mapping[int, tuple[int, int]], recipe_of: Mapping[int, Recipe]) -> tuple[_Times, _Times]:
    """By when copies may have to be back, and when recipes may run, by piece."""
    rebuilt_at = {piece: {away[piece][1]} for piece in recipe_of}
    fetched_for = {piece: {needed_by} for piece, (_, needed_by) in away.items()}
    fresh = {piece: set(times) for piece, times in rebuilt_at.items()}
    for depth in range(DEPTH + 1):
        passed_on: _Times = {}
        for reader, times in fresh.items():
            for piece in recipe_of[reader].ancestors:
                if piece not in away:
                    continue
                leaves, needed_by = away[piece]
                inside = {t for t in times if leaves < t < needed_by}
                fetched_for[piece] |= inside
                if piece in recipe_of and depth < DEPTH:
                    passed_on.setdefault(piece, set()).update(inside - rebuilt_at[piece])
        for piece, times in passed_on.items():
            rebuilt_at[piece] |= times
        fresh = passed_on
    return fetched_for, rebuilt_at


class _Phases:
    """Phases as they are laid out, task after task."""

    def __init__(self, problem: Problem, visitors: Sequence[Visitor], limit_bytes: int) -> None:
        self.problem = problem
        self.visitors = visitors
        self.limit = limit_bytes
        self.resident = resident_bytes(problem, ())
        self.between = _between_bytes(problem)
        self.recipes: dict[int, list[int]] = {}
        for number, visitor in enumerate(visitors):
            for task in visitor.rebuilt_at:
                self.recipes.setdefault(task, []).append(number)
        for numbers in self.recipes.values():
            # A recipe reads what was complete before its own last task wrote: ancestors come first.
            numbers.sort(key=lambda n: (_last_task(visitors[n]), n))
        self.named = _named_configurations(visitors)
        self.phases: list[Phase] = []
        self.fixed: dict[int, Configuration] = {}

    def make(self) -> tuple[tuple[Phase, ...], dict[int, Configuration]]:
        starts = set[int](self.recipes)
        for visitor in self.visitors:
            starts |= {visitor.written + 1, visitor.leaves + 1, *visitor.fetched_for}
        joinable = False
        for task in self.problem.tasks.tasks:
            for number in self.recipes.get(task.index, ()):
                self._recipe(task.index, number)
            phase = self._task(task.index)
            alone = phase.tight or bool(phase.options)
            if joinable and not alone and task.index not in starts:
                last = self.phases.pop()
                phase = Phase(last.task, None, last.duration_ns + phase.duration_ns, 0, False)
            self.phases.append(phase)
            joinable = not alone
        return _prune(self.phases, self.visitors, self.problem.profile.alignment), self.fixed

    def _recipe(self, task: int, number: int) -> None:
        recipe = self.visitors[number].recipe
        if recipe is None:
            raise InternalError(f"piece {self.visitors[number].piece} has no recipe to run before task {task}")
        resident = int(self.between[task])
        for place, (duration, extra) in enumerate(zip(recipe.durations_ns, recipe.extra_bytes, strict=True)):
            tight = resident + extra > self.limit
            self.phases.append(Phase(task, number, duration, resident, tight, place, extra))

    def _task(self, task: int) -> Phase:
        resident = int(self.resident[task])
        options = self.problem.costs.configurations[task]
        duration_ns = self.problem.costs.durations[task]
        if not options:
            return Phase(task, None, duration_ns, resident, resident > self.limit)
        tight = resident + self._aligned(options[0]) > self.limit
        if len(options) == 1 or (not tight and self.named.get(task, options[0]) == options[0]):
            self.fixed[task] = options[0]
            workspace = self._aligned(options[0])
            return Phase(task, None, options[0].duration_ns, resident + workspace, tight)
        return Phase(task, None, options[0].duration_ns, resident, tight, options=options)

    def _aligned(self, configuration: Configuration) -> int:
        return align_up(configuration.workspace_bytes, self.problem.profile.alignment)


def _prune(phases: Sequence[Phase], visitors: Sequence[Visitor], alignment: int) -> tuple[Phase, ...]:
    """Leave out memory rows that another one implies but for what the link moves in a moment.

    A row implies an earlier one with no more bytes of its own, up to where something may leave: what is copied in only
    grows. It implies a later one as well, up to the next task that brings something back, by a copy that may have to be
    waited for or by a recipe. What it does not see is what the link moves between the two, so they may lie no more than
    a moment apart.
    """
    moment_ns = sum(phase.duration_ns for phase in phases if phase.visitor is None) * len(phases) // COARSENESS
    leaving = {visitor.leaves + 1 for visitor in visitors}
    returning = {visitor.needed_by for visitor in visitors}
    sizes = [_least_and_most(phase, alignment) for phase in phases]
    tight = [phase.tight for phase in phases]
    best, age_ns = -1, 0
    for i in reversed(range(len(phases))):
        best, age_ns = _drop(tight, i, sizes[i], best, age_ns, moment_ns)
        first = i == 0 or phases[i - 1].task != phases[i].task
        if first and phases[i].task in leaving:
            best = -1  # before, there was more on the device than this row counts
        if i:
            age_ns += _certain_ns(phases[i - 1])
    best, age_ns = -1, 0
    for i, phase in enumerate(phases):
        if phase.visitor is not None or phase.task in returning:
            best = -1
        best, age_ns = _drop(tight, i, sizes[i], best, age_ns, moment_ns)
        age_ns += _certain_ns(phase)
    return tuple(replace(phase, tight=needed) for phase, needed in zip(phases, tight, strict=True))


def _drop(tight: list[bool], i: int, size: tuple[int, int], best: int, age_ns: int, moment_ns: int) -> tuple[int, int]:
    """Drop row i if a row of `best` bytes `age_ns` away implies it; returns the row that counts from here on."""
    least, most = size
    if tight[i]:
        if most <= best and age_ns <= moment_ns:
            tight[i] = False
        elif least >= best or age_ns > moment_ns:
            return least, 0
    return best, age_ns


def _least_and_most(phase: Phase, alignment: int) -> tuple[int, int]:
    """Bytes of a phase under the decisions that take least, and most."""
    if phase.visitor is not None:
        extra = [0, phase.extra_bytes]
    else:
        extra = [align_up(option.workspace_bytes, alignment) for option in phase.options] or [0]
    return phase.resident_bytes + min(extra), phase.resident_bytes + max(extra)


def _certain_ns(phase: Phase) -> int:
    return phase.duration_ns if phase.visitor is None else 0


def _last_task(visitor: Visitor) -> int:
    return visitor.recipe.tasks[-1] if visitor.recipe else -1


def _named_configurations(visitors: Iterable[Visitor]) -> dict[int, Configuration]:
    """The configuration that recipes want of a convolution call they run again."""
    return {
        task: configuration
        for visitor in visitors
        if visitor.recipe is not None
        for task, configuration in zip(visitor.recipe.tasks, visitor.recipe.configurations, strict=True)
        if configuration is not None
    }


def _between_bytes(problem: Problem) -> Longs:
    """Bytes of pieces that live both before and after the start of each task."""
    change = np.zeros(len(problem.tasks.tasks) + 1, dtype=np.int64)
    for piece, own in zip(problem.tasks.pieces, stays(problem, ()), strict=True):
        for span in own[0]:
            if span.start + 1 < span.end:
                change[span.start + 1] += problem.bytes(piece)
                change[span.end] -= problem.bytes(piece)
    return np.cumsum(change)[:-1]
