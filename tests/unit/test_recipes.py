"""Recipes: what runs again gives back what was there, from what is still there, in the memory that they say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from flow_instances import random_tasks
from symbolic import reads_of_tasks

from planc.costs import make_costs
from planc.onnx_loader import load_model
from planc.ops import LAUNCHES
from planc.ops.spec import Recompute
from planc.passes.base import Decisions, Problem, apply_passes, memory_bytes, stays
from planc.passes.conv_algorithm import ChooseEach, fastest
from planc.passes.recipes import LONGEST_RECIPE, Recipe, find_recipes
from planc.passes.recompute import CheckpointSqrt, ancestors_first
from planc.profile import load_profile
from planc.rebuild import with_rebuilds
from planc.tasks import TaskList, make_tasks
from planc.training import make_training_graph
from planc.training_graph import TrainingOptions
from planc.zoo import ZOO

PROFILE = load_profile("v100-16gb")


def problem_of(tasks: TaskList) -> Problem:
    return Problem(tasks, make_costs(tasks, PROFILE), PROFILE, 2**40)


def zoo_problem(model: str, sub_batches: int = 1) -> Problem:
    graph = load_model(ZOO[model](), batch=4)
    return problem_of(make_tasks(make_training_graph(graph, TrainingOptions()), sub_batches))


def problems() -> Iterator[Problem]:
    for model in ("tiny_residual_cnn", "inception_like", "densenet_like", "depthwise", "lenet"):
        for sub_batches in (1, 2):
            yield zoo_problem(model, sub_batches)
    yield from random_problems()


def random_problems() -> Iterator[Problem]:
    return (problem_of(random_tasks(seed)) for seed in range(20))


def by_last_task(recipes: tuple[Recipe, ...]) -> list[Recipe]:
    return sorted(recipes, key=lambda recipe: (recipe.tasks[-1], recipe.piece))


def fastest_of(problem: Problem) -> Decisions:
    return apply_passes(problem, (ChooseEach(fastest),))


def unchanged(problem: Problem, decisions: Decisions) -> bool:
    """Whether every task of the step still reads what it read before anything was recomputed."""
    rewritten = with_rebuilds(problem, decisions)
    again = reads_of_tasks(rewritten.problem.tasks)
    return reads_of_tasks(problem.tasks) == [again[t] for t in rewritten.task_of]


@pytest.mark.parametrize("mode", ["any", "cheap"])
def test_everything_rebuilt_at_once_gives_every_task_what_it_read_before(mode):
    rebuilt = 0
    for problem in problems():
        recipes = by_last_task(find_recipes(problem, mode))
        rebuilds = ancestors_first(recipes, {recipe.piece: recipe.needed_by for recipe in recipes})
        assert unchanged(problem, replace(fastest_of(problem), rebuilds=rebuilds))
        rebuilt += len(rebuilds)
    assert rebuilt > 100


def test_a_recipe_gives_the_same_at_any_time_in_its_gap():
    problem = zoo_problem("tiny_residual_cnn")
    for recipe in find_recipes(problem, "any"):
        for before in {recipe.leaves + 1, (recipe.leaves + 1 + recipe.needed_by) // 2, recipe.needed_by}:
            rebuilds = ancestors_first([recipe], {recipe.piece: before})
            assert unchanged(problem, replace(fastest_of(problem), rebuilds=rebuilds))


def test_the_symbols_see_a_recipe_that_reads_what_is_no_longer_there():
    problem = zoo_problem("tiny_residual_cnn")
    longest = max(find_recipes(problem, "any"), key=lambda recipe: len(recipe.tasks))
    assert len(longest.tasks) > 1
    (rebuild,) = ancestors_first([longest], {longest.piece: longest.needed_by})
    shortened = replace(rebuild, recipe=rebuild.recipe[:-1])
    assert not unchanged(problem, replace(fastest_of(problem), rebuilds=(shortened,)))


def test_a_recipe_takes_the_memory_and_the_time_that_it_says():
    checked = 0
    for problem in (zoo_problem("inception_like"), zoo_problem("tiny_residual_cnn", 2), *random_problems()):
        base = fastest_of(problem)
        for recipe in find_recipes(problem, "any"):
            configurations = list(base.configurations)
            for task, named in zip(recipe.tasks, recipe.configurations, strict=True):
                configurations[task] = named
            decisions = replace(
                base,
                configurations=tuple(configurations),
                rebuilds=ancestors_first([recipe], {recipe.piece: recipe.needed_by}),
            )
            rewritten = with_rebuilds(problem, decisions)
            first = rewritten.task_of[recipe.needed_by] - len(recipe.tasks)
            live = memory_bytes(rewritten.problem, rewritten.decisions)
            between = bytes_over_the_start(problem, recipe.needed_by)
            found = [int(live[first + place]) - between for place in range(len(recipe.tasks))]
            assert found == list(recipe.extra_bytes)
            again = range(first, first + len(recipe.tasks))
            costs = rewritten.problem.costs
            times = [costs.duration_ns(t, rewritten.decisions.configurations[t]) for t in again]
            assert times == list(recipe.durations_ns)
            checked += 1
    assert checked > 100


def bytes_over_the_start(problem: Problem, task: int) -> int:
    """Bytes of pieces that live both before and after the start of a task."""
    return sum(
        problem.bytes(piece)
        for piece, own in zip(problem.tasks.pieces, stays(problem, ()), strict=True)
        if own[0][0].start < task < own[0][0].end
    )


def test_cheap_leaves_convolutions_and_products_out_and_none_everything():
    for problem in problems():
        assert find_recipes(problem, "none") == ()
        for recipe in find_recipes(problem, "cheap"):
            launches = [problem.tasks.launch(problem.tasks.tasks[t]) for t in recipe.tasks]
            assert all(LAUNCHES[launch.op].recompute is Recompute.CHEAP for launch in launches)


def test_no_recipe_moves_running_statistics_or_adds_to_a_sum():
    for problem in problems():
        pieces = problem.tasks.pieces
        for recipe in find_recipes(problem, "any"):
            assert len(recipe.tasks) <= LONGEST_RECIPE
            for t in recipe.tasks:
                assert not problem.tasks.tasks[t].accumulate
                assert not any(pieces[use.piece].kept for use in problem.tasks.tasks[t].writes)


@pytest.mark.parametrize("model", ["tiny_residual_cnn", "densenet_like"])
def test_checkpoint_sqrt_computes_the_same_in_less_memory(model):
    problem = zoo_problem(model)
    kept = fastest_of(problem)
    decisions = apply_passes(problem, (ChooseEach(fastest), CheckpointSqrt()))
    assert decisions.rebuilds
    assert unchanged(problem, decisions)
    rewritten = with_rebuilds(problem, decisions)
    assert memory_bytes(rewritten.problem, rewritten.decisions).max() < memory_bytes(problem, kept).max()
