"""Memory: where every access lies, whether its bytes live that long, and that no two lives share a byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planc.byte_map import ByteMap
from planc.happens_before import HappensBefore
from planc.plan import Access, Buffer, Plan, Space, StepKind
from planc.verify_report import Report, Violation


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [start, stop) of a buffer in one of its extents."""

    buffer: int
    extent: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Use:
    """An access and the pieces it lies in."""

    access: Access
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class StepUses:
    """Where the accesses of a step lie, and its workspace."""

    reads: tuple[Use, ...]
    writes: tuple[Use, ...]
    workspace: tuple[Piece, ...] = ()


def check_spaces(plan: Plan) -> tuple[Violation, ...]:
    """Budget, bounds and alignment of every extent."""
    report, spaces = Report(plan, ""), plan.spaces
    if spaces.arena_bytes > spaces.budget_bytes:
        report.add("arena-budget", f"arena: has {spaces.arena_bytes} bytes, the budget is {spaces.budget_bytes}.")
    for buffer in plan.buffers:
        arena = buffer.space is Space.ARENA
        size = spaces.arena_bytes if arena else spaces.host_bytes
        unit = max(1, spaces.alignment) if arena else 1
        for extent in buffer.extents:
            if extent.offset + extent.bytes > size:
                report.add(
                    "extent-place",
                    f"{report.buffer(buffer.id)}: lies at [{extent.offset}, {extent.offset + extent.bytes}) of the "
                    f"{buffer.space}, which has {size} bytes.",
                    (),
                    (buffer.id,),
                )
            if extent.offset % unit:
                report.add(
                    "extent-alignment",
                    f"{report.buffer(buffer.id)}: lies at {extent.offset}, wanted a multiple of {unit}.",
                    (),
                    (buffer.id,),
                )
    return tuple(report.found)


def check_memory(report: Report, order: HappensBefore) -> tuple[StepUses, ...]:
    """Report what is wrong with the memory of one program; returns where each step's accesses lie."""
    finder = _Finder(report, order)
    uses = []
    for step in report.plan.programs[report.program].steps:
        reads = tuple(
            Use(access, finder.find(step.id, access.buffer, access.start, access.stop)) for access in step.reads
        )
        writes = tuple(
            Use(access, finder.find(step.id, access.buffer, access.start, access.stop)) for access in step.writes
        )
        workspace: tuple[Piece, ...] = ()
        if step.workspace is not None:
            workspace = finder.find(step.id, step.workspace, 0, report.plan.buffers[step.workspace].bytes)
        uses.append(StepUses(reads, writes, workspace))
    _check_lives(report, order)
    for space in Space:
        _check_overlaps(report, order, space)
    return tuple(uses)


def locate(buffer: Buffer, start: int, stop: int, step: int) -> tuple[tuple[Piece, ...], int]:
    """The pieces that hold bytes [start, stop) of `buffer` at `step`, and how many bytes lie nowhere.

    A byte lies in the last extent born at or before the step, in the order of the program.
    """
    pieces = list[Piece]()
    missing = [(start, stop)] if start < stop else []
    for index in range(len(buffer.extents) - 1, -1, -1):
        if not missing:
            break
        extent = buffer.extents[index]
        if extent.born is not None and extent.born > step:
            continue
        first, last = extent.first, extent.first + extent.bytes
        rest = list[tuple[int, int]]()
        for a, b in missing:
            if first <= a and b <= last:
                pieces.append(Piece(buffer.id, index, a, b))
            elif b <= first or last <= a:
                rest.append((a, b))
            else:
                pieces.append(Piece(buffer.id, index, max(a, first), min(b, last)))
                rest += [(x, y) for x, y in ((a, first), (last, b)) if x < y]
        missing = rest
    if len(pieces) > 1:
        pieces.sort(key=lambda piece: piece.start)
    return tuple(pieces), sum(b - a for a, b in missing)


class _Finder:
    """Locates accesses and checks that their extents live while the step runs."""

    def __init__(self, report: Report, order: HappensBefore) -> None:
        self._report = report
        self._order = order
        self._buffers = report.plan.buffers
        self._paged = report.plan.spaces.page_bytes > 0
        self._steps = report.plan.programs[report.program].steps

    def find(self, step: int, buffer: int, start: int, stop: int) -> tuple[Piece, ...]:
        """The pieces of an access by `step`."""
        report, held = self._report, self._buffers[buffer]
        pieces, missing = locate(held, start, stop, step)
        if missing:
            report.add(
                "extent-missing",
                f"{report.step(step)}: {missing} of bytes [{start}, {stop}) of {report.buffer(buffer)} lie nowhere.",
                (step,),
                (buffer,),
            )
        if len(pieces) > 1 and not self._paged:
            places = {held.extents[piece.extent].offset - held.extents[piece.extent].first for piece in pieces}
            if len(places) > 1:
                what = f"bytes [{start}, {stop}) of {report.buffer(buffer)}"
                message = f"{report.step(step)}: {what} lie in {len(places)} places."
                report.add("extent-scattered", message, (step,), (buffer,))
        for piece in pieces:
            self._check_life(step, held, piece)
        return pieces

    def _check_life(self, step: int, buffer: Buffer, piece: Piece) -> None:
        report, order, extent = self._report, self._order, buffer.extents[piece.extent]
        born, freed = extent.born, extent.freed
        if born is not None and born != step and not order.before(born, step) and not self._writes(born, piece):
            report.add(
                "access-early",
                f"{report.step(step)}: may start before {report.step(born)}, which takes the memory of "
                f"{report.buffer(buffer.id)}.",
                (step, born),
                (buffer.id,),
            )
        if freed and step not in freed and not any(order.before(step, last) for last in freed):
            what = "copy" if self._steps[step].kind is not StepKind.LAUNCH else "use"
            report.add(
                "access-late",
                f"{report.step(step)}: may still {what} {report.buffer(buffer.id)} when "
                f"{', '.join(map(report.step, freed))} ended and its memory is given away.",
                (step, *freed),
                (buffer.id,),
            )

    def _writes(self, step: int, piece: Piece) -> bool:
        """Whether the step writes the piece; then whoever comes too early is found by verify_data, as a race."""
        return any(
            access.buffer == piece.buffer and access.start <= piece.start and piece.stop <= access.stop
            for access in self._steps[step].writes
        )


def _check_lives(report: Report, order: HappensBefore) -> None:
    """An extent is freed after its birth. Where the step that it is born by uses it, access-late says so."""
    steps = report.plan.programs[report.program].steps
    for buffer in _of_program(report):
        for extent in buffer.extents:
            born = extent.born
            if born is None or not extent.freed or any(f == born or order.before(born, f) for f in extent.freed):
                continue
            step = steps[born]
            if buffer.id != step.workspace and all(a.buffer != buffer.id for a in (*step.reads, *step.writes)):
                report.add(
                    "extent-life",
                    f"{report.buffer(buffer.id)}: its extent born by {report.step(born)} may be freed before that.",
                    (born, *extent.freed),
                    (buffer.id,),
                )


def _of_program(report: Report) -> list[Buffer]:
    return [buffer for buffer in report.plan.buffers if buffer.program in (report.program, "all")]


@dataclass(frozen=True, slots=True)
class Tenant:
    """An extent, as a holder of bytes of its space."""

    buffer: int
    extent: int
    offset: int
    bytes: int
    born: int
    """-1: before the first step."""
    freed: tuple[int, ...]


def _check_overlaps(report: Report, order: HappensBefore, space: Space) -> None:
    """Extents that share bytes must follow each other.

    In the order of birth each one takes its bytes over from those that had them last; if it follows these, it follows
    all before them too, since a life ends after it begins (extent-life).
    """
    found = sorted(tenants(report, space), key=lambda tenant: tenant.born)
    size = max((tenant.offset + tenant.bytes for tenant in found), default=0)
    holders = ByteMap[int](size, -1, lambda holder: holder)
    for number, tenant in enumerate(found):
        parts = holders.cut(tenant.offset, tenant.offset + tenant.bytes)
        for old in dict.fromkeys(holders.values[parts]):
            if old >= 0 and not follows(order, found[old], tenant):
                _report_overlap(report, found[old], tenant, order)
        holders.fill(parts, number)


def tenants(report: Report, space: Space) -> list[Tenant]:
    """Every extent of the program in `space`, in the order of the document."""
    return [
        Tenant(buffer.id, index, extent.offset, extent.bytes, -1 if extent.born is None else extent.born, extent.freed)
        for buffer in _of_program(report)
        if buffer.space is space
        for index, extent in enumerate(buffer.extents)
        if extent.bytes
    ]


def follows(order: HappensBefore, old: Tenant, new: Tenant) -> bool:
    """Whether the life of `old` has ended when that of `new` begins, in every timing."""
    return new.born >= 0 and bool(old.freed) and all(order.before(last, new.born) for last in old.freed)


def _report_overlap(report: Report, old: Tenant, new: Tenant, order: HappensBefore) -> None:
    start, stop = max(old.offset, new.offset), min(old.offset + old.bytes, new.offset + new.bytes)
    open_steps: Sequence[int] = [last for last in old.freed if new.born < 0 or not order.before(last, new.born)]
    until = f"{', '.join(map(report.step, open_steps))} may still run" if open_steps else "the program has not ended"
    taken = f"when {report.step(new.born)} takes them" if new.born >= 0 else "from the start"
    report.add(
        "extent-overlap",
        f"{report.buffer(old.buffer)} and {report.buffer(new.buffer)} share bytes [{start}, {stop}): {until} {taken}.",
        (*((new.born,) if new.born >= 0 else ()), *open_steps),
        (old.buffer, new.buffer),
    )
