"""Paged arenas on NumPy: the same numbers as contiguous ones, within the planned bytes; copies in parts of any size."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import onnx
import pytest
from paged_plans import UNLIMITED, drafted, in_parts, planned, with_pages
from trainings import batches, train, workload

from planc.onnx_loader import load_model
from planc.passes.base import Decisions, Problem, memory_bytes
from planc.pipeline import Workload, decide
from planc.placement import place
from planc.plan import Plan, Space
from planc.policies import KEEP_ALL, MINIMUM_MEMORY, POLICIES
from planc.profile import load_profile
from planc.runtime.measure import planned_peak_bytes
from planc.runtime.windows import Windows
from planc.schedule import make_schedule
from planc.session import Session
from planc.simulate import simulate
from planc.training_graph import TrainingOptions
from planc.verify import verify

PAGE = 4096
MODELS = ("tiny_residual_cnn", "vgg_like")


@cache
def small_pages(model: str) -> Workload:
    return with_pages(workload(model), PAGE)


@cache
def decided(model: str, parts: int) -> tuple[Problem, Decisions]:
    problem, decisions = drafted(small_pages(model), MINIMUM_MEMORY, UNLIMITED)
    return problem, in_parts(problem, decisions, parts, 64) if parts > 1 else decisions


@cache
def plan(model: str, arena: str, parts: int = 1) -> Plan:
    return planned(small_pages(model), MINIMUM_MEMORY, *decided(model, parts), arena)


@cache
def state(model: str, arena: str, parts: int = 1) -> tuple[list[float], str]:
    work = small_pages(model)
    found = train(plan(model, arena, parts), work, batches(work, 2), poison=True, chaos=7)
    return found.losses, found.state_sha256


@cache
def resident(model: str) -> tuple[list[float], str]:
    """Everything resident, with the same algorithms."""
    work = small_pages(model)
    problem, decisions = drafted(work, KEEP_ALL, UNLIMITED)
    alike = Decisions(decided(model, 1)[1].configurations)
    found = train(planned(work, KEEP_ALL, problem, alike, "contiguous"), work, batches(work, 2))
    assert len(alike.configurations) == len(decisions.configurations)
    return found.losses, found.state_sha256


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("arena", ["contiguous", "paged", "shuffled"])
@pytest.mark.parametrize("model", MODELS)
def test_state_does_not_depend_on_the_arena(model: str, arena: str, parts: int) -> None:
    made = plan(model, arena, parts)
    assert verify(made) == ()
    assert bool(made.spaces.page_bytes) == (arena != "contiguous")
    assert state(model, arena, parts) == resident(model)


@pytest.mark.parametrize("model", MODELS)
def test_parts_cut_through_rows_and_leave_by_themselves(model: str) -> None:
    made = plan(model, "paged", 3)
    copies = [step for step in made.train.steps if step.kind == "offload"]
    rows = {t.id: (t.shape[0] // t.rows, t.rows) for t in made.tensors if t.rows}
    sizes = {b.id: b.bytes // (b.samples[1] - b.samples[0]) for b in made.buffers if b.space is Space.ARENA}
    reads = [step.reads[0] for step in copies]
    assert any((read.stop - read.start) % (sizes[read.buffer] // rows[read.tensor][1]) for read in reads)
    lives = {(e.born, e.freed) for b in made.buffers if b.id in {r.buffer for r in reads} for e in b.extents}
    assert len(lives) > len(copies), "leaving and returning parts have lives of their own"


@pytest.mark.parametrize("model", MODELS)
def test_shuffled_pages_need_windows(model: str) -> None:
    """What the test of states rests on: nearly every activation is seen through a window."""
    made = plan(model, "shuffled", 3)
    large = [b for b in made.buffers if b.space is Space.ARENA and b.kind == "activation" and b.bytes > PAGE]
    assert len(Windows(made).mappings) > 2 * len(large)


@pytest.mark.parametrize("arena", ["paged", "shuffled"])
def test_the_measured_peak_is_the_planned_one(arena: str) -> None:
    model = MODELS[0]
    work, made = small_pages(model), plan(model, arena, 3)
    measured = Session(made, work.graph).measure(batches(work, 1)[0])
    assert measured.peak_bytes == planned_peak_bytes(made)
    assert simulate(made).peak_bytes <= made.spaces.arena_bytes


@pytest.mark.parametrize("share", [70, 50])
def test_an_arena_of_cpu_pages_is_within_a_hundredth_of_the_peak(share: int) -> None:
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"
    profile = replace(load_profile("v100-16gb"), page_bytes=65_536)
    work = Workload.of(load_model(light, batch=64), TrainingOptions(), profile)
    resident_bytes = int(memory_bytes(*decide(work.problem(1, UNLIMITED), KEEP_ALL)).max())
    candidate = POLICIES["vdnn-all"].candidates[-1]
    problem, decisions = drafted(work, candidate, resident_bytes * share // 100)
    placement = place(problem, make_schedule(problem, decisions), 0, "paged")
    assert placement.arena_bytes <= 1.01 * placement.peak_bytes
