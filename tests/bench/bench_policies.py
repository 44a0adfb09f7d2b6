"""auto against every named policy: nine light models at six shares of what keeping everything resident needs.

    python tests/bench/bench_policies.py [--batch 64] [--shares 100 85 75 60 50 35] [--models resnet50 ...] [--jobs 2]

Prints a Markdown table and the rules broken, and exits with 1 if there are any:

- no named policy is faster than `auto`;
- peak <= arena <= budget, and every plan verifies;
- no plan of a policy inside the bound's class is faster than `bound_ns` says;
- time falls as the budget grows, but for the larger budget's gap: independent compilations stop within it.

`arena / peak` is auto's own; `64 KiB` and `2 MiB` are the same schedule's in a paged arena of such pages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from builders import LIGHT, LIGHT_MODELS

from planc.candidates import compile_workload
from planc.choice import choose
from planc.collection import no_cyclic_collection
from planc.compare import policies_to_compare
from planc.errors import InfeasibleError
from planc.finishing import finish
from planc.onnx_loader import load_model
from planc.options import Options, budget_bytes
from planc.parallel import run_all
from planc.pipeline import Draft, Workload
from planc.placement import place
from planc.plan import Plan
from planc.policies import POLICIES
from planc.profile import load_profile
from planc.training_graph import TrainingOptions
from planc.verify import verify
from planc.yardsticks import measure_yardsticks

SHARES = (100, 85, 75, 60, 50, 35)
PAGES = (2**16, 2**21)


@dataclass(frozen=True, slots=True)
class Call:
    model: str
    share: int
    batch: int
    profile: str


@dataclass(frozen=True, slots=True)
class Row:
    """auto's plan in figures (0 makespan: none), the fastest named policy, and the rules broken."""

    call: Call
    makespan_ns: int = 0
    ideal_ns: int = 0
    gap_ppm: int | None = None
    rival: str = "-"
    rival_ns: int | None = None
    arena_ratio: float = 0.0
    paged_ratios: tuple[float, ...] = ()
    broken: tuple[str, ...] = ()


def policies_row(call: Call) -> Row:
    path = LIGHT / f"light_{call.model}.onnx"
    profile = load_profile(call.profile)
    work = Workload.of(load_model(path, batch=call.batch), TrainingOptions(), profile)
    yardsticks = measure_yardsticks(work)
    budget = budget_bytes(f"{call.share}%", profile, yardsticks.keep_all_bytes)
    named: dict[str, Plan] = {}
    for policy in policies_to_compare(None, workspace=False):
        if policy != "auto":
            try:
                named[policy] = compile_workload(work, Options(budget=str(budget), policy=policy))
            except InfeasibleError:
                continue
    try:
        with no_cyclic_collection():
            found, bound_ns = choose(work, Options(budget=str(budget)), budget, yardsticks, [])
            plan = finish(work, found, budget, {}, yardsticks, bound_ns)
    except InfeasibleError:
        return Row(call, broken=tuple(f"{name} fits, auto does not" for name in named))
    times = {name: made.predicted.makespan_ns for name, made in named.items()}
    rival = min(times, key=times.__getitem__, default="-")
    peak = found.train.placement.peak_bytes
    return Row(
        call,
        plan.predicted.makespan_ns,
        yardsticks.ideal_ns,
        plan.predicted.gap_ppm,
        rival,
        times.get(rival),
        found.train.placement.arena_bytes / peak,
        tuple(paged_ratio(found, page) for page in PAGES),
        tuple(rules_broken(plan, named, budget, bound_ns)),
    )


def paged_ratio(found: Draft, page_bytes: int) -> float:
    """Arena / peak of the schedule in pages of that size."""
    problem = found.train.problem
    problem = replace(problem, profile=replace(problem.profile, page_bytes=page_bytes))
    placement = place(problem, found.train.schedule, 0, "paged")
    return placement.arena_bytes / placement.peak_bytes


def rules_broken(plan: Plan, named: dict[str, Plan], budget: int, bound_ns: int | None) -> list[str]:
    broken = []
    for name, made in {"auto": plan, **named}.items():
        if made.predicted.makespan_ns < plan.predicted.makespan_ns:
            broken.append(f"{name} is faster than auto")
        if not made.predicted.peak_bytes <= made.spaces.arena_bytes <= budget:
            broken.append(f"{name}: not peak <= arena <= budget")
        broken += [f"{name}: {violation.code}" for violation in verify(made)]
        beyond = name != "auto" and any(candidate.beyond_class for candidate in POLICIES[name].candidates)
        if bound_ns is not None and not beyond and made.predicted.makespan_ns < bound_ns:
            broken.append(f"{name}: faster than the bound")
    return broken


def rises(rows: Sequence[Row]) -> list[str]:
    """Where a model's time with the larger of two neighbouring budgets is longer by more than that plan's gap."""
    made = sorted((row for row in rows if row.makespan_ns), key=lambda row: (row.call.model, -row.call.share))
    found = []
    for large, small in pairwise(made):
        allowed = small.makespan_ns * (10**6 + (large.gap_ppm or 0))
        if large.call.model == small.call.model and large.makespan_ns * 10**6 > allowed:
            found.append(f"{large.call.model}: {large.call.share} % takes longer than {small.call.share} %")
    return found


def line(row: Row) -> str:
    cells = [row.call.model, f"{row.call.share} %"]
    if row.makespan_ns:
        gap = "-" if row.gap_ppm is None else f"{row.gap_ppm / 1e4:.2f} %"
        rival = "-" if row.rival_ns is None else f"{row.rival} {row.rival_ns / row.makespan_ns:.3f}"
        cells += [f"{100 * (row.makespan_ns / row.ideal_ns - 1):+.2f} %", gap, rival]
        cells += [f"{ratio:.4f}" for ratio in (row.arena_ratio, *row.paged_ratios)]
    else:
        cells += ["no plan", *["-"] * 5]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--profile", default="v100-16gb")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--shares", type=int, nargs="*", default=SHARES)
    parser.add_argument("--models", nargs="*", default=[name.removeprefix("light_") for name in LIGHT_MODELS])
    given = parser.parse_args()
    calls = [Call(model, share, given.batch, given.profile) for model in given.models for share in given.shares]
    rows = run_all(policies_row, calls, given.jobs)
    print("| model | budget | overhead | gap | fastest other, times auto | arena / peak | 64 KiB | 2 MiB |")
    print("|---|---:|---:|---:|---|---:|---:|---:|")
    print(*map(line, rows), sep="\n")
    broken = [f"{row.call.model} {row.call.share} %: {text}" for row in rows for text in row.broken] + rises(rows)
    print(f"\n{sum(row.makespan_ns > 0 for row in rows)} of {len(rows)} plans made; rules broken: {len(broken)}.")
    print(*(f"- {text}" for text in broken), sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
