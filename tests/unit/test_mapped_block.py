"""Blocks with windows: the same memory at several addresses, guards between, and what the system refuses."""

from __future__ import annotations

import mmap
import subprocess
import sys

import numpy as np
import pytest
from verify_plans import FREE, G_ONE, H_ONE, edit_buffer, edit_extent, edit_spaces, training_plan

from planc.errors import PlanFileError, RunError
from planc.plan import Extent, Plan, Space
from planc.runtime import mapped_block
from planc.runtime.mapped_block import MappedBlock
from planc.runtime.measure import ProcessMemory
from planc.runtime.places import Place, Places
from planc.runtime.windows import Mapping, Windows, locate

PAGE = mmap.PAGESIZE
linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are mapped on Linux only")


def crossed() -> tuple[Mapping, ...]:
    """A window at page 5 of the arena's 3 pages: the last one, then the first."""
    return (Mapping(5 * PAGE, 2 * PAGE, PAGE), Mapping(6 * PAGE, 0, PAGE))


def bytes_at(block: MappedBlock, offset: int, size: int) -> np.ndarray:
    return block.view(Place(Space.ARENA, offset, size, "uint8", (size,)))


@linux
def test_a_window_shows_the_arena() -> None:
    block = MappedBlock(3 * PAGE - 100, crossed(), 7 * PAGE, "arena")
    assert block.bytes.size == 3 * PAGE - 100
    assert not block.bytes.any()
    window = bytes_at(block, 5 * PAGE, 2 * PAGE)
    window[:] = 7
    assert not block.bytes[PAGE : 2 * PAGE].any()
    assert (block.bytes[:PAGE] == 7).all()
    assert (block.bytes[2 * PAGE :] == 7).all()
    block.bytes[3] = 9
    assert window[PAGE + 3] == 9


@linux
def test_the_block_is_scanned_where_it_is() -> None:
    block = MappedBlock(3 * PAGE - 100, crossed(), 7 * PAGE, "arena")
    block.fill(0xA5)
    assert block.touched_bytes(0xA5) == 0
    bytes_at(block, 5 * PAGE, PAGE)[1] = 0
    assert block.touched_bytes(0xA5) == 2 * PAGE + 2
    assert block.intact()
    bytes_at(block, 3 * PAGE - 100, 1)[0] ^= 1
    assert not block.intact()


@linux
@pytest.mark.parametrize("page", [-1, 3, 4, 7])
def test_leaving_block_or_window_ends_the_process(page: int) -> None:
    code = (
        "import ctypes, mmap\n"
        "from planc.runtime.mapped_block import MappedBlock\n"
        "from planc.runtime.windows import Mapping\n"
        "P = mmap.PAGESIZE\n"
        "block = MappedBlock(3 * P, (Mapping(5 * P, 2 * P, P), Mapping(6 * P, 0, P)), 7 * P, 'arena')\n"
        f"ctypes.c_uint8.from_address(block.bytes.ctypes.data + {page} * P).value = 1\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode < 0


@linux
def test_a_page_counts_once_however_often_it_is_mapped() -> None:
    """16 MiB seen through four windows: 16 MiB and what the process takes besides, not 80."""
    size = 16 * 2**20
    mappings = tuple(Mapping(size + PAGE + i * (size + PAGE), 0, size) for i in range(4))
    memory = ProcessMemory()
    block = MappedBlock(size, mappings, mappings[-1].address + size, "arena")
    block.fill(1)
    for mapping in mappings:
        bytes_at(block, mapping.address, size)[:] = 2
    growth = memory.growth_bytes()
    assert growth is not None
    # Beyond the arena itself only Python's own objects, and the kernel's counters are some pages behind: 4 MiB is
    # ample for both, one window would be 16.
    assert size - 4 * 2**20 < growth < size + 4 * 2**20


@linux
def test_too_many_mappings_are_refused_before_they_are_made(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "max_map_count"
    limit.write_text("20\n")
    monkeypatch.setattr(mapped_block, "_MAP_COUNT", limit)
    with pytest.raises(RunError, match=r"arena: the plan maps 2 runs of pages") as caught:
        MappedBlock(3 * PAGE, crossed(), 7 * PAGE, "arena")
    assert "sysctl -w vm.max_map_count=" in str(caught.value.remedy)
    assert "--arena contiguous" in str(caught.value.remedy)


@linux
def test_too_large_a_block_is_refused() -> None:
    with pytest.raises(RunError, match=r"arena: the system does not give"):
        MappedBlock(1 << 62, crossed(), 1 << 62, "arena")


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_block.sys, "platform", "darwin")
    with pytest.raises(RunError, match="darwin, and planc maps pages on Linux only") as caught:
        MappedBlock(3 * PAGE, crossed(), 7 * PAGE, "arena")
    assert "--arena contiguous" in str(caught.value.remedy)


def scattered(second: int, page_bytes: int = PAGE) -> Plan:
    """The training plan with g of the first sub-batch in two halves, the first at the end of the first page."""
    plan = edit_spaces(training_plan(), page_bytes=page_bytes, arena_bytes=4 * PAGE, alignment=16)
    whole = plan.buffers[G_ONE].extents[0]
    halves = (Extent(0, PAGE - 16, 16, whole.born, whole.freed), Extent(16, second, 16, whole.born, whole.freed))
    return edit_buffer(plan, G_ONE, extents=halves)


def test_a_scattered_buffer_gets_a_window() -> None:
    plan = scattered(3 * PAGE)
    windows = Windows(plan)
    begin = 5 * PAGE
    assert windows.mappings == [Mapping(begin, 0, PAGE), Mapping(begin + PAGE, 3 * PAGE, PAGE)]
    assert windows.end == begin + 2 * PAGE
    step = next(s for s in plan.train.steps for a in s.writes if a.buffer == G_ONE)
    place = Places(plan).access(next(a for a in step.writes if a.buffer == G_ONE), step.id)
    assert (place.offset, place.bytes) == (begin + PAGE - 16, 32)


def test_every_stay_gets_its_own_window() -> None:
    """y leaves and returns: twice there, in other pages."""
    plan = edit_spaces(training_plan(), page_bytes=PAGE, arena_bytes=8 * PAGE, alignment=16)
    first, again = plan.buffers[H_ONE].extents
    halves = [
        replace_place(extent, start, offset)
        for extent, offsets in ((first, (PAGE - 16, 3 * PAGE)), (again, (2 * PAGE - 16, 5 * PAGE)))
        for start, offset in zip((0, 16), offsets, strict=True)
    ]
    plan = edit_buffer(plan, H_ONE, extents=tuple(halves))
    windows = Windows(plan)
    assert [mapping.offset for mapping in windows.mappings] == [0, 3 * PAGE, PAGE, 5 * PAGE]
    last = len(plan.train.steps)
    for step in (first.born or 0, last):
        pieces, missing = locate(plan.buffers[H_ONE], 0, 32, step)
        assert not missing
        assert windows.find(H_ONE, pieces) is not None


def replace_place(extent: Extent, first: int, offset: int) -> Extent:
    return Extent(first, offset, 16, extent.born, extent.freed)


@pytest.mark.parametrize("second", [3 * PAGE + 16, FREE])
def test_runs_that_do_not_meet_at_pages_are_refused(second: int) -> None:
    with pytest.raises(PlanFileError, match="not at a border of the system's pages"):
        Windows(scattered(second))


def test_a_contiguous_plan_has_no_windows() -> None:
    plan = training_plan()
    assert Windows(plan).mappings == []
    assert Windows(edit_spaces(plan, page_bytes=PAGE)).mappings == []
    assert Windows(edit_extent(plan, G_ONE, offset=FREE)).end == plan.spaces.arena_bytes
