"""Costs: durations of tasks and copies, and what a convolution call can choose from."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from trainings import workload

import planc
from planc.costs import CALLS, CostTable, make_costs
from planc.errors import ProfileError
from planc.profile import Profile, load_profile
from planc.tasks import TaskList, make_tasks


@cache
def tasks(sub_batches: int = 1) -> TaskList:
    return make_tasks(workload("tiny_residual_cnn", batch=6).training, sub_batches)


def costs(profile: Profile) -> CostTable:
    return make_costs(tasks(), profile)


@cache
def cpu() -> Profile:
    return load_profile("cpu")


@cache
def gpu() -> Profile:
    return load_profile("v100-16gb")


@pytest.mark.parametrize("profile", ["cpu", "v100-16gb", "h100-80gb"])
def test_every_task_takes_time_and_every_convolution_has_a_choice_without_workspace(profile: str) -> None:
    """Field case D2."""
    table = costs(load_profile(profile))
    assert len(table.durations) == len(tasks().tasks)
    assert all(isinstance(ns, int) and ns > 0 for ns in table.durations)
    for task in tasks().tasks:
        options = table.configurations[task.index]
        assert bool(options) == (tasks().launch(task).op in CALLS)
        if options:
            assert options[-1].workspace_bytes == 0
            assert table.durations[task.index] == options[0].duration_ns
            pairs = [(c.duration_ns, c.workspace_bytes) for c in options]
            assert pairs == sorted(pairs)
            assert [w for _, w in pairs] == sorted((w for _, w in pairs), reverse=True)
            assert len(set(pairs)) == len(pairs)


def test_a_copy_takes_its_latency_and_its_bytes_rounded_up() -> None:
    profile = replace(gpu(), copy_latency_ns=8_000)
    table = costs(profile)
    for size in (1, 1000, 10**9 + 1):
        exact = size * 10**9 / profile.d2h_duplex_bytes_per_s
        assert 8_000 + exact <= table.d2h_ns(size) < 8_000 + exact + 1
        exact = size * 10**9 / profile.h2d_duplex_bytes_per_s
        assert 8_000 + exact <= table.h2d_ns(size) < 8_000 + exact + 1


def test_a_launch_that_streams_is_as_slow_as_the_memory() -> None:
    """ReLU of (6, 16, 16, 16): in and out, 4 bytes each."""
    relu = next(t for t in tasks().tasks if tasks().launch(t).op == "Relu")
    size = tasks().graph.spec(relu.reads[0].tensor).bytes
    slow = replace(cpu(), memory_bandwidth_bytes_per_s=10**6, elementwise_efficiency=0.5, launch_ns=3)
    assert costs(slow).durations[relu.index] == 3 + 2 * size * 10**9 // 500_000


def test_a_product_is_as_slow_as_its_operations() -> None:
    product = next(t for t in tasks().tasks if tasks().launch(t).op == "MatMulBias" or "MatMul" in tasks().launch(t).op)
    n, k = tasks().graph.spec(product.reads[0].tensor).shape
    m = tasks().graph.spec(product.writes[0].tensor).shape[1]
    slow = replace(cpu(), peak_flops={"float32": 1000}, matrix_efficiency=0.5, launch_ns=0)
    found = costs(slow).durations[product.index]
    assert 2 * n * k * m * 10**9 // 500 <= found <= 2 * n * (k + 1) * m * 10**9 // 500


def test_sub_batches_pay_overheads_again() -> None:
    one, three = (sum(make_costs(tasks(count), gpu()).durations) for count in (1, 3))
    assert one < three


def test_a_type_without_a_speed_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"no peak_flops for float32; it has float16.*--precision"):
        costs(replace(cpu(), peak_flops={"float16": 10**12}))


def test_a_device_without_an_algorithm_is_refused() -> None:
    with pytest.raises(ProfileError, match="no forward algorithm for the convolution 'conv_0'"):
        costs(replace(cpu(), algorithms={}))


def test_equal_algorithms_are_told_apart_by_name() -> None:
    """Field case D5: the same table, whatever order the profile lists its algorithms in."""
    known = cpu().algorithms
    backwards = dict(reversed(list(known.items())))
    assert list(known) != list(backwards)
    assert costs(cpu()).configurations == costs(replace(cpu(), algorithms=backwards)).configurations


def test_nothing_is_timed_at_compile_time() -> None:
    """Field case D5: what plans knows no clock; runs, comparisons and the command line do."""
    root = Path(planc.__file__).parent
    timing = {"training_run.py", "measure.py", "compare.py"}
    for path in root.rglob("*.py"):
        if path.name in timing or path.relative_to(root).parts[0] in ("runtime", "cli"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
        imported |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert imported.isdisjoint({"time", "timeit", "datetime"}), path
