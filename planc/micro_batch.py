"""Configurations of one convolution call: u-cuDNN's dynamic program (Oyama et al., IEEE Cluster 2018).

A call over n samples may run as several launches, each on a micro-batch with its own algorithm: times add up, the
workspace is the largest of theirs. Among all such configurations only the Pareto-optimal ones matter. Instead of
merging
sets of pairs, the program is solved once for every workspace limit that a single launch can set: for a limit L,

    best_L(b) = min( t_L(b), min over m <= b / 2 of t_L(m) + best_L(b - m) ),   t_L(m) = fastest launch of m within L,

which is exact, because both operations are monotone, and runs over all limits at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SingleLaunch:
    """One launch on a micro-batch: algorithm, time in ns, workspace in bytes."""

    algorithm: str
    duration_ns: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class Configuration:
    """How one convolution call runs: `parts` = (algorithm, samples) in order; time adds up, workspace is the
    largest.
    """

    parts: tuple[tuple[str, int], ...]
    workspace_bytes: int
    duration_ns: int


def powers(samples: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the whole range."""
    sizes = [2**k for k in range(samples.bit_length()) if 2**k < samples]
    return (*sizes, samples)


def all_sizes(samples: int) -> tuple[int, ...]:
    return tuple(range(1, samples + 1))


def undivided(samples: int) -> tuple[int, ...]:
    return (samples,)


MICRO_BATCH_SIZES: Mapping[str, Callable[[int], tuple[int, ...]]] = MappingProxyType(
    {"powers": powers, "all": all_sizes, "undivided": undivided}
)
"""Policy -> the micro-batch sizes it tries for a range of samples."""


def pareto_configurations(
    samples: int, sizes: Sequence[int], launches: Callable[[int], Sequence[SingleLaunch]]
) -> tuple[Configuration, ...]:
    """The Pareto-optimal configurations of a call over `samples` samples, fastest first.

    Args:
        sizes: micro-batch sizes that may be used, `samples` among them.
        launches: the launches on offer for a micro-batch of that size.

    Equally good configurations: the one with fewer, larger first launches, then by name of the algorithm.
    """
    offered = {size: sorted(launches(size), key=_rank) for size in sizes}
    limits = np.array(sorted({one.workspace_bytes for found in offered.values() for one in found}), dtype=np.int64)
    if not len(limits):
        return ()
    table = _Table(samples, offered, limits)
    kept: list[Configuration] = []
    for column in range(len(limits)):
        found = table.read(column)
        if found is not None and (not kept or found.duration_ns < kept[-1].duration_ns):
            kept.append(found)
    return tuple(reversed(kept))


def _rank(launch: SingleLaunch) -> tuple[int, int, str]:
    return launch.duration_ns, launch.workspace_bytes, launch.algorithm


_NEVER = np.iinfo(np.int64).max // 4


class _Table:
    """best_L(b) for every b up to `samples` and every limit L, with the size of the first launch that reaches it."""

    def __init__(self, samples: int, offered: Mapping[int, Sequence[SingleLaunch]], limits: npt.NDArray[np.int64]):
        self.samples = samples
        self.offered = offered
        self.limits = limits
        self.single = {size: self._single(found) for size, found in offered.items()}
        self.best = np.full((samples + 1, len(limits)), _NEVER, dtype=np.int64)
        self.first = np.zeros((samples + 1, len(limits)), dtype=np.int64)
        self.best[0] = 0
        for b in range(min(offered), samples + 1):
            self._fill(b)

    def _single(self, found: Sequence[SingleLaunch]) -> npt.NDArray[np.int64]:
        """t_L of one size for every limit L."""
        times = np.full(len(self.limits), _NEVER, dtype=np.int64)
        for launch in reversed(found):  # the fastest last, so that it stays
            times[self.limits >= launch.workspace_bytes] = launch.duration_ns
        return times

    def _fill(self, b: int) -> None:
        for size in sorted((s for s in self.single if s <= b), reverse=True):
            if size != b and 2 * size > b:
                continue  # the order of launches does not matter: the smaller one can come first
            time = self.single[size] + self.best[b - size]
            better = time < self.best[b]
            self.best[b][better] = time[better]
            self.first[b][better] = size

    def read(self, column: int) -> Configuration | None:
        """The configuration behind best_L(samples)."""
        if self.best[self.samples, column] >= _NEVER:
            return None
        limit = int(self.limits[column])
        parts: list[tuple[str, int]] = []
        left, workspace = self.samples, 0
        while left:
            size = int(self.first[left, column])
            launch = next(one for one in self.offered[size] if one.workspace_bytes <= limit)
            parts.append((launch.algorithm, size))
            workspace = max(workspace, launch.workspace_bytes)
            left -= size
        parts.sort(key=lambda part: (-part[1], part[0]))
        return Configuration(tuple(parts), workspace, int(self.best[self.samples, column]))
