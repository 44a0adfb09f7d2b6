"""Plans made by hand for tests of verifier, simulator and plan file, and edits that break them one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planc.plan import (
    Access,
    Buffer,
    BufferKind,
    Decision,
    Extent,
    Lane,
    ModelInfo,
    Persistent,
    Plan,
    PlanTensor,
    Port,
    Predicted,
    Program,
    Provenance,
    Space,
    Spaces,
    Step,
    StepKind,
)

LANES = {StepKind.LAUNCH: Lane.COMPUTE, StepKind.OFFLOAD: Lane.D2H, StepKind.PREFETCH: Lane.H2D}


@dataclass
class Draft:
    """A plan that grows; ids are positions. All tensors are float32, one row a sample where they have a batch."""

    batch: int
    tensors: list[PlanTensor] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    programs: dict[str, list[Step]] = field(default_factory=lambda: {"train": [], "evaluate": []})
    program: str = "train"

    def tensor(self, label: str, *shape: int, batched: bool = True) -> int:
        shape = (self.batch, *shape) if batched else shape
        self.tensors.append(PlanTensor(len(self.tensors), label, shape, "float32", int(batched)))
        return len(self.tensors) - 1

    def buffer(
        self,
        kind: BufferKind,
        tensors: Iterable[int],
        size: int,
        *extents: tuple[int, int | None, tuple[int, ...]],
        samples: tuple[int, int] | None = None,
        program: str | None = None,
    ) -> int:
        """A buffer whose extents (offset, born, freed) are whole; host copies go to the host."""
        space = Space.HOST if kind is BufferKind.HOST_COPY else Space.ARENA
        made = tuple(Extent(0, offset, size, born, freed) for offset, born, freed in extents)
        number = len(self.buffers)
        home = program or self.program
        covered = samples or (0, self.batch)
        self.buffers.append(Buffer(number, home, kind, space, tuple(tensors), covered, size, made))
        return number

    def step(
        self,
        kind: StepKind,
        op: str,
        reads: Iterable[Access],
        writes: Iterable[Access],
        *,
        waits: tuple[int, ...] = (),
        samples: tuple[int, int] | None = None,
        accumulate: bool = False,
        phase: str = "forward",
        workspace: int | None = None,
        duration_ns: int = 10,
    ) -> int:
        steps = self.programs[self.program]
        number = len(steps)
        step = Step(
            id=number,
            lane=LANES[kind],
            kind=kind,
            op=op,
            label=f"{op.lower()} {number}",
            attrs={},
            phase=phase,
            samples=samples or (0, self.batch),
            reads=tuple(reads),
            writes=tuple(writes),
            accumulate=accumulate,
            configuration=(),
            workspace=workspace,
            waits=waits,
            duration_ns=duration_ns,
        )
        steps.append(step)
        return number

    def launch(self, op: str, reads: Iterable[Access], writes: Iterable[Access], **more: Any) -> int:
        return self.step(StepKind.LAUNCH, op, reads, writes, **more)

    def copy(self, kind: StepKind, read: Access, write: Access, *waits: int) -> int:
        return self.step(kind, str(kind), (read,), (write,), waits=waits, duration_ns=25)

    def plan(self, model: ModelInfo, arena_bytes: int, host_bytes: int) -> Plan:
        return Plan(
            provenance=Provenance(
                "0.1", "none", "00", "cpu", "00", False, {"budget": "100%", "batch": str(self.batch)}
            ),
            semantics="exact",
            semantics_reason="",
            model=model,
            spaces=Spaces(arena_bytes, 0, arena_bytes, arena_bytes, 64, 0, host_bytes),
            tensors=tuple(self.tensors),
            buffers=tuple(self.buffers),
            programs={name: Program(tuple(steps)) for name, steps in self.programs.items()},
            predicted=Predicted(0, None, None, None, 0, None, None, {}, 0, 0),
            decisions=(Decision("batch", 0, "batch", "2 sub-batches", None, None),),
        )


def bare_model(batch: int, **more: Any) -> ModelInfo:
    """A model that says as little as it can: no input, no parameter, no loss."""
    nothing = Port("loss", None, None, (), ())
    given: dict[str, Any] = {"inputs": (), "labels": (), "outputs": (), "loss": nothing, "persistent": ()}
    return ModelInfo(batch=batch, loss_kind="none", optimizer={"name": "sgd"}, **{**given, **more})


# Training plan: where its parts are

ONE, TWO = (0, 2), (2, 4)
"""The two sub-batches."""
X, W, M, R, H_ONE, H_TWO, HOST_ONE, HOST_TWO, LOSS, G_ONE, G_TWO, DW, COUNT, SPACE_ONE, SPACE_TWO = range(15)
"""Buffers of `training_plan`'s training program."""
TENSOR_X, TENSOR_W, TENSOR_M, TENSOR_R, TENSOR_H, TENSOR_Y, TENSOR_LOSS, TENSOR_G, TENSOR_DW, TENSOR_COUNT = range(10)
COUNT_ONE, COUNT_TWO, FINALIZE = 0, 1, 2
RELU_ONE, OUT_FIRST, OUT_SECOND, H_TWO_MADE, OUT_TWO, RELU_TWO = 4, 5, 6, 7, 8, 9
LOSS_TWO, GRAD_TWO, BACK, DW_TWO, LOSS_ONE, GRAD_ONE, DW_ONE, UPDATE = range(10, 18)
"""Steps of it."""
FREE = 1024
"""From here on its arena is not used."""


def training_plan() -> Plan:
    """y = relu(x w) in two sub-batches of two samples; the first one's y leaves for the host in two halves and returns.

    A sample of x, h, y and g has 16 bytes, so that a sub-batch has 32. The count over x is a sum, finalized into the
    running statistic r. Relu works in place, on the second sub-batch only after its input has been copied out.
    g of the second sub-batch takes the bytes that y of the first has left; y returns where h of the second was.
    """
    d = Draft(4)
    x = d.tensor("x", 4)
    w, m = d.tensor("w", 4, 4, batched=False), d.tensor("m", 4, 4, batched=False)
    r = d.tensor("r", batched=False)
    h, y = d.tensor("h", 4), d.tensor("y", 4)
    loss = d.tensor("loss", batched=False)
    g, dw = d.tensor("g", 4), d.tensor("dw", 4, 4, batched=False)
    count = d.tensor("count", batched=False)
    d.buffer(BufferKind.INPUT, [x], 64, (0, None, (DW_ONE,)))
    for kind, tensor, size, offset in (
        (BufferKind.PARAMETER, w, 64, 64),
        (BufferKind.STATE, m, 64, 128),
        (BufferKind.STATISTIC, r, 4, 192),
    ):
        d.buffer(kind, [tensor], size, (offset, None, ()), program="all")
    d.buffer(BufferKind.ACTIVATION, [h, y], 32, (256, 3, (5, 6)), (320, BACK, (GRAD_ONE,)), samples=ONE)
    d.buffer(BufferKind.ACTIVATION, [h, y], 32, (320, H_TWO_MADE, (OUT_TWO, GRAD_TWO)), samples=TWO)
    d.buffer(BufferKind.HOST_COPY, [y], 32, (0, OUT_FIRST, (BACK,)), samples=ONE)
    d.buffer(BufferKind.HOST_COPY, [h], 32, (64, OUT_TWO, (OUT_TWO,)), samples=TWO)
    d.buffer(BufferKind.LOSS, [loss], 4, (384, LOSS_TWO, ()))
    d.buffer(BufferKind.GRADIENT, [g], 32, (448, GRAD_ONE, (DW_ONE,)), samples=ONE)
    d.buffer(BufferKind.GRADIENT, [g], 32, (256, GRAD_TWO, (DW_TWO,)), samples=TWO)
    d.buffer(BufferKind.PARAMETER_GRADIENT, [dw], 64, (512, DW_TWO, (UPDATE,)))
    d.buffer(BufferKind.ACTIVATION, [count], 4, (576, COUNT_ONE, (FINALIZE,)))
    d.buffer(BufferKind.WORKSPACE, [], 100, (640, 3, (3,)))
    d.buffer(BufferKind.WORKSPACE, [], 100, (640, H_TWO_MADE, (H_TWO_MADE,)))

    def of_x(samples: tuple[int, int]) -> Access:
        return Access(x, X, 0, 16 * samples[0], 16 * samples[1])

    weight = Access(w, W, 0, 0, 64)
    d.launch("Count", [of_x(ONE)], [Access(count, COUNT, 1, 0, 4)], samples=ONE)
    d.launch("Count", [of_x(TWO)], [Access(count, COUNT, 2, 0, 4)], samples=TWO, accumulate=True)
    d.launch("Finalize", [Access(count, COUNT, 2, 0, 4), Access(r, R, 0, 0, 4)], [Access(r, R, 1, 0, 4)])
    d.launch("MatMul", [of_x(ONE), weight], [Access(h, H_ONE, 1, 0, 32)], samples=ONE, workspace=SPACE_ONE)
    d.launch("Relu", [Access(h, H_ONE, 1, 0, 32)], [Access(y, H_ONE, 2, 0, 32)], samples=ONE)
    for start, waits in ((0, (RELU_ONE,)), (16, ())):
        half = Access(y, H_ONE, 2, start, start + 16)
        d.copy(StepKind.OFFLOAD, half, replace(half, buffer=HOST_ONE), *waits)
    d.launch("MatMul", [of_x(TWO), weight], [Access(h, H_TWO, 1, 0, 32)], samples=TWO, workspace=SPACE_TWO)
    d.copy(StepKind.OFFLOAD, Access(h, H_TWO, 1, 0, 32), Access(h, HOST_TWO, 1, 0, 32), H_TWO_MADE)
    d.launch("Relu", [Access(h, H_TWO, 1, 0, 32)], [Access(y, H_TWO, 2, 0, 32)], samples=TWO, waits=(OUT_TWO,))
    y_two, g_two = Access(y, H_TWO, 2, 0, 32), Access(g, G_TWO, 1, 0, 32)
    d.launch("Loss", [y_two], [Access(loss, LOSS, 1, 0, 4)], samples=TWO)
    d.launch("Grad", [y_two], [g_two], samples=TWO, phase="backward")
    y_one, g_one = Access(y, H_ONE, 2, 0, 32), Access(g, G_ONE, 1, 0, 32)
    d.copy(StepKind.PREFETCH, replace(y_one, buffer=HOST_ONE), y_one, GRAD_TWO)
    d.launch("Dw", [of_x(TWO), g_two], [Access(dw, DW, 1, 0, 64)], samples=TWO, phase="backward")
    d.launch("Loss", [y_one], [Access(loss, LOSS, 2, 0, 4)], samples=ONE, accumulate=True, waits=(BACK,))
    d.launch("Grad", [y_one], [g_one], samples=ONE, phase="backward")
    d.launch("Dw", [of_x(ONE), g_one], [Access(dw, DW, 2, 0, 64)], samples=ONE, phase="backward", accumulate=True)
    state = Access(m, M, 0, 0, 64)
    updated = [replace(weight, version=1), replace(state, version=1)]
    d.launch("Update", [weight, Access(dw, DW, 2, 0, 64), state], updated, phase="update")
    return d.plan(_training_model(d, _evaluation(d, weight)), FREE + 256, 128)


def _evaluation(d: Draft, weight: Access) -> tuple[tuple[int, int], tuple[int, int]]:
    """y = relu(x w) of the whole batch; (tensor, buffer) of x and y."""
    d.program = "evaluate"
    x, h, y = d.tensor("x", 4), d.tensor("h", 4), d.tensor("y", 4)
    in_x = d.buffer(BufferKind.INPUT, [x], 64, (0, None, (0,)))
    in_h = d.buffer(BufferKind.OUTPUT, [h, y], 64, (256, 0, ()))
    d.launch("MatMul", [Access(x, in_x, 0, 0, 64), weight], [Access(h, in_h, 1, 0, 64)])
    d.launch("Relu", [Access(h, in_h, 1, 0, 64)], [Access(y, in_h, 2, 0, 64)])
    return (x, in_x), (y, in_h)


def _training_model(d: Draft, evaluated: tuple[tuple[int, int], tuple[int, int]]) -> ModelInfo:
    (x, in_x), (y, in_y) = evaluated
    return bare_model(
        4,
        inputs=(Port("x", TENSOR_X, x, (X,), (in_x,)),),
        outputs=(Port("y", None, y, (), (in_y,)),),
        loss=Port("loss", TENSOR_LOSS, None, (LOSS,), ()),
        persistent=(
            Persistent(TENSOR_W, W, BufferKind.PARAMETER, "w", 0, trainable=True),
            Persistent(TENSOR_M, M, BufferKind.STATE, "", 0, "momentum"),
            Persistent(TENSOR_R, R, BufferKind.STATISTIC, "r", 1),
        ),
    )


def chain_plan(blocks: int) -> Plan:
    """A chain of `blocks` launches forward and as many back; every second activation leaves and returns.

    About three steps a block. The forward pass takes places one after the other; on the way back every gradient takes
    one of two places, and an activation returns to where the next one was.
    """
    d = Draft(1)
    values = [d.tensor(f"a{i}", 16) for i in range(blocks)]
    moved = set(range(0, blocks - 2, 2))
    forward, out, back, launched = {}, {}, {}, {}
    order: list[tuple[str, int]] = []
    for i in range(blocks):
        order += [("forward", i), *([("out", i)] if i in moved else [])]
    for i in reversed(range(blocks)):
        order += [*([("back", i)] if i in moved else []), ("backward", i)]
    for number, (what, i) in enumerate(order):
        {"forward": forward, "out": out, "back": back, "backward": launched}[what][i] = number
    for i, tensor in enumerate(values):
        stays: list[tuple[int, int | None, tuple[int, ...]]] = [(64 * i, forward[i], (launched[i],))]
        if i in moved:
            stays = [(64 * i, forward[i], (out[i], forward[i + 1])), (64 * (i + 1), back[i], (launched[i],))]
        d.buffer(BufferKind.ACTIVATION, [tensor], 64, *stays)
    hosts = {i: d.buffer(BufferKind.HOST_COPY, [values[i]], 64, (64 * i, out[i], (back[i],))) for i in sorted(moved)}
    gradients = [d.tensor(f"g{i}", 16) for i in range(blocks)]
    for i, tensor in enumerate(gradients):
        freed = (launched[i - 1],) if i else (launched[0],)
        d.buffer(BufferKind.GRADIENT, [tensor], 64, (64 * (blocks + i % 2), launched[i], freed))
    home = {
        tensor: number
        for number, buffer in enumerate(d.buffers)
        if buffer.space is Space.ARENA
        for tensor in buffer.tensors
    }

    def at(tensor: int) -> Access:
        return Access(tensor, home[tensor], 1, 0, 64)

    for what, i in order:
        if what == "forward":
            d.launch("Forward", [at(values[i - 1])] if i else [], [at(values[i])])
        elif what == "out":
            d.copy(StepKind.OFFLOAD, at(values[i]), replace(at(values[i]), buffer=hosts[i]), forward[i])
        elif what == "back":
            d.copy(StepKind.PREFETCH, replace(at(values[i]), buffer=hosts[i]), at(values[i]), launched[i + 1], out[i])
        else:
            later = [at(gradients[i + 1])] if i + 1 < blocks else []
            d.launch("Backward", [at(values[i]), *later], [at(gradients[i])], waits=(back[i],) if i in moved else ())
    return d.plan(bare_model(1), 64 * (blocks + 2), 64 * blocks)


# Edits


def edit(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, **changes)


def edit_model(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, model=replace(plan.model, **changes))


def edit_spaces(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, spaces=replace(plan.spaces, **changes))


def edit_buffer(plan: Plan, number: int, **changes: Any) -> Plan:
    buffers = list(plan.buffers)
    buffers[number] = replace(buffers[number], **changes)
    return replace(plan, buffers=tuple(buffers))


def edit_extent(plan: Plan, number: int, index: int = 0, **changes: Any) -> Plan:
    extents = list(plan.buffers[number].extents)
    extents[index] = replace(extents[index], **changes)
    return edit_buffer(plan, number, extents=tuple(extents))


def with_steps(plan: Plan, steps: Iterable[Step], program: str = "train") -> Plan:
    programs: Mapping[str, Program] = {**plan.programs, program: Program(tuple(steps))}
    return replace(plan, programs=programs)


def edit_step(plan: Plan, number: int, *, program: str = "train", **changes: Any) -> Plan:
    steps = list(plan.programs[program].steps)
    steps[number] = replace(steps[number], **changes)
    return with_steps(plan, steps, program)


def edit_access(plan: Plan, step: int, side: str, index: int, **changes: Any) -> Plan:
    """Change one of the step's `reads` or `writes` (`side`)."""
    accesses = list(getattr(plan.train.steps[step], side))
    accesses[index] = replace(accesses[index], **changes)
    return edit_step(plan, step, **{side: tuple(accesses)})


def append_launch(plan: Plan, program: str = "train", **changes: Any) -> Plan:
    """The plan with one more launch, of the whole batch, at the end of a program."""
    steps = plan.programs[program].steps
    blank = Step(
        len(steps), Lane.COMPUTE, StepKind.LAUNCH, "More", "more", {}, "update", (0, 4), (), (), False, (), None, (), 1
    )
    return with_steps(plan, (*steps, replace(blank, **changes)), program)
