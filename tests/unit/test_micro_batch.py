"""The dynamic program over micro-batches against its published check value and against exhaustive partition."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from planc.micro_batch import SingleLaunch, all_sizes, pareto_configurations, powers

MIB = 2**20


def two_algorithms(samples: int) -> list[SingleLaunch]:
    """Algorithm A: time 0.1 b + 0.01, workspace b MiB; algorithm B: time 10 b + 0.1, workspace b bytes (in 1/100)."""
    return [
        SingleLaunch("A", 10 * samples + 1, samples * MIB),
        SingleLaunch("B", 1000 * samples + 10, samples),
    ]


def test_check_value_of_the_design() -> None:
    """256 samples, limit 64 MiB exclusive: 15 members, the first and last known."""

    def below_limit(samples: int) -> list[SingleLaunch]:
        return [one for one in two_algorithms(samples) if one.workspace_bytes < 64 * MIB]

    found = pareto_configurations(256, powers(256), below_limit)
    assert len(found) == 15
    shown = [(c.duration_ns, c.workspace_bytes, len(c.parts)) for c in found]
    assert shown[:3] == [(2568, 33_554_432, 8), (2576, 16_777_216, 16), (2592, 8_388_608, 32)]
    assert shown[-1] == (258_560, 1, 256)


def partitions(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    if total == 0:
        yield ()
    for size in range(min(total, largest), 0, -1):
        for rest in partitions(total - size, size):
            yield (size, *rest)


def exhaustive(samples: int, offers: dict[int, list[SingleLaunch]]) -> set[tuple[int, int]]:
    """Every multiset of sizes with every choice of launch, then the Pareto front of (time, workspace)."""
    pairs = set[tuple[int, int]]()
    for sizes in partitions(samples, samples):
        front = {(0, 0)}
        for size in sizes:
            front = {
                (time + one.duration_ns, max(workspace, one.workspace_bytes))
                for time, workspace in front
                for one in offers[size]
            }
        pairs |= front
    return {p for p in pairs if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in pairs)}


@given(st.integers(1, 12), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_all_sizes_against_exhaustive_partition(samples: int, random: object) -> None:
    draw = random.randint  # type: ignore[attr-defined]
    offers = {
        size: [SingleLaunch(name, draw(1, 60), draw(0, 12)) for name in "AB"] + [SingleLaunch("Z", draw(50, 99), 0)]
        for size in range(1, samples + 1)
    }
    found = pareto_configurations(samples, all_sizes(samples), offers.__getitem__)
    assert {(c.duration_ns, c.workspace_bytes) for c in found} == exhaustive(samples, offers)
    for c in found:  # each says what it is: its parts add up to the range, the time and the workspace
        assert sum(size for _, size in c.parts) == samples
        chosen = [next(o for o in offers[size] if o.algorithm == name) for name, size in c.parts]
        assert sum(o.duration_ns for o in chosen) == c.duration_ns
        assert max(o.workspace_bytes for o in chosen) == c.workspace_bytes


def test_powers_end_in_the_range_itself() -> None:
    assert powers(1) == (1,)
    assert powers(6) == (1, 2, 4, 6)
    assert powers(8) == (1, 2, 4, 8)
