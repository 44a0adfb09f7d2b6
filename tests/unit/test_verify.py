"""The verifier: good plans are clean, every rule has a plan that breaks it and nothing else, a lost wait is found."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from typing import Any

import pytest
import verify_plans as plans
from trainings import compiled, workload
from verify_plans import (
    append_launch,
    edit,
    edit_access,
    edit_buffer,
    edit_extent,
    edit_model,
    edit_spaces,
    edit_step,
    training_plan,
    with_steps,
)

from planc.happens_before import HappensBefore
from planc.plan import Access, Buffer, BufferKind, Extent, Lane, Plan, Program, Space, Step, StepKind
from planc.verify import CODES, verify

Edit = Callable[[Plan], Plan]

WEIGHT = Access(plans.TENSOR_W, plans.W, 1, 0, 64)
STATE = Access(plans.TENSOR_M, plans.M, 1, 0, 64)
GRADIENT = Access(plans.TENSOR_DW, plans.DW, 2, 0, 64)
STATISTIC = Access(plans.TENSOR_R, plans.R, 0, 0, 4)


def _unused_buffer_freed_before_birth(plan: Plan) -> Plan:
    extent = Extent(0, plans.FREE, 32, 9, (7,))
    number = len(plan.buffers)
    unused = Buffer(number, "train", BufferKind.ACTIVATION, Space.ARENA, (plans.TENSOR_G,), plans.ONE, 32, (extent,))
    return edit(plan, buffers=(*plan.buffers, unused))


def _reuse_without_the_offload(plan: Plan) -> Plan:
    """The second sub-batch takes y's place while that may still be copied out."""
    return edit_extent(plan, plans.H_TWO, offset=plan.buffers[plans.H_ONE].extents[0].offset)


def _in_place_during_the_offload(plan: Plan) -> Plan:
    """Relu overwrites its input while it is copied out; whoever needs the memory still waits for the copies."""
    plan = edit_step(plan, plans.RELU_TWO, waits=(plans.OUT_SECOND,))
    return edit_step(plan, plans.BACK, waits=(plans.OUT_TWO, plans.GRAD_TWO))


def _visiting_plan() -> Plan:
    """A plan whose parameters and optimizer state live on the host."""
    return compiled(workload("lenet", batch=4), budget="smallest", sub_batches=1)


def _home_leg(plan: Plan) -> Step:
    """The last copy out of what was updated that waits for the update."""
    homes = {entry.buffer for entry in plan.model.persistent}
    return [
        step for step in plan.train.steps if step.lane is Lane.D2H and step.writes[0].buffer in homes and step.waits
    ][-1]


def _half_way_home() -> Plan:
    """Of a tensor that was updated only the first half is copied back."""
    plan = _visiting_plan()
    step = _home_leg(plan)
    half = step.reads[0].stop // 8 * 4
    reads, writes = ((replace(access, stop=half),) for access in (step.reads[0], step.writes[0]))
    return edit_step(plan, step.id, reads=reads, writes=writes)


def _to_the_wrong_place() -> Plan:
    """A copy home ends four bytes beyond its place."""
    plan = _visiting_plan()
    step = _home_leg(plan)
    (read,), (write,) = step.reads, step.writes
    moved = replace(write, start=4, stop=write.stop)
    return edit_step(plan, step.id, reads=(replace(read, stop=read.stop - 4),), writes=(moved,))


def _offload_while_written(plan: Plan) -> Plan:
    """y leaves before Relu has made it; its memory is taken after both."""
    plan = edit_extent(plan, plans.H_ONE, freed=(plans.RELU_ONE, plans.OUT_FIRST, plans.OUT_SECOND))
    return edit_step(plan, plans.OUT_FIRST, waits=(plans.RELU_ONE - 1,))


def _read_while_it_returns(plan: Plan) -> Plan:
    """Nobody but the update waits for y to be back."""
    plan = edit_extent(plan, plans.H_ONE, 1, freed=(plans.UPDATE,))
    return edit_step(edit_step(plan, plans.LOSS_ONE, waits=()), plans.UPDATE, waits=(plans.BACK,))


def _return_while_it_leaves(plan: Plan) -> Plan:
    """y is copied back, to unused memory, before it has been copied out; its halves on the host are extents."""
    plan = edit_extent(plan, plans.H_ONE, 1, offset=plans.FREE)
    out = plan.buffers[plans.HOST_ONE].extents[0]
    out = replace(out, bytes=16, freed=(plans.UPDATE,))
    halves = (out, replace(out, first=16, offset=16, born=plans.OUT_SECOND))
    return edit_step(edit_buffer(plan, plans.HOST_ONE, extents=halves), plans.BACK, waits=(plans.H_TWO_MADE,))


def _swapped_halves(plan: Plan) -> Plan:
    plan = edit_access(plan, plans.OUT_FIRST, "writes", 0, start=16, stop=32)
    return edit_access(plan, plans.OUT_SECOND, "writes", 0, start=0, stop=16)


def _early_finalize(plan: Plan) -> Plan:
    """The count is finalized after its first sub-batch."""
    one, two, finalize, *rest = plan.train.steps
    early = replace(finalize, id=1, reads=(replace(finalize.reads[0], version=1), finalize.reads[1]))
    plan = with_steps(plan, (one, early, replace(two, id=2), *rest))
    return edit_extent(plan, plans.COUNT, freed=(2,))


def _other_version(plan: Plan) -> Plan:
    plan = edit_access(plan, plans.GRAD_ONE, "writes", 0, version=2)
    return edit_access(plan, plans.DW_ONE, "reads", 1, version=2)


def _scattered(plan: Plan) -> Plan:
    last = plan.buffers[plans.G_ONE].extents[0]
    halves = (replace(last, bytes=16), replace(last, first=16, offset=plans.FREE, bytes=16))
    return edit_buffer(plan, plans.G_ONE, extents=halves)


def _paged(first: int, page_bytes: int) -> Edit:
    """g lies in two places, of which the first ends at the border of a page; so the plan has pages."""

    def change(plan: Plan) -> Plan:
        plan = edit_spaces(_scattered(plan), page_bytes=page_bytes, alignment=16)
        return edit_extent(plan, plans.G_ONE, offset=first)

    return change


def _beside_a_scattered_one(plan: Plan) -> Plan:
    """The loss lies in the page where the first half of g is."""
    return edit_extent(_paged(plans.FREE + 144, 32)(plan), plans.LOSS, offset=plans.FREE + 128)


def _count(samples: tuple[int, int]) -> Edit:
    """The second contribution to the count runs on `samples` instead of [2, 4)."""
    start, stop = samples

    def change(plan: Plan) -> Plan:
        plan = edit_access(plan, plans.COUNT_TWO, "reads", 0, start=16 * start, stop=16 * stop)
        return edit_step(plan, plans.COUNT_TWO, samples=samples)

    return change


def _second_update(plan: Plan) -> Plan:
    plan = append_launch(plan, reads=(WEIGHT, GRADIENT), writes=(replace(WEIGHT, version=2),))
    return edit_extent(plan, plans.DW, freed=(plans.UPDATE + 1,))


BROKEN: dict[str, tuple[Edit, ...]] = {
    "program": (
        lambda p: edit(p, programs={"training": p.train, "evaluate": p.evaluate}),
        lambda p: edit(p, programs={}),
    ),
    "id": (
        lambda p: edit_buffer(p, 3, id=7),
        lambda p: edit_step(p, 3, id=4),
        lambda p: edit(p, tensors=p.tensors[1:]),
    ),
    "step-form": (
        lambda p: edit_step(p, 3, lane=Lane.H2D),
        lambda p: edit_step(p, 17, samples=(0, 5)),
        lambda p: edit_step(p, 3, duration_ns=-1),
        lambda p: edit_step(p, 3, configuration=(("fft", 1),)),
        lambda p: edit_step(p, 3, configuration=(("fft", 3), ("fft", -1))),
    ),
    "wait": (
        lambda p: edit_step(p, plans.BACK, waits=(plans.BACK,)),
        lambda p: edit_step(p, plans.BACK, waits=(99,)),
        lambda p: edit_step(p, plans.BACK, waits=(-1,)),
        lambda p: edit_step(p, plans.RELU_TWO, waits=(plans.H_TWO_MADE,)),
    ),
    "reference": (
        lambda p: edit_access(p, 3, "reads", 0, buffer=99),
        lambda p: edit_access(p, 3, "reads", 0, tensor=-1),
        lambda p: edit_access(p, 0, "reads", 0, buffer=len(p.buffers) - 2),
        lambda p: edit_step(p, 3, workspace=plans.H_TWO),
        lambda p: edit_buffer(p, 4, program="test"),
        lambda p: edit_buffer(p, 4, tensors=(99,)),
    ),
    "tensor-form": (
        lambda p: edit(p, tensors=(replace(p.tensors[0], dtype="float12"), *p.tensors[1:])),
        lambda p: edit(p, tensors=(replace(p.tensors[0], rows=2), *p.tensors[1:])),
        lambda p: edit(p, tensors=(replace(p.tensors[0], shape=(4, -4)), *p.tensors[1:])),
    ),
    "buffer-size": (
        lambda p: edit_buffer(p, plans.H_ONE, samples=(0, 4)),
        lambda p: edit_buffer(p, plans.SPACE_ONE, samples=(0, 9)),
    ),
    "extent-form": (
        lambda p: edit_extent(p, plans.H_ONE, first=8),
        lambda p: edit_extent(p, plans.H_ONE, born=99),
        lambda p: edit_extent(p, plans.H_ONE, freed=(-1,)),
        lambda p: edit_extent(p, plans.H_ONE, offset=-64),
        lambda p: edit_extent(p, plans.H_ONE, 1, born=3),
        lambda p: edit_buffer(p, plans.H_ONE, extents=p.buffers[plans.H_ONE].extents[::-1]),
    ),
    "access-range": (
        lambda p: edit_access(p, 3, "reads", 1, stop=60),
        lambda p: edit_access(p, plans.BACK, "reads", 0, start=32, stop=64),
        lambda p: edit_access(p, 3, "writes", 0, start=4),
        lambda p: edit_access(p, 3, "writes", 0, stop=64),
    ),
    "access-samples": (lambda p: edit_access(p, plans.DW_TWO, "reads", 0, start=0, stop=32),),
    "access-space": (
        lambda p: edit_access(p, plans.LOSS_ONE, "reads", 0, buffer=plans.HOST_ONE),
        lambda p: edit_access(p, plans.BACK, "reads", 0, buffer=plans.H_ONE),
    ),
    "copy-form": (
        lambda p: edit_access(p, plans.BACK, "writes", 0, version=3),
        lambda p: edit_access(p, plans.BACK, "writes", 0, stop=16),
        lambda p: edit_step(p, plans.BACK, reads=()),
        lambda p: edit_step(p, plans.BACK, accumulate=True),
    ),
    "in-place-range": (
        lambda p: edit_access(p, plans.RELU_ONE, "writes", 0, version=5),
        lambda p: edit_step(p, plans.UPDATE, writes=(*p.train.steps[plans.UPDATE].writes, STATE)),
    ),
    "model": (
        lambda p: edit_model(p, loss=replace(p.model.loss, train=(99,))),
        lambda p: edit_model(p, loss=replace(p.model.loss, train_tensor=None)),
        lambda p: edit_model(p, loss=replace(p.model.loss, train=(plans.LOSS, plans.LOSS))),
        lambda p: edit_model(p, inputs=(replace(p.model.inputs[0], train=(plans.H_ONE,)),)),
        lambda p: edit_model(p, inputs=(replace(p.model.inputs[0], train=(plans.H_ONE, plans.H_TWO)),)),
        lambda p: edit_model(p, persistent=p.model.persistent[1:]),
        lambda p: edit_model(p, persistent=(replace(p.model.persistent[0], buffer=99), *p.model.persistent)),
        lambda p: edit_model(p, persistent=(*p.model.persistent, replace(p.model.persistent[0], buffer=plans.M))),
        lambda p: edit_model(p, batch=0),
    ),
    "persistent-place": (
        lambda p: edit_extent(p, plans.W, freed=(3,)),
        lambda p: edit_buffer(p, plans.M, program="train"),
        lambda p: edit_extent(p, plans.W, bytes=32),
        lambda p: edit_buffer(p, plans.G_ONE, program="all"),
    ),
    "arena-budget": (lambda p: edit_spaces(p, budget_bytes=p.spaces.arena_bytes - 1),),
    "extent-place": (
        lambda p: edit_spaces(p, arena_bytes=512 + 63),
        lambda p: edit_spaces(p, host_bytes=64),
    ),
    "extent-alignment": (lambda p: edit_extent(p, plans.G_ONE, offset=448 + 16),),
    "extent-missing": (
        lambda p: edit_buffer(p, plans.SPACE_ONE, extents=()),
        lambda p: edit_extent(p, plans.SPACE_ONE, bytes=99),
    ),
    "extent-scattered": (_scattered,),
    "page-border": (_paged(plans.FREE + 128, 32),),
    "page-shared": (_beside_a_scattered_one,),
    "extent-life": (_unused_buffer_freed_before_birth,),
    "extent-overlap": (
        _reuse_without_the_offload,
        lambda p: edit_extent(p, plans.SPACE_ONE, offset=64),
        lambda p: edit_extent(p, plans.HOST_TWO, offset=0),
        lambda p: edit_extent(p, plans.G_ONE, offset=p.buffers[plans.DW].extents[0].offset),
    ),
    "access-early": (
        lambda p: edit_extent(p, plans.SPACE_TWO, offset=plans.FREE, born=plans.OUT_SECOND, freed=(plans.GRAD_TWO,)),
    ),
    "access-late": (
        lambda p: edit_extent(p, plans.H_TWO, freed=(plans.OUT_TWO, plans.LOSS_TWO)),
        lambda p: edit_extent(p, plans.HOST_ONE, freed=(plans.OUT_SECOND,)),
        lambda p: edit_extent(p, plans.COUNT, freed=(plans.COUNT_TWO,)),
    ),
    "read-unwritten": (
        lambda p: edit_access(p, plans.LOSS_TWO, "reads", 0, version=3),
        lambda p: edit_step(p, plans.GRAD_TWO, writes=()),
        lambda p: edit_model(p, inputs=(replace(p.model.inputs[0], train=(), train_tensor=None),)),
    ),
    "read-overwritten": (
        lambda p: edit_access(p, plans.LOSS_TWO, "reads", 0, version=1),
        lambda p: append_launch(p, reads=(replace(WEIGHT, version=0),)),
    ),
    "read-tensor": (
        lambda p: edit_access(p, plans.GRAD_TWO, "reads", 0, tensor=plans.TENSOR_H),
        lambda p: edit_access(p, plans.GRAD_TWO, "reads", 0, tensor=plans.TENSOR_X),
    ),
    "read-race": (
        _offload_while_written,
        _read_while_it_returns,
        _return_while_it_leaves,
    ),
    "write-race": (_in_place_during_the_offload,),
    "write-version": (_other_version,),
    "write-lost": (lambda p: edit_step(p, plans.RELU_ONE, reads=(p.train.steps[0].reads[0],)),),
    "copy-content": (_swapped_halves,),
    "sum-start": (lambda p: edit_step(p, plans.COUNT_ONE, accumulate=True),),
    "sum-twice": (_count((1, 4)), _count((0, 4))),
    "sum-missing": (_count((3, 4)), _count((2, 3))),
    "sum-early": (_early_finalize,),
    "output-lost": (
        lambda p: edit_extent(p, plans.LOSS, freed=(plans.UPDATE,)),
        lambda p: edit_model(p, loss=replace(p.model.loss, train_tensor=plans.TENSOR_COUNT)),
    ),
    "update-missing": (lambda p: edit_step(p, plans.UPDATE, writes=(STATE,)),),
    "update-twice": (_second_update,),
    "update-phase": (lambda p: edit_step(p, plans.UPDATE, phase="backward"),),
    "update-gradient": (
        lambda p: edit_step(p, plans.UPDATE, reads=(replace(WEIGHT, version=0), replace(STATE, version=0))),
    ),
    "update-early": (lambda p: append_launch(p, reads=(WEIGHT,)),),
    "persistent-version": (
        lambda p: append_launch(p, reads=(STATE,), writes=(replace(STATE, version=2),)),
        lambda p: edit_model(p, persistent=(replace(p.model.persistent[0], trainable=False), *p.model.persistent[1:])),
    ),
    "semantics": (
        lambda p: replace(p, semantics="roughly"),
        lambda p: replace(p, semantics="changed"),
        lambda p: replace(p, semantics_reason="none"),
    ),
    "persistent-end": (lambda _: _half_way_home(),),
    "evaluate-writes": (
        lambda p: append_launch(p, "evaluate", reads=(STATISTIC,), writes=(replace(STATISTIC, version=1),)),
    ),
}
"""Code -> edits of the training plan that break this rule and no other."""


def test_the_good_plans_keep_every_rule() -> None:
    assert verify(training_plan()) == ()
    assert verify(plans.chain_plan(12)) == ()


def test_a_paged_plan_may_scatter_a_buffer() -> None:
    assert verify(_paged(plans.FREE + 144, 32)(training_plan())) == ()


def test_every_code_has_a_plan_that_breaks_it() -> None:
    assert BROKEN.keys() == CODES.keys()


@pytest.mark.parametrize(
    ("code", "change"),
    [(code, change) for code, edits in BROKEN.items() for change in edits],
    ids=lambda value: str(value)[:20],
)
def test_a_broken_plan_is_found(code: str, change: Edit) -> None:
    found = verify(change(training_plan()))
    assert {violation.code for violation in found} == {code}, "\n".join(v.message for v in found)
    for violation in found:
        assert violation.message.endswith(".")


@pytest.mark.parametrize("plan", [training_plan(), plans.chain_plan(8)], ids=["training", "chain"])
def test_every_wait_that_orders_something_is_missed(plan: Plan) -> None:
    needed = 0
    for step in plan.train.steps:
        for wait in step.waits:
            without = edit_step(plan, step.id, waits=tuple(w for w in step.waits if w != wait))
            implied = HappensBefore(without.train.steps).before(wait, step.id)
            assert (verify(without) == ()) == implied, f"step {step.id} without its wait for step {wait}"
            needed += not implied
    assert needed >= 5


def test_a_missing_wait_names_both_steps() -> None:
    found, *_ = verify(plans.edit_extent(training_plan(), plans.H_TWO, offset=256))
    assert found.steps == (plans.H_TWO_MADE, plans.OUT_FIRST, plans.OUT_SECOND)
    assert set(found.buffers) == {plans.H_ONE, plans.H_TWO}
    assert "offload 5" in found.message
    assert "share bytes [256, 288)" in found.message


def test_what_comes_home_must_come_to_its_place() -> None:
    assert verify(_visiting_plan()) == ()
    assert {violation.code for violation in verify(_to_the_wrong_place())} == {"copy-content", "persistent-end"}


def test_an_update_must_have_ended_before_it_is_copied_home() -> None:
    """In the next step the first visit reads on the host what this copy wrote."""
    plan = _visiting_plan()
    step = _home_leg(plan)
    codes = {violation.code for violation in verify(edit_step(plan, step.id, waits=()))}
    assert "read-race" in codes


def test_a_visitor_has_one_home() -> None:
    plan = _visiting_plan()
    entry = next(e for e in plan.model.persistent if plan.buffers[e.buffer].space is Space.HOST)
    home = plan.buffers[entry.buffer]
    lost = edit_buffer(plan, home.id, bytes=home.bytes + 4, extents=(replace(home.extents[0], bytes=home.bytes + 4),))
    assert {violation.code for violation in verify(lost)} == {"model"}


def test_semantics_changed_may_sum_over_less() -> None:
    plan = _count((3, 4))(training_plan())
    assert verify(replace(plan, semantics="changed", semantics_reason="by intention")) == ()


def test_buffers_of_the_other_program_do_not_count() -> None:
    """Both programs use one arena; their buffers may lie anywhere in it."""
    plan = training_plan()
    other = next(
        buffer for buffer in plan.buffers if buffer.program == "evaluate" and buffer.extents[0].born is not None
    )
    assert verify(edit_extent(plan, other.id, offset=512)) == ()


def _mutated(value: Any, chance: random.Random) -> Any:
    """`value` with something in it changed, blindly, to something of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, StrEnum):
        return chance.choice(list(type(value)))
    if isinstance(value, int):
        return chance.choice([0, 1, -1, 2, value + 1, value - 1, value * 2, 2**62, chance.randrange(300)])
    if isinstance(value, str):
        return chance.choice(["", "train", "evaluate", "all", "update", "float32", "exact", value + "'"])
    if isinstance(value, tuple):
        pair = len(value) == 2 and all(type(element) is int for element in value)  # samples are always two
        if not value or (not pair and chance.random() < 0.1):
            return chance.choice([(), value[1:], value + value[:1], value[::-1]])
        at = chance.randrange(len(value))
        return (*value[:at], _mutated(value[at], chance), *value[at + 1 :])
    if is_dataclass(value) and not isinstance(value, type):
        name = chance.choice([field.name for field in fields(value)])
        return replace(value, **{name: _mutated(getattr(value, name), chance)})
    if isinstance(value, dict) and value:
        key = chance.choice(sorted(value))
        return {**value, key: _mutated(value[key], chance)}
    return value


def test_blind_mutations_never_raise() -> None:
    good, found = training_plan(), 0
    for seed in range(1500):
        chance = random.Random(seed)
        parts = ("programs", "buffers", "programs", "buffers", "tensors", "model", "spaces")
        plan = good
        for _ in range(chance.randint(1, 3)):
            part = chance.choice(parts)
            plan = replace(plan, **{part: _mutated(getattr(plan, part), chance)})
        codes = {violation.code for violation in verify(plan)}
        assert codes <= CODES.keys()
        found += bool(codes)
    assert found > 500


def test_an_empty_program_is_judged() -> None:
    plan = replace(training_plan(), programs={"train": Program(())})
    assert verify(plan)


def test_time_grows_with_the_plan_not_its_square() -> None:
    """Work is counted, not timed: the calls of Python functions, which a busy machine does not change."""

    def calls(blocks: int) -> int:
        plan, count = plans.chain_plan(blocks), 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(note)
        try:
            assert verify(plan) == ()
        finally:
            sys.setprofile(None)
        return count

    small, large = calls(50), calls(400)
    assert large < 8 * small * 1.1, "8 times the steps take more than 8 times the calls"


def test_the_verifier_knows_nothing_of_the_compiler() -> None:
    code = "import sys, planc.verify, planc.simulate; print(*sorted(m for m in sys.modules if m.startswith('planc.')))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = {"planc.byte_map", "planc.happens_before", "planc.simulate"}
    known = {"planc.plan", "planc.errors", "planc.units"} | own
    strangers = {m for m in ran.stdout.split() if m not in known and not m.startswith("planc.verify")}
    assert strangers == set()


@pytest.mark.parametrize(
    ("first", "second", "before"),
    [
        (plans.RELU_ONE, plans.OUT_FIRST, True),
        (plans.OUT_FIRST, plans.RELU_TWO, True),
        (plans.OUT_FIRST, plans.H_TWO_MADE, False),
        (plans.H_TWO_MADE, plans.OUT_FIRST, False),
        (plans.GRAD_TWO, plans.LOSS_ONE, True),
        (plans.BACK, plans.DW_TWO, False),
        (plans.BACK, plans.UPDATE, True),
        (plans.UPDATE, plans.UPDATE, False),
    ],
)
def test_happens_before(first: int, second: int, before: bool) -> None:
    assert HappensBefore(training_plan().train.steps).before(first, second) is before


def test_step_kinds_have_lanes() -> None:
    assert plans.LANES.keys() == set(StepKind)
