"""Lanes as threads: each runs its steps in order, ordered against the others by `waits` alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Condition, Thread

import numpy as np

from planc.errors import RunError
from planc.plan import Lane, Step
from planc.runtime.backend import Prepared
from planc.runtime.launch import Hyper


@dataclass(frozen=True, slots=True)
class _Queued:
    """A step in its lane. `waits`: (lane, how many of its steps must have finished); `position` counts from 1.

    `signals`: another lane waits for this step. Only then does finishing it cost a lock.
    """

    prepared: Prepared
    waits: tuple[tuple[int, int], ...]
    position: int
    signals: bool


@dataclass(frozen=True, slots=True)
class Queues:
    """The steps of a program by lane, the compute lane first; made once, run once a training step."""

    lanes: tuple[tuple[_Queued, ...], ...]


def queues(program: Sequence[Prepared]) -> Queues:
    """Split `program`, whose step ids are positions and whose waits name earlier steps, into its lanes."""
    lanes = tuple(Lane)
    awaited = {wait for prepared in program for wait in prepared.step.waits}
    split: list[list[_Queued]] = [[] for _ in lanes]
    where: list[tuple[int, int]] = []
    for prepared in program:
        lane = lanes.index(prepared.step.lane)
        where.append((lane, len(split[lane]) + 1))
        waits = tuple(where[wait] for wait in prepared.step.waits)
        split[lane].append(_Queued(prepared, waits, where[-1][1], prepared.step.id in awaited))
    return Queues(tuple(tuple(queue) for queue in split))


def run(queues: Queues, hyper: Hyper) -> None:
    """Run every lane to its end: compute on the calling thread, each other lane that has steps on one of its own.

    Raises:
        RunError: a step failed. All lanes stop before their next step; the first failure is named, with its cause.
    """
    state = _State(len(queues.lanes))
    threads = [
        Thread(target=_play, args=(queue, lane, state, hyper), name=f"planc-{tuple(Lane)[lane]}")
        for lane, queue in enumerate(queues.lanes)
        if lane and queue
    ]
    for thread in threads:
        thread.start()
    _play(queues.lanes[0], 0, state, hyper)
    for thread in threads:
        thread.join()
    if state.failure is None:
        return
    step, cause = state.failure
    if not isinstance(cause, Exception):
        raise cause
    raise RunError(
        f"step {step.id} ({step.op} {step.label!r}, {step.phase}, samples [{step.samples[0]}, {step.samples[1]})) "
        f"failed on lane {step.lane}: {type(cause).__name__}: {cause}"
    ) from cause


class _State:
    """What the lanes tell each other: how far each is, and the first failure."""

    def __init__(self, lanes: int) -> None:
        self.changed = Condition()
        self.finished = [0] * lanes
        self.failure: tuple[Step, BaseException] | None = None

    def wait(self, waits: tuple[tuple[int, int], ...]) -> None:
        """Until every lane named has come so far, or a lane has failed."""
        finished = self.finished
        with self.changed:
            for lane, count in waits:
                while finished[lane] < count and self.failure is None:
                    self.changed.wait()

    def signal(self, lane: int, count: int) -> None:
        with self.changed:
            self.finished[lane] = count
            self.changed.notify_all()

    def fail(self, step: Step, cause: BaseException) -> None:
        with self.changed:
            if self.failure is None:
                self.failure = (step, cause)
            self.changed.notify_all()


def _play(queue: tuple[_Queued, ...], lane: int, state: _State, hyper: Hyper) -> None:
    # A loss that overflows is reported by name after the step; a warning from inside a kernel would only hide it.
    with np.errstate(all="ignore"):
        for queued in queue:
            try:
                if queued.waits:
                    state.wait(queued.waits)
                if state.failure is not None:
                    return
                for action in queued.prepared.actions:
                    action(hyper)
            except BaseException as cause:
                state.fail(queued.prepared.step, cause)
                return
            if queued.signals:
                state.signal(lane, queued.position)
