"""Contiguous layouts of minimalloc's 11 challenging instances: seconds, and height over capacity (1.0000 = packed).

    python tests/bench/bench_minimalloc.py [NODES]

Google/minimalloc's C++ packs each of them in 0.6 to 6.7 s on two cores.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path

from planc.layout import Item, Span
from planc.layout.best_fit import best_fit
from planc.layout.problem import peak_bytes
from planc.layout.search import search

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "minimalloc"
CAPACITY = 1_048_576
NODES = 200_000


def instances(folder: Path = FOLDER) -> dict[str, tuple[Item, ...]]:
    """Name -> items; empty where the folder is not there."""
    found = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open() as file:
            rows = [(int(r["size"]), int(r["lower"]), int(r["upper"])) for r in csv.DictReader(file)]
        found[path.name.split(".")[0]] = tuple(Item((Span(0, size, lower, upper),)) for size, lower, upper in rows)
    return found


def main(nodes: int) -> None:
    problems = instances()
    if not problems:
        print(f"skipped: {FOLDER} is not there")
        return
    print(f"{'instance':8} {'items':>5} {'peak':>7} {'best fit':>9} {'search':>8} {'seconds':>8}")
    packed = 0
    for name, items in problems.items():
        begin = time.perf_counter()
        height = search(items, CAPACITY, nodes).arena_bytes
        seconds = time.perf_counter() - begin
        packed += height <= CAPACITY
        shares = [size / CAPACITY for size in (peak_bytes(items), best_fit(items).arena_bytes, height)]
        print(f"{name:8} {len(items):5} {shares[0]:7.4f} {shares[1]:9.4f} {shares[2]:8.4f} {seconds:8.2f}", flush=True)
    print(f"{packed} of {len(problems)} within the capacity")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else NODES)
