"""The flow MILP on sample models: limits, monotony, determinism, what recompute allows, and what it explains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planc.costs import make_costs
from planc.errors import InfeasibleError
from planc.onnx_loader import load_model
from planc.passes.base import Decisions, Problem, apply_passes, memory_bytes
from planc.passes.conv_algorithm import ChooseEach, fastest, smallest
from planc.passes.flow_explain import explain_flow
from planc.passes.flow_milp import FlowMilp, FlowStatus, flow_program, relaxed_bound_ns, solve_flow
from planc.passes.offload import OffloadWith, any_piece
from planc.passes.recipes import find_recipes
from planc.profile import load_profile
from planc.rebuild import with_rebuilds
from planc.tasks import make_tasks
from planc.training import make_training_graph
from planc.training_graph import TrainingOptions
from planc.zoo import ZOO

SHARES = (1.0, 0.9, 0.75, 0.6, 0.5)


def whole(model: str = "tiny_residual_cnn", batch: int = 32) -> Problem:
    """The model's training step with a budget that everything fits."""
    profile = load_profile("v100-16gb")
    graph = load_model(ZOO[model](), batch=batch)
    tasks = make_tasks(make_training_graph(graph, TrainingOptions()), 1)
    problem = Problem(tasks, make_costs(tasks, profile, "powers"), profile, 2**60)
    needed = memory_bytes(problem, apply_passes(problem, (ChooseEach(fastest),))).max()
    return replace(problem, budget_bytes=int(needed))


def with_share(problem: Problem, share: float) -> Problem:
    return replace(problem, budget_bytes=int(problem.budget_bytes * share))


def test_where_everything_fits_nothing_is_decided_and_the_bound_is_the_ideal():
    problem = whole()
    found = solve_flow(problem)
    assert (found.offloaded, found.rebuilds) == ((), ())
    assert found.bound_ns == found.objective_ns == sum(problem.costs.durations)
    assert all(c == own[0] for c, own in zip(found.configurations, problem.costs.configurations, strict=True) if c)


def test_below_the_working_set_of_one_task_it_says_that_nothing_fits():
    with pytest.raises(InfeasibleError, match="fits 1000 bytes"):
        solve_flow(replace(whole(), budget_bytes=1000))
    assert relaxed_bound_ns(replace(whole(), budget_bytes=1000)) is None
    with pytest.raises(InfeasibleError):
        explain_flow(replace(whole(), budget_bytes=1000))


def test_bound_and_objective_rise_as_the_budget_falls_and_stay_within_the_gap():
    problem = whole()
    bounds = []
    for share in SHARES:
        found = solve_flow(with_share(problem, share), gap=0.005)
        assert found.bound_ns <= found.objective_ns
        if found.status is not FlowStatus.LIMIT:
            assert found.objective_ns <= found.bound_ns * 1.011  # the gap twice over: see _branch_and_bound
        bounds.append(found.bound_ns)
    assert bounds == sorted(bounds)
    assert bounds[-1] > bounds[0]


def test_what_may_be_recomputed_only_helps():
    problem = with_share(whole(), 0.6)
    slow = replace(problem.profile, h2d_bytes_per_s=10**9, d2h_bytes_per_s=10**9)  # so that copying is no way out
    problem = replace(problem, profile=slow)
    bounds = [relaxed_bound_ns(problem, recompute=mode) for mode in ("any", "cheap", "none")]
    assert None not in bounds
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1]
    assert solve_flow(problem, recompute="none").rebuilds == ()
    cheap = {recipe.piece for recipe in find_recipes(problem, "cheap")}
    assert {rebuild.piece for rebuild in solve_flow(problem, recompute="cheap").rebuilds} <= cheap


def test_the_same_problem_gives_the_same_solution():
    problem = with_share(whole("inception_like"), 0.6)
    assert solve_flow(problem) == solve_flow(problem)


def test_a_start_never_makes_the_solution_worse_and_one_outside_the_class_is_ignored():
    problem = with_share(whole(), 0.6)
    free = solve_flow(problem)
    start = apply_passes(problem, (ChooseEach(smallest), OffloadWith(any_piece)))
    assert solve_flow(problem, start=start).objective_ns <= free.objective_ns * 1.005  # both within the gap
    strange = replace(start, offloads=(), rebuilds=tuple(replace(r, before=r.leaves + 1) for r in free.rebuilds))
    assert solve_flow(problem, start=strange).objective_ns <= free.objective_ns * 1.005


def test_the_pass_decides_what_schedules_need_and_rebuilt_calls_keep_their_configuration():
    problem = with_share(whole(), 0.5)
    decisions = FlowMilp().run(problem, Decisions(tuple(None for _ in problem.tasks.tasks)))
    assert decisions.leaving is not None
    assert decisions.bound_ns == solve_flow(problem).bound_ns
    assert decisions.leaving.isdisjoint(rebuild.piece for rebuild in decisions.rebuilds)
    recipes = {recipe.piece: recipe for recipe in find_recipes(problem, "any")}
    for rebuild in decisions.rebuilds:
        recipe = recipes[rebuild.piece]
        assert rebuild.recipe == recipe.tasks
        assert rebuild.leaves < rebuild.before <= rebuild.needed_by
        for task, named in zip(recipe.tasks, recipe.configurations, strict=True):
            assert decisions.configurations[task] == named
    rewritten = with_rebuilds(problem, decisions)
    assert len(rewritten.problem.tasks.tasks) > len(problem.tasks.tasks)


def test_every_integer_of_the_program_is_a_decision_and_the_constant_has_a_column():
    flow = flow_program(with_share(whole(), 0.6), "any")
    program = flow.program
    decisions = {c for columns in (*flow.fetched, *flow.rebuilt) for c in columns.values()}
    decisions |= {c for columns in flow.options.values() for c in columns}
    assert decisions == {c for c, integer in enumerate(program.integer) if integer}
    assert program.lower[0] == program.upper[0] == 1.0
    assert program.start[-1] == len(program.index) == len(program.value)


def test_an_explanation_accounts_for_the_bound_and_more_of_anything_never_hurts():
    problem = with_share(whole(), 0.5)
    told = explain_flow(problem)
    parts = told.ideal_ns + told.recomputing_ns + told.slower_ns + told.waiting_ns
    assert abs(parts - told.bound_ns) <= 4  # four sums, each rounded
    assert told.tightest_task is not None
    assert told.ns_per_mib > 0
    assert told.more_memory_saves_ns > 0
    roomier = replace(problem, budget_bytes=int(problem.budget_bytes * 1.1))
    assert abs(explain_flow(roomier).bound_ns - (told.bound_ns - told.more_memory_saves_ns)) <= 1
    assert told.binds in ("memory", "link")
    assert explain_flow(whole()).binds == "compute"
