"""Layouts: no two items that are wanted at once share bytes, and none is worse than stacking them all."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from planc.layout import METHODS, Item, Layout, Span, peak_bytes
from planc.layout.best_fit import place_in_order


def item(size: int, start: int, end: int) -> Item:
    return Item((Span(0, size, start, end),))


@st.composite
def items(draw: st.DrawFn, most: int = 40) -> tuple[Item, ...]:
    """Items of one to three spans that come and go by themselves."""
    found = []
    for _ in range(draw(st.integers(0, most))):
        spans, first = [], 0
        for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
            start, size = draw(st.integers(0, 30)), draw(st.integers(1, 64)) * 256
            spans.append(Span(first, size, start, start + draw(st.integers(1, 12))))
            first += size
        found.append(Item(tuple(spans)))
    return tuple(found)


def check(problem: tuple[Item, ...], layout: Layout) -> None:
    """An independent validator: it shares only the data types with the methods."""
    assert len(layout.offsets) == len(problem)
    assert all(offset >= 0 and offset % 256 == 0 for offset in layout.offsets)
    spans = [(s, o + s.first) for each, o in zip(problem, layout.offsets, strict=True) for s in each.spans]
    for number, (span, offset) in enumerate(spans):
        for other, place in spans[:number]:
            together = span.start < other.end and other.start < span.end
            assert not (together and offset < place + other.bytes and place < offset + span.bytes)
    assert layout.arena_bytes == max((o + s.bytes for s, o in spans), default=0)


@given(items())
def test_every_method_gives_a_valid_layout(problem: tuple[Item, ...]) -> None:
    for method in METHODS.values():
        layout = method(problem, 0)
        check(problem, layout)
        assert peak_bytes(problem) <= layout.arena_bytes <= sum(each.bytes for each in problem)


@given(items(most=5))
@settings(max_examples=60)
def test_best_fit_is_one_of_the_layouts_that_orders_give(problem: tuple[Item, ...]) -> None:
    """On tiny problems: not below the best of all orders (it would be a wrong validator), not above the worst."""
    heights = [place_in_order(problem, list(order)).arena_bytes for order in permutations(range(len(problem)))]
    assert min(heights) <= METHODS["best-fit"](problem, 0).arena_bytes <= max(heights)


def test_the_validator_finds_an_overlap() -> None:
    problem = (item(512, 0, 2), item(512, 1, 3))
    try:
        check(problem, Layout((0, 256), 768))
    except AssertionError:
        return
    raise RuntimeError("an overlapping layout passed")


def test_neighbours_in_time_share_bytes() -> None:
    """Lifetimes are half open: what ends when something else starts is not there together with it."""
    assert METHODS["best-fit"]((item(512, 0, 2), item(512, 2, 3)), 0).arena_bytes == 512


def test_big_items_do_not_strand_gaps() -> None:
    """Placed as they come, these would strand a gap: they fit 1024 bytes only if the big one goes low."""
    problem = (item(256, 0, 4), item(256, 2, 6), item(768, 4, 8), item(768, 0, 2))
    assert METHODS["best-fit"](problem, 0).arena_bytes == peak_bytes(problem) == 1024
