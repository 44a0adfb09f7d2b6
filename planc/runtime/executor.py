"""Executor: the loop over steps. Every address is worked out before the first step; a run only follows the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import MappingProxyType

import numpy as np

from planc.errors import PlanFileError
from planc.plan import Access, Persistent, Plan, Port, Program, Step, StepKind
from planc.runtime.backend import Action, Device, Prepared
from planc.runtime.launch import Array, Hyper
from planc.runtime.places import Place, Places

POISON = 0xFF
"""Fills floats of every width with a NaN."""

_LONGEST_DELAY_S = 0.002
_DELAYED_SHARE = 0.25

Observer = Callable[[Step, tuple[Array, ...], tuple[Array, ...]], None]
"""Called on the compute lane after a launch with copies of what it read and wrote (as they are then)."""


@dataclass(frozen=True, slots=True)
class Debug:
    """Switches that change no result of a valid plan.

    poison:   fill a buffer with NaN patterns immediately before its first write, on the writer's lane.
    chaos:    seed of random delays before steps.
    directed: training step id -> seconds by which that step starts late, each time.
    observe:  see `Observer`.
    """

    poison: bool = False
    chaos: int | None = None
    directed: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    observe: Observer | None = None

    def delay_s(self, step: int, training_step: int) -> float:
        """The random delay before a step; the same for the same seed, step and training step."""
        random = Random(f"{self.chaos}:{training_step}:{step}")
        return random.random() * _LONGEST_DELAY_S if random.random() < _DELAYED_SHARE else 0.0


class Executor:
    """A plan prepared for a device.

    Raises:
        PlanFileError: the plan contradicts itself (it would not have passed `planc verify`).
        RunError: the device cannot hold an element type.
    """

    def __init__(self, plan: Plan, device: Device, debug: Debug | None = None) -> None:
        self.plan = plan
        self.device = device
        self._places = Places(plan)
        prepare = _Preparation(plan, device, self._places, debug or Debug())
        self._programs = {name: device.program(prepare.program(name)) for name in plan.programs}
        model = plan.model
        inputs, outputs = (*model.inputs, *model.labels), model.outputs
        self._inputs = {(name, port.name): self._port(port, name, True) for name in plan.programs for port in inputs}
        self._outputs = {(name, port.name): self._port(port, name, False) for name in plan.programs for port in outputs}
        self._losses = {name: self._port(model.loss, name, False) for name in plan.programs}

    def run(self, program: str, hyper: Hyper) -> None:
        """Run a program; returns when all its lanes are empty.

        Raises:
            RunError: a lane failed; names the first failure.
        """
        self._programs[program](hyper)

    def put(self, program: str, name: str, values: Array) -> None:
        """Put the whole batch of the input `name` (or the labels) where `program` expects it."""
        for piece in self._inputs[program, name]:
            self.device.write(piece.place, values[piece.rows])

    def output(self, program: str, name: str) -> Array | None:
        """The whole batch of an output, after `program`; None if that does not compute it."""
        return self._read(self._outputs[program, name])

    def loss(self, program: str) -> float:
        """The loss, after `program`.

        Raises:
            PlanFileError: the program computes none.
        """
        loss = self._read(self._losses[program])
        if loss is None:
            raise PlanFileError(f"plan: program {program!r} computes no loss.", "Compile the plan again.")
        return float(loss.reshape(-1)[0])

    def place(self, persistent: Persistent) -> Place:
        """Where a persistent tensor is between programs."""
        return self._places.before(persistent.buffer, persistent.tensor)

    def _read(self, pieces: tuple[_Piece, ...]) -> Array | None:
        arrays = [self.device.read(piece.place) for piece in pieces]
        return (arrays[0] if len(arrays) == 1 else np.concatenate(arrays)) if arrays else None

    def _port(self, port: Port, program: str, before: bool) -> tuple[_Piece, ...]:
        """A port's pieces in `program`, in sample order, before or after it."""
        train = program == "train"
        tensor = port.train_tensor if train else port.evaluate_tensor
        if tensor is None:
            return ()
        rows = self.plan.tensors[tensor].rows
        steps = len(self.plan.programs[program].steps)
        found = []
        for buffer in port.train if train else port.evaluate:
            place = self._places.before(buffer, tensor) if before else self._places.after(buffer, tensor, steps)
            start, stop = self.plan.buffers[buffer].samples
            found.append(_Piece(place, slice(start * rows, stop * rows) if rows else ()))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a tensor that the host writes or reads: where it is, and which rows of the whole tensor it has."""

    place: Place
    rows: slice | tuple[()]


@dataclass(frozen=True, slots=True)
class _Preparation:
    """Turns steps into actions."""

    plan: Plan
    device: Device
    places: Places
    debug: Debug

    def program(self, name: str) -> tuple[Prepared, ...]:
        program: Program = self.plan.programs[name]
        for position, step in enumerate(program.steps):
            if step.id != position or any(not 0 <= wait < position for wait in step.waits):
                raise PlanFileError(
                    f"plan: program {name!r} has step {step.id} at position {position} waiting for {step.waits}; "
                    "ids are positions, and a step waits for earlier ones.",
                    "Compile the plan again.",
                )
        directed = self.debug.directed if name == "train" else {}
        return tuple(Prepared(step, tuple(self._actions(step, directed.get(step.id)))) for step in program.steps)

    def _actions(self, step: Step, late_s: float | None) -> list[Action]:
        actions: list[Action] = []
        if self.debug.chaos is not None:
            delay_s = self.debug.delay_s
            actions.append(self.device.pause(lambda hyper: delay_s(step.id, hyper.step)))
        if late_s is not None:
            actions.append(self.device.pause(lambda _: late_s))
        if self.debug.poison:
            actions.extend(self.device.fill(place, POISON) for place in self._poisoned(step))
        actions.extend(self._work(step))
        return actions

    def _work(self, step: Step) -> list[Action]:
        if step.kind is not StepKind.LAUNCH:
            return [self._copy(step)]
        reads = tuple(self.places.access(access, step.id) for access in step.reads)
        writes = tuple(self.places.access(access, step.id) for access in step.writes)
        workspace = None if step.workspace is None else self.places.workspace(step.workspace, step.id)
        launch = self.device.launch(step, reads, writes, workspace)
        if self.debug.observe is None:
            return [launch]
        return [launch, partial(_observe, self.debug.observe, step, self.device, reads, writes)]

    def _copy(self, step: Step) -> Action:
        reads = [self.places.copied(access, step.id) for access in step.reads]
        writes = [self.places.copied(access, step.id) for access in step.writes]
        if len(reads) != 1 or len(writes) != 1 or reads[0].bytes != writes[0].bytes:
            raise PlanFileError(
                f"plan: step {step.id} ({step.kind} {step.label!r}) copies {[place.bytes for place in reads]} bytes to "
                f"{[place.bytes for place in writes]}; one read and one write of equal size are wanted.",
                "Compile the plan again.",
            )
        return self.device.copy(reads[0], writes[0])

    def _poisoned(self, step: Step) -> list[Place]:
        """What the step is the first to write: not what it adds to, nor what it reads and overwrites in place."""
        found = [
            place
            for access in step.writes
            if not (step.accumulate and not self.plan.tensors[access.tensor].rows)
            and not any(_overlap(access, read) for read in step.reads)
            for place in self.places.born_at(access, step.id)
        ]
        if step.workspace is not None:
            found.append(self.places.workspace(step.workspace, step.id))
        return found


def _overlap(a: Access, b: Access) -> bool:
    return a.buffer == b.buffer and a.start < b.stop and b.start < a.stop


def _observe(
    observe: Observer,
    step: Step,
    device: Device,
    reads: tuple[Place, ...],
    writes: tuple[Place, ...],
    _: Hyper,
) -> None:
    observe(step, tuple(device.read(place) for place in reads), tuple(device.read(place) for place in writes))
