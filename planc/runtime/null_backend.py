"""The null backend: computes nothing and records in what order the lanes would run, on a clock of planned durations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planc.plan import Lane, Plan, Step
from planc.runtime.backend import Action, Prepared, Runnable
from planc.runtime.launch import Array, Hyper
from planc.runtime.places import Place

Places = tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A step that ran: [start_ns, end_ns) on the plan's clock, from the start of its program."""

    step: int
    start_ns: int
    end_ns: int


class NullBackend:
    """Lets schedule and executor be tested without numbers."""

    name = "null"

    def check(self, plan: Plan, *, emulate: bool) -> None:
        """Any plan will do, even one for an unknown device (`emulate` says nothing here)."""

    def open(self, _plan: Plan) -> NullDevice:
        """A device that allocates nothing."""
        return NullDevice()


class NullDevice:
    """Holds no memory; see `backend.Device`. `records`: the steps of the last program that ran, in order of start."""

    def __init__(self) -> None:
        self.records: tuple[Record, ...] = ()

    def write(self, place: Place, values: Array) -> None:
        """Forget `values`."""

    def read(self, place: Place) -> Array:
        """Zeros."""
        return np.zeros(place.shape, place.dtype)

    def launch(self, _step: Step, _inputs: Places, _outputs: Places, _workspace: Place | None) -> Action:
        """Nothing, like all that a step does here."""
        return _nothing

    def copy(self, _source: Place, _target: Place) -> Action:
        """Nothing."""
        return _nothing

    def fill(self, _place: Place, _value: int) -> Action:
        """Nothing."""
        return _nothing

    def pause(self, _seconds: Callable[[Hyper], float]) -> Action:
        """Nothing."""
        return _nothing

    def program(self, steps: Sequence[Prepared]) -> Runnable:
        """See `backend.Device`. Actions run in the order of the records."""
        records = _play(steps)

        def run(hyper: Hyper) -> None:
            for record in records:
                for action in steps[record.step].actions:
                    action(hyper)
            self.records = records

        return run

    def fill_arena(self, sentinel: int) -> None:
        """There is none."""

    def touched_bytes(self, _sentinel: int) -> int:
        """No byte is touched."""
        return 0

    def intact(self) -> bool:
        """Nothing can be hurt."""
        return True


def _nothing(_: Hyper) -> None:
    pass


def _play(steps: Sequence[Prepared]) -> tuple[Record, ...]:
    """A step starts when its lane is free and every step it waits for has finished."""
    free = dict.fromkeys(Lane, 0)
    records: list[Record] = []
    for prepared in steps:
        step = prepared.step
        start = max([free[step.lane], *(records[wait].end_ns for wait in step.waits)])
        free[step.lane] = start + step.duration_ns
        records.append(Record(step.id, start, free[step.lane]))
    return tuple(sorted(records, key=lambda record: (record.start_ns, record.step)))
