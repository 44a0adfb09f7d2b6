"""What was decided, as rows of the plan: the choice, the runner-up, and what it would cost."""

from __future__ import annotations

from planc.assembly import Part
from planc.micro_batch import Configuration
from planc.passes.base import gaps
from planc.plan import Decision


def decision_rows(part: Part) -> tuple[Decision, ...]:
    """One row for every activation that could leave the device and every convolution call of the training program."""
    return (*_activations(part), *_convolutions(part))


def _activations(part: Part) -> list[Decision]:
    problem, graph = part.problem, part.problem.tasks.graph
    away = {offload.piece for offload in part.decisions.offloads if offload.leaves >= 0}
    rows = [
        Decision("activation", use.piece, graph.tensors[use.tensor].label, "recompute", "keep", None)
        for task in problem.tasks.tasks
        if task.again
        for use in task.writes
    ]
    for piece, _, _ in gaps(problem):
        copies = problem.costs.d2h_ns(piece.bytes) + problem.costs.h2d_ns(piece.bytes)
        choice, other, cost = ("offload", "keep", None) if piece.index in away else ("keep", "offload", copies)
        label = graph.tensors[piece.tensors[-1]].label
        rows.append(Decision("activation", piece.index, label, choice, other, cost))
    return rows


def _convolutions(part: Part) -> list[Decision]:
    problem = part.problem
    rows = []
    for task, chosen in zip(problem.tasks.tasks, part.decisions.configurations, strict=True):
        if chosen is None:
            continue
        options = problem.costs.configurations[task.index]
        others = [c for c in options if c.parts != chosen.parts]
        runner = min(others, key=lambda c: (c.duration_ns, c.workspace_bytes), default=None)
        label = problem.tasks.launch(task).label
        rows.append(
            Decision(
                "convolution",
                task.index,
                label,
                configuration_text(chosen),
                None if runner is None else configuration_text(runner),
                None if runner is None else runner.duration_ns - chosen.duration_ns,
            )
        )
    return rows


def configuration_text(configuration: Configuration) -> str:
    """`WINOGRAD x32, GEMM x4 (1048576 B)`."""
    parts = ", ".join(f"{algorithm} x{samples}" for algorithm, samples in configuration.parts)
    return f"{parts} ({configuration.workspace_bytes} B)"
