"""A sweep as a picture: step time against memory, drawn by matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from planc.errors import UsageError

Curve = Sequence[tuple[int, int]]
"""(budget in bytes, step time in ns), budgets from small to large."""


def require_matplotlib() -> None:
    """Find out before the work, not after it, whether there is something to draw with.

    Raises:
        UsageError: matplotlib cannot be imported.
    """
    try:
        import matplotlib.figure  # noqa: F401 - whether it is there
    except ImportError as error:
        raise UsageError(
            f"--svg: matplotlib, which draws it, cannot be imported ({error}).",
            "Install it: pip install 'planc[plot]'.",
        ) from error


def write_svg(path: Path, title: str, curves: Mapping[str, Curve]) -> None:
    """Draw the curves, each with its name, as steps; the same curves give the same bytes.

    Raises:
        UsageError: the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "planc", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.add_subplot()
        for name, curve in curves.items():
            sizes, times = [size / 2**30 for size, _ in curve], [ns / 1e6 for _, ns in curve]
            axes.step(sizes, times, where="post", marker="o", label=name)
        axes.set(title=title, xlabel="budget [GiB]", ylabel="predicted step time [ms]")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if curves:
            axes.legend()
        try:
            figure.savefig(path, format="svg", metadata={"Date": None})
        except OSError as error:
            raise UsageError(f"--svg {str(path)!r}: cannot be written ({error.strerror}).") from error
