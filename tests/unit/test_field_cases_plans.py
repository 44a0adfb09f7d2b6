"""Field cases about memory, offload, algorithms and the plan; the table of all cases is in test_field_cases."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import floats, make_model
from trainings import batches, compiled, train, workload

from planc.candidates import compile_workload
from planc.errors import InfeasibleError, UsageError
from planc.onnx_loader import load_model
from planc.options import Options
from planc.passes.base import memory_bytes
from planc.pipeline import UNLIMITED, Workload, draft
from planc.plan import PERSISTENT_KINDS, BufferKind, Plan, Space, StepKind
from planc.plan_json import to_json
from planc.policies import POLICIES
from planc.profile import load_profile
from planc.session import Session
from planc.simulate import simulate
from planc.training_graph import TrainingOptions
from planc.verify import verify
from planc.yardsticks import measure_yardsticks
from planc.zoo import ZOO

CPU = load_profile("cpu")


def plan_of(model: onnx.ModelProto, loss: str | None = None, *, batch: int | None = None, **options: Any) -> Plan:
    graph = load_model(model, batch=batch, precision="fp64")
    work = Workload.of(graph, TrainingOptions(loss=loss, **options), CPU)
    return compile_workload(work, Options(policy="keep-all"))


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# Memory


@cache
def small() -> Workload:
    return workload("tiny_residual_cnn", batch=6)


def keep_all() -> int:
    return measure_yardsticks(small()).keep_all_bytes


def attempt(work: Workload, budget: int) -> Plan | None:
    try:
        return compile_workload(work, Options(budget=str(budget)))
    except InfeasibleError:
        return None


def smallest() -> int:
    with pytest.raises(InfeasibleError) as caught:
        compile_workload(small(), Options(budget="1"))
    assert caught.value.smallest_budget_bytes is not None
    return caught.value.smallest_budget_bytes


def test_b1_the_peak_keeps_to_every_budget() -> None:
    """Twenty budgets from the smallest to what keeps everything: each gives a plan, none exceeds its budget."""
    low, high = smallest(), keep_all()
    times = []
    for i in range(20):
        budget = low + (high - low) * i // 19
        plan = attempt(small(), budget)
        assert plan is not None, f"nothing at {budget}, though {low} is said to be enough"
        assert verify(plan) == ()
        assert simulate(plan).peak_bytes <= plan.spaces.arena_bytes <= budget
        assert max(e.offset + e.bytes for b in plan.buffers if b.space is Space.ARENA for e in b.extents) <= budget
        times.append(plan.predicted.makespan_ns)
    assert times[-1] == min(times)


def test_b2_the_arena_holds_everything_and_the_reserve_is_outside() -> None:
    work = Workload.of(small().graph, TrainingOptions(), load_profile("v100-16gb"))
    plan = compile_workload(work, Options(policy="keep-all"))
    spaces, profile = plan.spaces, work.profile
    assert spaces.budget_bytes == profile.memory_bytes - profile.reserved_bytes
    assert spaces.reserved_bytes == profile.reserved_bytes > 0
    spaces = compile_workload(work, Options(budget="10MB")).spaces
    assert spaces.budget_bytes == 10_000_000, "nothing is subtracted from a budget that is given"
    kinds = {b.kind for b in plan.buffers if b.program in ("train", "all")}
    assert all(b.space is Space.ARENA for b in plan.buffers)
    assert kinds == set(BufferKind) - {BufferKind.HOST_COPY, BufferKind.OUTPUT, BufferKind.CONSTANT}


def test_b4_state_is_in_the_arena_from_the_first_step_on() -> None:
    plan = compiled(workload("tiny_residual_cnn", batch=6, optimizer="adam"), policy="keep-all")
    persistent = [b for b in plan.buffers if b.kind in PERSISTENT_KINDS]
    sizes = {k: sum(b.bytes for b in persistent if b.kind is k) for k in (BufferKind.PARAMETER, BufferKind.STATE)}
    assert sizes[BufferKind.STATE] == 2 * sizes[BufferKind.PARAMETER]
    assert all(e.born is None and e.freed == () for b in persistent for e in b.extents)
    assert plan.predicted.bytes_by_kind["optimizer state"] == sizes[BufferKind.STATE]


def test_b4_the_peak_may_be_in_the_update() -> None:
    """One sample, one wide layer: its gradient and update are all there is."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="dense")
    plan = plan_of(make_model([node], [floats("x", (1, 64))], weights={"w": normal(64, 512)}), "mse", optimizer="adam")
    weight = 8 * 64 * 512
    assert plan.predicted.bytes_by_kind["parameter gradient"] == weight
    assert 4 * weight <= plan.predicted.peak_bytes <= 4 * weight + 8 * 3 * 512


@pytest.mark.parametrize("sub_batches", [1, 3])
@pytest.mark.parametrize("policy", ["keep-all", "vdnn-all"])
def test_b10_the_simulated_peak_agrees_with_the_planners_own(policy: str, sub_batches: int) -> None:
    """Two derivations that share no code: lives in the plan file, and lifetimes in the passes (aligned)."""
    made = draft(small(), POLICIES[policy].candidates[0], sub_batches, UNLIMITED)
    planned = int(memory_bytes(made.train.problem, made.train.decisions).max())
    plan = compiled(small(), policy=policy, sub_batches=sub_batches, budget="300%")
    found = simulate(plan).peak_bytes
    padding = len(plan.buffers) * plan.spaces.alignment
    assert planned - padding <= found <= planned
    assert plan.predicted.peak_bytes == found


# Offload


def test_c5_host_memory_is_one_pool_that_no_copy_exceeds() -> None:
    plan = compiled(small(), policy="vdnn-all")
    copies = [b for b in plan.buffers if b.space is Space.HOST]
    assert {b.kind for b in copies} == {BufferKind.HOST_COPY}
    ends = [e.offset + e.bytes for b in copies for e in b.extents]
    assert max(ends) <= plan.spaces.host_bytes <= max(ends) + plan.spaces.alignment
    outs = [step for step in plan.train.steps if step.kind is StepKind.OFFLOAD]
    assert len(outs) == len(copies) > 5


# Algorithms


def test_d2_the_plan_records_the_choice_and_the_runner_up() -> None:
    plan = compiled(small(), policy="keep-all")
    rows = [row for row in plan.decisions if row.about == "convolution"]
    calls = [step for step in plan.train.steps if step.configuration]
    assert len(rows) == len(calls) == 11 + 11 + 10
    for row in rows:
        step = plan.train.steps[row.subject]
        assert step.label == row.label
        assert row.choice.startswith(f"{step.configuration[0][0]} x6")
        assert (row.runner_up is None) == (row.cost_ns is None)
        assert row.cost_ns is None or row.cost_ns >= 0, "the runner-up is not faster where everything fits"
    assert sum(row.runner_up is not None for row in rows) > 10


# The plan


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with other names of nodes, tensors, inputs, outputs and graph."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, names = made.graph, dict[str, str]()

    def new(name: str) -> str:
        return names.setdefault(name, f"z{977 - len(names)}" if name else "")

    graph.name, made.producer_name = "another", "somebody"
    for entry in (*graph.input, *graph.output, *graph.initializer):
        entry.name = new(entry.name)
    for node in graph.node:
        node.name = new("node " + node.name)
        inputs, outputs = [new(n) for n in node.input], [new(n) for n in node.output]
        del node.input[:], node.output[:]
        node.input.extend(inputs)
        node.output.extend(outputs)
    return made


LABELS = re.compile(r'"(label|name|initializer)": ?"[^"]*"')


def without_labels(text: str) -> str:
    return LABELS.sub(r'"\1": ""', text)


@pytest.mark.parametrize("name", ["inception_like", "tiny_residual_cnn"])
def test_e1_other_names_give_the_same_plan(name: str) -> None:
    def text(model: onnx.ModelProto) -> str:
        work = Workload.of(load_model(model, batch=6), TrainingOptions(), CPU)
        return to_json(compile_workload(work, Options(budget="70%")))

    plain, other = text(ZOO[name]()), text(renamed(ZOO[name]()))
    assert plain != other
    assert without_labels(plain) == without_labels(other)


def test_e1_other_hash_seeds_and_folders_give_the_same_bytes(tmp_path: Path) -> None:
    code = (
        "import sys; from planc.candidates import compile; from planc.plan_json import to_json\n"
        "sys.stdout.write(to_json(compile('model.onnx', batch=6, profile='cpu', budget='70%')))\n"
    )
    found = []
    for seed, folder in (("0", "a"), ("1", "b"), ("4711", "another folder")):
        (tmp_path / folder).mkdir()
        onnx.save(ZOO["inception_like"](), tmp_path / folder / "model.onnx")
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path / folder, env=environment, capture_output=True, check=True)
        found.append(done.stdout)
    assert found[0] == found[1] == found[2]
    assert found[0].startswith(b'{\n  "schema": "planc-plan/1"')


def test_e3_nothing_is_found_below_the_smallest_budget() -> None:
    low = smallest()
    assert attempt(small(), low) is not None
    for budget in (low - small().profile.alignment, low * 9 // 10, low // 2):
        assert attempt(small(), budget) is None, f"a plan in {budget} bytes, though {low} is said to be the smallest"


def test_f5_new_weights_in_the_same_model_are_fine() -> None:
    """A plan is for a structure: its inputs, shapes, operators."""
    plan = compiled(small(), policy="keep-all")
    other = load_model(ZOO["tiny_residual_cnn"](seed=99), batch=6)
    data = batches(small(), 1)
    assert Session(plan, other).step(data[0]) != train(plan, small(), data).losses[0]


def test_f5_a_plan_for_another_model_is_refused() -> None:
    plan = compiled(small(), policy="keep-all")
    plan = replace(plan, provenance=replace(plan.provenance, model_sha256="0" * 64))
    with pytest.raises(UsageError, match="made for the model 000000000000"):
        Session(plan, small().graph)
