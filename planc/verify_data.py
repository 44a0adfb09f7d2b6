"""Data: that every read sees the right version of the right bytes, in every timing.

The steps are followed in the order of the program, which is one possible timing, on cells: ranges of the bytes of an
extent that share a history. Two steps of which one writes what the other touches must be ordered by happens-before;
where all are, every timing gives what this one gives, so that checking versions in this one is enough.
Per cell only the last writer and, per lane, the last reader since then have to be remembered: what came before them is
before them in every timing, or has been reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from planc.byte_map import ByteMap
from planc.happens_before import HappensBefore
from planc.plan import Access, Lane, Space, Step, StepKind
from planc.verify_memory import Piece, StepUses, Use
from planc.verify_model import homes_of
from planc.verify_report import Report

_NOTHING = -1
_HOST = -1


@dataclass(frozen=True, slots=True)
class Content:
    """What a cell holds: bytes of buffer `origin`, `shift` beyond where they are now.

    `version` -1: nothing of use. `tensor` -1: any of the buffer's. `begun`: the step that began this value (of a sum,
    its first contribution).
    """

    tensor: int
    version: int
    origin: int
    shift: int
    begun: int


class _Cell:
    """A range of bytes: what it holds, who wrote it (-1: the host, or nobody), per lane the last who read it (-1)."""

    __slots__ = ("content", "readers", "writer")

    def __init__(self, content: Content, writer: int, readers: Iterable[int]) -> None:
        self.content = content
        self.writer = writer
        self.readers = list(readers)

    def copy(self) -> _Cell:
        return _Cell(self.content, self.writer, self.readers)


@dataclass(slots=True)
class Sum:
    """The steps that contribute to a value, in order, and the first launch that reads it."""

    tensor: int
    buffer: int
    steps: list[int]
    first_reader: int | None = None


_NO_READERS = (-1,) * len(Lane)


class DataFlow:
    """Follows the data of one program; `sums` are its values without a batch axis, by the step that began them."""

    def __init__(self, report: Report, order: HappensBefore, given: frozenset[int]) -> None:
        self.sums: dict[tuple[int, int], Sum] = {}
        self._report = report
        self._order = order
        self._plan = report.plan
        self._given = given
        self._steps = report.plan.programs[report.program].steps
        self._maps: dict[tuple[int, int], ByteMap[_Cell]] = {}
        self._homes: dict[int, set[int]] = {}
        self._made: dict[int, set[int]] = {}
        self._visitor_of = {home: visitor for visitor, home in homes_of(report.plan, report.program).items()}
        self._note_homes()

    def follow(self, uses: tuple[StepUses, ...]) -> None:
        """Run the whole program."""
        for step, use in zip(self._steps, uses, strict=True):
            for read in use.reads:
                self._read(step, read)
            if step.kind is StepKind.LAUNCH:
                for write in use.writes:
                    self._write(step, write)
            else:
                self._copy(step, use.reads[0], use.writes[0])

    def contents(self, pieces: Iterable[Piece]) -> list[Content]:
        """What the pieces hold now."""
        return [cell.content for piece in pieces for cell in self._cells(piece)]

    def is_tensor(self, content: Content, tensor: int, buffer: int) -> bool:
        """Whether `content`, in `buffer`, may be read as `tensor`: what it was written as, or a view of it.

        A view is listed nowhere and written nowhere under its own number. What the host gave is any of its buffer's.
        """
        if content.tensor == tensor:
            return True
        if tensor in self._made.get(buffer, ()):
            return False
        homes = self._homes.get(tensor)
        return homes is None or buffer in homes

    def _note_homes(self) -> None:
        persistent = self._given.union(self._visitor_of.values())
        for buffer in self._plan.buffers:
            for tensor in buffer.tensors:
                self._homes.setdefault(tensor, set()).add(buffer.id)
        for step in self._steps:
            if step.kind is StepKind.LAUNCH:
                for access in step.writes:
                    if access.buffer not in persistent:
                        self._made.setdefault(access.buffer, set()).add(access.tensor)

    def _map(self, piece: Piece) -> ByteMap[_Cell]:
        key = (piece.buffer, piece.extent)
        cells = self._maps.get(key)
        if cells is None:
            buffer = self._plan.buffers[piece.buffer]
            extent = buffer.extents[piece.extent]
            given = piece.buffer in self._given and extent.born is None
            content = Content(-1, 0 if given else _NOTHING, piece.buffer, 0, _HOST)
            cells = self._maps[key] = ByteMap(buffer.bytes, _Cell(content, _HOST, _NO_READERS), _Cell.copy)
        return cells

    def _cells(self, piece: Piece) -> list[_Cell]:
        cells = self._map(piece)
        return cells.values[cells.cut(piece.start, piece.stop)]

    # Reads

    def _read(self, step: Step, use: Use) -> None:
        access = use.access
        lane = self._order.lane(step.id)
        for piece in use.pieces:
            for cell in self._cells(piece):
                cell.readers[lane] = step.id
                if not self._sees(step, access, cell.content):
                    continue
                self._check_written(step, access.buffer, cell.writer)
                value = self.sums.get((access.buffer, cell.content.begun))
                if value is not None and value.first_reader is None and step.kind is StepKind.LAUNCH:
                    value.first_reader = step.id

    def _sees(self, step: Step, access: Access, content: Content) -> bool:
        """Whether the version and the tensor are those the step wants."""
        report = self._report
        if content.version == access.version:
            if step.kind is not StepKind.LAUNCH or self.is_tensor(content, access.tensor, access.buffer):
                return True
            code, found = "read-tensor", f"these hold tensor {content.tensor}"
        elif content.version < access.version:
            code = "read-unwritten"
            found = f"the last written is {content.version}" if content.version >= 0 else "nothing has been written"
        else:
            code, found = "read-overwritten", f"they hold version {content.version} by then"
        what = f"reads version {access.version} of tensor {access.tensor} in bytes [{access.start}, {access.stop}) of"
        message = f"{report.step(step.id)}: {what} {report.buffer(access.buffer)}; {found}."
        report.add(code, message, (step.id,), (access.buffer,))
        return False

    def _check_written(self, step: Step, buffer: int, writer: int) -> None:
        if writer != _HOST and not self._order.before(writer, step.id):
            report = self._report
            message = (
                f"{report.step(step.id)}: may read {report.buffer(buffer)} before {report.step(writer)} has written it."
            )
            report.add("read-race", message, (step.id, writer), (buffer,))

    # Writes

    def _write(self, step: Step, use: Use) -> None:
        access = use.access
        summed = self._plan.tensors[access.tensor].rows == 0
        adds = step.accumulate and summed
        in_place = any(read.buffer == access.buffer and read.start == access.start for read in step.reads)
        begun = step.id
        for piece in use.pieces:
            cells = self._map(piece)
            parts = cells.cut(piece.start, piece.stop)
            if parts.start == parts.stop:
                continue
            old = cells.values[parts]
            for cell in old:
                self._check_free(step, access.buffer, cell)
                self._check_version(step, access, cell.content, adds=adds, in_place=in_place)
            if adds and old[0].content.version >= 0:
                begun = old[0].content.begun
            cells.fill(
                parts, _Cell(Content(access.tensor, access.version, access.buffer, 0, begun), step.id, _NO_READERS)
            )
        if summed and (adds or not in_place):
            value = self.sums.setdefault((access.buffer, begun), Sum(access.tensor, access.buffer, []))
            value.steps.append(step.id)

    def _check_free(self, step: Step, buffer: int, cell: _Cell) -> None:
        """The step may overwrite the cell: whoever wrote it or read it has ended.

        A reader has been found to follow the writer, so that only a cell without readers asks for its writer.
        """
        report, order = self._report, self._order
        readers = [reader for reader in cell.readers if reader != -1]
        users = readers or ([] if cell.writer == _HOST else [cell.writer])
        for user in users:
            if user != step.id and not order.before(user, step.id):
                done = f"before {report.step(user)} has {'read' if readers else 'written'} it"
                message = f"{report.step(step.id)}: may overwrite {report.buffer(buffer)} {done}."
                report.add("write-race", message, (step.id, user), (buffer,))

    def _check_version(self, step: Step, access: Access, content: Content, *, adds: bool, in_place: bool) -> None:
        report, version = self._report, max(content.version, 0)
        name = f"{report.step(step.id)}: writes version {access.version} of {report.buffer(access.buffer)}"
        if adds and (content.version < 1 or content.tensor != access.tensor):
            held = f"tensor {content.tensor}" if content.version >= 1 else "nothing"
            message = f"{name} by adding to tensor {access.tensor}, but it holds {held}."
            report.add("sum-start", message, (step.id,), (access.buffer,))
        elif content.version >= 1 and not adds and not in_place:
            message = f"{name} over version {content.version}, which it neither reads nor adds to."
            report.add("write-lost", message, (step.id,), (access.buffer,))
        elif access.version != version + 1:
            report.add("write-version", f"{name}; the next is {version + 1}.", (step.id,), (access.buffer,))

    # Copies

    def _copy(self, step: Step, read: Use, write: Use) -> None:
        """Carry the cells of `read` over to `write`; both have the same number of bytes."""
        moved = write.access.start - read.access.start
        arriving = list[tuple[int, int, Content]]()
        for piece in read.pieces:
            cells = self._map(piece)
            parts = cells.cut(piece.start, piece.stop)
            ends = [*cells.starts[parts][1:], piece.stop]
            for start, stop, cell in zip(cells.starts[parts], ends, cells.values[parts], strict=True):
                content = replace(cell.content, shift=cell.content.shift - moved)
                arriving.append((start + moved, stop + moved, content))
        if step.kind is StepKind.PREFETCH:
            arriving = [(a, b, self._returned(step, write.access, content)) for a, b, content in arriving]
        elif write.access.buffer in self._visitor_of:
            arriving = [(a, b, self._come_home(step, write.access, content)) for a, b, content in arriving]
        for piece in write.pieces:
            cells = self._map(piece)
            for cell in cells.values[cells.cut(piece.start, piece.stop)]:
                self._check_free(step, write.access.buffer, cell)
            for start, stop, content in arriving:
                a, b = max(start, piece.start), min(stop, piece.stop)
                if a < b:
                    cells.fill(cells.cut(a, b), _Cell(content, step.id, _NO_READERS))

    def _come_home(self, step: Step, target: Access, content: Content) -> Content:
        """The content of a visitor as the persistent buffer on the host gets it, to which nothing else is copied."""
        visitor = self._visitor_of[target.buffer]
        if content.origin != visitor or content.shift:
            report = self._report
            message = f"{report.step(step.id)}: brings bytes of {report.buffer(content.origin)} into "
            message += f"{report.buffer(target.buffer)}, wanted those of {report.buffer(visitor)}, at their place."
            report.add("copy-content", message, (step.id,), (target.buffer, content.origin))
        return replace(content, origin=target.buffer, shift=0)

    def _is_waiting_input(self, origin: int, target: int) -> bool:
        """Whether `origin` is where, on the host, what `target` is there for was before the program (or is again)."""
        source, wanted = self._plan.buffers[origin], self._plan.buffers[target]
        same = (source.kind, source.tensors, source.samples) == (wanted.kind, wanted.tensors, wanted.samples)
        return same and origin in self._given and source.space is Space.HOST

    def _returned(self, step: Step, target: Access, content: Content) -> Content:
        """The content as its own buffer gets it back."""
        at_home = content.origin == target.buffer or self._is_waiting_input(content.origin, target.buffer)
        if content.version != _NOTHING and not (at_home and content.shift == 0):
            report = self._report
            message = (
                f"{report.step(step.id)}: brings bytes that left {report.buffer(content.origin)} into "
                f"{report.buffer(target.buffer)}"
                f"{f', {abs(content.shift)} bytes from their place' if content.origin == target.buffer else ''}."
            )
            report.add("copy-content", message, (step.id,), (target.buffer, content.origin))
        return replace(content, origin=target.buffer, shift=0)
