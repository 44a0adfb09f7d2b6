"""Whole trainings of the sample models: compiled once a process, run on NumPy, looked into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from planc.candidates import compile_workload
from planc.choice import smallest_budget
from planc.onnx_loader import load_model
from planc.options import Options
from planc.pipeline import Workload
from planc.plan import Plan, Step
from planc.profile import load_profile
from planc.runtime.data import Batch
from planc.runtime.launch import Array
from planc.session import Session
from planc.training_graph import TrainingOptions
from planc.zoo import ZOO

PRECISION = {"float32": "fp32", "float64": "fp64"}


@cache
def workload(
    model: str,
    *,
    dtype: str = "float32",
    batch: int = 10,
    optimizer: str = "momentum",
    batch_norm: str = "exact",
) -> Workload:
    """A sample model on the CPU's profile, whose plans NumPy runs."""
    graph = load_model(ZOO[model](), batch=batch, precision=PRECISION[dtype], batch_norm=batch_norm)
    return Workload.of(graph, TrainingOptions(optimizer=optimizer), load_profile("cpu"))


_plans: dict[tuple[object, ...], Plan] = {}


def compiled(
    work: Workload,
    *,
    budget: str = "100%",
    policy: str = "auto",
    sub_batches: int | None = None,
    host_parameters: str = "auto",
) -> Plan:
    """A plan of a workload that `workload` gave (it keeps them, so that identities stay).

    The budget "smallest" is what planc names as the smallest.
    """
    options = Options(policy=policy, sub_batches=sub_batches, host_parameters=host_parameters)
    key = (id(work), budget, policy, sub_batches, host_parameters)
    if key not in _plans:
        size = str(smallest_budget(work, options)) if budget == "smallest" else budget
        _plans[key] = compile_workload(work, replace(options, budget=size))
    return _plans[key]


def batches(work: Workload, steps: int, seed: int = 5) -> list[dict[str, Array]]:
    """Fresh random images and labels for every step."""
    random = np.random.default_rng(seed)
    spec = work.graph.tensors["images"]
    classes = work.graph.tensors[work.graph.outputs[0]].shape[1]
    return [
        {
            "images": random.standard_normal(spec.shape).astype(spec.dtype),
            "labels": random.integers(0, classes, spec.shape[0]),
        }
        for _ in range(steps)
    ]


@dataclass(frozen=True)
class Training:
    """What a run gave. `gradients` are those of the first step; values and gradients by initializer."""

    losses: list[float]
    gradients: dict[str, Array]
    values: dict[str, Array]
    state_sha256: str


def train(plan: Plan, work: Workload, data: Sequence[Batch], **switches: Any) -> Training:
    """Run a training step for every batch of `data`; `switches` are Session's."""
    gradients: dict[str, Array] = {}
    names = {item.tensor: item.initializer for item in plan.model.persistent if item.trainable}

    def observe(step: Step, reads: tuple[Array, ...], writes: tuple[Array, ...]) -> None:
        if step.phase == "update":
            gradients.setdefault(names[step.reads[0].tensor], reads[1])

    session = Session(plan, work.graph, observe=observe, **switches)
    losses = [session.step(batch) for batch in data]
    return Training(losses, gradients, session.values(), session.state_sha256())


def error(found: Any, wanted: Any) -> float:
    """Largest difference over largest value."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / (np.abs(wanted).max() or 1.0))
