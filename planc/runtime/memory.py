"""Block: memory taken from the system once, page aligned, with guards on both sides."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence

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
        everything = reserve(whole + 2 * page, size, what)
        self._hold(everything[page:], size)
        guards = [everything[page + size : page + whole]]
        sides = (everything[:page], everything[page + whole :])
        if not all(forbid(side) for side in sides):
            guards.extend(sides)
        self._guard(guards)

    def view(self, place: Place) -> npt.NDArray[np.generic]:
        """The array that `place` describes: a view, never a copy."""
        return np.ndarray(place.shape, np.dtype(place.dtype), self._addresses.data, place.offset)

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

    def _hold(self, addresses: Bytes, size: int) -> None:
        """The block is the first `size` bytes of `addresses`."""
        self._addresses = addresses
        self.bytes: Bytes = addresses[:size]

    def _guard(self, guards: Sequence[Bytes]) -> None:
        for guard in guards:
            guard[:] = _GUARD
        self._guards = tuple(guards)


def reserve(total: int, size: int, what: str, flags: int = 0) -> Bytes:
    """`total` bytes of addresses, for `size` bytes of memory; given back when the last array on them is gone.

    Raises:
        RunError: the system does not give them.
    """
    try:
        return np.frombuffer(_anonymous(total, flags), np.uint8)
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        raise RunError(
            f"{what}: the system does not give {format_bytes(size)} ({size} bytes): {error}.",
            "Compile the plan for a smaller --budget or free memory.",
        ) from error


def _anonymous(size: int, flags: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)


def forbid(pages: Bytes) -> bool:
    """Forbid any access to `pages`; False where the system has no such call."""
    if sys.platform != "linux":
        return False
    no_access = 0
    address, size = ctypes.c_void_p(pages.ctypes.data), ctypes.c_size_t(pages.size)
    return int(ctypes.CDLL(None).mprotect(address, size, no_access)) == 0
