"""An independent validator of layouts: it shares only the data types with the methods."""

from __future__ import annotations

from itertools import pairwise

from planc.layout import Item, Layout


def check_layout(problem: tuple[Item, ...], layout: Layout, *, unit: int = 1, floor: int = 0) -> None:
    """Every byte of every item has one place; no two things that are there at one time share any (or, if one of them
    is scattered, a page)."""
    assert len(layout.runs) == len(problem)
    held: list[tuple[int, int, int, int, int]] = []
    top = floor
    for number, (item, runs) in enumerate(zip(problem, layout.runs, strict=True)):
        place = 0
        for run in runs:
            assert run.first == place, "runs follow each other"
            assert run.bytes > 0
            assert run.offset >= floor
            assert run.offset % unit == 0
            place += run.bytes
            top = max(top, run.offset + run.bytes)
            if len(runs) > 1:
                assert run.offset % layout.page_bytes == run.first % layout.page_bytes == 0
        assert place == item.bytes
        page = layout.page_bytes if len(runs) > 1 else 1
        for span in item.spans:
            for run in runs:
                low, high = max(span.first, run.first), min(span.first + span.bytes, run.first + run.bytes)
                if low < high:
                    start, stop = run.offset + low - run.first, run.offset + high - run.first
                    held.append((start // page * page, -(-stop // page) * page, span.start, span.end, number))
        ranges = sorted((run.offset, run.offset + run.bytes) for run in runs)
        assert all(low[1] <= high[0] for low, high in pairwise(ranges)), "an item meets itself"
    held.sort()
    for index, (_, stop, born, freed, number) in enumerate(held):
        for start, _, other_born, other_freed, other in held[index + 1 :]:
            if start >= stop:
                break
            assert number == other or freed <= other_born or other_freed <= born, "two items meet"
    if layout.page_bytes:
        assert top <= layout.arena_bytes < top + layout.page_bytes
    else:
        assert layout.arena_bytes == top
