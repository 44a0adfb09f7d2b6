"""The executor on the NumPy and null backends: arena views, lanes and waits, poison and chaos, what a step touches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from mlp_run import LR, X, by_hand, executor, load, put, state, train, with_step
from plan_builder import (
    OFFLOAD,
    OVERWRITE,
    PREFETCH,
    READER,
    RELU,
    mlp_graph,
    mlp_plan,
    moved,
    without_wait,
)

from planc.errors import RunError
from planc.plan import Plan, Step
from planc.runtime import numpy_backend
from planc.runtime.executor import Debug, Executor
from planc.runtime.launch import Array, Hyper, Launch
from planc.runtime.measure import measure, planned_peak_bytes
from planc.runtime.null_backend import NullDevice
from planc.runtime.places import Place, Places
from planc.verify import verify


def test_a_step_computes_what_it_should() -> None:
    losses, _ = train(mlp_plan(), steps=3)
    made = executor(mlp_plan())
    for number in (1, 2, 3):
        made.run("train", Hyper(0, number, LR))
    expected_losses, expected = by_hand(3)
    # float32 against float64 over three steps of a tiny network: a few units in the last place of numbers near 1
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for found, wanted in zip(state(made), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_evaluate_changes_nothing() -> None:
    made = executor(mlp_plan())
    before = state(made)
    put(made, "evaluate")
    made.run("evaluate", Hyper(0, 1, LR))
    w1, w2 = mlp_graph().constants.values()
    np.testing.assert_allclose(made.output("evaluate", "scores"), np.maximum(X @ w1, 0) @ w2, rtol=1e-5)
    assert made.output("train", "scores") is None
    assert made.loss("evaluate") == pytest.approx(by_hand(1)[0][0], rel=1e-5)
    for found, wanted in zip(state(made), before, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_every_array_is_a_view_at_its_planned_offset() -> None:
    plan = mlp_plan()
    device = numpy_backend.NumpyDevice(plan)
    arena = device.view(Place(plan.buffers[0].space, 0, plan.spaces.arena_bytes, "uint8", (plan.spaces.arena_bytes,)))
    for step in plan.train.steps:
        for access in (*step.reads, *step.writes):
            place = Places(plan).access(access, step.id)
            view = device.view(place)
            assert view.dtype == plan.tensors[access.tensor].dtype
            assert view.flags.c_contiguous
            if place.space == "arena":
                assert view.ctypes.data - arena.ctypes.data == place.offset
                assert np.shares_memory(view, arena)
    halves = [Places(plan).access(plan.train.steps[step].reads[0], step) for step in (READER, READER + 1)]
    assert [half.shape for half in halves] == [(2, 8), (2, 8)]
    assert halves[1].offset - halves[0].offset == 64
    assert halves[0].offset == 1024  # the second stay of the activation, not the first


@pytest.mark.parametrize("debug", [Debug(poison=True), *(Debug(chaos=seed) for seed in range(3))])
def test_poison_and_chaos_change_no_bit(debug: Debug) -> None:
    assert train(mlp_plan(), debug) == train(mlp_plan())


WAITS = {
    "offload before the activation is there": (OFFLOAD, RELU),
    "bytes reused before the offload has ended": (OVERWRITE, OFFLOAD),
    "prefetch before the offload has ended": (PREFETCH, OFFLOAD),
    "read before the prefetch has ended": (READER, PREFETCH),
}


@pytest.mark.parametrize(("step", "wait"), WAITS.values(), ids=WAITS)
def test_a_missing_wait_goes_wrong(step: int, wait: int) -> None:
    late = Debug(directed={wait: 0.1})
    right = train(mlp_plan())
    assert train(mlp_plan(), late) == right
    broken = without_wait(mlp_plan(), step, wait)
    assert train(broken, late) != right
    assert verify(broken)  # what can go wrong is what the verifier finds


def test_the_plan_of_these_tests_verifies() -> None:
    assert verify(mlp_plan()) == ()


def test_every_wait_of_the_plan_is_tried_above() -> None:
    found = {(step.id, wait) for step in mlp_plan().train.steps for wait in step.waits}
    assert found == set(WAITS.values())


def test_lanes_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compute step that waits for the prefetch lane inside its kernel would never end on one thread."""
    arrived = threading.Event()
    real = numpy_backend._copy

    def copy(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        arrived.set()

    def kernel(launch: Launch, hyper: Hyper) -> None:
        assert arrived.wait(10)
        arrived.clear()
        numpy_backend.KERNELS["SoftmaxCrossEntropyBackward"](launch, hyper)

    monkeypatch.setattr(numpy_backend, "_copy", copy)
    plan = with_step(mlp_plan(), 5, lambda step: replace(step, op="Meet"))
    monkeypatch.setattr(numpy_backend, "KERNELS", {**numpy_backend.KERNELS, "Meet": kernel})
    assert train(plan, steps=1) == train(mlp_plan(), steps=1)


def test_poison_shows_a_sum_that_has_no_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that always adds is right in a fresh arena, which holds zeros; poison tells."""
    kernel = numpy_backend.KERNELS["MatMulSum"]
    adding = {"MatMulSum": lambda launch, hyper: kernel(replace(launch, accumulate=True), hyper)}
    right = train(mlp_plan(), steps=1)
    monkeypatch.setattr(numpy_backend, "KERNELS", {**numpy_backend.KERNELS, **adding})
    assert train(mlp_plan(), steps=1) == right
    made = executor(mlp_plan(), Debug(poison=True))
    made.run("train", Hyper(0, 1, LR))
    assert all(np.isnan(array).all() for array in state(made))


def test_poison_shows_what_nobody_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that leaves rows out gives stale numbers without poison, NaN with it."""

    def half(launch: Launch, hyper: Hyper) -> None:
        np.maximum(launch.inputs[0][:2], 0, out=launch.outputs[0][:2])  # type: ignore[call-overload]

    monkeypatch.setattr(numpy_backend, "KERNELS", {**numpy_backend.KERNELS, "Relu": half})
    assert np.isfinite(train(mlp_plan(), steps=1)[0]).all()
    assert np.isnan(train(mlp_plan(), Debug(poison=True), steps=1)[0]).all()


def failing(message: str, done: list[str]) -> Callable[[Launch, Hyper], None]:
    def kernel(launch: Launch, hyper: Hyper) -> None:
        done.append(message)
        raise ValueError(message)

    return kernel


def test_a_failing_lane_stops_all_and_the_first_cause_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    kernels = {
        "First": failing("first", done),
        "Second": failing("second", done),
    }
    monkeypatch.setattr(numpy_backend, "KERNELS", {**numpy_backend.KERNELS, **kernels})
    plan = with_step(mlp_plan(), RELU, lambda step: replace(step, op="First", label="relu"))
    plan = with_step(plan, OVERWRITE, lambda step: replace(step, op="Second"))
    before = threading.active_count()
    with pytest.raises(RunError, match=r"step 1 \(First 'relu'.*lane compute: ValueError: first") as caught:
        train(plan)
    assert caught.value.exit_code == 4
    assert isinstance(caught.value.__cause__, ValueError)
    assert done == ["first"]
    assert threading.active_count() == before


def test_a_failing_copy_lane_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise OSError("link down")

    monkeypatch.setattr(numpy_backend, "_copy", broken)
    with pytest.raises(RunError, match=r"step 2 \(offload .*lane d2h: OSError: link down"):
        train(mlp_plan())


def test_an_interrupt_is_passed_on_after_the_lanes_have_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(launch: Launch, hyper: Hyper) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(numpy_backend, "KERNELS", {**numpy_backend.KERNELS, "ReluBackward": interrupt})
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        train(mlp_plan())
    assert threading.active_count() == before


def measured_peak(plan: Plan) -> int:
    made = executor(plan)
    return measure(made.device, lambda: load(made), lambda: made.run("train", Hyper(0, 1, LR))).peak_bytes


def test_measured_peak_is_the_planned_one() -> None:
    plan = mlp_plan()
    highest = 1408 + 128 + 6 * 8 * 4  # the first weight's gradient lies highest
    assert planned_peak_bytes(plan) == highest
    assert measured_peak(plan) == highest


@pytest.mark.parametrize("offset", [1408 + 128 - 64, 1408 + 128 + 64])
def test_measured_peak_can_be_wrong(offset: int) -> None:
    """What the program does is measured, not what the plan says: run one layout, expect the other."""
    plan = mlp_plan()
    plan = replace(plan, spaces=replace(plan.spaces, arena_bytes=plan.spaces.arena_bytes + 64))
    highest = next(buffer.id for buffer in plan.buffers if buffer.extents[0].offset == 1408 + 128)
    other = moved(plan, highest, 0, offset)
    assert measured_peak(other) == planned_peak_bytes(other) != planned_peak_bytes(plan)


def test_a_byte_equal_to_one_sentinel_is_still_seen() -> None:
    made = executor(mlp_plan())
    device = made.device
    last = mlp_plan().spaces.arena_bytes
    place = Place(mlp_plan().buffers[0].space, last - 1, 1, "uint8", (1,))
    for value in (0xA5, 0x5A, 0):
        found = measure(device, lambda: None, lambda: device.write(place, np.array([value], np.uint8)))  # noqa: B023
        assert found.peak_bytes == last


def test_a_step_allocates_nothing_of_note() -> None:
    made = executor(mlp_plan())
    run = lambda: made.run("train", Hyper(0, 1, LR))  # noqa: E731
    # threads, frames and the kernels' scratch (launch.py: under 256 KiB); the arena is not seen, as it must not be
    assert measure(made.device, lambda: load(made), run).hidden_bytes < 256 * 1024


def test_hidden_allocations_are_seen() -> None:
    made = executor(mlp_plan())
    found = measure(made.device, lambda: None, lambda: np.empty(3_000_000, np.uint8).fill(1))
    assert 3_000_000 <= found.hidden_bytes < 3_100_000


def test_null_backend_orders_steps_like_the_lanes() -> None:
    plan = mlp_plan()
    device = NullDevice()
    Executor(plan, device).run("train", Hyper(0, 1, LR))
    # Launches take 10 ns, copies 25. The offload (2) ends at 45: its bytes are reused by 6 and the prefetch (7) starts,
    # which ends at 70, where its reader (8) starts.
    steps = [0, 1, 2, 3, 4, 5, 7, 6, 8, 9, 10, 11, 12, 13]
    starts = [0, 10, 20, 20, 30, 40, 45, 50, 70, 80, 90, 100, 110, 120]
    assert [(record.step, record.start_ns) for record in device.records] == list(zip(steps, starts, strict=True))


def test_observer_sees_launches_only_and_keeps_copies() -> None:
    seen: dict[int, tuple[tuple[Array, ...], tuple[Array, ...]]] = {}

    def observe(step: Step, reads: tuple[Array, ...], writes: tuple[Array, ...]) -> None:
        seen[step.id] = (reads, writes)

    made = executor(mlp_plan(), Debug(observe=observe))
    made.run("train", Hyper(0, 1, LR))
    assert set(seen) == set(range(14)) - {OFFLOAD, PREFETCH}
    gradient = seen[12][0][1]
    np.testing.assert_allclose(gradient, by_hand(1)[1][3], rtol=1e-4, atol=1e-7)  # the first momentum is the gradient


def test_blas_runs_on_the_planned_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from threadpoolctl import threadpool_info

    found: list[int] = []

    def kernel(launch: Launch, hyper: Hyper) -> None:
        found.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        numpy_backend.KERNELS["ReluBackward"](launch, hyper)

    plan = with_step(mlp_plan(), 10, lambda step: replace(step, op="Look"))
    monkeypatch.setattr(numpy_backend, "KERNELS", {**numpy_backend.KERNELS, "Look": kernel})
    monkeypatch.setattr(numpy_backend, "blas_threads", lambda: 1)
    train(plan, steps=1)
    assert set(found) == {1}
