"""How good plans are: the light models at shares of what keeping everything resident needs.

    python tests/bench/bench_quality.py [--policy auto] [--batch 64] [--shares 100 75 70 50 35] [--models resnet50 ...]

Prints a Markdown table: overhead over the ideal step time, gap to the proven bound, arena / peak live bytes, what was
copied and recomputed in shares of the keep-all arena, and seconds for the whole process (start of Python, imports and
the verifier included). Every compilation is a process of its own; one that fails or runs into the limit is a row that
says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from builders import LIGHT, LIGHT_MODELS

SHARES = (100, 75, 70, 50, 35)
LIMIT_SECONDS = 120
PLANC = (sys.executable, "-c", "import sys; from planc.cli import main; sys.exit(main())")
"""The command of this very interpreter, wherever its scripts lie."""


@dataclass(frozen=True, slots=True)
class Row:
    """What `planc compile --json` printed, or why it printed nothing."""

    model: str
    share: int
    seconds: float
    found: dict[str, Any] | None
    problem: str = ""


def compile_one(model: str, share: int, given: argparse.Namespace) -> Row:
    command = [*PLANC, "compile", str(LIGHT / f"{model}.onnx"), "--json"]
    command += ["--batch", str(given.batch), "--budget", f"{share}%", "--profile", given.profile]
    command += ["--policy", given.policy]
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=given.limit, check=False)
    except subprocess.TimeoutExpired:
        return Row(model, share, time.perf_counter() - started, None, f"nothing within {given.limit} s")
    seconds = time.perf_counter() - started
    if done.returncode:
        said = " ".join(done.stderr.split()) or "no message"
        return Row(model, share, seconds, None, f"exit {done.returncode}: {said[:160]}")
    try:
        return Row(model, share, seconds, json.loads(done.stdout))
    except json.JSONDecodeError:
        return Row(model, share, seconds, None, f"stdout is no JSON, it begins {done.stdout[:40]!r}")


def cells(row: Row) -> list[str]:
    name, share, seconds = row.model.removeprefix("light_"), f"{row.share} %", f"{row.seconds:.1f}"
    found = row.found
    if found is None:
        return [name, share, *["-"] * 8, seconds, row.problem.replace("|", "/")]
    gap = "-" if found["gap_ppm"] is None else f"{found['gap_ppm'] / 1e4:.2f} %"
    return [
        name,
        share,
        f"{100 * (found['makespan_ns'] / found['ideal_ns'] - 1):+.2f} %",
        gap,
        f"{found['arena_bytes'] / found['budget_bytes']:.3f}",
        f"{found['arena_bytes'] / found['peak_bytes']:.4f}",
        f"{found['offloaded_bytes'] / found['keep_all_bytes']:.2f}",
        f"{found['recomputed_bytes'] / found['keep_all_bytes']:.2f}",
        str(found["sub_batches"]),
        str(found["steps"]),
        seconds,
        "",
    ]


HEADER = (
    *("model", "budget", "overhead", "gap", "arena / budget", "arena / peak", "copied", "recomputed", "sub-batches"),
    *("steps", "seconds", "note"),
)


def print_table(rows: Sequence[Row]) -> None:
    print("|", " | ".join(HEADER), "|")
    print("|---|" + "---:|" * (len(HEADER) - 2) + "---|")
    for row in rows:
        print("|", " | ".join(cells(row)), "|")
    made = [row for row in rows if row.found is not None]
    if not made:
        return
    proven = [row.found["gap_ppm"] for row in made if row.found and row.found["gap_ppm"] is not None]
    print(f"\n{len(made)} of {len(rows)} plans made, {len(proven)} with a bound;", end=" ")
    if proven:
        print(f"gap at most 1 %: {sum(gap <= 10_000 for gap in proven)}, largest {max(proven) / 1e4:.2f} %;", end=" ")
    print(
        f"seconds: median {sorted(row.seconds for row in made)[len(made) // 2]:.1f}, "
        f"largest {max(row.seconds for row in made):.1f}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--profile", default="v100-16gb")
    parser.add_argument("--limit", type=int, default=LIMIT_SECONDS, help="seconds for one compilation")
    parser.add_argument("--shares", type=int, nargs="*", default=SHARES)
    parser.add_argument("--models", nargs="*", default=[name.removeprefix("light_") for name in LIGHT_MODELS])
    given = parser.parse_args()
    rows = []
    for model in given.models:
        for share in given.shares:
            rows.append(compile_one(f"light_{model.removeprefix('light_')}", share, given))
            print(*cells(rows[-1]), file=sys.stderr, flush=True)
    print(f"\n### Plans: policy {given.policy}, batch {given.batch}, profile {given.profile}\n")
    print_table(rows)


if __name__ == "__main__":
    main()
