"""Place: where an access lies, as arithmetic on a plan; no memory is touched here."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from planc.errors import PlanFileError, RunError
from planc.plan import Access, Buffer, Extent, Plan, PlanTensor, Space

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
    """`bytes` bytes at `offset` of a space, seen as a C-contiguous array of `shape` and `dtype`."""

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

    def access(self, access: Access, step: int) -> Place:
        """Where `step` reads or writes `access`."""
        return self._place(
            self.plan.buffers[access.buffer], self.plan.tensors[access.tensor], access.start, access.stop, step
        )

    def workspace(self, buffer: int, step: int) -> Place:
        """The workspace of `step`, as bytes."""
        workspace = self.plan.buffers[buffer]
        offset = self._offset(workspace, 0, workspace.bytes, step)
        return Place(workspace.space, offset, workspace.bytes, "uint8", (workspace.bytes,))

    def before(self, buffer: int, tensor: int) -> Place:
        """Where the host puts `tensor` (the samples its buffer holds) before the program starts."""
        return self._port(buffer, tensor, -1)

    def after(self, buffer: int, tensor: int, steps: int) -> Place:
        """Where the host finds `tensor` after a program of `steps` steps."""
        return self._port(buffer, tensor, steps)

    def born_at(self, access: Access, step: int) -> Place:
        """What a write of `step` is the first to touch: the whole extent if it is born there, else the access."""
        buffer = self.plan.buffers[access.buffer]
        for extent in buffer.extents:
            if extent.born == step and extent.first <= access.start and access.stop <= extent.first + extent.bytes:
                return Place(buffer.space, extent.offset, extent.bytes, "uint8", (extent.bytes,))
        return self.access(access, step).raw()

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
        """The offset of bytes [start, stop) of `buffer` at `step`, which must lie in one piece inside the space."""
        missing = [(start, stop)]
        shifts = set()
        for extent in reversed(buffer.extents):
            if not missing:
                break
            if extent.born is not None and extent.born > step:
                continue
            rest = [piece for old in missing for piece in _without(old, extent)]
            if rest != missing:
                shifts.add(extent.offset - extent.first)
            missing = rest
        if missing:
            a, b = missing[0]
            raise PlanFileError(
                f"plan: bytes [{a}, {b}) of buffer {buffer.id} lie nowhere at step {step}; "
                f"its extents cover {_ranges(buffer)}.",
                _REMEDY,
            )
        if len(shifts) > 1:
            raise PlanFileError(
                f"plan: bytes [{start}, {stop}) of buffer {buffer.id} lie in {len(shifts)} separate pieces at step "
                f"{step}; one array needs them in one.",
                _REMEDY,
            )
        offset = start + (shifts.pop() if shifts else 0)
        spaces = self.plan.spaces
        size = spaces.arena_bytes if buffer.space is Space.ARENA else spaces.host_bytes
        if offset < 0 or offset + stop - start > size:
            raise PlanFileError(
                f"plan: buffer {buffer.id} lies at [{offset}, {offset + stop - start}) of the {buffer.space}, "
                f"which has {size} bytes.",
                _REMEDY,
            )
        return offset


def _without(piece: tuple[int, int], extent: Extent) -> list[tuple[int, int]]:
    """`piece` without the bytes of `extent`."""
    start, stop = piece
    a, b = max(start, extent.first), min(stop, extent.first + extent.bytes)
    if a >= b:
        return [piece]
    return [rest for rest in ((start, a), (b, stop)) if rest[0] < rest[1]]


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
