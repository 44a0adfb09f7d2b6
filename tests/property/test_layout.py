"""Layouts: no two items that are wanted at once share bytes, and none is worse than stacking them all."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from planc.layout import METHODS, Item, Layout, peak_bytes
from planc.layout.best_fit import place_in_order


@st.composite
def items(draw: st.DrawFn, most: int = 40) -> tuple[Item, ...]:
    found = []
    for _ in range(draw(st.integers(0, most))):
        start = draw(st.integers(0, 30))
        found.append(Item(draw(st.integers(1, 64)) * 256, start, start + draw(st.integers(1, 12))))
    return tuple(found)


def check(problem: tuple[Item, ...], layout: Layout) -> None:
    """An independent validator: it shares only the data types with the methods."""
    assert len(layout.offsets) == len(problem)
    spans = list(zip(problem, layout.offsets, strict=True))
    for number, (item, offset) in enumerate(spans):
        assert 0 <= offset <= layout.arena_bytes - item.bytes
        assert offset % 256 == 0
        for other, place in spans[:number]:
            together = item.start < other.end and other.start < item.end
            assert not (together and offset < place + other.bytes and place < offset + item.bytes)
    assert layout.arena_bytes == max((o + i.bytes for i, o in spans), default=0)


@given(items())
def test_every_method_gives_a_valid_layout(problem: tuple[Item, ...]) -> None:
    for method in METHODS.values():
        layout = method(problem)
        check(problem, layout)
        assert peak_bytes(problem) <= layout.arena_bytes <= sum(item.bytes for item in problem)


@given(items(most=5))
@settings(max_examples=60)
def test_best_fit_is_one_of_the_layouts_that_orders_give(problem: tuple[Item, ...]) -> None:
    """On tiny problems: not below the best of all orders (it would be a wrong validator), not above the worst."""
    heights = [place_in_order(problem, list(order)).arena_bytes for order in permutations(range(len(problem)))]
    assert min(heights) <= METHODS["best-fit"](problem).arena_bytes <= max(heights)


def test_the_validator_finds_an_overlap() -> None:
    problem = (Item(512, 0, 2), Item(512, 1, 3))
    try:
        check(problem, Layout((0, 256), 768))
    except AssertionError:
        return
    raise RuntimeError("an overlapping layout passed")


def test_neighbours_in_time_share_bytes() -> None:
    """Lifetimes are half open: what ends when something else starts is not there together with it."""
    assert METHODS["best-fit"]((Item(512, 0, 2), Item(512, 2, 3))).arena_bytes == 512


def test_big_items_do_not_strand_gaps() -> None:
    """The worked example of a gap that first-come placement would strand: 3 items fit 1024 only if the big one goes low."""
    problem = (Item(256, 0, 4), Item(256, 2, 6), Item(768, 4, 8), Item(768, 0, 2))
    assert METHODS["best-fit"](problem).arena_bytes == peak_bytes(problem) == 1024
