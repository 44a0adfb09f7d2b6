"""Micro-batches, really run: u-cuDNN's WR configurations against undivided launches under the same workspace limit.

    OPENBLAS_NUM_THREADS=1 python tests/bench/bench_micro_batch.py [--batch 64] [--rounds 3] [--measured]

On planc's NumPy kernels, one BLAS thread. For every layer, call and limit, from one run in which all alternatives take
turns; a time is the shortest of its rounds, in CPU time, which other work on the machine disturbs least:

- `undivided`: the fastest launch of the whole batch within the limit, by measurement
- `wr`:        what `ucudnn-wr` takes, by the coefficients of the profile `cpu`
- `ratio`:     undivided / wr, above 1 where micro-batches are faster
- `measured`:  with --measured, what the same dynamic program takes given measured times in place of the coefficients,
               and undivided / measured: what better coefficients could give. Three times as slow
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from time import thread_time_ns

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from calibrate_cpu import LAUNCHES, Parts, prepare, runner

from planc.conv_algorithms import FAMILIES, ConvCall
from planc.costs import convolution_options
from planc.micro_batch import Configuration, SingleLaunch, pareto_configurations, powers
from planc.profile import Profile, load_profile

LIMITS_MIB = (8, 16, 64)
LAYERS = {
    # channels, edge, filters, taps, stride, pad, groups
    "AlexNet conv2": (64, 27, 192, 5, 1, 2, 1),
    "AlexNet conv3": (192, 13, 384, 3, 1, 1, 1),
    "AlexNet conv4": (384, 13, 256, 3, 1, 1, 1),
    "AlexNet conv5": (256, 13, 256, 3, 1, 1, 1),
    "Inception 3b 5x5": (32, 28, 96, 5, 1, 2, 1),
    "Inception 4e 5x5": (32, 14, 128, 5, 1, 2, 1),
}
"""AlexNet in one column (Krizhevsky, arXiv:1404.5997, 2014); GoogLeNet (Szegedy et al., CVPR 2015)."""


class Contest:
    """Configurations of one call that take turns; `best_ns` is each one's shortest time."""

    def __init__(self, op: str, shape: tuple[int, ...]) -> None:
        self.launch, self.call = prepare(op, shape)
        self.best_ns: dict[Parts, int] = {}
        self._run: dict[Parts, Callable[[], None]] = {}

    def enter(self, parts: Parts) -> None:
        if parts not in self._run:
            self._run[parts] = runner(self.launch, parts, workspace_bytes(self.call, parts))

    def play(self, rounds: int) -> None:
        for number in range(rounds):
            # every other round backwards: what an alternative leaves in the caches favours no neighbour
            for parts in list(self._run)[:: -1 if number % 2 else 1]:
                started = thread_time_ns()
                self._run[parts]()
                taken = thread_time_ns() - started
                self.best_ns[parts] = min(taken, self.best_ns.get(parts, taken))


def workspace_bytes(call: ConvCall, parts: Parts) -> int:
    family = FAMILIES["numpy"]
    return max(family[name].workspace_bytes(call.with_samples(samples)) for name, samples in parts)


def undivided(call: ConvCall, limit_bytes: int) -> list[Parts]:
    """Every algorithm that can do the whole call in one launch within the limit."""
    return [
        ((name, call.n),)
        for name, algorithm in FAMILIES["numpy"].items()
        if algorithm.supports(call) and algorithm.workspace_bytes(call) <= limit_bytes
    ]


def within(options: Sequence[Configuration], limit_bytes: int) -> Parts:
    """The fastest that keeps to the limit; u-cuDNN's policy WR."""
    return next(option for option in options if option.workspace_bytes <= limit_bytes).parts


def measured_options(op: str, shape: tuple[int, ...], limit_bytes: int, rounds: int) -> tuple[Configuration, ...]:
    """The dynamic program over times taken for every algorithm and micro-batch size, as u-cuDNN does it."""
    offered: dict[int, list[SingleLaunch]] = {}
    for size in powers(shape[0]):
        contest = Contest(op, (size, *shape[1:]))
        for parts in undivided(contest.call, limit_bytes):
            contest.enter(parts)
        contest.play(rounds + 1)  # the first, cold one never counts
        offered[size] = [
            SingleLaunch(parts[0][0], taken, workspace_bytes(contest.call, parts))
            for parts, taken in contest.best_ns.items()
        ]
    return pareto_configurations(shape[0], powers(shape[0]), lambda size: offered[size])


@dataclass(frozen=True, slots=True)
class Row:
    layer: str
    call: str
    limit_mib: int
    choices: tuple[Parts, ...]
    """What is undivided, what wr takes, and what measured times would have it take if these were asked for."""
    taken_ns: tuple[int, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """How many times faster than undivided the other choices are."""
        return tuple(self.taken_ns[0] / taken for taken in self.taken_ns[1:])


def compare(layer: str, call: str, given: argparse.Namespace, profile: Profile) -> list[Row]:
    op, shape = LAUNCHES[call], (given.batch, *LAYERS[layer])
    limits = {mib: mib * 2**20 for mib in LIMITS_MIB}
    contest = Contest(op, shape)
    options = [convolution_options(contest.call, profile, layer, "powers")]
    if given.measured:
        options.append(measured_options(op, shape, max(limits.values()), given.rounds))
    for limit in limits.values():
        for parts in (*undivided(contest.call, limit), *(within(offered, limit) for offered in options)):
            contest.enter(parts)
    contest.play(given.rounds + 1)  # the first, cold one never counts
    rows = []
    for mib, limit in limits.items():
        single = min(undivided(contest.call, limit), key=contest.best_ns.__getitem__)
        choices = (single, *(within(offered, limit) for offered in options))
        rows.append(Row(layer, call, mib, choices, tuple(contest.best_ns[parts] for parts in choices)))
    return rows


def spelled(parts: Parts) -> str:
    """`32 fft + 2 x 16 im2col_gemm`."""
    counts: dict[tuple[str, int], int] = {}
    for part in parts:
        counts[part] = counts.get(part, 0) + 1
    return " + ".join(f"{count} x {n} {name}" if count > 1 else f"{n} {name}" for (name, n), count in counts.items())


def mean(ratios: Sequence[float]) -> float:
    """Geometric mean."""
    return exp(sum(map(log, ratios)) / len(ratios))


def print_rows(rows: Sequence[Row]) -> None:
    others = ("wr", "measured")[: len(rows[0].ratios)]
    print("| layer | call | MiB | undivided |", " | ".join(f"{name} | ratio" for name in others), "|")
    print("|---|---|---:|---|" + "---|---:|" * len(others))
    for row in rows:
        pairs = (f"{spelled(parts)} | {ratio:.2f}" for parts, ratio in zip(row.choices[1:], row.ratios, strict=True))
        print(f"| {row.layer} | {row.call} | {row.limit_mib} | {spelled(row.choices[0])} |", " | ".join(pairs), "|")
    print("\n| MiB | choice | mean ratio | least | largest | ratio of the sums |\n|---:|---|---:|---:|---:|---:|")
    for mib in LIMITS_MIB:
        own = [row for row in rows if row.limit_mib == mib]
        for number, name in enumerate(others):
            ratios = [row.ratios[number] for row in own]
            whole = sum(row.taken_ns[0] for row in own) / sum(row.taken_ns[number + 1] for row in own)
            print(f"| {mib} | {name} | {mean(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} | {whole:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measured", action="store_true")
    given = parser.parse_args()
    profile = load_profile("cpu")
    rows = []
    for layer in LAYERS:
        for call in LAUNCHES:
            rows += compare(layer, call, given, profile)
            done = ", ".join(f"{row.limit_mib} MiB {row.ratios[0]:.2f}" for row in rows[-len(LIMITS_MIB) :])
            print(f"{layer} {call}: {done}", file=sys.stderr)
    print(f"\n### Micro-batches, batch {given.batch}: time undivided / time in micro-batches\n")
    print_rows(rows)


if __name__ == "__main__":
    main()
