"""Batches: what goes into a program, from an .npz file or drawn at random."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from planc.errors import UsageError
from planc.plan import Plan, Port, StepKind
from planc.runtime.launch import Array

Batch = Mapping[str, Array]
"""Name of an input or of the labels -> array of the whole batch."""

_PIECE = 1 << 15


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes that labels may name: 0 to count - 1, and `ignored` (None: no such label).

    `axis`: the axis of the scores that has one of them a class.
    """

    axis: int
    count: int
    ignored: int | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a plan wants of one input (or of the labels): the whole batch's shape, `rows` rows of axis 0 a sample.

    `classes`: what integers choose among; `binary`: targets between 0 (no) and 1 (yes).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    rows: int
    classes: Classes | None
    binary: bool = False

    def check_dtype(self, values: Array, what: str) -> None:
        """Refuse an array whose type does not convert to the plan's without changing its meaning."""
        if not np.can_cast(values.dtype, self.dtype, "same_kind"):
            raise UsageError(
                f"{what}: {self.name!r} has type {values.dtype}; the plan wants {self.dtype}.",
                f"Convert it with .astype({self.dtype!r}).",
            )

    def check_labels(self, values: Array, what: str) -> None:
        """Refuse labels that name no class, and targets that no probability can reach."""
        if self.binary and not np.array_equal(values, np.clip(values.astype(np.float64, copy=False), 0, 1)):
            raise UsageError(f"{what}: {self.name!r} has targets outside 0 to 1.", "0 stands for no, 1 for yes.")
        if self.classes is None or not values.size:
            return
        labels = values.astype(np.int64, copy=False)
        bad = (labels < 0) | (labels >= self.classes.count)
        if self.classes.ignored is not None:
            bad &= labels != self.classes.ignored
        if bad.any():
            raise UsageError(
                f"{what}: {self.name!r} has the label {labels[bad][0]}; the model tells {self.classes.count} "
                f"classes apart, 0 to {self.classes.count - 1}."
            )


def wanted(plan: Plan) -> tuple[Wanted, ...]:
    """What a batch consists of: the model's inputs and the labels."""
    found = []
    for port in (*plan.model.inputs, *plan.model.labels):
        tensor = port.evaluate_tensor if port.train_tensor is None else port.train_tensor
        if tensor is not None:
            spec = plan.tensors[tensor]
            found.append(
                Wanted(port.name, spec.shape, spec.dtype, spec.rows, _classes(plan, port), _binary(plan, port))
            )
    return tuple(found)


def _classes(plan: Plan, port: Port) -> Classes | None:
    """The classes among which an input's integers choose: the loss that reads them as its second argument has as many
    scores along its class axis. None if no loss does."""
    if port.train_tensor is None or not np.issubdtype(plan.tensors[port.train_tensor].dtype, np.integer):
        return None
    for step in plan.train.steps:
        if step.kind is not StepKind.LAUNCH or len(step.reads) < 2 or step.reads[1].buffer not in port.train:
            continue
        scores = plan.tensors[step.reads[0].tensor]
        axis, ignored = step.attrs.get("axis", 1), step.attrs.get("ignore_index")
        if isinstance(axis, int) and -len(scores.shape) <= axis < len(scores.shape):
            return Classes(axis, scores.shape[axis], int(ignored) if isinstance(ignored, int | str) else None)
    return None


def _binary(plan: Plan, port: Port) -> bool:
    """Whether a binary cross-entropy reads the input as its second argument, the targets."""
    steps = (step for step in plan.train.steps if step.kind is StepKind.LAUNCH and step.op == "BinaryCrossEntropy")
    return any(step.reads[1].buffer in port.train for step in steps)


def check_batch(inputs: tuple[Wanted, ...], batch: Batch) -> None:
    """Refuse a batch that a plan cannot take.

    Raises:
        UsageError: an array is missing, unknown, or has another shape, type or label than the plan wants.
    """
    for name in batch:
        if all(name != want.name for want in inputs):
            names = ", ".join(want.name for want in inputs)
            raise UsageError(f"batch: {name!r} is not an input of this plan.", f"Its inputs are {names}.")
    for want in inputs:
        if want.name not in batch:
            raise UsageError(f"batch: {want.name!r} is missing.", f"Give {want.dtype} of shape {want.shape}.")
        values = batch[want.name]
        if not isinstance(values, np.ndarray):
            raise UsageError(
                f"batch: {want.name!r} is a {type(values).__name__}, wanted an array.", "Use numpy.asarray."
            )
        if values.shape != want.shape:
            raise UsageError(f"batch: {want.name!r} has shape {values.shape}; the plan wants {want.shape}.")
        want.check_dtype(values, "batch")
        want.check_labels(values, "batch")


def random_batch(inputs: tuple[Wanted, ...], seed: int) -> Batch:
    """A batch drawn from `seed`: floats are standard normal, labels uniform over the classes, targets and other
    integers 0 or 1."""
    batch: dict[str, Array] = {}
    for position, want in enumerate(inputs):
        random = np.random.default_rng((seed, position))
        values = np.empty(want.shape, want.dtype)
        if np.issubdtype(values.dtype, np.floating) and not want.binary:
            flat = values.reshape(-1)
            for start, piece in normal_pieces(flat.size, random):
                flat[start : start + piece.size] = piece
        else:
            values[...] = random.integers(0, want.classes.count if want.classes else 2, want.shape)
        batch[want.name] = values
    return MappingProxyType(batch)


def normal_pieces(count: int, random: np.random.Generator) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """`count` standard normal numbers as float64, 256 KiB at a time: (position of the first, numbers). In pieces, so
    that drawing a large tensor takes no memory of its size; in float64, so that every precision draws the same."""
    for start in range(0, count, _PIECE):
        yield start, random.standard_normal(min(_PIECE, count - start))


@dataclass(frozen=True, slots=True)
class Dataset:
    """Samples to train on, in arrays named like the inputs.

    Batches are full: what is left over at the end of an epoch comes in another order in the next.
    """

    inputs: tuple[Wanted, ...]
    arrays: Mapping[str, Array]
    samples: int
    batch: int

    @property
    def batches_per_epoch(self) -> int:
        """Full batches in the data."""
        return self.samples // self.batch

    def epoch(self, seed: int | None) -> Iterator[Batch]:
        """The batches of one epoch, shuffled by `seed` (None: as they are)."""
        order = np.arange(self.samples)
        if seed is not None:
            np.random.default_rng(seed).shuffle(order)
        for start in range(0, self.batches_per_epoch * self.batch, self.batch):
            chosen = order[start : start + self.batch]
            yield {want.name: self._take(want, chosen) for want in self.inputs}

    def _take(self, want: Wanted, chosen: npt.NDArray[np.int64]) -> Array:
        values = self.arrays[want.name]
        if not want.rows:
            return values
        by_sample = values.reshape(self.samples, want.rows, *want.shape[1:])
        return by_sample.take(chosen, axis=0).reshape(want.shape)


def load_npz(path: Path, inputs: tuple[Wanted, ...], batch: int) -> Dataset:
    """The arrays of an .npz file: named like the model's inputs, and `labels`; any number of samples along axis 0.

    Raises:
        UsageError: the file cannot be read, lacks an array, or an array does not fit what the plan wants.
    """
    what = f"data {str(path)!r}"
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:
            missing = [want.name for want in inputs if want.name not in file.files]
            if missing:
                raise UsageError(
                    f"{what}: lacks {', '.join(missing)}; it has {', '.join(file.files) or 'no array'}.",
                    "Name the arrays like the model's inputs, and the labels 'labels': "
                    f"numpy.savez(FILE, **{{{', '.join(f'{want.name!r}: ...' for want in inputs)}}}).",
                )
            arrays = {want.name: file[want.name] for want in inputs}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{what}: not an .npz file that can be read: {error}.", "Write it with numpy.savez."
        ) from error
    samples = _samples(what, inputs, arrays, batch)
    return Dataset(inputs, MappingProxyType(arrays), samples, batch)


def _samples(what: str, inputs: tuple[Wanted, ...], arrays: Batch, batch: int) -> int:
    """How many samples the arrays have; checks their shapes, types and labels."""
    counts: dict[str, int] = {}
    for want in inputs:
        values = arrays[want.name]
        if values.ndim != len(want.shape) or values.shape[bool(want.rows) :] != want.shape[bool(want.rows) :]:
            first = ("N",) if want.rows else want.shape[:1]
            shape = ", ".join(str(size) for size in (*first, *want.shape[1:]))
            raise UsageError(f"{what}: {want.name!r} has shape {values.shape}; the plan wants ({shape}).")
        want.check_dtype(values, what)
        want.check_labels(values, what)
        if want.rows:
            counts[want.name], rest = divmod(len(values), want.rows)
            if rest:
                raise UsageError(f"{what}: {want.name!r} has {len(values)} rows; a sample has {want.rows}.")
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UsageError(f"{what}: its arrays differ in their number of samples: {found}.")
    samples = next(iter(counts.values()), batch)
    if samples < batch:
        raise UsageError(
            f"{what}: {samples} samples; the plan's batch is {batch}.",
            "Give more data or compile with a smaller --batch.",
        )
    return samples
