"""The flow MILP solved: LP, dive, branch and bound; and what its solution decides.

HiGHS solves (Huangfu, Hall, Mathematical Programming Computation 2018), on one thread, limited by gap and nodes, never
by the clock, so that a model gives the same plan on any machine. The relaxation is nearly integral: a dive (fix what is
integral at one, round the rest, solve again warm) mostly ends within the gap, and branch and bound need not begin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, floor
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.errors import InfeasibleError
from planc.micro_batch import Configuration
from planc.passes.base import CONFIGURED, Decisions, Problem, Rebuild
from planc.passes.flow_model import UNIT, FlowProgram, build_program
from planc.passes.flow_phases import gather_facts
from planc.passes.flow_program import Program
from planc.passes.recipes import find_recipes

Reals = npt.NDArray[np.float64]

NODE_LIMIT = 1000
DIVE_SOLVES = 60
"""Solves after which a dive gives up; those that reach the gap took up to 50."""
INTEGRAL = 1e-6
SAFE = 1e-6
"""What a bound gives away for the solver's tolerances, relative."""


class FlowStatus(StrEnum):
    DIVE = "within the gap after the dive"
    SOLVED = "within the gap"
    LIMIT = "best found within the node limit"


class SolverFailure(Exception):  # noqa: N818 - not an error of planc's: the heuristic plan stands
    """The solver gave neither a solution nor a proof that there is none. The message says how it ended."""


@dataclass(frozen=True, slots=True)
class FlowSolution:
    """What the program decides, for fluid copies.

    configurations: for every task, None unless it is a convolution call. offloaded: pieces that leave, rising.
    rebuilds: in the order in which they run. objective_ns: of this solution, rounded up.
    bound_ns: no plan of the class of flow_model.py is faster.
    """

    configurations: tuple[Configuration | None, ...]
    offloaded: tuple[int, ...]
    rebuilds: tuple[Rebuild, ...]
    objective_ns: int
    bound_ns: int
    status: FlowStatus


@dataclass(frozen=True, slots=True)
class FlowMilp:
    """The pass of policy auto: configurations, recomputations, and which pieces leave."""

    recompute: str = "any"
    gap: float = 0.005
    name: str = "flow_milp.FlowMilp"
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset({CONFIGURED})

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        found = solve_flow(problem, recompute=self.recompute, gap=self.gap)
        return replace(
            decisions,
            configurations=found.configurations,
            rebuilds=found.rebuilds,
            leaving=frozenset(found.offloaded),
            bound_ns=found.bound_ns,
        )


def solve_flow(
    problem: Problem,
    *,
    recompute: str = "any",
    gap: float = 0.005,
    node_limit: int = NODE_LIMIT,
    start: Decisions | None = None,
) -> FlowSolution:
    """Decide what is offloaded, what is rebuilt and how convolutions run.

    Args:
        recompute: what may be recomputed, a key of recipes.RECOMPUTE.
        gap: stop when the solution is proven to be within this part of the best of the class.
        start: decisions to begin branch and bound from where the dive ends in nothing; ignored if outside the class.

    Raises:
        InfeasibleError: no plan of the class fits the budget.
        SolverFailure: the solver found nothing within its limits, or failed.
    """
    flow = flow_program(problem, recompute)
    relaxed = _Solver(flow.program)
    lower = relaxed.solve()
    if lower is None:
        raise InfeasibleError(f"no plan that offloads or recomputes once fits {problem.budget_bytes} bytes.")
    best = _dive(relaxed, flow, lower, gap)
    if best is not None and best.objective <= lower * (1 + gap):
        return _read(problem, flow, best, lower, FlowStatus.DIVE)
    if best is None and start is not None:
        best = _begin(relaxed, flow, start)
    return _branch_and_bound(problem, flow, lower, best, gap, node_limit)


def relaxed_bound_ns(problem: Problem, *, recompute: str = "any") -> int | None:
    """A bound from the relaxation alone, None if nothing of the class fits: cheap, to skip what cannot win."""
    flow = flow_program(problem, recompute)
    lower = _Solver(flow.program).solve()
    return None if lower is None else _bound_ns(flow, lower)


def flow_program(problem: Problem, recompute: str) -> FlowProgram:
    """The program of a problem."""
    return build_program(problem, gather_facts(problem, find_recipes(problem, recompute)))


def relaxation(program: Program) -> tuple[float, Reals, Reals] | None:
    """Objective, values of the columns and prices (duals) of the rows of the relaxation; None if it is infeasible."""
    solver = _Solver(program)
    objective = solver.solve()
    return None if objective is None else (objective, solver.values(), solver.prices())


@dataclass(frozen=True, slots=True)
class _Incumbent:
    objective: float
    values: Reals


class _Solver:
    """HiGHS with a program loaded. Every status word is mapped here, once."""

    def __init__(self, program: Program, *, integer: bool = False) -> None:
        import highspy  # here and not above: most commands never solve

        self.highspy: Any = highspy
        # The plain binding: highspy's own class over it enables callbacks, and that prints a banner on stdout.
        self.highs: Any = self.highspy.Highs.__base__()
        for option, value in (("output_flag", False), ("threads", 1), ("parallel", "off")):
            self.highs.setOptionValue(option, value)
        self.integers = np.flatnonzero(program.integer).astype(np.int32)
        self.highs.passModel(self._model(program, integer))

    def _model(self, program: Program, integer: bool) -> Any:
        lp = self.highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(program.cost), len(program.row_lower)
        lp.col_cost_ = np.array(program.cost)
        lp.col_lower_, lp.col_upper_ = np.array(program.lower), np.array(program.upper)
        lp.row_lower_, lp.row_upper_ = np.array(program.row_lower), np.array(program.row_upper)
        lp.a_matrix_.format_ = self.highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(program.start, dtype=np.int32)
        lp.a_matrix_.index_ = np.array(program.index, dtype=np.int32)
        lp.a_matrix_.value_ = np.array(program.value)
        if integer:
            kinds = self.highspy.HighsVarType
            lp.integrality_ = [kinds.kInteger if one else kinds.kContinuous for one in program.integer]
        return lp

    def solve(self) -> float | None:
        """Solve to the limits set; the objective of what was found, None if there is proven to be nothing."""
        self.highs.run()
        status, known = self.highs.getModelStatus(), self.highspy.HighsModelStatus
        if status in (known.kInfeasible, known.kUnboundedOrInfeasible):  # costs and columns are >= 0: never unbounded
            return None
        info = self.highs.getInfo()
        limited = status == known.kSolutionLimit or status == known.kIterationLimit
        if status != known.kOptimal and not (limited and np.isfinite(info.objective_function_value)):
            raise SolverFailure(f"HiGHS ended with: {self.highs.modelStatusToString(status)}")
        return float(info.objective_function_value)

    def values(self) -> Reals:
        return np.array(self.highs.getSolution().col_value)

    def prices(self) -> Reals:
        return np.array(self.highs.getSolution().row_dual)

    def fix(self, columns: npt.ArrayLike, values: npt.ArrayLike) -> None:
        where = np.asarray(columns, dtype=np.int32)
        wanted = np.asarray(values, dtype=np.float64)
        if len(where):
            self.highs.changeColsBounds(len(where), where, wanted, wanted)

    def free(self, columns: npt.ArrayLike) -> None:
        where = np.asarray(columns, dtype=np.int32)
        self.highs.changeColsBounds(len(where), where, np.zeros(len(where)), np.ones(len(where)))

    def fixed(self, values: Reals) -> _Incumbent | None:
        """The best solution with these integers."""
        self.fix(self.integers, np.round(values[self.integers]))
        objective = self.solve()
        return None if objective is None else _Incumbent(objective, self.values())

    def branch(self, start: _Incumbent | None, gap: float, node_limit: int) -> tuple[float | None, float]:
        """Branch and bound; the objective found and the bound proven."""
        self.highs.setOptionValue("mip_rel_gap", gap)
        self.highs.setOptionValue("mip_max_nodes", node_limit)
        if start is not None:
            solution = self.highspy.HighsSolution()
            solution.col_value = list(start.values)
            self.highs.setSolution(solution)
        objective = self.solve()
        return objective, float(self.highs.getInfo().mip_dual_bound)


def _dive(solver: _Solver, flow: FlowProgram, lower: float, gap: float) -> _Incumbent | None:
    """From the relaxation to integers: what is one stays one, the rest is rounded, half of it at a time.

    Decisions about tasks come before those about copies. One or two that are left are tried both ways, up first: fixed
    down, the same fraction of the same bytes would only move on to the next piece. Up is taken where it costs little.
    """
    copies = np.zeros(len(flow.program.cost), dtype=bool)
    copies[[column for columns in flow.fetched for column in columns.values()]] = True
    open_ = np.zeros(len(copies), dtype=bool)
    open_[solver.integers] = True
    values = solver.values()
    solves = 0
    while solves < DIVE_SOLVES:
        columns = np.flatnonzero(open_)
        fraction = np.abs(values[columns] - np.round(values[columns]))
        loose = columns[fraction > INTEGRAL]
        if not len(loose):
            return solver.fixed(values)
        ones = columns[values[columns] > 1 - INTEGRAL]
        solver.fix(ones, np.ones(len(ones)))
        open_[ones] = False
        about_tasks = loose[~copies[loose]]
        if len(about_tasks) > 2:
            nearness = np.abs(values[about_tasks] - np.round(values[about_tasks]))
            half = about_tasks[np.argsort(nearness, kind="stable")][: (len(about_tasks) + 1) // 2]
            solver.fix(half, np.round(values[half]))
            solves += 1
            if solver.solve() is not None:
                open_[half] = False
                values = solver.values()
                continue
            solver.free(half)
            chosen = int(half[0])
        else:
            rest = about_tasks if len(about_tasks) else loose
            chosen = int(rest[np.argmax(values[rest])])
        accepted = lower * (1 + gap * (0.3 + 0.7 * solves / DIVE_SOLVES))
        found, tried = _try_both(solver, chosen, accepted)
        solves += tried
        if found is None:
            return None
        values = found
        open_[chosen] = False
    return None


def _try_both(solver: _Solver, column: int, accepted: float) -> tuple[Reals | None, int]:
    """Fix a column to one if that costs no more than `accepted`, else to what is better; the values, and solves."""
    solver.fix([column], [1.0])
    up = solver.solve()
    values = None if up is None else solver.values()
    if up is not None and up <= accepted:
        return values, 1
    solver.fix([column], [0.0])
    down = solver.solve()
    if down is not None and (up is None or down < up):
        return solver.values(), 2
    if up is not None:
        solver.fix([column], [1.0])
    return values, 2


def _begin(solver: _Solver, flow: FlowProgram, start: Decisions) -> _Incumbent | None:
    """Given decisions as a solution of the program; None where they are outside the class or do not fit."""
    values = np.zeros(len(flow.program.cost))
    visitors = {visitor.piece: number for number, visitor in enumerate(flow.facts.visitors)}
    rebuilt_before: dict[int, int] = {}
    for rebuild in start.rebuilds:
        column = flow.rebuilt[visitors[rebuild.piece]].get(rebuild.before) if rebuild.piece in visitors else None
        if column is None:
            return None
        values[column] = 1.0
        rebuilt_before[visitors[rebuild.piece]] = rebuild.before
    leaving = {offload.piece for offload in start.offloads} | (start.leaving or frozenset())
    for piece in leaving & visitors.keys():
        number = visitors[piece]
        values[flow.fetched[number][_due(flow, number, rebuilt_before)]] = 1.0
    for phase in flow.facts.phases:
        chosen = start.configurations[phase.task] if phase.options else None
        if chosen is not None and chosen != phase.options[0]:
            fits = (n for n, c in enumerate(phase.options[1:]) if c.workspace_bytes <= chosen.workspace_bytes)
            values[flow.options[phase.task][next(fits, -1)]] = 1.0
    return solver.fixed(values)


def _due(flow: FlowProgram, number: int, rebuilt_before: dict[int, int]) -> int:
    """The latest task for which a copy of a visitor can be due, given before which tasks others are rebuilt."""
    visitor = flow.facts.visitors[number]
    first = visitor.needed_by
    for reader, task in rebuilt_before.items():
        recipe = flow.facts.visitors[reader].recipe
        if recipe is not None and visitor.piece in recipe.ancestors and task > visitor.leaves:
            first = min(first, task)
    return max((t for t in visitor.fetched_for if t <= first), default=visitor.fetched_for[0])


def _branch_and_bound(
    problem: Problem, flow: FlowProgram, lower: float, best: _Incumbent | None, gap: float, node_limit: int
) -> FlowSolution:
    tree = _Solver(flow.program, integer=True)
    objective, proven = tree.branch(best, gap, node_limit)
    if objective is None:
        raise InfeasibleError(f"no plan that offloads or recomputes once fits {problem.budget_bytes} bytes.")
    relaxed = _Solver(flow.program)
    found = relaxed.fixed(tree.values())  # integers as they are meant, not as near as the solver thought
    if found is None:
        raise SolverFailure("HiGHS gave a solution that is none once rounded")
    proven = max(proven, lower)
    done = found.objective <= proven * (1 + 2 * gap)
    return _read(problem, flow, found, proven, FlowStatus.SOLVED if done else FlowStatus.LIMIT)


def _bound_ns(flow: FlowProgram, proven: float) -> int:
    """Whole ns below a proven objective; no plan is faster than its tasks at their fastest either."""
    return max(floor(proven * (1 - SAFE) / UNIT), round(flow.program.cost[0] / UNIT))


def _read(problem: Problem, flow: FlowProgram, found: _Incumbent, proven: float, status: FlowStatus) -> FlowSolution:
    chosen = found.values > 0.5
    offloaded = [
        visitor.piece
        for visitor, columns in zip(flow.facts.visitors, flow.fetched, strict=True)
        if any(chosen[column] for column in columns.values())
    ]
    bound_ns = _bound_ns(flow, proven)
    return FlowSolution(
        _configurations(problem, flow, chosen),
        tuple(sorted(offloaded)),
        tuple(_rebuilds(flow, chosen)),
        max(ceil(found.objective / UNIT), bound_ns),
        bound_ns,
        status,
    )


def _configurations(
    problem: Problem, flow: FlowProgram, chosen: npt.NDArray[np.bool_]
) -> tuple[Configuration | None, ...]:
    offered = problem.costs.configurations
    configurations: list[Configuration | None] = [options[0] if options else None for options in offered]
    for phase in flow.facts.phases:
        columns = flow.options[phase.task] if phase.options else ()
        for option, column in zip(phase.options[1:], columns, strict=True):
            if chosen[column]:
                configurations[phase.task] = option
    return tuple(configurations)


def _rebuilds(flow: FlowProgram, chosen: npt.NDArray[np.bool_]) -> list[Rebuild]:
    """In the order of the phases, ancestors first."""
    found = []
    for phase in flow.facts.phases:
        if phase.visitor is None or phase.place or not chosen[flow.rebuilt[phase.visitor][phase.task]]:
            continue
        visitor = flow.facts.visitors[phase.visitor]
        recipe = visitor.recipe.tasks if visitor.recipe else ()
        found.append(Rebuild(visitor.piece, visitor.leaves, phase.task, visitor.needed_by, recipe))
    return found
