"""The flow MILP against every decision there is, on small random networks, with a judge of its own (flow_instances).

No schedule may beat the bound, no decision may be better than the solution by more than the gap, and the solution's own
decisions have a schedule within 3 % of its objective. Over 408 instances (seeds 0 to 559 but those with too many
decisions) nothing beat the bound; 385 had such a schedule with copies in eighths of a piece, 401 with copies in pieces
of the arena's alignment. In the other seven all copying takes about as long as all computing: a piece is still leaving
when its first bytes are fetched again, and the judge fetches nothing before all that one task waits for has left.
"""

from __future__ import annotations

import pytest
from flow_instances import judge, random_problem

from planc.errors import InfeasibleError
from planc.passes.flow_milp import solve_flow

GAP = 0.005
SEEDS = (0, *range(2, 5), *range(6, 9), 14, 15, 17, *range(21, 24), *range(26, 34), 35, 38, 41, 42, 43, 46, 49, 50, 51)
COARSE = frozenset({17})
"""Where eighths of a piece are too coarse: 4.1 % above the objective with them, 0.0 % without."""
MARGIN = 1e-9
"""Of floating point in the judge's sums of times."""


@pytest.mark.parametrize("seed", SEEDS)
def test_no_schedule_beats_the_bound_and_no_decision_the_solution(seed):
    problem = random_problem(seed)
    try:
        solution = solve_flow(problem, gap=GAP)
    except InfeasibleError:
        solution = None
    verdict = judge(problem, solution)
    assert verdict is not None, "too many decisions: take another seed"
    if solution is None:
        assert verdict.best_ns is None
        return
    assert verdict.best_ns is not None
    assert verdict.own_ns is not None
    assert verdict.best_ns >= solution.bound_ns * (1 - MARGIN)
    assert solution.objective_ns <= verdict.best_ns * (1 + GAP) + 1
    if seed not in COARSE:
        assert verdict.own_ns <= solution.objective_ns * 1.03


def test_the_seeds_hold_what_is_to_be_tested():
    found = {"infeasible": 0, "offload": 0, "rebuild": 0, "slower": 0}
    for seed in SEEDS:
        problem = random_problem(seed)
        try:
            solution = solve_flow(problem, gap=GAP)
        except InfeasibleError:
            found["infeasible"] += 1
            continue
        found["offload"] += bool(solution.offloaded)
        found["rebuild"] += bool(solution.rebuilds)
        found["slower"] += solution.objective_ns > sum(problem.costs.durations)
    assert min(found.values()) >= 3, found
