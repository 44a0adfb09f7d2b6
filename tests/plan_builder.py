"""Plans made by hand for tests of the runtime: no compiler, every offset and wait in plain sight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

import numpy as np

from planc.graph import ITEM_BYTES, Graph, Node, TensorSpec
from planc.plan import (
    Access,
    AttrValue,
    Buffer,
    BufferKind,
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


@dataclass
class PlanBuilder:
    """Collects tensors, buffers and steps; ids are positions."""

    batch: int
    tensors: list[PlanTensor] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    steps: dict[str, list[Step]] = field(default_factory=lambda: {"train": [], "evaluate": []})
    program: str = "train"

    def tensor(self, label: str, shape: tuple[int, ...], dtype: str = "float32", rows: int = 1) -> int:
        self.tensors.append(PlanTensor(len(self.tensors), label, shape, dtype, rows))
        return len(self.tensors) - 1

    def bytes(self, tensor: int) -> int:
        found = self.tensors[tensor]
        return prod(found.shape) * ITEM_BYTES[found.dtype]

    def buffer(
        self,
        kind: BufferKind,
        tensors: Sequence[int],
        *extents: tuple[int, int | None, tuple[int, ...]],
        space: Space = Space.ARENA,
        size: int | None = None,
        samples: tuple[int, int] | None = None,
        program: str | None = None,
    ) -> int:
        """`extents`: (offset, born, freed), each of the whole buffer."""
        size = self.bytes(tensors[0]) if size is None else size
        made = tuple(Extent(0, offset, size, born, freed) for offset, born, freed in extents)
        number = len(self.buffers)
        self.buffers.append(
            Buffer(
                number,
                program or self.program,
                kind,
                space,
                tuple(tensors),
                samples or (0, self.batch),
                size,
                made,
            )
        )
        return number

    def access(self, tensor: int, buffer: int, version: int = 1, samples: tuple[int, int] | None = None) -> Access:
        size = self.bytes(tensor)
        if samples is None or not self.tensors[tensor].rows:
            return Access(tensor, buffer, version, 0, size)
        start = self.buffers[buffer].samples[0]
        each = size // self.batch
        return Access(tensor, buffer, version, (samples[0] - start) * each, (samples[1] - start) * each)

    def launch(
        self,
        op: str,
        reads: Sequence[Access],
        writes: Sequence[Access],
        *,
        attrs: Mapping[str, AttrValue] | None = None,
        samples: tuple[int, int] | None = None,
        accumulate: bool = False,
        workspace: int | None = None,
        configuration: tuple[tuple[str, int], ...] = (),
        waits: tuple[int, ...] = (),
        phase: str = "forward",
    ) -> int:
        return self._step(
            Lane.COMPUTE,
            StepKind.LAUNCH,
            op,
            MappingProxyType(dict(attrs or {})),
            phase,
            samples or (0, self.batch),
            tuple(reads),
            tuple(writes),
            accumulate,
            configuration,
            workspace,
            waits,
            10,
        )

    def copy(self, kind: StepKind, read: Access, write: Access, waits: tuple[int, ...]) -> int:
        lane = Lane.D2H if kind is StepKind.OFFLOAD else Lane.H2D
        samples = (0, self.batch)
        return self._step(
            lane, kind, str(kind), MappingProxyType({}), "copy", samples, (read,), (write,), False, (), None, waits, 25
        )

    def _step(self, lane: Lane, kind: StepKind, op: str, *rest: object) -> int:
        steps = self.steps[self.program]
        number = len(steps)
        steps.append(Step(number, lane, kind, op, f"{op}.{number}", *rest))  # type: ignore[arg-type]
        return number

    def plan(self, model: ModelInfo, arena_bytes: int, host_bytes: int = 0) -> Plan:
        programs = {name: Program(tuple(steps)) for name, steps in self.steps.items()}
        return Plan(
            provenance=Provenance("0", "none", "", "cpu", "", False, MappingProxyType({})),
            semantics="exact",
            semantics_reason="",
            model=model,
            spaces=Spaces(arena_bytes, 0, arena_bytes, arena_bytes, 64, 0, host_bytes),
            tensors=tuple(self.tensors),
            buffers=tuple(self.buffers),
            programs=MappingProxyType(programs),
            predicted=Predicted(1, None, None, None, arena_bytes, None, None, MappingProxyType({}), 0, 0),
            decisions=(),
        )


BATCH, FEATURES, HIDDEN, CLASSES = 4, 6, 8, 3
RELU, PREFETCH, OFFLOAD, OVERWRITE, READER = 1, 7, 2, 6, 8
"""Steps of `mlp_plan`'s training program that its waits connect."""


def mlp_graph() -> Graph:
    """x W1, Relu, W2: two layers without bias."""
    random = np.random.default_rng(5)
    shapes = {"w1": (FEATURES, HIDDEN), "w2": (HIDDEN, CLASSES)}
    tensors = {
        "x": TensorSpec((BATCH, FEATURES), "float32", 1),
        "z": TensorSpec((BATCH, HIDDEN), "float32", 1),
        "a": TensorSpec((BATCH, HIDDEN), "float32", 1),
        "scores": TensorSpec((BATCH, CLASSES), "float32", 1),
        **{name: TensorSpec(shape, "float32") for name, shape in shapes.items()},
    }
    nodes = (
        Node("MatMul", "first", ("x", "w1"), ("z",)),
        Node("Relu", "relu", ("z",), ("a",)),
        Node("MatMul", "second", ("a", "w2"), ("scores",)),
    )
    constants = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    names = {name: name for name in shapes}
    return Graph(BATCH, ("x",), ("scores",), nodes, tensors, constants, names)


def mlp_plan() -> Plan:
    """Trains `mlp_graph` with momentum. The activation `a` leaves for the host; its bytes are taken by its gradient;
    it returns where the pre-activation was. The second weight's gradient is summed over two sub-batches.

    Arena: [0, 1024) persistent, x and labels; [1024, 1152) z, then `a` again; [1152, 1280) `a`, then its gradient;
    [1280, 1344) scores, probabilities, their gradient; [1344, 1408) loss; [1408, 1632) weight gradients.
    """
    b = PlanBuilder(BATCH)
    persistent, parts = _persistent(b)
    w1, w2, m1, m2, x, labels = parts
    at = b.access
    z, a = b.tensor("z", (BATCH, HIDDEN)), b.tensor("a", (BATCH, HIDDEN))
    s, p, ds = (b.tensor(label, (BATCH, CLASSES)) for label in ("scores", "probabilities", "dscores"))
    da, dz = b.tensor("da", (BATCH, HIDDEN)), b.tensor("dz", (BATCH, HIDDEN))
    loss = b.tensor("loss", (), rows=0)
    dw1, dw2 = b.tensor("dw1", (FEATURES, HIDDEN), rows=0), b.tensor("dw2", (HIDDEN, CLASSES), rows=0)
    in_z = b.buffer(BufferKind.ACTIVATION, [z], (1024, 0, (1,)))
    in_a = b.buffer(BufferKind.ACTIVATION, [a], (1152, 1, (2, 3)), (1024, PREFETCH, (10,)))
    in_host = b.buffer(BufferKind.HOST_COPY, [a], (0, 2, (PREFETCH,)), space=Space.HOST)
    in_s = b.buffer(BufferKind.ACTIVATION, [s, p, ds], (1280, 3, (9,)))
    in_loss = b.buffer(BufferKind.LOSS, [loss], (1344, 4, ()))
    in_da = b.buffer(BufferKind.GRADIENT, [da, dz], (1152, 6, (11,)))
    in_dw2 = b.buffer(BufferKind.PARAMETER_GRADIENT, [dw2], (1408, 8, (12,)))
    in_dw1 = b.buffer(BufferKind.PARAMETER_GRADIENT, [dw1], (1408 + 128, 11, (13,)))
    b.launch("MatMul", [x, w1], [at(z, in_z)])
    b.launch("Relu", [at(z, in_z)], [at(a, in_a)])
    b.copy(StepKind.OFFLOAD, at(a, in_a), at(a, in_host), (RELU,))
    b.launch("MatMul", [at(a, in_a), w2], [at(s, in_s)])
    cross_entropy: dict[str, AttrValue] = {"axis": 1, "divisor": BATCH}
    b.launch("SoftmaxCrossEntropy", [at(s, in_s), labels], [at(loss, in_loss), at(p, in_s, 2)], attrs=cross_entropy)
    b.launch("SoftmaxCrossEntropyBackward", [at(p, in_s, 2), labels], [at(ds, in_s, 3)], attrs=cross_entropy)
    b.launch("MatMul", [at(ds, in_s, 3), w2], [at(da, in_da)], attrs={"trans_b": 1}, waits=(OFFLOAD,))
    b.copy(StepKind.PREFETCH, at(a, in_host), at(a, in_a), (OFFLOAD,))
    for samples, waits in (((0, 2), (PREFETCH,)), ((2, 4), ())):
        b.launch(
            "MatMulSum",
            [at(a, in_a, 1, samples), at(ds, in_s, 3, samples)],
            [at(dw2, in_dw2, 1 + samples[0] // 2)],
            attrs={"trans_a": 1},
            samples=samples,
            accumulate=samples[0] > 0,
            waits=waits,
        )
    b.launch("ReluBackward", [at(da, in_da), at(a, in_a)], [at(dz, in_da, 2)])
    b.launch("MatMulSum", [x, at(dz, in_da, 2)], [at(dw1, in_dw1)], attrs={"trans_a": 1})
    momentum = {"momentum": "0.9", "nesterov": "0", "weight_decay": "0"}
    for weight, gradient, state in ((w2, at(dw2, in_dw2, 2), m2), (w1, at(dw1, in_dw1), m1)):
        after = [replace(weight, version=1), replace(state, version=1)]
        b.launch("MomentumUpdate", [weight, gradient, state], after, attrs=momentum, phase="update")
    evaluated = _evaluate_program(b, w1, w2)
    model = _model(b, persistent, x, labels, (loss, in_loss), evaluated)
    return b.plan(model, 1408 + 128 + 192, b.bytes(a))


def _persistent(b: PlanBuilder) -> tuple[tuple[Persistent, ...], tuple[Access, ...]]:
    """Weights, their momentum, x and labels, from offset 0 on."""
    found, parts, offset = [], [], 0
    for label, shape, kind in (
        ("w1", (FEATURES, HIDDEN), BufferKind.PARAMETER),
        ("w2", (HIDDEN, CLASSES), BufferKind.PARAMETER),
        ("m1", (FEATURES, HIDDEN), BufferKind.STATE),
        ("m2", (HIDDEN, CLASSES), BufferKind.STATE),
        ("x", (BATCH, FEATURES), BufferKind.INPUT),
        ("labels", (BATCH,), BufferKind.LABEL),
    ):
        host = kind in (BufferKind.INPUT, BufferKind.LABEL)
        tensor = b.tensor(label, shape, "int64" if label == "labels" else "float32", int(host))
        buffer = b.buffer(kind, [tensor], (offset, None, ()), program="train" if host else "all")
        offset += -(-b.bytes(tensor) // 64) * 64
        parts.append(b.access(tensor, buffer, 0))
        if not host:
            is_state = kind is BufferKind.STATE
            slot = "momentum" if is_state else ""
            found.append(
                Persistent(tensor, buffer, kind, "" if is_state else label, len(found) % 2, slot, not is_state)
            )
    assert offset <= 1024
    return tuple(found), tuple(parts)


def _evaluate_program(b: PlanBuilder, w1: Access, w2: Access) -> dict[str, tuple[int, int]]:
    """x W1, Relu in place, W2, loss. Returns (tensor, buffer) of each port."""
    b.program = "evaluate"
    at = b.access
    x, z, a, s = (
        b.tensor(label, (BATCH, size))
        for label, size in (("x", FEATURES), ("z", HIDDEN), ("a", HIDDEN), ("scores", CLASSES))
    )
    labels, loss = b.tensor("labels", (BATCH,), "int64"), b.tensor("loss", (), rows=0)
    in_x = b.buffer(BufferKind.INPUT, [x], (1024, None, (0,)))
    in_labels = b.buffer(BufferKind.LABEL, [labels], (1152, None, (3,)))
    in_z = b.buffer(BufferKind.ACTIVATION, [z, a], (1216, 0, (2,)))
    in_s = b.buffer(BufferKind.OUTPUT, [s], (1024, 2, ()))
    in_loss = b.buffer(BufferKind.LOSS, [loss], (1344, 3, ()))
    b.launch("MatMul", [at(x, in_x, 0), w1], [at(z, in_z)])
    b.launch("Relu", [at(z, in_z)], [at(a, in_z, 2)])
    b.launch("MatMul", [at(a, in_z, 2), w2], [at(s, in_s)])
    attrs: dict[str, AttrValue] = {"axis": 1, "divisor": BATCH}
    b.launch("SoftmaxCrossEntropy", [at(s, in_s), at(labels, in_labels, 0)], [at(loss, in_loss)], attrs=attrs)
    return {"x": (x, in_x), "labels": (labels, in_labels), "scores": (s, in_s), "loss": (loss, in_loss)}


def _model(
    b: PlanBuilder,
    persistent: tuple[Persistent, ...],
    x: Access,
    labels: Access,
    loss: tuple[int, int],
    evaluated: Mapping[str, tuple[int, int]],
) -> ModelInfo:
    def port(name: str, train: tuple[int, int] | None) -> Port:
        tensor, buffer = evaluated["loss" if train == loss else name]
        return Port(name, train and train[0], tensor, (train[1],) if train else (), (buffer,))

    return ModelInfo(
        batch=BATCH,
        inputs=(port("x", (x.tensor, x.buffer)),),
        labels=(port("labels", (labels.tensor, labels.buffer)),),
        outputs=(port("scores", None),),
        loss=port("scores", loss),
        loss_kind="cross_entropy",
        persistent=persistent,
        optimizer=MappingProxyType({"name": "momentum", "lr": "0.1", "momentum": "0.9"}),
    )


def without_wait(plan: Plan, step: int, wait: int) -> Plan:
    """The plan, its training step `step` no longer waiting for `wait`."""
    steps = list(plan.train.steps)
    assert wait in steps[step].waits
    steps[step] = replace(steps[step], waits=tuple(w for w in steps[step].waits if w != wait))
    return replace(plan, programs=MappingProxyType({**plan.programs, "train": Program(tuple(steps))}))


def moved(plan: Plan, buffer: int, extent: int, offset: int) -> Plan:
    """The plan, one extent of a buffer at another offset."""
    found = plan.buffers[buffer]
    extents = list(found.extents)
    extents[extent] = replace(extents[extent], offset=offset)
    buffers = list(plan.buffers)
    buffers[buffer] = replace(found, extents=tuple(extents))
    return replace(plan, buffers=tuple(buffers))
