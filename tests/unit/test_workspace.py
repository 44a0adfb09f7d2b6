"""u-cuDNN's workspace division against trying every combination."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from planc.micro_batch import Configuration
from planc.passes.workspace import divide


def options(draw: st.DrawFn) -> tuple[Configuration, ...]:
    made = [
        Configuration(((f"a{i}", 1),), draw(st.integers(0, 20)), draw(st.integers(1, 50)))
        for i in range(draw(st.integers(1, 4)))
    ]
    return (*made, Configuration((("zero", 1),), 0, draw(st.integers(40, 90))))


@st.composite
def calls(draw: st.DrawFn) -> tuple[tuple[Configuration, ...], ...]:
    return tuple(options(draw) for _ in range(draw(st.integers(1, 5))))


@given(calls(), st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_division_is_the_best_of_all_combinations(problem: tuple[tuple[Configuration, ...], ...], total: int) -> None:
    picked = divide(problem, total)
    assert all(one in choice for one, choice in zip(picked, problem, strict=True))
    assert sum(c.workspace_bytes for c in picked) <= total
    best = min(
        sum(c.duration_ns for c in combination)
        for combination in product(*problem)
        if sum(c.workspace_bytes for c in combination) <= total
    )
    assert sum(c.duration_ns for c in picked) == best


def test_a_total_nobody_can_keep_gives_the_smallest_workspaces() -> None:
    one = (Configuration((("a", 1),), 7, 1), Configuration((("b", 1),), 5, 9))
    assert [c.workspace_bytes for c in divide([one, one], 3)] == [5, 5]
