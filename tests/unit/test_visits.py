"""Parameters and optimizer state on the host: the same training, below what they take, to the byte."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from trainings import batches, compiled, error, train, workload

from planc.bounds import lower_bound
from planc.candidates import compile_workload
from planc.choice import smallest_budget
from planc.errors import InfeasibleError, UsageError
from planc.options import Options
from planc.pipeline import UNLIMITED, Workload, decide
from planc.plan import BufferKind, Plan, Space
from planc.policies import MINIMUM_DEVICE
from planc.runtime.measure import planned_peak_bytes
from planc.session import Session
from planc.simulate import simulate
from planc.verify import verify

TOLERANCE = 1e-5
"""float32 rounds to 6e-8; another split and other algorithms add up in another order, three steps long."""

DTYPES = {"momentum": "float32", "adam": "float64"}
"""Adam divides gradients by their size, those too that are nothing but rounding: only fewer of it shows mistakes."""

VISITORS = {BufferKind.PARAMETER, BufferKind.STATE}


def work(optimizer: str = "momentum") -> Workload:
    return workload("vgg_like", dtype=DTYPES.get(optimizer, "float32"), batch=6, optimizer=optimizer)


def persistent_bytes(made: Workload) -> int:
    return lower_bound(made.training, resident=True).persistent_bytes


def at_home(plan: Plan) -> set[BufferKind]:
    """Kinds of the persistent tensors that live on the host."""
    return {entry.kind for entry in plan.model.persistent if plan.buffers[entry.buffer].space is Space.HOST}


@pytest.mark.parametrize("sub_batches", [1, 3])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_training_is_the_same_below_the_persistent_bytes(optimizer: str, sub_batches: int) -> None:
    made = work(optimizer)
    plan = compiled(made, budget="smallest", sub_batches=sub_batches)
    assert plan.spaces.arena_bytes < persistent_bytes(made)
    assert at_home(plan) == VISITORS
    data = batches(made, 3)
    found = train(plan, made, data, poison=True, chaos=7)
    like = compile_workload(made, Options(policy="keep-all", budget="200%"), like=plan)
    assert at_home(like) == set()
    assert found.state_sha256 == train(like, made, data).state_sha256
    plain = train(compiled(made, policy="keep-all"), made, data)
    for name, value in plain.values.items():
        assert error(found.values[name], value) <= TOLERANCE, name


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_the_measured_peak_is_the_planned_one(optimizer: str) -> None:
    made = work(optimizer)
    plan = compiled(made, budget="smallest", host_parameters="always")
    session = Session(plan, made.graph)
    assert session.measure(batches(made, 1)[0]).peak_bytes == planned_peak_bytes(plan) <= plan.spaces.budget_bytes


def test_evaluation_reads_what_the_last_step_left_on_the_host() -> None:
    made = work()
    plans = (compiled(made, budget="smallest", sub_batches=1), compiled(made, policy="keep-all"))
    losses = []
    for plan in plans:
        session = Session(plan, made.graph, chaos=3)
        first, second = batches(made, 2)
        session.step(first)
        losses.append(session.evaluate(second).loss)
    np.testing.assert_allclose(losses[0], losses[1], rtol=TOLERANCE)


def test_only_what_is_needed_leaves() -> None:
    """From much memory to little: nothing, then the optimizer's state, then the parameters too."""
    made = workload("vgg_like", batch=6, optimizer="adam")
    never = smallest_budget(made, Options(host_parameters="never"))
    least = smallest_budget(made, Options())
    kinds = [at_home(compile_workload(made, Options(budget=str(size)))) for size in (never, never - 1, least)]
    assert kinds == [set(), {BufferKind.STATE}, VISITORS]


def test_never_and_always() -> None:
    made = work()
    smallest = smallest_budget(made, Options(host_parameters="never"))
    with pytest.raises(InfeasibleError) as refused:
        compile_workload(made, Options(budget=str(smallest - 1), host_parameters="never"))
    assert refused.value.smallest_budget_bytes == smallest
    assert at_home(compile_workload(made, Options(host_parameters="always"))) == {BufferKind.STATE}
    with pytest.raises(UsageError, match="keeps parameters on the device"):
        compile_workload(made, Options(policy="modnn", host_parameters="always"))


def test_nothing_but_this_is_copied_home_and_each_once() -> None:
    """A parameter goes home after its update alone; its visits before that end without a copy."""
    plan = compiled(work(), budget="smallest", sub_batches=1)
    homes = {e.buffer: plan.buffers[e.buffer] for e in plan.model.persistent if e.kind in VISITORS}
    written = [step.writes[0] for step in plan.train.steps if step.writes[0].buffer in homes]
    assert {access.version for access in written} == {1}
    assert sum(a.stop - a.start for a in written) == sum(buffer.bytes for buffer in homes.values())
    assert not [step for step in plan.evaluate.steps if step.writes[0].buffer in homes]


def test_visits_grow_where_memory_allows() -> None:
    made = work()
    smallest = smallest_budget(made, Options())
    tight, wide = (compiled(made, budget=str(size), host_parameters="always") for size in (smallest, 4 * smallest))
    assert sum(s.lane == "h2d" for s in wide.train.steps) < sum(s.lane == "h2d" for s in tight.train.steps)
    assert simulate(wide).makespan_ns < simulate(tight).makespan_ns
    assert verify(wide) == ()


def test_host_budget_bounds_all_host_buffers() -> None:
    made = work()
    budget = str(smallest_budget(made, Options()))
    options = Options(budget=budget)
    needed = compile_workload(made, options).spaces.host_bytes
    assert compile_workload(made, replace(options, host_budget=str(needed))).spaces.host_bytes <= needed
    with pytest.raises(InfeasibleError, match="none with host memory of 1000000 bytes") as refused:
        compile_workload(made, replace(options, host_budget="1000000"))
    assert "--host-budget" in refused.value.remedy


def test_the_bound_of_visiting_plans_is_the_largest_node_and_what_stays() -> None:
    made = work()
    bound = lower_bound(made.training)
    problem, decisions = decide(made.problem(6, UNLIMITED), MINIMUM_DEVICE)
    assert decisions.offloads
    assert bound.bytes <= smallest_budget(made, Options()) < persistent_bytes(made)
    assert bound.persistent_bytes == 0, "no batch norm, so nothing has to stay"
    assert problem.budget_bytes == UNLIMITED
