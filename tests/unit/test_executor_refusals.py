"""Plans a backend cannot run, and plans that contradict themselves, are refused before the first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from mlp_run import executor, train, with_step
from plan_builder import OFFLOAD, RELU, mlp_plan, moved

from planc.errors import PlanFileError, RunError, UsageError
from planc.plan import Extent, Plan
from planc.runtime.backend import backend


def test_unknown_kernels_and_algorithms_are_refused_before_the_start() -> None:
    numpy = backend("numpy")
    plan = with_step(mlp_plan(), 0, lambda step: replace(step, op="Quux"))
    with pytest.raises(RunError, match=r"no kernel for Quux \(1\)"):
        numpy.check(plan, emulate=True)
    plan = with_step(mlp_plan(), 0, lambda step: replace(step, configuration=(("cudnn_gemm", 4),)))
    with pytest.raises(RunError, match=r"cudnn_gemm.*--emulate"):
        numpy.check(plan, emulate=False)
    numpy.check(plan, emulate=True)
    numpy.check(mlp_plan(), emulate=False)


def test_bfloat16_is_refused() -> None:
    plan = mlp_plan()
    tensors = tuple(replace(tensor, dtype="bfloat16") for tensor in plan.tensors)
    with pytest.raises(RunError, match="its element type is bfloat16; backends have float64"):
        executor(replace(plan, tensors=tensors))


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(UsageError, match="Known are numpy, null"):
        backend("tpu")


def changed_extents(plan: Plan, buffer: int, *extents: Extent) -> Plan:
    buffers = list(plan.buffers)
    buffers[buffer] = replace(buffers[buffer], extents=extents)
    return replace(plan, buffers=tuple(buffers))


DAMAGE: Mapping[str, tuple[Callable[[Plan], Plan], str]] = {
    "outside": (lambda plan: moved(plan, 0, 0, plan.spaces.arena_bytes - 64), "of the arena, which has"),
    "negative": (lambda plan: moved(plan, 0, 0, -64), "of the arena, which has"),
    "nowhere": (lambda plan: changed_extents(plan, 0), "lie nowhere"),
    "partly": (lambda plan: changed_extents(plan, 0, Extent(0, 0, 64, None, ())), r"bytes \[64, 192\) .*lie nowhere"),
    "in two pieces": (
        lambda plan: changed_extents(plan, 0, Extent(0, 0, 64, None, ()), Extent(64, 1000, 128, None, ())),
        "separate pieces",
    ),
    "waits for the future": (
        lambda plan: with_step(plan, 3, lambda step: replace(step, waits=(7,))),
        "waits for earlier ones",
    ),
    "ids": (lambda plan: with_step(plan, 3, lambda step: replace(step, id=4)), "ids are positions"),
    "half a row": (
        lambda plan: with_step(
            plan, RELU, lambda step: replace(step, reads=(replace(step.reads[0], stop=step.reads[0].stop - 4),))
        ),
        "rows of 32 bytes",
    ),
    "half a weight": (
        lambda plan: with_step(
            plan, 0, lambda step: replace(step, reads=(step.reads[0], replace(step.reads[1], stop=96)))
        ),
        "without a batch axis has 192 bytes",
    ),
    "copy of another size": (
        lambda plan: with_step(plan, OFFLOAD, lambda step: replace(step, reads=(replace(step.reads[0], stop=96),))),
        "of equal size",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_plans_are_refused(damage: Callable[[Plan], Plan], message: str) -> None:
    with pytest.raises(PlanFileError, match=message):
        executor(damage(mlp_plan()))


def test_pieces_that_touch_are_one_array() -> None:
    plan = mlp_plan()
    pieces = changed_extents(plan, 0, Extent(0, 0, 64, None, ()), Extent(64, 64, 128, None, ()))
    assert train(pieces) == train(plan)
