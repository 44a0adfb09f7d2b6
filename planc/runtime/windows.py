"""Windows: addresses of their own for buffers that lie in several runs of a paged arena.

Addresses [0, arena bytes) are the arena itself. Beyond them every such buffer gets a window for each of its stays, into
which the device maps the runs side by side, once, before the first step. Nothing is mapped here; this is arithmetic.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planc.errors import PlanFileError
from planc.plan import Buffer, Extent, Plan, Space
from planc.units import align_up

_REMEDY = "Run planc verify on the plan and compile it again."


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [start, stop) of a buffer at `offset` of its space."""

    start: int
    stop: int
    offset: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """Addresses [address, address + bytes) show the arena's bytes from `offset` on; multiples of the system's page."""

    address: int
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Window:
    """Byte b of the buffer is at address `shift` + b, if one of `pieces` has it."""

    shift: int
    pieces: tuple[Piece, ...]

    def shows(self, piece: Piece) -> bool:
        at = bisect_right(self.pieces, piece.start, key=lambda own: own.start) - 1
        if at < 0:
            return False
        own = self.pieces[at]
        return piece.stop <= own.stop and piece.offset - piece.start == own.offset - own.start


class Windows:
    """The windows of a plan.

    `end`: one past the highest address. `mappings`: what the device has to map; none: the arena is all there is.

    Raises:
        PlanFileError: a buffer's runs don't meet at page borders.
    """

    def __init__(self, plan: Plan) -> None:
        self.end = plan.spaces.arena_bytes
        self.mappings: list[Mapping] = []
        self._of: dict[int, list[_Window]] = {}
        if not plan.spaces.page_bytes:
            return
        scattered = set[int]()
        for buffer in plan.buffers:
            if buffer.space is Space.ARENA and len({e.offset - e.first for e in buffer.extents}) > 1:
                scattered.add(buffer.id)
                for pieces in _stays(buffer.extents):
                    if len(pieces) > 1:
                        self._add(buffer.id, pieces)
        for program in plan.programs.values():
            for step in program.steps:
                for access in (*step.reads, *step.writes):
                    if access.buffer in scattered:
                        self._see(plan.buffers[access.buffer], access.start, access.stop, step.id)

    def find(self, buffer: int, pieces: Sequence[Piece]) -> int | None:
        """The address of `pieces`, which follow each other in the buffer; None if no window shows them all."""
        for window in self._of.get(buffer, ()):
            if all(window.shows(piece) for piece in pieces):
                return window.shift + pieces[0].start
        return None

    def _see(self, buffer: Buffer, start: int, stop: int, step: int) -> None:
        """Give an access that lies in more than one stay a window of its own."""
        pieces, missing = locate(buffer, start, stop, step)
        if len(pieces) > 1 and not missing and self.find(buffer.id, pieces) is None:
            self._add(buffer.id, pieces)

    def _add(self, buffer: int, pieces: tuple[Piece, ...]) -> None:
        page = mmap.PAGESIZE
        begin = align_up(self.end, page) + page  # a page in between that is mapped to nothing
        shift = begin + pieces[0].offset % page - pieces[0].start
        found: list[Mapping] = []
        for piece in pieces:
            address = shift + piece.start
            if (address - piece.offset) % page or (found and piece.offset % page):
                raise PlanFileError(
                    f"plan: bytes [{piece.start}, {piece.stop}) of buffer {buffer} lie at {piece.offset} of the arena, "
                    f"apart from those before them and not at a border of the system's pages of {page} bytes.",
                    _REMEDY,
                )
            low = address // page * page
            high = align_up(shift + piece.stop, page)
            found.append(Mapping(low, piece.offset // page * page, high - low))
        self.mappings += found
        self.end = found[-1].address + found[-1].bytes
        self._of.setdefault(buffer, []).append(_Window(shift, pieces))


def locate(buffer: Buffer, start: int, stop: int, step: int) -> tuple[tuple[Piece, ...], list[tuple[int, int]]]:
    """Where bytes [start, stop) of `buffer` lie at `step`, in their order, and which of them lie nowhere.

    A byte lies in the last extent born at or before the step, in the order of the program.
    """
    pieces: list[Piece] = []
    missing = [(start, stop)]
    for extent in reversed(buffer.extents):
        if not missing:
            break
        if extent.born is None or extent.born <= step:
            missing = [rest for old in missing for rest in _take(old, extent, pieces)]
    return _joined(pieces), missing


def _take(wanted: tuple[int, int], extent: Extent, pieces: list[Piece]) -> list[tuple[int, int]]:
    """Put what `extent` has of the `wanted` bytes into `pieces`; returns the rest."""
    start, stop = max(wanted[0], extent.first), min(wanted[1], extent.first + extent.bytes)
    if start >= stop:
        return [wanted]
    pieces.append(Piece(start, stop, extent.offset + start - extent.first))
    return _without(wanted, pieces[-1])


def _stays(extents: Iterable[Extent]) -> list[tuple[Piece, ...]]:
    """Where a buffer lies when it is there for the first time, the second time and so on."""
    found = []
    left = [Piece(e.first, e.first + e.bytes, e.offset) for e in extents if e.bytes]
    while left:
        own: list[Piece] = []
        later: list[Piece] = []
        for piece in left:
            new = [(piece.start, piece.stop)]
            for other in own:
                new = [part for old in new for part in _without(old, other)]
            again = [(piece.start, piece.stop)]
            for start, stop in new:
                again = [part for old in again for part in _without(old, Piece(start, stop, 0))]
            own += [_part(piece, a, b) for a, b in new]
            later += [_part(piece, a, b) for a, b in again]
        found.append(_joined(own))
        left = later
    return found


def _without(wanted: tuple[int, int], piece: Piece) -> list[tuple[int, int]]:
    """The bytes `wanted` that `piece` does not have."""
    sides = ((wanted[0], min(wanted[1], piece.start)), (max(wanted[0], piece.stop), wanted[1]))
    return [(a, b) for a, b in sides if a < b]


def _part(piece: Piece, start: int, stop: int) -> Piece:
    return Piece(start, stop, piece.offset + start - piece.start)


def _joined(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Pieces in their order; those that continue each other are one."""
    found: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: piece.start):
        last = found[-1] if found else None
        if last is not None and last.stop == piece.start and piece.offset - piece.start == last.offset - last.start:
            found[-1] = Piece(last.start, piece.stop, last.offset)
        else:
            found.append(piece)
    return tuple(found)
