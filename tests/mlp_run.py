"""Runs the hand-made plan of plan_builder on NumPy, and by hand beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from plan_builder import BATCH, CLASSES, FEATURES, mlp_graph

from planc.plan import Plan, Program, Step
from planc.runtime.backend import backend
from planc.runtime.executor import Debug, Executor
from planc.runtime.launch import Array, Hyper

LR = 0.1
X = np.random.default_rng(3).standard_normal((BATCH, FEATURES)).astype(np.float32)
LABELS = np.array([0, 2, 1, 2])


def executor(plan: Plan, debug: Debug | None = None) -> Executor:
    """The plan on NumPy, its weights those of `mlp_graph`."""
    made = Executor(plan, backend("numpy").open(plan), debug)
    load(made)
    return made


def load(made: Executor) -> None:
    constants = tuple(mlp_graph().constants.values())
    for item in made.plan.model.persistent:
        place = made.place(item)
        values = np.zeros(place.shape) if item.slot else constants[item.position]
        made.device.write(place, values)
    put(made)


def put(made: Executor, program: str = "train") -> None:
    made.put(program, "x", X)
    made.put(program, "labels", LABELS)


def state(made: Executor) -> list[Array]:
    return [made.device.read(made.place(item)) for item in made.plan.model.persistent]


def train(plan: Plan, debug: Debug | None = None, steps: int = 2) -> tuple[list[float], bytes]:
    """Losses, and the bits of weights and momentum after the last step."""
    made = executor(plan, debug)
    losses = []
    for number in range(1, steps + 1):
        put(made)
        made.run("train", Hyper(0, number, LR))
        losses.append(made.loss("train"))
    return losses, b"".join(array.tobytes() for array in state(made))


def by_hand(steps: int) -> tuple[list[float], list[Array]]:
    """The same training step in a few lines of float64."""
    w1, w2 = (values.astype(np.float64) for values in mlp_graph().constants.values())
    m1, m2 = np.zeros_like(w1), np.zeros_like(w2)
    losses = []
    for _ in range(steps):
        z = X @ w1
        a = np.maximum(z, 0)
        s = a @ w2
        p = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
        losses.append(float(-np.log(p[range(BATCH), LABELS]).mean()))
        ds = (p - np.eye(CLASSES)[LABELS]) / BATCH
        dw2, dw1 = a.T @ ds, X.T @ (ds @ w2.T * (z > 0))
        m1, m2 = 0.9 * m1 + dw1, 0.9 * m2 + dw2
        w1, w2 = w1 - LR * m1, w2 - LR * m2
    return losses, [w1, w2, m1, m2]


def with_step(plan: Plan, number: int, change: Callable[[Step], Step]) -> Plan:
    steps = list(plan.train.steps)
    steps[number] = change(steps[number])
    return replace(plan, programs=MappingProxyType({**plan.programs, "train": Program(tuple(steps))}))
