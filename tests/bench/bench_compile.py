"""Compile time against the number of steps, stage by stage.

    python tests/bench/bench_compile.py [--policy auto] [--budget 82%] [--largest 2000] [--profile-stage layout]

For every family of models a table: steps, total seconds, each stage's share of the total, and the exponent with which
it grows (least squares of log seconds over log steps, sizes from 300 steps on). Every compilation is a process of its
own. `--profile-stage` runs the largest chain once under cProfile and lists where that stage's time goes.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import pstats
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from builders import CHAINS, LIGHT, LIGHT_MODELS

import planc
from planc import candidates, finishing, pipeline
from planc.errors import PlancError
from planc.onnx_loader import load_model
from planc.plan_json import write_plan

SIZES = {"plain": (50, 200, 500, 1000, 2000), "residual": (50, 200, 500, 1000), "gpt": (3, 12, 48)}
"""Blocks; 2,000 plain ones are 12,000 steps, 48 GPT-like ones the depth of GPT-2 XL."""

BATCH, PROFILE = 64, "v100-16gb"
LEAST_STEPS = 300
"""Below this the fixed part of a compilation hides how it grows."""

STAGES = (
    *("load", "training graph", "tasks", "costs", "bounds", "passes", "schedule", "layout", "assembly", "simulate"),
    *("verify", "write"),
)
_TIMED = (
    (pipeline, "make_training_graph", "training graph"),
    (pipeline, "make_evaluation_graph", "training graph"),
    (pipeline, "make_tasks", "tasks"),
    (pipeline, "make_costs", "costs"),
    (candidates, "relaxed_bound_ns", "bounds"),
    (pipeline, "apply_passes", "passes"),
    (pipeline, "with_rebuilds", "passes"),
    (pipeline, "make_schedule", "schedule"),
    (pipeline, "place", "layout"),
    (pipeline, "assemble", "assembly"),
    (finishing, "simulate", "simulate"),
    (candidates, "verify", "verify"),
)
"""(module, function as that module calls it, stage)."""


class StageClock:
    """Seconds spent in each stage while planc compiles; what none of them accounts for is `rest`."""

    def __init__(self, profiled: str | None = None) -> None:
        self.seconds: dict[str, float] = dict.fromkeys((*STAGES, "rest"), 0.0)
        self.profiled = profiled
        self.profiler = cProfile.Profile()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        if name == self.profiled:
            self.profiler.enable()
        try:
            yield
        finally:
            if name == self.profiled:
                self.profiler.disable()
            self.seconds[name] += time.perf_counter() - started

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """While this lasts, the stages of planc's flow are timed."""
        with contextlib.ExitStack() as stack:
            for module, name, stage in _TIMED:
                function = getattr(module, name)
                stack.callback(setattr, module, name, function)
                setattr(module, name, self._timed(function, stage))
            yield

    def _timed(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.stage(stage):
                return function(*arguments, **named)

        return timed


@dataclass(frozen=True, slots=True)
class Case:
    """One compilation; `blocks` None: a light model."""

    family: str
    blocks: int | None
    policy: str
    budget: str

    @property
    def title(self) -> str:
        return self.family if self.blocks is None else f"{self.family} {self.blocks}"


@dataclass(frozen=True, slots=True)
class Timing:
    title: str
    steps: int
    seconds: dict[str, float]
    problem: str = ""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def measure(case: Case, profiled: str | None = None) -> Timing:
    """Compile once, from the model file to the plan file."""
    clock = StageClock(profiled)
    with TemporaryDirectory() as folder:
        model = LIGHT / f"{case.family}.onnx"
        if case.blocks is not None:
            model = Path(folder) / "model.onnx"
            onnx.save(CHAINS[case.family](case.blocks), model)
        started = time.perf_counter()
        with clock.attached():
            with clock.stage("load"):
                graph = load_model(model, batch=BATCH)
            try:
                plan = planc.compile(graph, budget=case.budget, profile=PROFILE, policy=case.policy)
            except PlancError as error:
                return Timing(case.title, 0, clock.seconds, str(error))
            with clock.stage("write"):
                write_plan(Path(folder) / "plan.json", plan)
        clock.seconds["rest"] = time.perf_counter() - started - sum(clock.seconds.values())
    if profiled:
        pstats.Stats(clock.profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    return Timing(case.title, len(plan.train.steps), clock.seconds)


def measure_all(cases: Sequence[Case]) -> list[Timing]:
    """One process a case, one after the other."""
    found = []
    for case in cases:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            found.append(process.submit(measure, case).result())
        outcome = found[-1].problem or f"{found[-1].steps} steps, {found[-1].total:.2f} s"
        print(f"{case.title}: {outcome}", file=sys.stderr)
    return found


def exponent(timings: Sequence[Timing], stage: str | None) -> float | None:
    """The power of the number of steps with which a stage (None: the whole) grows."""
    points = [(t.steps, t.total if stage is None else t.seconds[stage]) for t in timings if t.steps >= LEAST_STEPS]
    points = [(steps, seconds) for steps, seconds in points if seconds > 1e-3]
    if len({steps for steps, _ in points}) < 2:
        return None
    logs = np.log(np.array(points))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def print_table(title: str, timings: Sequence[Timing], *, grows: bool) -> None:
    """A Markdown table. `grows`: the cases are sizes of one model, so that an exponent means something."""
    columns = [stage for stage in (*STAGES, "rest") if any(t.seconds[stage] for t in timings)]
    print(f"\n### {title}\n")
    print("| model | steps | seconds | us a step |", " | ".join(columns), "|")
    print("|---|---:|---:|---:|" + "---:|" * len(columns))
    for timing in timings:
        if timing.problem:
            print(f"| {timing.title} | {timing.problem} |")
            continue
        shares = (f"{timing.seconds[stage] / timing.total:.0%}" for stage in columns)
        each = f"{timing.total / timing.steps * 1e6:.0f}"
        print(f"| {timing.title} | {timing.steps:,} | {timing.total:.2f} | {each} |", " | ".join(shares), "|")
    if grows:
        powers = (exponent(timings, stage) for stage in (None, *columns))
        whole, *own = ("-" if power is None else f"{power:.2f}" for power in powers)
        print(f"| exponent | | {whole} | |", " | ".join(own), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--budget", default="82%")
    parser.add_argument("--largest", type=int, default=2000, help="blocks; larger chains are left out")
    parser.add_argument("--families", nargs="*", default=[*SIZES, "light"])
    parser.add_argument("--profile-stage", choices=STAGES)
    given = parser.parse_args()
    for family in given.families:
        if family == "light":
            cases = [Case(name, None, given.policy, given.budget) for name in LIGHT_MODELS]
        else:
            sizes = [blocks for blocks in SIZES[family] if blocks <= given.largest]
            cases = [Case(family, blocks, given.policy, given.budget) for blocks in sizes]
        if given.profile_stage:
            measure(cases[-1], given.profile_stage)
            continue
        title = f"{family}, policy {given.policy}, budget {given.budget}"
        print_table(title, measure_all(cases), grows=family != "light")


if __name__ == "__main__":
    main()
