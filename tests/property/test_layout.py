"""Layouts: every method on random problems, judged by a validator that knows nothing of the methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_check import check_layout

from planc.layout import METHODS, Item, Layout, Run, Span, best_fit, paged, peak_bytes, search
from planc.layout.best_fit import place_in_order
from planc.layout.paged import mapped_pages
from planc.units import align_up

PAGE = 1024


def item(size: int, start: int, end: int) -> Item:
    return Item((Span(0, size, start, end),))


@st.composite
def items(draw: st.DrawFn, most: int = 40) -> tuple[Item, ...]:
    """Items of one to three spans that come and go by themselves, and are all there at one position at least."""
    found = []
    for _ in range(draw(st.integers(0, most))):
        spans, first, used = [], 0, draw(st.integers(8, 30))
        for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
            size = draw(st.integers(1, 64)) * 256
            spans.append(Span(first, size, used - draw(st.integers(0, 8)), used + draw(st.integers(1, 8))))
            first += size
        found.append(Item(tuple(spans)))
    return tuple(found)


@pytest.mark.parametrize("method", [best_fit, partial(search, nodes=200)], ids=["best-fit", "search"])
@given(problem=items())
@settings(max_examples=60, deadline=None)
def test_every_method_gives_a_valid_layout(method: Callable[..., Layout], problem: tuple[Item, ...]) -> None:
    layout = method(problem, 0)
    check_layout(problem, layout, unit=256)
    assert all(len(runs) == 1 for runs in layout.runs)
    assert peak_bytes(problem) <= layout.arena_bytes <= sum(each.bytes for each in problem)


def test_every_method_is_in_the_table() -> None:
    assert set(METHODS.values()) == {best_fit, search}


@given(items(most=6))
@settings(max_examples=60, deadline=None)
def test_search_is_not_above_best_fit(problem: tuple[Item, ...]) -> None:
    assert search(problem, 0, nodes=400).arena_bytes <= best_fit(problem).arena_bytes


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_search_finds_the_smallest_of_all_layouts(sizes: list[tuple[int, int, int]]) -> None:
    """Of one span each: every order, each item as low as those before it leave it, is every layout worth looking at."""
    problem = tuple(item(size, start, start + length) for size, start, length in sizes)
    smallest = min(_stacked(problem, order) for order in permutations(range(len(problem))))
    layout = search(problem, smallest, nodes=20_000)
    check_layout(problem, layout)
    assert layout.arena_bytes == smallest


def _stacked(problem: tuple[Item, ...], order: tuple[int, ...]) -> int:
    """The height when each item lies on top of those placed before that it meets."""
    tops: dict[int, int] = {}
    for index in order:
        own = problem[index]
        below = [
            top for other, top in tops.items() if problem[other].start < own.end and own.start < problem[other].end
        ]
        tops[index] = max(below, default=0) + own.bytes
    return max(tops.values())


def test_search_packs_what_best_fit_does_not() -> None:
    """Of 40 random problems that best fit leaves above the peak, search packs at least half."""
    random = Random(3)
    found = []
    while len(found) < 40:
        problem = tuple(
            item(random.randint(1, 16), start, start + random.randint(1, 8))
            for start in (random.randint(0, 20) for _ in range(30))
        )
        if best_fit(problem).arena_bytes > peak_bytes(problem):
            found.append(search(problem, peak_bytes(problem), nodes=2000).arena_bytes == peak_bytes(problem))
    assert sum(found) >= len(found) // 2


@given(items(most=5))
@settings(max_examples=60)
def test_best_fit_is_one_of_the_layouts_that_orders_give(problem: tuple[Item, ...]) -> None:
    """On tiny problems: not below the best of all orders (it would be a wrong validator), not above the worst."""
    heights = [place_in_order(problem, list(order)).arena_bytes for order in permutations(range(len(problem)))]
    assert min(heights) <= METHODS["best-fit"](problem, 0).arena_bytes <= max(heights)


@given(items(), st.sampled_from((0, 256, 5 * 256)), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_a_paged_layout_is_valid(problem: tuple[Item, ...], base: int, spare_pages: int) -> None:
    enough = align_up(base + peak_bytes(problem), PAGE) + spare_pages * PAGE
    for wanted in (0, enough):
        layout = paged(problem, PAGE, wanted, base)
        check_layout(problem, layout, unit=256, floor=base)


def _of_pages(problem: tuple[Item, ...]) -> tuple[Item, ...]:
    """The same with sizes of at least two whole pages."""
    scale = 2 * PAGE // 256
    return tuple(
        Item(tuple(replace(s, first=scale * s.first, bytes=scale * s.bytes) for s in each.spans)) for each in problem
    )


@given(items())
@settings(max_examples=60, deadline=None)
def test_whole_pages_fit_whenever_their_live_bytes_do(problem: tuple[Item, ...]) -> None:
    """Interval colouring: nothing is lost between items of whole pages, whatever their shapes and lives."""
    problem = _of_pages(problem)
    layout = paged(problem, PAGE, peak_bytes(problem))
    check_layout(problem, layout, unit=PAGE)
    assert layout.arena_bytes == peak_bytes(problem)


def _fragments() -> tuple[Item, ...]:
    """Items are born one after another, then every other one goes, and what comes needs two of the gaps."""
    stay = tuple(item(4 * PAGE, i, 9 if i % 2 else 8) for i in range(8))
    return (*stay, item(8 * PAGE, 8, 9), item(8 * PAGE, 8, 9))


def test_items_that_fit_no_gap_are_scattered() -> None:
    problem = _fragments()
    layout = paged(problem, PAGE)
    check_layout(problem, layout)
    assert [len(runs) for runs in layout.runs] == [1] * 8 + [2, 2]
    assert layout.arena_bytes == peak_bytes(problem)
    assert mapped_pages(layout) == 16


def test_pages_grow_until_the_mappings_are_few_enough() -> None:
    layout = paged(_fragments(), PAGE, most_pages=8)
    check_layout(_fragments(), layout)
    assert layout.page_bytes == 2 * PAGE
    assert mapped_pages(layout) == 8


def test_the_validator_finds_an_overlap() -> None:
    problem = (item(512, 0, 2), item(512, 1, 3))
    with pytest.raises(AssertionError, match="two items meet"):
        check_layout(problem, Layout(((Run(0, 0, 512),), (Run(0, 256, 512),)), 768))


def test_the_validator_finds_a_shared_page() -> None:
    problem = (item(2 * PAGE + 256, 0, 2), item(256, 1, 3))
    scattered = (Run(0, 0, PAGE), Run(PAGE, 2 * PAGE, PAGE + 256))
    check_layout(problem, Layout((scattered, (Run(0, PAGE, 256),)), 4 * PAGE, PAGE))
    with pytest.raises(AssertionError, match="two items meet"):
        check_layout(problem, Layout((scattered, (Run(0, 3 * PAGE + 512, 256),)), 4 * PAGE, PAGE))


def test_neighbours_in_time_share_bytes() -> None:
    """Lifetimes are half open: what ends when something else starts is not there together with it."""
    assert METHODS["best-fit"]((item(512, 0, 2), item(512, 2, 3)), 0).arena_bytes == 512


def test_big_items_do_not_strand_gaps() -> None:
    """A gap that first-come placement would strand: three items fit 1024 only if the big one goes low."""
    problem = (item(256, 0, 4), item(256, 2, 6), item(768, 4, 8), item(768, 0, 2))
    assert METHODS["best-fit"](problem, 0).arena_bytes == peak_bytes(problem) == 1024
