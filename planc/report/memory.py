"""MemoryReport: who holds the arena at its fullest, and how full it is over the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planc.plan import Buffer, BufferKind, Plan, Space
from planc.simulate import Timeline


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """A buffer that holds `bytes` of the arena at the peak; `label` names its first tensor.

    `samples`: (0, 0) for what has no batch axis.
    """

    buffer: int
    kind: BufferKind
    label: str
    samples: tuple[int, int]
    bytes: int


def live_at_peak(plan: Plan, timeline: Timeline) -> tuple[LiveBuffer, ...]:
    """The buffers that hold arena bytes when the timeline's peak is reached, the largest first."""
    found = []
    for buffer in plan.buffers:
        if buffer.space is Space.ARENA and buffer.program in (timeline.program, "all"):
            held = _held_bytes(buffer, timeline)
            if held:
                tensor = plan.tensors[buffer.tensors[0]] if buffer.tensors else None
                samples = buffer.samples if tensor is not None and tensor.rows else (0, 0)
                found.append(LiveBuffer(buffer.id, buffer.kind, tensor.label if tensor else "", samples, held))
    return tuple(sorted(found, key=lambda live: (-live.bytes, live.buffer)))


def _held_bytes(buffer: Buffer, timeline: Timeline) -> int:
    """Bytes of its extents whose half-open life contains the instant of the peak."""
    held = 0
    for extent in buffer.extents:
        born = 0 if extent.born is None else timeline.start_ns[extent.born]
        ended = max((timeline.end_ns[step] for step in extent.freed), default=timeline.makespan_ns + 1)
        if born <= timeline.peak_ns < ended:
            held += extent.bytes
    return held


def highest_in_slices(curve: Sequence[tuple[int, int]], end_ns: int, count: int) -> tuple[int, ...]:
    """The most live bytes in each of `count` equal slices of [0, end_ns).

    Args:
        curve: (time, live bytes from then on), in order of time, the first at 0.
    """
    highest = [0] * count
    for position, (start, level) in enumerate(curve):
        stop = curve[position + 1][0] if position + 1 < len(curve) else end_ns
        first = min(start * count // max(end_ns, 1), count - 1)
        last = min(max(-(-stop * count // max(end_ns, 1)) - 1, first), count - 1)
        for piece in range(first, last + 1):
            highest[piece] = max(highest[piece], level)
    return tuple(highest)
