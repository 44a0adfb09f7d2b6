"""The flow program: offload, prefetch, recomputation and convolution configurations in one program of linear size.

Copies on one direction of the link run first-in first-out, so cumulative bytes are enough: no binary for every piece at
every task.

Class of plans (what the bound speaks of). Order of tasks, ranges of samples and what works in place are given. A piece
with a gap between its forward and its backward uses (passes.base.gaps) is kept; or copied out once, from its last write
on, and copied in once, for the first task behind the gap or earlier for a recipe that reads it; or given up and
computed again once by its one recipe, immediately before the first task behind the gap or before one at which a recipe
that reads it runs, that need passed on at most flow_phases.DEPTH times, ancestors first. A call that a recipe repeats
runs in the recipe's configuration the first time too. Memory moves between tasks: what a copy out frees is taken by
tasks and copies that begin after it has ended, and a copy in has its memory from the start of the task with which it
may begin. Both directions are idle at the ends of the step; inputs and labels are on the device before it. Not in the
class: a piece that leaves twice, or between two forward uses; inputs that wait on the host; parameters and gradients
that visit.

Sets         tasks t in order, pieces ("visitors") x, phases i: before each task those of each recipe that may run
             there, one for each of its tasks, then the task. X_i, E_i: the instants at which phase i starts and ends.
Parameters   s_x bytes; p_x last write, l_x last use before the gap, b_x first use behind it; M_i bytes on the device in
             phase i were nothing ever away; tau_tc, m_tc time and workspace of configuration c of call t; rho_x time
             of x's recipe, kappa_xi what it takes in phase i beyond s_x; the rates of the link.
Variables    h_xt in {0,1} x is copied, and back in time for task t; g_xt in {0,1} x is rebuilt before task t;
             z_tc in {0,1} configuration c (all but the fastest); w_i >= 0 waiting before phase i;
             D, P >= 0 cumulative bytes copied out and in at the instants where they matter.
Objective    sum of all runs and waits: fastest times + sum (tau_tc - tau_t0) z_tc + sum rho_x g_xt + sum w_i.
C1 choices   sum_c z_tc <= 1; sum_t (h_xt + g_xt) <= 1; for v rebuilt before t from a with l_a < t < b_a: a is back by
             then, sum over t' > t of (h_at' + g_at') + sum over t' <= t of g_vt' <= 1; a rebuilt call keeps its
             configuration, sum_t g_xt <= z_tc.
C2 written   D(E_i) <= sum of s_x over copied x with p_x before the task of phase i.
C3 link      D and P rise between two instants by no more than the link moves in that time; P never falls.
C4 due       P(X_i) >= sum of s_x h_xt over all (x, t) due by phase i; P(X_i) <= D(X_i) before tasks behind gaps.
C5 memory    M_i + m_i - absent_i - F + P <= budget for both F = D and F = sum of s_x over copied x with l_x before the
             phase's task; absent_i = sum of s_x over x given up by l_x and not yet rebuilt in phase i; m_i the
             workspace, in a recipe kappa_xi g_xt. D at X_i and P at E_i: nothing is freed or begun within a task.

A larger D is never worse than a smaller one, so that D need not be held back. Waits stand before phases with C4 or C5
rows only: any other can be put off to the next of these. Rows of C5 are left out where a neighbouring one implies them
but for what the link moves in a moment (flow_phases); leaving out rows keeps the bound valid. Relaxing h, g and z to
[0, 1] does too.

Units: bytes and ns in 2^20, exactly; a rate in bytes per ns is then its own coefficient, rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from planc.passes.base import Problem
from planc.passes.flow_phases import FlowFacts, Phase, Visitor
from planc.passes.flow_program import Direction, Level, Program, Terms
from planc.units import align_up

UNIT = 2.0**-20
"""One byte, and one ns, in the program."""


@dataclass(frozen=True, slots=True)
class FlowProgram:
    """The program and what its columns and rows mean. Visitors by their number in `facts`.

    fetched, rebuilt: for each visitor task t -> column h_xt, g_xt. options: call t -> columns z_tc, c = 1, 2, ...
    waits: columns w_i. memory_rows: (row, task) of C5.
    """

    program: Program
    facts: FlowFacts
    fetched: tuple[Mapping[int, int], ...]
    rebuilt: tuple[Mapping[int, int], ...]
    options: Mapping[int, tuple[int, ...]]
    waits: tuple[int, ...]
    memory_rows: tuple[tuple[int, int], ...]


def build_program(problem: Problem, facts: FlowFacts, *, link_factor: float = 1.0) -> FlowProgram:
    """Write the program down. `link_factor`: both rates times that (to ask what a faster link would buy)."""
    builder = _Builder(problem, facts, link_factor)
    builder.at_most_one()
    builder.needs()
    builder.named_configurations()
    builder.timeline()
    return FlowProgram(
        builder.program,
        facts,
        tuple(builder.fetched),
        tuple(builder.rebuilt),
        builder.options,
        tuple(builder.waits),
        tuple(builder.memory_rows),
    )


def _size(visitor: Visitor) -> float:
    return visitor.bytes * UNIT


@dataclass(slots=True)
class _Events:
    """Visitors by the task before which something becomes true of them."""

    written: dict[int, list[int]] = field(default_factory=dict)
    left: dict[int, list[int]] = field(default_factory=dict)


class _Builder:
    def __init__(self, problem: Problem, facts: FlowFacts, link_factor: float) -> None:
        self.problem = problem
        self.facts = facts
        p = self.program = Program()
        fastest_ns = sum(phase.duration_ns for phase in facts.phases if phase.visitor is None)
        # The objective's constant stands in a column, so that the solver's bound and gap are of the whole.
        p.column(fastest_ns * UNIT, lower=1.0, upper=1.0)
        self.fetched = [{t: p.binary() for t in v.fetched_for} for v in facts.visitors]
        self.rebuilt = [
            {t: p.binary(v.recipe.duration_ns * UNIT) for t in v.rebuilt_at} if v.recipe else {} for v in facts.visitors
        ]
        self.options = {
            phase.task: tuple(p.binary((option.duration_ns - phase.duration_ns) * UNIT) for option in phase.options[1:])
            for phase in facts.phases
            if phase.options
        }
        self.waits: list[int] = []
        self.memory_rows: list[tuple[int, int]] = []
        profile = problem.profile
        out, into = profile.d2h_duplex_bytes_per_s, profile.h2d_duplex_bytes_per_s
        self.out = Direction(p, float(np.nextafter(out * link_factor / 1e9, np.inf)), rising=False)
        self.into = Direction(p, float(np.nextafter(into * link_factor / 1e9, np.inf)), rising=True)
        self.written, self.left, self.absent, self.due = (Level(p) for _ in range(4))

    def at_most_one(self) -> None:
        """C1: one configuration a call; a piece is copied or rebuilt, for one time, or neither."""
        for columns in self.options.values():
            if len(columns) > 1:
                self.program.at_most([(c, 1.0) for c in columns], 1.0)
        for copied, made in zip(self.fetched, self.rebuilt, strict=True):
            both = (*copied.values(), *made.values())
            if len(both) > 1:
                self.program.at_most([(c, 1.0) for c in both], 1.0)

    def needs(self) -> None:
        """C1: whoever is rebuilt before a task has its ancestors back by then."""
        number = {visitor.piece: n for n, visitor in enumerate(self.facts.visitors)}
        for reader, visitor in enumerate(self.facts.visitors):
            if visitor.recipe is None:
                continue
            ancestors = [number[piece] for piece in visitor.recipe.ancestors if piece in number]
            for task in visitor.rebuilt_at:
                back = [(c, 1.0) for t, c in self.rebuilt[reader].items() if t <= task]
                for a in ancestors:
                    if self.facts.visitors[a].leaves < task < self.facts.visitors[a].needed_by:
                        later = (*self.fetched[a].items(), *self.rebuilt[a].items())
                        self.program.at_most([*back, *((c, 1.0) for t, c in later if t > task)], 1.0)

    def named_configurations(self) -> None:
        """C1: a call that a recipe repeats has the recipe's configuration the first time too."""
        for made, visitor in zip(self.rebuilt, self.facts.visitors, strict=True):
            if visitor.recipe is None:
                continue
            rebuilt = [(c, 1.0) for c in made.values()]
            for task, named in zip(visitor.recipe.tasks, visitor.recipe.configurations, strict=True):
                if named is None or task not in self.options:
                    continue
                columns = self.options[task]
                chosen = self.problem.costs.configurations[task].index(named)
                if chosen:
                    self.program.at_most([*rebuilt, (columns[chosen - 1], -1.0)], 0.0)
                else:
                    self.program.at_most([*rebuilt, *((c, 1.0) for c in columns)], 1.0)

    def timeline(self) -> None:
        """C2 to C5, phase after phase."""
        events = self._events()
        due = self._due()
        task = -1
        for number, phase in enumerate(self.facts.phases):
            if phase.task != task:
                task = phase.task
                self._written(events.written.get(task, ()))
                self._left(events.left.get(task, ()))
            if phase.visitor is not None and not phase.place:
                made = self.rebuilt[phase.visitor][task]
                self.absent.add([(made, -_size(self.facts.visitors[phase.visitor]))])
            if phase.tight or number in due:
                self.waits.append(self.program.column(1.0))
                self._elapse([(self.waits[-1], 1.0)], 0.0)
            behind_gap = number in due and phase.visitor is None
            out = self.out.instant() if phase.tight or behind_gap else None
            if number in due:
                self._back(due[number], out if behind_gap else None)
            self._run(phase)
            if phase.tight and out is not None:
                self._fits(phase, out, self.into.instant())

    def _events(self) -> _Events:
        events = _Events()
        for number, visitor in enumerate(self.facts.visitors):
            events.written.setdefault(visitor.written + 1, []).append(number)
            events.left.setdefault(visitor.leaves + 1, []).append(number)
        return events

    def _due(self) -> dict[int, Terms]:
        """C4: bytes due before each phase: for a task behind the gap, else for the last recipe that may read a piece.

        The last of those before a task, as whichever of them runs needs the piece no later.
        """
        tasks = self.problem.tasks.tasks
        reader: dict[tuple[int, int], int] = {}
        phase_of: dict[int, int] = {}
        for number, phase in enumerate(self.facts.phases):
            if phase.visitor is None:
                phase_of[phase.task] = number
                continue
            recipe = self.facts.visitors[phase.visitor].recipe
            for piece in recipe.ancestors if recipe else ():
                own = tasks[recipe.tasks[phase.place]].reads if recipe else ()
                before = reader.get((phase.task, piece))
                if any(use.piece == piece for use in own) and (
                    before is None or self.facts.phases[before].visitor != phase.visitor
                ):
                    reader[phase.task, piece] = number
        due: dict[int, Terms] = {}
        for columns, visitor in zip(self.fetched, self.facts.visitors, strict=True):
            for task, column in columns.items():
                last = task == visitor.needed_by
                number = phase_of[task] if last else reader[task, visitor.piece]
                due.setdefault(number, []).append((column, _size(visitor)))
        return due

    def _written(self, numbers: list[int] | tuple[int, ...]) -> None:
        """C2: up to here no more was copied out than had been written."""
        if not numbers:
            return
        now = self.out.instant() if self.out.elapsed or self.out.elapsed_constant else self.out.last
        if now is not None:
            self.program.at_most([(now, 1.0), *self.written.terms(-1.0)], 0.0)
        for n in numbers:
            self.written.add((c, _size(self.facts.visitors[n])) for c in self.fetched[n].values())

    def _left(self, numbers: list[int] | tuple[int, ...]) -> None:
        for n in numbers:
            size = _size(self.facts.visitors[n])
            self.left.add((c, size) for c in self.fetched[n].values())
            self.absent.add((c, size) for c in self.rebuilt[n].values())

    def _elapse(self, terms: Terms, constant: float) -> None:
        self.out.elapse(terms, constant)
        self.into.elapse(terms, constant)

    def _run(self, phase: Phase) -> None:
        duration = phase.duration_ns * UNIT
        if phase.visitor is not None:
            self._elapse([(self.rebuilt[phase.visitor][phase.task], duration)], 0.0)
            return
        columns = self.options.get(phase.task, ())
        slower = ((option.duration_ns - phase.duration_ns) * UNIT for option in phase.options[1:])
        self._elapse(list(zip(columns, slower, strict=True)), duration)

    def _back(self, due: Terms, out: int | None) -> None:
        """C4: what is due has been copied in. `out`: the column D(X_i), which covers all that was copied in."""
        self.due.add(due)
        into = self.into.instant()
        self.program.at_least([(into, 1.0), *self.due.terms(-1.0)], 0.0)
        if out is not None:
            self.program.at_most([(into, 1.0), (out, -1.0)], 0.0)

    def _fits(self, phase: Phase, out: int, into: int) -> None:
        """C5. `out`, `into`: the columns D(X_i) and P(E_i)."""
        extra, base_bytes = self._extra(phase)
        room = (self.facts.limit_bytes - base_bytes) * UNIT
        common = [*extra, *self.absent.terms(-1.0), (into, 1.0)]
        for freed in ([(out, -1.0)], self.left.terms(-1.0)):
            self.memory_rows.append((self.program.at_most([*common, *freed], room), phase.task))

    def _extra(self, phase: Phase) -> tuple[Terms, int]:
        """What a phase takes by choice, and what it takes anyway."""
        if phase.visitor is not None:
            made = self.rebuilt[phase.visitor][phase.task]
            return [(made, phase.extra_bytes * UNIT)], phase.resident_bytes
        if not phase.options:
            return [], phase.resident_bytes
        alignment = self.problem.profile.alignment
        first, *others = (align_up(option.workspace_bytes, alignment) for option in phase.options)
        less = [(c, (size - first) * UNIT) for c, size in zip(self.options[phase.task], others, strict=True)]
        return less, phase.resident_bytes + first
