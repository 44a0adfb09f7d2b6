"""What a model needs: each smallest budget is one that compile keeps to, and one byte less is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from planc.bounds import lower_bound
from planc.candidates import compile_workload
from planc.capabilities import CAPABILITIES, Bounds, bounds
from planc.choice import minimum_memory, smallest_budget, smallest_candidates, sub_batch_counts
from planc.cli import planc
from planc.cli.bounds import SUMMARIES
from planc.errors import InfeasibleError
from planc.ops.spec import TensorKind
from planc.options import Options
from planc.passes.base import memory_bytes
from planc.pipeline import UNLIMITED, Workload, decide
from planc.policies import MINIMUM_DEVICE, MINIMUM_MEMORY, Candidate
from planc.source import Source
from planc.yardsticks import measure_yardsticks, smallest_draft
from planc.zoo import ZOO

BATCH = 8
MODELS = ("lenet", "tiny_residual_cnn", "densenet_like")


@pytest.fixture(scope="module", params=MODELS)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    path = tmp_path_factory.mktemp("bounds") / f"{request.param}.onnx"
    path.write_bytes(ZOO[request.param]().SerializeToString())
    return Source(path)


@pytest.fixture(scope="module")
def workload(source: Source) -> Workload:
    return source.workload(BATCH)


@pytest.fixture(scope="module")
def found(source: Source, workload: Workload) -> Bounds:
    return bounds(workload, source.options())


def compiles(workload: Workload, budget: int, **options: object) -> bool:
    try:
        plan = compile_workload(workload, Options(budget=str(budget), **options))  # type: ignore[arg-type]
    except InfeasibleError:
        return False
    assert plan.spaces.arena_bytes <= budget
    return True


def test_each_capability_needs_no_more_than_the_one_before(found: Bounds) -> None:
    sizes = [row.smallest_budget_bytes for row in found.capabilities]
    assert [row.name for row in found.capabilities] == list(CAPABILITIES) == list(SUMMARIES)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]
    assert found.proven.bytes <= sizes[-1] == found.smallest_budget_bytes


def test_yardsticks_are_those_of_a_plan(workload: Workload, found: Bounds) -> None:
    yardsticks = measure_yardsticks(workload)
    assert found.keep_all_bytes == yardsticks.keep_all_bytes == found.capabilities[0].smallest_budget_bytes
    assert found.keep_all_zero_workspace_bytes == yardsticks.keep_all_zero_workspace_bytes
    assert found.ideal_ns == yardsticks.ideal_ns
    assert 0 < found.bound_ns <= found.ideal_ns


def test_resident_is_what_keep_all_keeps_to_and_no_less(workload: Workload, found: Bounds) -> None:
    size = found.capabilities[0].smallest_budget_bytes
    assert compiles(workload, size, policy="keep-all")
    assert not compiles(workload, size - 1, policy="keep-all")


def test_offload_is_the_smallest_budget_of_the_whole_batch(workload: Workload, found: Bounds) -> None:
    row = next(row for row in found.capabilities if row.name == "offload")
    assert row.sub_batches == 1
    assert compiles(workload, row.smallest_budget_bytes, sub_batches=1)
    options = Options(sub_batches=1, host_parameters="never")
    assert smallest_budget(workload, options) == row.smallest_budget_bytes


def test_the_last_one_is_the_smallest_budget_of_compile(workload: Workload, found: Bounds) -> None:
    smallest = found.smallest_budget_bytes
    assert compiles(workload, smallest)
    with pytest.raises(InfeasibleError) as refused:
        compile_workload(workload, Options(budget="1"))
    assert refused.value.smallest_budget_bytes == smallest
    assert refused.value.bound_bytes == found.proven.bytes


@pytest.mark.parametrize("host_parameters", ["never", "auto"])
def test_skipped_sub_batch_counts_would_not_have_needed_less(workload: Workload, host_parameters: str) -> None:
    options = Options(host_parameters=host_parameters)
    every = [
        smallest_draft(workload, candidate, count).arena_bytes
        for candidate in smallest_candidates(options)
        for count in sub_batch_counts(workload, candidate, 0, options)
    ]
    assert minimum_memory(workload, options).arena_bytes == min(every)


@pytest.mark.parametrize("candidate", [MINIMUM_MEMORY, MINIMUM_DEVICE], ids=["resident", "visiting"])
def test_the_bound_of_a_range_is_below_what_its_plan_has_live(workload: Workload, candidate: Candidate) -> None:
    for count in (1, 2, 4, BATCH):
        problem, decisions = decide(workload.problem(count, UNLIMITED), candidate)
        live = int(memory_bytes(problem, decisions).max())
        resident = not candidate.visits
        assert lower_bound(workload.training, samples=BATCH // count, resident=resident).bytes <= live


def test_modnn_counts_every_gradient_of_a_parameter(workload: Workload, found: Bounds) -> None:
    gradients = sum(t.spec.bytes for t in workload.training.tensors if t.kind is TensorKind.PARAMETER_GRADIENT)
    assert gradients > 0
    resident = lower_bound(workload.training, resident=True)
    assert found.modnn.persistent_bytes == resident.persistent_bytes + gradients
    assert found.modnn.bytes > found.modnn.persistent_bytes
    # A working set holds one gradient of parameters at most a few times: the rest is what planc can put away.
    assert found.modnn.bytes >= found.proven.bytes


def test_the_command_prints_the_same_figures(source: Source, found: Bounds) -> None:
    words = ["bounds", str(source.model), "--batch", str(BATCH)]
    done = CliRunner().invoke(planc, [*words, "--json"], prog_name="planc")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["keep_all_bytes"] == found.keep_all_bytes
    assert document["smallest_budget_bytes"] == found.smallest_budget_bytes
    assert document["modnn_bound_bytes"] == found.modnn.bytes
    assert document["bound_bytes"] == found.proven.bytes
    assert document["ideal_ns"] == found.ideal_ns
    assert document["capabilities"] == {row.name: row.smallest_budget_bytes for row in found.capabilities}
    shown = CliRunner().invoke(planc, words, prog_name="planc").stdout
    assert str(found.smallest_budget_bytes) in shown
    assert all(summary in shown for summary in SUMMARIES.values())


def test_a_missing_model_is_bad_input(tmp_path: Path) -> None:
    assert CliRunner().invoke(planc, ["bounds", str(tmp_path / "none.onnx")], prog_name="planc").exit_code == 2
