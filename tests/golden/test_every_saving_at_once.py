"""Offload, recomputation and micro-batches in one plan, run for real: the same training as with everything resident.

A slow link makes recomputation pay beside offload on the CPU's profile, and each convolution call takes the
configuration with the most micro-batches, so that every plan here has all three.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from onnx_models import model_path
from trainings import error

from planc.candidates import compile_workload
from planc.finishing import finish
from planc.micro_batch import Configuration
from planc.onnx_loader import load_model
from planc.options import Options
from planc.passes.conv_algorithm import ChooseEach, FitWorkspaces
from planc.passes.flow_milp import FlowMilp
from planc.passes.gate import Gate
from planc.passes.prefetch import AsEarlyAsFits
from planc.pipeline import Workload, draft
from planc.plan import BufferKind, Plan, Step
from planc.policies import Candidate
from planc.profile import load_profile
from planc.runtime.data import random_batch, wanted
from planc.runtime.launch import Array
from planc.session import Session
from planc.training_graph import TrainingOptions
from planc.verify import verify
from planc.yardsticks import measure_yardsticks
from planc.zoo import ZOO

BATCHES = {"light_squeezenet": 4, "light_densenet121": 2, "tiny_residual_cnn": 10}
SHARES = {"light_squeezenet": 55, "light_densenet121": 55, "tiny_residual_cnn": 75}
"""Of what keeping everything needs, in percent."""
SLOWER_LINK = 40

ROUNDING = 1e-12
"""Other algorithms add in another order: float64 roundings are 1e-16 each. In float32 the order also decides on which
side of zero a ReLU input falls, and then gradients differ by more than any rounding."""


def most_divided(options: tuple[Configuration, ...]) -> Configuration:
    return max(options, key=lambda one: len(one.parts))


EVERY_SAVING = Candidate(
    "every saving",
    (FlowMilp(),),
    (Gate(), AsEarlyAsFits(), ChooseEach(most_divided), FitWorkspaces()),
    micro_batches="powers",
    proves=True,
)


@cache
def workload(name: str, precision: str = "fp32") -> Workload:
    cpu = load_profile("cpu")
    rate = cpu.h2d_bytes_per_s // SLOWER_LINK
    slow = replace(cpu, h2d_bytes_per_s=rate, d2h_bytes_per_s=rate)
    model = ZOO[name]() if name in ZOO else model_path(name)
    return Workload.of(load_model(model, batch=BATCHES[name], precision=precision), TrainingOptions(), slow)


@cache
def saving(name: str, precision: str = "fp32") -> Plan:
    work = workload(name, precision)
    yardsticks = measure_yardsticks(work)
    budget = yardsticks.keep_all_bytes * SHARES[name] // 100
    made = draft(work, EVERY_SAVING, 1, budget)
    plan = finish(work, made, budget, {"sub_batches": "1"}, yardsticks)
    assert verify(plan) == ()
    return plan


class Run:
    """One training step: state, running statistics, and the mask of every dropout launch."""

    def __init__(self, plan: Plan, work: Workload) -> None:
        self.masks: dict[str, list[bytes]] = {}

        def observe(step: Step, reads: tuple[Array, ...], writes: tuple[Array, ...]) -> None:
            if step.op == "Dropout":
                self.masks.setdefault(step.label, []).append((writes[0] != 0).tobytes())

        session = Session(plan, work.graph, init="random:0", observe=observe)
        self.loss = session.step(random_batch(wanted(plan), 0))
        self.state_sha256, self.values = session.state_sha256(), session.values()


@cache
def run(name: str, which: str, precision: str = "fp32") -> Run:
    """By the plan that saves; by keep-all `alike`; or by `plain` keep-all, the fastest algorithms."""
    work, plan = workload(name, precision), saving(name, precision)
    if which != "saving":
        plan = compile_workload(work, Options(policy="keep-all"), like=plan if which == "alike" else None)
    return Run(plan, work)


@pytest.mark.parametrize("name", BATCHES)
def test_the_plan_has_all_three(name: str) -> None:
    plan = saving(name)
    assert plan.predicted.offloaded_bytes > 0
    assert plan.predicted.recomputed_bytes > 0
    assert sum(len(step.configuration) > 1 for step in plan.train.steps) > 1


@pytest.mark.parametrize("name", BATCHES)
def test_the_same_bits_as_with_everything_resident(name: str) -> None:
    assert run(name, "saving").state_sha256 == run(name, "alike").state_sha256


@pytest.mark.parametrize("name", BATCHES)
def test_the_same_within_rounding_as_the_fastest_resident_plan(name: str) -> None:
    found, plain = run(name, "saving", "fp64"), run(name, "plain", "fp64")
    assert abs(found.loss / plain.loss - 1) < ROUNDING
    worst = {key: error(found.values[key], plain.values[key]) for key in plain.values}
    assert max(worst.values()) < ROUNDING, max(worst, key=lambda key: worst[key])


@pytest.mark.parametrize("name", ["light_densenet121", "tiny_residual_cnn"])
def test_running_statistics_move_once(name: str) -> None:
    plan = saving(name)
    statistics = {item.buffer for item in plan.model.persistent if item.kind is BufferKind.STATISTIC}
    written = [access.buffer for step in plan.train.steps for access in step.writes if access.buffer in statistics]
    assert sorted(written) == sorted(statistics)
    assert statistics


def test_dropout_drops_the_same() -> None:
    plain = run("light_squeezenet", "plain").masks
    assert plain
    for label, masks in run("light_squeezenet", "saving").masks.items():
        assert set(masks) == set(plain[label]), "every run of a launch, the first and any other, has one mask"
        assert 0 < np.frombuffer(masks[0], dtype=bool).mean() < 1
