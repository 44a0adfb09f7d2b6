"""Measured: what a training step really touches and takes, to be held against the plan."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from planc.errors import InternalError
from planc.plan import Plan, Space
from planc.runtime.backend import Device

SENTINELS = (0xA5, 0x5A)
"""Two fillings of the arena; a byte that a step writes differs from at least one of them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a step touched and allocated.

    peak_bytes:   end of the highest byte of the arena that was touched.
    hidden_bytes: the most that was allocated at any time beyond arena and host pool, as far as tracemalloc sees it
                  (NumPy's arrays included; not what BLAS and FFT libraries take, which `ProcessMemory` sees).
    """

    peak_bytes: int
    hidden_bytes: int


def planned_peak_bytes(plan: Plan, program: str = "train") -> int:
    """End of the highest byte of the arena that the plan gives to a buffer of the program or to a persistent one."""
    return max(
        (
            extent.offset + extent.bytes
            for buffer in plan.buffers
            if buffer.space is Space.ARENA and buffer.program in (program, "all")
            for extent in buffer.extents
        ),
        default=0,
    )


def measure(device: Device, load: Callable[[], None], step: Callable[[], None]) -> Measured:
    """Run a step twice in an arena full of a sentinel, and look what is left of it.

    Args:
        load: puts parameters, state and inputs into the arena.
        step: runs the program.

    Raises:
        InternalError: something was written beside the arena or the host pool.
    """
    peak_bytes = hidden_bytes = 0
    for sentinel in SENTINELS:
        device.fill_arena(sentinel)
        load()
        hidden_bytes = _allocated_bytes(step)  # of the second run: the first may fill caches that stay
        peak_bytes = max(peak_bytes, device.touched_bytes(sentinel))
    if not device.intact():
        raise InternalError("a kernel wrote beside the arena or the host pool")
    return Measured(peak_bytes, hidden_bytes)


def _allocated_bytes(step: Callable[[], None]) -> int:
    """The most bytes that `step` holds at any time beyond those held before."""
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        step()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if started:
            tracemalloc.stop()


class ProcessMemory:
    """How much the process' resident memory has grown at its highest since this was made.

    The kernel keeps the highest value of the whole process; it is reset first, where that is allowed, so that what
    was given back before does not count. Systems without /proc give None.
    """

    def __init__(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._before = _status_bytes("VmRSS")

    def growth_bytes(self) -> int | None:
        """Bytes beyond the start, at the highest so far.

        The kernel counts a page once for each of its mappings; a page of a paged arena, all of which are there from
        before the first step on, counts once here.
        """
        peak = _status_bytes("VmHWM")
        if peak is None or self._before is None:
            return None
        shared = _status_bytes("RssShmem") or 0
        once = _status_bytes("Pss_Shmem", "smaps_rollup") if shared else 0
        return peak - self._before - (shared - (shared if once is None else once))


def _status_bytes(field: str, file: str = "status") -> int | None:
    try:
        lines = Path("/proc/self", file).read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")]
    return found[0] if found else None
