"""Schedules and placements -> Plan: the training and the evaluation program over one arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from planc.layout import Run
from planc.passes.base import Decisions, Problem
from planc.placement import Placement
from planc.plan import (
    Access,
    Buffer,
    BufferKind,
    Extent,
    ModelInfo,
    Persistent,
    PlanTensor,
    Port,
    Program,
    Space,
    Step,
)
from planc.schedule import Part as StayPart
from planc.schedule import Schedule, ScheduledStep, Stay
from planc.tasks import Use
from planc.units import align_up


@dataclass(frozen=True, slots=True)
class Part:
    """One program with everything decided about it."""

    name: str
    problem: Problem
    decisions: Decisions
    schedule: Schedule
    placement: Placement


@dataclass(frozen=True, slots=True)
class Assembled:
    """The parts of a plan that follow from the programs alone.

    `page_bytes`: 0 = both programs' placements are contiguous. `host_bytes`: the host pool's size.
    """

    model: ModelInfo
    tensors: tuple[PlanTensor, ...]
    buffers: tuple[Buffer, ...]
    programs: Mapping[str, Program]
    arena_bytes: int
    page_bytes: int
    host_bytes: int
    buffer_of_piece: Mapping[str, tuple[int, ...]]


def assemble(train: Part, evaluate: Part) -> Assembled:
    """Number tensors and buffers over both programs and write the steps; persistent ones are shared."""
    table = _Tables()
    programs = {part.name: _program(table, part) for part in (train, evaluate)}
    arena = max(train.placement.arena_bytes, evaluate.placement.arena_bytes)
    page = min((p.placement.page_bytes for p in (train, evaluate) if p.placement.page_bytes), default=0)
    return Assembled(
        model=_model_info(table, train, evaluate),
        tensors=tuple(table.tensors),
        buffers=tuple(table.buffers),
        programs=MappingProxyType(programs),
        arena_bytes=arena,
        page_bytes=page,
        host_bytes=table.host_bytes,
        buffer_of_piece=MappingProxyType({name: tuple(ids) for name, ids in table.buffer_of_piece.items()}),
    )


class _Tables:
    """Tensors and buffers of the plan as they are numbered."""

    def __init__(self) -> None:
        self.tensors: list[PlanTensor] = []
        self.buffers: list[Buffer] = []
        self.host_bytes = 0
        self.host_inputs: dict[str, dict[int, int]] = {}
        """By program: pieces that the program finds on the host, and the host buffers they are in."""
        self._host_end: dict[str, int] = {}
        self.homes: dict[int, int] = {}
        """Persistent pieces that visit the device, and the host buffers where they live. Both programs share them."""
        self.tensor_ids: dict[str, list[int]] = {}
        self.buffer_of_piece: dict[str, list[int]] = {}

    def add_tensors(self, part: Part) -> list[int]:
        """Plan ids of the part's tensors. The second program shares the persistent tensors of the first."""
        graph = part.problem.tasks.graph
        shared = next(iter(self.tensor_ids.values()), [])
        ids = shared[: len(graph.persistent)]
        for tensor in graph.tensors[len(ids) :]:
            ids.append(len(self.tensors))
            spec = tensor.spec
            self.tensors.append(PlanTensor(ids[-1], tensor.label, spec.shape, spec.dtype, spec.rows))
        self.tensor_ids[part.name] = ids
        return ids

    def add_buffers(self, part: Part, tensor_ids: Sequence[int]) -> list[int]:
        """Plan ids of the part's pieces' buffers. The second program shares the persistent ones of the first."""
        shared = next(iter(self.buffer_of_piece.items()), None)
        self._add_homes(part, tensor_ids)
        extents: dict[int, list[Extent]] = {}
        for number, stay in enumerate(part.schedule.stays):
            if stay.piece is not None:
                extents.setdefault(stay.piece, []).extend(_extents(stay, part.placement.runs[number]))
        ids = []
        for piece in part.problem.tasks.pieces:
            if piece.persistent and piece.index not in self.homes and shared is not None:
                ids.append(shared[1][piece.index])
                continue
            if piece.index in self.homes and piece.index not in extents:
                ids.append(self.homes[piece.index])  # no task of this program uses it
                continue
            ids.append(len(self.buffers))
            self.buffers.append(
                Buffer(
                    id=ids[-1],
                    program="all" if piece.persistent and piece.index not in self.homes else part.name,
                    kind=BufferKind(piece.kind.value),
                    space=Space.ARENA,
                    tensors=tuple(tensor_ids[t] for t in piece.tensors),
                    samples=(piece.start, piece.stop),
                    bytes=piece.bytes,
                    extents=tuple(extents[piece.index]),
                )
            )
        self.buffer_of_piece[part.name] = ids
        return ids

    def _add_homes(self, part: Part, tensor_ids: Sequence[int]) -> None:
        """A host buffer for every piece that visits, the same in both programs, and before all others of the pool."""
        pieces = part.problem.tasks.pieces
        visitors = dict.fromkeys(o.piece for o in part.decisions.offloads if pieces[o.piece].persistent)
        for piece in (pieces[number] for number in sorted(visitors) if number not in self.homes):
            self.homes[piece.index] = len(self.buffers)
            extent = Extent(0, self.host_bytes, piece.bytes, None, ())
            self.host_bytes += part.problem.bytes(piece)
            tensors, samples = tuple(tensor_ids[t] for t in piece.tensors), (piece.start, piece.stop)
            kind, number = BufferKind(piece.kind.value), len(self.buffers)
            self.buffers.append(Buffer(number, "all", kind, Space.HOST, tensors, samples, piece.bytes, (extent,)))
        self._host_end[part.name] = sum(part.problem.bytes(pieces[number]) for number in self.homes)

    def add_workspaces(self, part: Part) -> dict[int, int]:
        """Plan id of the workspace of every task that has one."""
        batch = part.problem.tasks.graph.batch
        found = {}
        for number, stay in enumerate(part.schedule.stays):
            if stay.task is not None:
                extents = _extents(stay, part.placement.runs[number])
                found[stay.task] = len(self.buffers)
                self.buffers.append(
                    Buffer(
                        len(self.buffers),
                        part.name,
                        BufferKind.WORKSPACE,
                        Space.ARENA,
                        (),
                        (0, batch),
                        stay.bytes,
                        extents,
                    )
                )
        return found

    def add_host_buffers(self, part: Part, steps: Sequence[ScheduledStep]) -> tuple[tuple[int, int], ...]:
        """For every offload the host buffer it goes through, and the byte of it that its first byte is.

        What is copied out has a buffer from its copy out to its copy in; an input that waits on the host has one all
        the time, and it is there that the program finds it; so has what visits. Host bytes are not reused.
        """
        born = {step.offload: step.id for step in steps if step.kind == "offload"}
        freed = {step.offload: step.id for step in steps if step.kind == "prefetch"}
        waiting: dict[int, int] = {}
        found = []
        for number, offload in enumerate(part.decisions.offloads):
            if offload.piece in self.homes:
                found.append((self.homes[offload.piece], offload.first))
                continue
            if offload.copied:
                extent = Extent(0, self._host_place(part, offload.bytes), offload.bytes, born[number], (freed[number],))
                found.append((self._add_host(part, offload.piece, BufferKind.HOST_COPY, extent), 0))
                continue
            if offload.piece not in waiting:
                size = part.problem.tasks.pieces[offload.piece].bytes
                extent = Extent(0, self._host_place(part, size), size, None, ())
                kind = BufferKind(part.problem.tasks.pieces[offload.piece].kind.value)
                waiting[offload.piece] = self._add_host(part, offload.piece, kind, extent)
            found.append((waiting[offload.piece], offload.first))
        self.host_bytes = max(self.host_bytes, self._host_end.get(part.name, 0))
        self.host_inputs[part.name] = waiting
        return tuple(found)

    def place_of(self, piece: int) -> int:
        """The buffer of a persistent piece between programs."""
        return self.homes.get(piece, self.buffer_of_piece["train"][piece])

    def _host_place(self, part: Part, size: int) -> int:
        offset = self._host_end.get(part.name, 0)
        self._host_end[part.name] = offset + align_up(size, part.problem.profile.alignment)
        return offset

    def _add_host(self, part: Part, piece: int, kind: BufferKind, extent: Extent) -> int:
        device = self.buffers[self.buffer_of_piece[part.name][piece]]
        number = len(self.buffers)
        self.buffers.append(
            Buffer(number, part.name, kind, Space.HOST, device.tensors, device.samples, extent.bytes, (extent,))
        )
        return number


def _extents(stay: Stay, runs: Sequence[Run]) -> tuple[Extent, ...]:
    """A stay where its runs lie, in the order of birth: one extent for the bytes of a part in a run.

    Neighbours in one run that live and die together are one extent.
    """
    if len(stay.parts) == len(runs) == 1:  # nearly always
        part, run = stay.parts[0], runs[0]
        return (Extent(part.first, run.offset, part.bytes, part.born, part.freed),)
    merged: list[StayPart] = []
    for part in stay.parts:
        last = merged[-1] if merged else None
        if last is not None and (last.born, last.freed) == (part.born, part.freed):
            merged[-1] = replace(last, bytes=last.bytes + part.bytes)
        else:
            merged.append(part)
    found = []
    for part in sorted(merged, key=lambda p: (-1 if p.born is None else p.born, p.first)):
        for run in runs:
            first, stop = max(part.first, run.first), min(part.first + part.bytes, run.first + run.bytes)
            if first < stop or not stay.bytes:
                found.append(Extent(first, run.offset + first - run.first, stop - first, part.born, part.freed))
    return tuple(found)


def _program(table: _Tables, part: Part) -> Program:
    tensor_ids = table.add_tensors(part)
    buffer_ids = table.add_buffers(part, tensor_ids)
    workspaces = table.add_workspaces(part)
    host = table.add_host_buffers(part, part.schedule.steps)
    writer = _StepWriter(part, tensor_ids, buffer_ids, workspaces, host)
    return Program(tuple(writer.step(step) for step in part.schedule.steps))


_UNWRITTEN: Mapping[tuple[int, int], int] = MappingProxyType({})


class _StepWriter:
    """Writes steps in order and counts the versions of bytes as it goes."""

    def __init__(
        self,
        part: Part,
        tensor_ids: Sequence[int],
        buffer_ids: Sequence[int],
        workspaces: Mapping[int, int],
        host: Sequence[tuple[int, int]],
    ) -> None:
        self.part = part
        self.tasks = part.problem.tasks
        self.tensor_ids = tensor_ids
        self.buffer_ids = buffer_ids
        self.workspaces = workspaces
        self.host = host
        self.versions: dict[int, dict[tuple[int, int], int]] = {}

    def step(self, step: ScheduledStep) -> Step:
        if step.offload is not None:
            return self._copy(step, step.offload)
        assert step.task is not None
        task = self.tasks.tasks[step.task]
        launch = self.tasks.launch(task)
        configuration = self.part.decisions.configurations[task.index]
        reads = tuple([self._read(use) for use in task.reads])
        writes = tuple([self._write(use) for use in task.writes])
        return Step(
            id=step.id,
            lane=step.lane,
            kind=step.kind,
            op=launch.op,
            label=launch.label,
            attrs=launch.attrs,
            phase=launch.phase,
            samples=(task.start, task.stop),
            reads=reads,
            writes=writes,
            accumulate=task.accumulate,
            configuration=() if configuration is None else configuration.parts,
            workspace=self.workspaces.get(task.index),
            waits=step.waits,
            duration_ns=step.duration_ns,
        )

    def _copy(self, step: ScheduledStep, number: int) -> Step:
        offload = self.part.decisions.offloads[number]
        piece = self.tasks.pieces[offload.piece]
        graph = self.tasks.graph
        held = [tensor for tensor, task in zip(piece.tensors, piece.since, strict=True) if task <= offload.leaves]
        last = held[-1] if held else piece.tensors[0]
        span = (offload.first, offload.first + offload.bytes)
        version = self._version(offload.piece, span)
        device = Access(self.tensor_ids[last], self.buffer_ids[offload.piece], version, *span)
        buffer, first = self.host[number]
        host = Access(self.tensor_ids[last], buffer, version, first, first + offload.bytes)
        out = step.kind == "offload"
        return Step(
            id=step.id,
            lane=step.lane,
            kind=step.kind,
            op=step.kind.value,
            label=graph.tensors[last].label,
            attrs=MappingProxyType({}),
            phase="forward" if out else "backward",
            samples=(piece.start, piece.stop),
            reads=(device if out else host,),
            writes=(host if out else device,),
            accumulate=False,
            configuration=(),
            workspace=None,
            waits=step.waits,
            duration_ns=step.duration_ns,
        )

    def _version(self, piece: int, span: tuple[int, int]) -> int:
        """The version of bytes `span` of a piece: of the parts written so far that overlap it, the newest."""
        newest = 0
        for (start, stop), version in self.versions.get(piece, _UNWRITTEN).items():
            if start < span[1] and span[0] < stop:
                newest = max(newest, version)
        return newest

    def _read(self, use: Use) -> Access:
        version = self._version(use.piece, (use.start, use.stop))
        return Access(self.tensor_ids[use.tensor], self.buffer_ids[use.piece], version, use.start, use.stop)

    def _write(self, use: Use) -> Access:
        version = self._version(use.piece, (use.start, use.stop)) + 1
        self.versions.setdefault(use.piece, {})[use.start, use.stop] = version
        return Access(self.tensor_ids[use.tensor], self.buffer_ids[use.piece], version, use.start, use.stop)


def _model_info(table: _Tables, train: Part, evaluate: Part) -> ModelInfo:
    graph = train.problem.tasks.graph
    other = evaluate.problem.tasks.graph
    tensor_ids = table.tensor_ids["train"]
    piece_of_root = {root: p.index for p in train.problem.tasks.pieces if p.persistent for root in p.tensors}
    persistent = tuple(
        Persistent(
            tensor=tensor_ids[item.tensor],
            buffer=table.place_of(piece_of_root[item.tensor]),
            kind=BufferKind(graph.tensors[item.tensor].kind.value),
            initializer=item.initializer,
            position=item.position,
            slot=item.slot,
            trainable=item.trainable,
        )
        for item in graph.persistent
    )
    return ModelInfo(
        batch=graph.batch,
        inputs=_ports(table, train, evaluate, graph.inputs, other.inputs),
        labels=_ports(table, train, evaluate, graph.labels, other.labels),
        outputs=_ports(table, train, evaluate, graph.outputs, other.outputs),
        loss=_ports(table, train, evaluate, (graph.loss,), (other.loss,))[0],
        loss_kind=graph.loss_kind,
        persistent=persistent,
        optimizer=graph.optimizer,
    )


_Named = tuple[tuple[str, int], ...]


def _ports(table: _Tables, train: Part, evaluate: Part, in_train: _Named, in_evaluate: _Named) -> tuple[Port, ...]:
    one, two = dict(in_train), dict(in_evaluate)
    ports = []
    for name in dict.fromkeys((*one, *two)):
        first = _port_side(table, train, one.get(name))
        second = _port_side(table, evaluate, two.get(name))
        ports.append(Port(name, first[0], second[0], first[1], second[1]))
    return tuple(ports)


def _port_side(table: _Tables, part: Part, tensor: int | None) -> tuple[int | None, tuple[int, ...]]:
    if tensor is None:
        return None, ()
    graph = part.problem.tasks.graph
    root = graph.root(tensor)
    pieces = sorted((p.start, p.index) for p in part.problem.tasks.pieces if root in p.tensors)
    on_host = table.host_inputs[part.name]
    buffers = tuple(on_host.get(index, table.buffer_of_piece[part.name][index]) for _, index in pieces)
    return (table.tensor_ids[part.name][tensor], buffers) if buffers else (None, ())
