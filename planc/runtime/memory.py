"""Block: memory taken from the system once, page aligned, with guards on both sides."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
import numpy.typing as npt

from planc.errors import RunError
from planc.runtime.places import Place
from planc.units import align_up, format_bytes

Bytes = npt.NDArray[np.uint8]

_GUARD = 0xC3
_SCAN_BYTES = 1 << 18


class Block:
    """`size` bytes of zeros, and not one more.

    On Linux the pages on both sides may not be touched at all: a kernel that leaves the block ends the process. The
    bytes between the end of the block and the end of its last page (on other systems the guard pages too) hold a
    pattern; `intact` says whether it is still there.

    Args:
        size: bytes, 0 or more.
        what: "arena" or "host pool", for errors.

    Raises:
        RunError: the system has not so much memory.
    """

    def __init__(self, size: int, what: str) -> None:
        page = mmap.PAGESIZE
        whole = align_up(size, page)
        try:
            self._map = _anonymous(whole + 2 * page)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            raise RunError(
                f"{what}: the system does not give {format_bytes(size)} ({size} bytes): {error}.",
                "Compile the plan for a smaller --budget or free memory.",
            ) from error
        everything = np.frombuffer(self._map, np.uint8)
        self.bytes: Bytes = everything[page : page + size]
        guards = [everything[page + size : page + whole]]
        sides = (everything[:page], everything[page + whole :])
        if not all(_forbid(side) for side in sides):
            guards.extend(sides)
        for guard in guards:
            guard[:] = _GUARD
        self._guards = tuple(guards)

    def view(self, place: Place) -> npt.NDArray[np.generic]:
        """The array that `place` describes: a view, never a copy."""
        return np.ndarray(place.shape, np.dtype(place.dtype), self.bytes.data, place.offset)

    def intact(self) -> bool:
        """Whether nothing was written beside the block."""
        return all(bool((guard == _GUARD).all()) for guard in self._guards)

    def fill(self, value: int) -> None:
        """Set every byte to `value`."""
        self.bytes[:] = value

    def touched_bytes(self, sentinel: int) -> int:
        """The end of the highest byte that differs from `sentinel`; 0 if none does."""
        for stop in range(self.bytes.size, 0, -_SCAN_BYTES):
            start = max(0, stop - _SCAN_BYTES)
            found = np.flatnonzero(self.bytes[start:stop] != sentinel)
            if found.size:
                return start + int(found[-1]) + 1
        return 0


def _anonymous(size: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _forbid(pages: Bytes) -> bool:
    """Forbid any access to `pages`; False where the system has no such call."""
    if sys.platform != "linux":
        return False
    no_access = 0
    address, size = ctypes.c_void_p(pages.ctypes.data), ctypes.c_size_t(pages.size)
    return int(ctypes.CDLL(None).mprotect(address, size, no_access)) == 0
