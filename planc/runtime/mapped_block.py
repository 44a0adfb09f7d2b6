"""MappedBlock: a block whose pages also show up in windows, side by side in another order (Linux).

The memory is a file without a name (memfd_create); addresses for the block and all windows are reserved at once and
then mapped over, before the first step. The kernel keeps all mappings of a page coherent: they are the same memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from planc.errors import RunError
from planc.runtime.memory import Block, Bytes, forbid, reserve
from planc.runtime.windows import Mapping
from planc.units import align_up, format_bytes

_CONTIGUOUS = "compile with --arena contiguous"
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000  # without it, addresses that never get memory of their own would be counted as such
_MAP_COUNT = Path("/proc/sys/vm/max_map_count")


class MappedBlock(Block):
    """`size` bytes of zeros with windows; see `memory.Block`. A page lies on both sides of the block and of every
    window that may not be touched.

    Args:
        mappings: what the windows show, by addresses counted from the block's beginning.
        end: one past the highest address.

    Raises:
        RunError: not on Linux, too many mappings for the system, or too little memory.
    """

    def __init__(self, size: int, mappings: Sequence[Mapping], end: int, what: str) -> None:
        _check_system(len(mappings), what)
        page = mmap.PAGESIZE
        whole = align_up(size, page)
        everything = reserve(align_up(end, page) + 2 * page, size, what, _MAP_NORESERVE)
        forbid(everything)
        self._hold(everything[page:], size)
        file = os.memfd_create("planc-arena")
        try:
            os.ftruncate(file, whole)
            for mapping in (Mapping(0, 0, whole), *mappings):
                self._map(file, mapping)
        except OSError as error:
            raise RunError(
                f"{what}: the system does not map {format_bytes(size)} ({size} bytes) in {len(mappings) + 1} pieces: "
                f"{error}.",
                f"Compile the plan for a smaller --budget, free memory, or {_CONTIGUOUS}.",
            ) from error
        finally:
            os.close(file)
        self._guard([self._addresses[size:whole]])

    def _map(self, file: int, mapping: Mapping) -> None:
        if not mapping.bytes:
            return
        where: Bytes = self._addresses[mapping.address : mapping.address + mapping.bytes]
        # Populated at once: what the process holds is then known before the first step, and no step waits for it.
        flags = mmap.MAP_SHARED | _MAP_FIXED | mmap.MAP_POPULATE
        access = mmap.PROT_READ | mmap.PROT_WRITE
        if _mmap()(where.ctypes.data, mapping.bytes, access, flags, file, mapping.offset) != where.ctypes.data:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _mmap() -> ctypes._NamedFuncPointer:
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    return call


def _check_system(mappings: int, what: str) -> None:
    if sys.platform != "linux":
        raise RunError(
            f"{what}: the plan maps its pages; this system is {sys.platform}, and planc maps pages on Linux only.",
            f"{_CONTIGUOUS.capitalize()}.",
        )
    with suppress(OSError, ValueError):
        most = int(_MAP_COUNT.read_text())
        held = len(Path("/proc/self/maps").read_text().splitlines())
        wanted = 2 * mappings + 3  # between two windows lies a page that is mapped to nothing
        if held + wanted > most:
            raise RunError(
                f"{what}: the plan maps {mappings} runs of pages, which takes {wanted} mappings; the system gives a "
                f"process {most}, of which {held} are in use.",
                f"Raise it (sysctl -w vm.max_map_count={held + 2 * wanted}), or {_CONTIGUOUS}.",
            )
