"""Place: where an access lies, as arithmetic on a plan; no memory is touched here."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from planc.errors import PlanFileError, RunError
from planc.plan import Access, Buffer, Plan, PlanTensor, Space
from planc.runtime.windows import Windows, locate

_ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
}
_REMEDY = "Run planc verify on the plan and compile it again."


@dataclass(frozen=True, slots=True)
class Place:
    """`bytes` bytes at `offset` of a space, seen as a C-contiguous array of `shape` and `dtype`.

    An offset beyond the arena's bytes is an address in a window (windows.py).
    """

    space: Space
    offset: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]

    def raw(self) -> Place:
        """The same bytes as a 1-D uint8 array."""
        return Place(self.space, self.offset, self.bytes, "uint8", (self.bytes,))

    def elements(self, start: int, stop: int) -> Place:
        """Elements [start, stop) of the flattened array."""
        item = _ITEM_BYTES[self.dtype]
        return Place(self.space, self.offset + start * item, (stop - start) * item, self.dtype, (stop - start,))


@dataclass(frozen=True, slots=True)
class Places:
    """Finds the places of one plan.

    Raises (every method):
        PlanFileError: the plan names bytes that lie nowhere, in several pieces or outside their space.
        RunError: an element type no backend has.
    """

    plan: Plan
    windows: Windows = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "windows", Windows(self.plan))

    def access(self, access: Access, step: int) -> Place:
        """Where `step` reads or writes `access`."""
        return self._place(
            self.plan.buffers[access.buffer], self.plan.tensors[access.tensor], access.start, access.stop, step
        )

    def copied(self, access: Access, step: int) -> Place:
        """What the copy `step` reads or writes, as bytes: it need not end at a row."""
        buffer = self.plan.buffers[access.buffer]
        return _bytes(buffer, self._offset(buffer, access.start, access.stop, step), access.stop - access.start)

    def workspace(self, buffer: int, step: int) -> Place:
        """The workspace of `step`, as bytes."""
        workspace = self.plan.buffers[buffer]
        return _bytes(workspace, self._offset(workspace, 0, workspace.bytes, step), workspace.bytes)

    def before(self, buffer: int, tensor: int) -> Place:
        """Where the host puts `tensor` (the samples its buffer holds) before the program starts."""
        return self._port(buffer, tensor, -1)

    def after(self, buffer: int, tensor: int, steps: int) -> Place:
        """Where the host finds `tensor` after a program of `steps` steps."""
        return self._port(buffer, tensor, steps)

    def born_at(self, access: Access, step: int) -> tuple[Place, ...]:
        """What a write of `step` is the first to touch: the extents born there if it lies in them, else the access."""
        buffer = self.plan.buffers[access.buffer]
        born = [
            extent
            for extent in buffer.extents
            if extent.born == step and extent.first < access.stop and access.start < extent.first + extent.bytes
        ]
        covered = sum(min(access.stop, e.first + e.bytes) - max(access.start, e.first) for e in born)
        if covered < access.stop - access.start:
            return (self.copied(access, step),)
        return tuple(_bytes(buffer, self._inside(buffer, extent.offset, extent.bytes), extent.bytes) for extent in born)

    def _port(self, buffer: int, tensor: int, step: int) -> Place:
        found = self.plan.buffers[buffer]
        spec = self.plan.tensors[tensor]
        size = prod(spec.shape) * _item_bytes(spec)
        if spec.rows:
            size = size // (self.plan.model.batch or 1) * (found.samples[1] - found.samples[0])
        return self._place(found, spec, 0, size, step)

    def _place(self, buffer: Buffer, tensor: PlanTensor, start: int, stop: int, step: int) -> Place:
        offset = self._offset(buffer, start, stop, step)
        return Place(buffer.space, offset, stop - start, tensor.dtype, _shape(tensor, stop - start))

    def _offset(self, buffer: Buffer, start: int, stop: int, step: int) -> int:
        """The offset of bytes [start, stop) of `buffer` at `step`, which must lie in one piece inside the space or be
        shown by a window."""
        if start >= stop:
            return 0
        pieces, missing = locate(buffer, start, stop, step)
        if missing:
            a, b = missing[0]
            raise PlanFileError(
                f"plan: bytes [{a}, {b}) of buffer {buffer.id} lie nowhere at step {step}; "
                f"its extents cover {_ranges(buffer)}.",
                _REMEDY,
            )
        for piece in pieces:
            self._inside(buffer, piece.offset, piece.stop - piece.start)
        window = self.windows.find(buffer.id, pieces)
        if window is not None:
            return window
        if len(pieces) > 1:
            raise PlanFileError(
                f"plan: bytes [{start}, {stop}) of buffer {buffer.id} lie in {len(pieces)} separate pieces at step "
                f"{step}; one array needs them in one.",
                _REMEDY,
            )
        return pieces[0].offset

    def _inside(self, buffer: Buffer, offset: int, size: int) -> int:
        """`offset`, if `size` bytes from there on are inside the buffer's space."""
        spaces = self.plan.spaces
        end = spaces.arena_bytes if buffer.space is Space.ARENA else spaces.host_bytes
        if offset < 0 or offset + size > end:
            raise PlanFileError(
                f"plan: buffer {buffer.id} lies at [{offset}, {offset + size}) of the {buffer.space}, "
                f"which has {end} bytes.",
                _REMEDY,
            )
        return offset


def _bytes(buffer: Buffer, offset: int, size: int) -> Place:
    return Place(buffer.space, offset, size, "uint8", (size,))


def _ranges(buffer: Buffer) -> str:
    return ", ".join(f"[{e.first}, {e.first + e.bytes}) from step {e.born}" for e in buffer.extents) or "nothing"


def _item_bytes(tensor: PlanTensor) -> int:
    if tensor.dtype not in _ITEM_BYTES:
        raise RunError(
            f"tensor {tensor.label!r}: its element type is {tensor.dtype}; backends have {', '.join(_ITEM_BYTES)}.",
            "Compile the plan with another --precision.",
        )
    return _ITEM_BYTES[tensor.dtype]


def _shape(tensor: PlanTensor, size: int) -> tuple[int, ...]:
    """The tensor's shape with axis 0 cut to `size` bytes."""
    item = _item_bytes(tensor)
    if not tensor.rows:
        if size != prod(tensor.shape) * item:
            raise PlanFileError(
                f"plan: tensor {tensor.label!r} without a batch axis has {prod(tensor.shape) * item} bytes; "
                f"an access covers {size}.",
                _REMEDY,
            )
        return tensor.shape
    row_bytes = prod(tensor.shape[1:]) * item
    rows, rest = divmod(size, row_bytes) if row_bytes else (0, size)
    if rest:
        raise PlanFileError(
            f"plan: tensor {tensor.label!r} has rows of {row_bytes} bytes; an access covers {size}.", _REMEDY
        )
    return (rows, *tensor.shape[1:])
