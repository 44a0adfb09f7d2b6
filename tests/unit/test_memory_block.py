"""Blocks of memory: size, guards on both sides, the highest byte touched."""

from __future__ import annotations

import mmap
import subprocess
import sys

import numpy as np
import pytest

from planc.errors import RunError
from planc.runtime.memory import Block


def test_block_counts_and_guards() -> None:
    block = Block(1000, "arena")
    assert block.bytes.size == 1000
    assert not block.bytes.any()
    assert block.bytes.ctypes.data % mmap.PAGESIZE == 0
    block.fill(7)
    assert block.touched_bytes(7) == 0
    block.bytes[12] = 0
    assert block.touched_bytes(7) == 13
    assert block.intact()
    beside = np.ndarray((1,), np.uint8, block.bytes.base.data, mmap.PAGESIZE + 1000)  # type: ignore[union-attr, arg-type]
    beside[0] ^= 1
    assert not block.intact()


@pytest.mark.parametrize("size", [0, 1, 4096, (1 << 18) + 1])
def test_block_finds_the_highest_byte(size: int) -> None:
    block = Block(size, "arena")
    block.fill(0xA5)
    assert block.touched_bytes(0xA5) == 0
    if size:
        block.bytes[[0, size - 1]] = 0
        assert block.touched_bytes(0xA5) == size


def test_a_block_too_large_is_refused() -> None:
    with pytest.raises(RunError, match=r"arena: the system does not give .* \(4611686018427387904 bytes\)"):
        Block(1 << 62, "arena")


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected on Linux only")
@pytest.mark.parametrize("offset", [-1, mmap.PAGESIZE])
def test_leaving_the_block_ends_the_process(offset: int) -> None:
    code = (
        "import ctypes\n"
        "from planc.runtime.memory import Block\n"
        "block = Block(100, 'arena')\n"
        f"ctypes.c_uint8.from_address(block.bytes.ctypes.data + {offset}).value = 1\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode < 0
