"""The nine networks that come with the onnx package, at batch 32 on a V100: under a budget of 80 % and of 60 % of what
keeping everything needs they get a plan that keeps to it, or are told exactly what they need."""

from __future__ import annotations

from functools import cache

import pytest
from onnx_models import LIGHT_MODELS, model_path

from planc.candidates import compile_workload
from planc.errors import InfeasibleError
from planc.onnx_loader import load_model
from planc.options import Options
from planc.pipeline import Workload
from planc.plan import Plan
from planc.profile import load_profile
from planc.simulate import simulate
from planc.training_graph import TrainingOptions
from planc.verify import verify
from planc.yardsticks import Yardsticks, measure_yardsticks

BATCH = 32
WANTED = {80: 7, 60: 5}
"""Share of the budget in per cent -> how many of the nine must get a plan."""

SLOW_WITH_AUTO = {("light_densenet121", 60), ("light_inception_v2", 60), ("light_shufflenet", 60)}
"""These have their turn at 80 %."""

SLOW_WITH_MODNN = {"light_densenet121", "light_inception_v2", "light_resnet50", "light_shufflenet"}
"""modnn's search over sub-batches takes many seconds on deep networks with batch norm, to find that it has no plan."""


@cache
def workload(name: str) -> Workload:
    graph = load_model(model_path(name), batch=BATCH)
    return Workload.of(graph, TrainingOptions(), load_profile("v100-16gb"))


@cache
def yardsticks(name: str) -> Yardsticks:
    return measure_yardsticks(workload(name))


def attempt(name: str, budget: str, policy: str) -> Plan | InfeasibleError:
    try:
        return compile_workload(workload(name), Options(budget=budget, policy=policy))
    except InfeasibleError as error:
        return error


@cache
def by_share(name: str, percent: int, policy: str) -> Plan | InfeasibleError:
    return attempt(name, f"{percent}%", policy)


def policies(name: str, percent: int) -> list[str]:
    chosen = ["vdnn-dyn"]
    if name not in SLOW_WITH_MODNN:
        chosen.append("modnn")
    if (name, percent) not in SLOW_WITH_AUTO:
        chosen.append("auto")
    return chosen


@pytest.mark.parametrize("percent", WANTED)
@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_a_plan_keeps_to_its_budget(name: str, percent: int) -> None:
    yardstick = yardsticks(name)
    budget = yardstick.keep_all_bytes * percent // 100
    found = {policy: by_share(name, percent, policy) for policy in policies(name, percent)}
    for policy, plan in found.items():
        if isinstance(plan, Plan):
            assert verify(plan) == (), policy
            assert plan.spaces.budget_bytes == budget
            timeline = simulate(plan)
            assert timeline.peak_bytes <= plan.spaces.arena_bytes <= budget, policy
            assert simulate(plan, "evaluate").peak_bytes <= plan.spaces.arena_bytes, policy
            predicted = plan.predicted
            assert (predicted.peak_bytes, predicted.makespan_ns) == (timeline.peak_bytes, timeline.makespan_ns), policy
            assert predicted.makespan_ns >= predicted.ideal_ns == yardstick.ideal_ns, policy
    plans = [plan for plan in found.values() if isinstance(plan, Plan)]
    if "auto" in found and plans:
        best = found["auto"]
        assert isinstance(best, Plan), "another policy found a plan, auto did not"
        assert best.predicted.makespan_ns == min(plan.predicted.makespan_ns for plan in plans)


@pytest.mark.parametrize("percent", WANTED)
def test_enough_models_get_a_plan(percent: int) -> None:
    """With vdnn-dyn; auto tries all that it tries (see the test above), so that it finds as many at least."""
    found = [name for name in LIGHT_MODELS if isinstance(by_share(name, percent, "vdnn-dyn"), Plan)]
    assert len(LIGHT_MODELS) == 9
    assert len(found) >= WANTED[percent], found


REFUSED = [("light_bvlc_alexnet", 60), ("light_zfnet512", 60)]


@pytest.mark.parametrize(("name", "percent"), REFUSED)
def test_a_refusal_says_what_it_takes(name: str, percent: int) -> None:
    """Smallest budget, proven bound and the node that sets it; the smallest budget is exact to one alignment."""
    refusal = by_share(name, percent, "auto")
    assert isinstance(refusal, InfeasibleError)
    work, keep_all = workload(name), yardsticks(name).keep_all_bytes
    assert refusal.exit_code == 3
    smallest, bound, node = refusal.smallest_budget_bytes, refusal.bound_bytes, refusal.node
    assert smallest is not None
    assert bound is not None
    assert keep_all * percent // 100 < bound <= smallest < keep_all, "AlexNet and ZFNet need the room they ask for"
    assert node in {launch.label for launch in work.training.launches}
    assert f"the smallest it can make is {smallest} bytes" in str(refusal)
    assert f"lower bound {bound} bytes" in str(refusal)
    assert f"node {node!r}" in str(refusal)
    _check_smallest(name, smallest)


def test_the_smallest_budget_of_a_model_that_splits() -> None:
    """It comes from single samples, and is a fraction of what the whole batch needs."""
    name = "light_squeezenet"
    refusal = attempt(name, "1", "auto")
    assert isinstance(refusal, InfeasibleError)
    assert refusal.smallest_budget_bytes is not None
    assert refusal.bound_bytes is not None
    assert refusal.bound_bytes <= refusal.smallest_budget_bytes < yardsticks(name).keep_all_bytes // 10
    _check_smallest(name, refusal.smallest_budget_bytes)


def _check_smallest(name: str, smallest: int) -> None:
    plan = attempt(name, str(smallest), "auto")
    assert isinstance(plan, Plan), str(plan)
    assert verify(plan) == ()
    assert plan.spaces.arena_bytes <= smallest
    below = attempt(name, str(smallest - workload(name).profile.alignment), "auto")
    assert isinstance(below, InfeasibleError)
    assert below.smallest_budget_bytes == smallest


def test_those_that_get_no_plan_are_all_looked_at() -> None:
    """REFUSED is complete: whatever vdnn-dyn and auto refuse stands in it."""
    refused = [
        (name, percent)
        for name in LIGHT_MODELS
        for percent in WANTED
        if isinstance(by_share(name, percent, "vdnn-dyn"), InfeasibleError)
        and isinstance(by_share(name, percent, "auto"), InfeasibleError)
    ]
    assert refused == REFUSED
