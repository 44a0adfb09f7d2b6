"""Layout search on some of google/minimalloc's challenging instances, where they are at hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from layout_check import check_layout

from planc.layout import Item, Span, search

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "minimalloc"
CAPACITY = 1_048_576


@pytest.mark.skipif(not FOLDER.is_dir(), reason="../shared/data/minimalloc is not there")
@pytest.mark.parametrize(("name", "nodes"), [("F", 16_000), ("H", 8_000), ("I", 1_000)])
def test_an_instance_is_laid_out(name: str, nodes: int) -> None:
    """Valid always; within the capacity for those that few branches pack."""
    with (FOLDER / f"{name}.{CAPACITY}.csv").open() as file:
        rows = [(int(row["size"]), int(row["lower"]), int(row["upper"])) for row in csv.DictReader(file)]
    problem = tuple(Item((Span(0, size, lower, upper),)) for size, lower, upper in rows)
    layout = search(problem, CAPACITY, nodes)
    check_layout(problem, layout)
    assert layout.arena_bytes <= CAPACITY or nodes < 8_000
