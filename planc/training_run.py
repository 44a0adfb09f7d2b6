"""TrainingRun: training steps by a plan, from data to report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import numpy as np

from planc.errors import RunError, UsageError
from planc.graph import Array, Graph
from planc.plan import Plan
from planc.runtime.data import Batch, Dataset, load_npz, random_batch, wanted
from planc.runtime.measure import planned_peak_bytes
from planc.session import Evaluation, Session

Progress = Callable[[int, int, float], None]
"""Called after each step: steps done, steps in all, loss."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to run and how; the fields from `backend` on are Session's.

    data:     an .npz file (see `planc.runtime.data.load_npz`); None draws one random batch and keeps to it.
    steps:    how many; `epochs`: how often through the data instead. One step if neither is given.
    evaluate: run the evaluation program over the data (or the batch) at the end.
    save:     write the trained model there.
    """

    data: Path | None = None
    steps: int | None = None
    epochs: int | None = None
    evaluate: bool = False
    save: Path | None = None
    backend: str = "numpy"
    lr: float | None = None
    seed: int = 0
    init: str | None = None
    poison: bool = False
    chaos: int | None = None
    emulate: bool = False


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run did. Times in ns; `step_ns` is the median of the measured steps.

    `accuracy_ppm`: of the evaluation, where the labels are classes. `process_bytes`: how far the process' memory grew
    at its highest beyond arena and host pool, from when data and model were read (negative where arena and host pool
    were not touched whole); None if not known.
    """

    losses: tuple[float, ...]
    step_ns: int
    predicted_ns: int
    arena_bytes: int
    planned_peak_bytes: int
    measured_peak_bytes: int
    hidden_bytes: int
    process_bytes: int | None
    state_sha256: str
    evaluate_loss: float | None
    accuracy_ppm: int | None


def run(
    plan: Plan, model: str | Path | Graph, options: RunOptions | None = None, *, progress: Progress | None = None
) -> RunReport:
    """Train `model` by `plan`, after a dry run that measures the peak.

    Raises:
        UsageError: an option is wrong, the plan is for another model, or the data does not fit.
        ModelError, PlanFileError: see Session.
        RunError: a step failed, or its loss is not finite.
    """
    options = options or RunOptions()
    dataset = _dataset(plan, options)
    steps = _steps(dataset, options)
    session = Session(
        plan,
        model,
        backend=options.backend,
        seed=options.seed,
        init=options.init,
        poison=options.poison,
        chaos=options.chaos,
        emulate=options.emulate,
        lr=options.lr,
    )
    measured = session.measure(next(dataset.epoch(None)))
    losses, times = _train(session, _batches(dataset, options), steps, progress)
    sha256 = session.state_sha256()
    evaluated = _evaluate(session, dataset) if options.evaluate else (None, None)
    growth = session.memory.growth_bytes()  # before the values are taken out: those copies are not the training's
    _check_finite(session, evaluated[0])
    if options.save is not None:
        session.save(options.save)
    spaces = plan.spaces
    return RunReport(
        losses=losses,
        step_ns=int(median(times)),
        predicted_ns=plan.predicted.makespan_ns,
        arena_bytes=spaces.arena_bytes,
        planned_peak_bytes=planned_peak_bytes(plan),
        measured_peak_bytes=measured.peak_bytes,
        hidden_bytes=measured.hidden_bytes,
        process_bytes=None if growth is None else growth - spaces.arena_bytes - spaces.host_bytes,
        state_sha256=sha256,
        evaluate_loss=evaluated[0],
        accuracy_ppm=evaluated[1],
    )


def _dataset(plan: Plan, options: RunOptions) -> Dataset:
    """The data of the run; without a file, one random batch."""
    inputs, batch = wanted(plan), plan.model.batch
    if options.data is not None:
        return load_npz(options.data, inputs, batch)
    return Dataset(inputs, random_batch(inputs, options.seed), batch, batch)


def _steps(dataset: Dataset, options: RunOptions) -> int:
    if options.steps is not None and options.epochs is not None:
        raise UsageError("run: both a number of steps and of epochs were given.", "Give one of --steps and --epochs.")
    steps = options.steps
    if options.epochs is not None:
        steps = options.epochs * dataset.batches_per_epoch
    steps = 1 if steps is None else steps
    if steps < 1:
        raise UsageError(f"run: {steps} training steps; one or more are wanted.", "Give --steps 1 or more.")
    return steps


def _batches(dataset: Dataset, options: RunOptions) -> Iterator[Batch]:
    """Epoch after epoch, each in an order of its own; a random batch stays as it is."""
    for epoch in count():
        yield from dataset.epoch(None if options.data is None else options.seed + epoch)


def _train(
    session: Session, batches: Iterator[Batch], steps: int, progress: Progress | None
) -> tuple[tuple[float, ...], list[int]]:
    losses: list[float] = []
    times: list[int] = []
    for batch in islice(batches, steps):
        start = perf_counter_ns()
        losses.append(session.step(batch))
        times.append(perf_counter_ns() - start)
        if progress is not None:
            progress(len(losses), steps, losses[-1])
    return tuple(losses), times


def _check_finite(session: Session, evaluate_loss: float | None) -> None:
    """The last update has no loss after it that would show what it did."""
    broken = [name for name, values in session.values().items() if not np.isfinite(values).all()]
    if broken or not (evaluate_loss is None or math.isfinite(evaluate_loss)):
        what = f"{len(broken)} parameters, the first {broken[0]!r}, are" if broken else "the evaluation loss is"
        raise RunError(f"after training step {session.steps}: {what} not finite; nothing was saved.", "Lower --lr.")


def _evaluate(session: Session, dataset: Dataset) -> tuple[float, int | None]:
    """Mean loss over the batches of an epoch, and the share of right answers in parts per million."""
    losses: list[float] = []
    right = answers = 0
    for batch in dataset.epoch(None):
        found = session.evaluate(batch)
        losses.append(found.loss)
        for labels, scores in _answers(session, batch, found):
            right += int((labels == scores).sum())
            answers += labels.size
    return sum(losses) / len(losses), right * 1_000_000 // answers if answers else None


def _answers(session: Session, batch: Batch, found: Evaluation) -> Iterator[tuple[Array, Array]]:
    """Labels and the class with the highest score, for labels that are classes and the output that scores them."""
    for want in session.inputs:
        classes = want.classes
        if classes is None:
            continue
        labels = batch[want.name].reshape(-1)
        for scores in found.outputs.values():
            if scores.ndim > classes.axis and scores.shape[classes.axis] == classes.count:
                chosen = scores.argmax(axis=classes.axis).reshape(-1)
                if chosen.size == labels.size:
                    counted = np.ones(labels.size, np.bool_) if classes.ignored is None else labels != classes.ignored
                    yield labels[counted], chosen[counted]
                    break
