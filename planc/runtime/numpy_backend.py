"""The NumPy backend: arena and host pool are two blocks of memory, lanes are threads, kernels are NumPy."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from planc.errors import RunError
from planc.plan import Lane, Plan, Space, Step, StepKind
from planc.runtime import lanes
from planc.runtime.backend import Action, Prepared, Runnable
from planc.runtime.kernels import KERNELS
from planc.runtime.launch import Array, Hyper, Launch
from planc.runtime.mapped_block import MappedBlock
from planc.runtime.memory import Block, Bytes
from planc.runtime.places import Place
from planc.runtime.windows import Windows

ALGORITHMS = frozenset({"direct", "im2col_gemm", "im2col_gemm_sample", "shifted_gemm", "winograd", "fft"})
"""Convolution algorithms the kernels have."""


class NumpyBackend:
    """Runs plans on the CPU."""

    name = "numpy"

    def check(self, plan: Plan, *, emulate: bool) -> None:
        """See `backend.Backend`."""
        steps = [step for program in plan.programs.values() for step in program.steps]
        missing = Counter(step.op for step in steps if step.kind is StepKind.LAUNCH and step.op not in KERNELS)
        if missing:
            found = ", ".join(f"{op} ({count})" for op, count in sorted(missing.items()))
            raise RunError(f"plan: the numpy backend has no kernel for {found}.", "Compile the plan with this planc.")
        unknown = sorted({name for step in steps for name, _ in step.configuration} - ALGORITHMS)
        if unknown and not emulate:
            raise RunError(
                f"plan: made for profile {plan.provenance.profile!r}, it uses the convolution algorithms "
                f"{', '.join(unknown)}; the numpy backend has {', '.join(sorted(ALGORITHMS))}.",
                "Give --emulate to run the same buffers, lanes and waits with a convolution that needs no workspace, "
                "or compile with --profile cpu.",
            )

    def open(self, plan: Plan) -> NumpyDevice:
        """See `backend.Backend`."""
        return NumpyDevice(plan)


class NumpyDevice:
    """Two blocks of memory; see `backend.Device`."""

    def __init__(self, plan: Plan) -> None:
        self._arena = _arena(plan)
        self._host = Block(plan.spaces.host_bytes, "host pool")
        self._batch = plan.model.batch
        self._pools = ThreadpoolController()
        self._blas_threads = blas_threads()

    def view(self, place: Place) -> Array:
        """The array at `place`: a view."""
        return (self._arena if place.space is Space.ARENA else self._host).view(place)

    def write(self, place: Place, values: Array) -> None:
        """See `backend.Device`."""
        np.copyto(self.view(place), values, casting="same_kind")

    def read(self, place: Place) -> Array:
        """See `backend.Device`."""
        return self.view(place).copy()

    def launch(
        self, step: Step, inputs: tuple[Place, ...], outputs: tuple[Place, ...], workspace: Place | None
    ) -> Action:
        """See `backend.Device`."""
        launch = Launch(
            op=step.op,
            attrs=step.attrs,
            inputs=tuple(self.view(place) for place in inputs),
            outputs=tuple(self.view(place) for place in outputs),
            workspace=np.empty(0, np.uint8) if workspace is None else self._raw(workspace),
            accumulate=step.accumulate,
            first_sample=step.samples[0],
            batch=self._batch,
            configuration=step.configuration,
        )
        return partial(KERNELS[step.op], launch)

    def copy(self, source: Place, target: Place) -> Action:
        """See `backend.Device`. np.copyto lets the other lanes run meanwhile."""
        return partial(_copy, self._raw(target), self._raw(source))

    def fill(self, place: Place, value: int) -> Action:
        """See `backend.Device`."""
        return partial(_fill, self._raw(place), value)

    def pause(self, seconds: Callable[[Hyper], float]) -> Action:
        """See `backend.Device`."""
        return lambda hyper: time.sleep(seconds(hyper))

    def program(self, steps: Sequence[Prepared]) -> Runnable:
        """See `backend.Device`."""
        return partial(self._run, lanes.queues(steps))

    def fill_arena(self, sentinel: int) -> None:
        """See `backend.Device`."""
        self._arena.fill(sentinel)

    def touched_bytes(self, sentinel: int) -> int:
        """See `backend.Device`."""
        return self._arena.touched_bytes(sentinel)

    def intact(self) -> bool:
        """See `backend.Device`."""
        return self._arena.intact() and self._host.intact()

    def _raw(self, place: Place) -> Bytes:
        return self.view(place.raw()).view(np.uint8)

    def _run(self, queues: lanes.Queues, hyper: Hyper) -> None:
        with self._pools.limit(limits=self._blas_threads, user_api="blas"):
            lanes.run(queues, hyper)


def _arena(plan: Plan) -> Block:
    windows = Windows(plan)
    if not windows.mappings:
        return Block(plan.spaces.arena_bytes, "arena")
    return MappedBlock(plan.spaces.arena_bytes, windows.mappings, windows.end, "arena")


def blas_threads() -> int:
    """Threads BLAS may use: the cores that the lanes leave over.

    A constant of the machine, not of the plan: how BLAS splits a product may show in its last bits, and two plans of
    one training step must agree in all of them.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - len(Lane))


def _copy(target: Bytes, source: Bytes, _: Hyper) -> None:
    np.copyto(target, source)


def _fill(target: Bytes, value: int, _: Hyper) -> None:
    target.fill(value)
