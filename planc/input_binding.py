"""Binding: the batch and every other dimension of a model's data inputs, made static.

Axis 0 of a data input is the batch, whether the file has it as a symbol, not at all, or baked in as a number; where two
inputs disagree, the first float input says which number is the batch, and an input whose axis 0 is another number has
no batch axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planc.errors import ModelError, UsageError
from planc.graph import FLOATS, ITEM_BYTES, TensorSpec
from planc.model_file import Dim, FileInput, ModelFile


@dataclass(frozen=True, slots=True)
class Binding:
    """`file_batch` is the batch that is baked into the file, None if none is or it is `batch`."""

    batch: int
    file_batch: int | None
    inputs: Mapping[str, TensorSpec]


def bind_inputs(file: ModelFile, *, batch: int | None, dims: Mapping[str, int], float_dtype: str) -> Binding:
    """Shapes of all data inputs at `batch` (None: the file's own).

    Args:
        dims: sizes for dimensions the file leaves open, by symbol (`sequence`) or place (`input[2]`).
        float_dtype: the dtype that float inputs get.

    Raises:
        ModelError: a dimension is still unknown, or there is no input with a batch.
        UsageError: `batch` or an entry of `dims` is not a positive integer, or names nothing in the model.
    """
    if batch is not None and batch < 1:
        raise UsageError(f"batch {batch}: must be at least 1.")
    _check_dims(file, dims)
    leader = _leader(file)
    assert leader.dims is not None
    saved = leader.dims[0]
    baked = saved if isinstance(saved, int) else None
    given = _lookup(leader, 0, dims)
    bound = batch if batch is not None else given if given is not None else baked
    if bound is None:
        raise file.error(f"input {leader.name!r}, dimension 0 (the batch) is {_shown(saved)}.", "Give it by --batch N.")
    sizes = dict(dims)
    if isinstance(saved, str):
        sizes[saved] = bound
    inputs = {entry.name: _bind(file, entry, bound, baked, sizes, float_dtype) for entry in file.inputs}
    return Binding(bound, baked if baked != bound else None, inputs)


def open_sizes(file: ModelFile, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """`dims` for what the file leaves open behind axis 0, taken from whole shapes of inputs (those a plan holds)."""
    return {
        f"{entry.name}[{axis}]": shapes[entry.name][axis]
        for entry in file.inputs
        if entry.name in shapes
        for axis, dim in enumerate((entry.dims or ())[: len(shapes[entry.name])])
        if axis > 0 and not isinstance(dim, int)
    }


def _leader(file: ModelFile) -> FileInput:
    """The input that says what the batch is: the first with float elements, else the first with an axis."""
    for entry in file.inputs:
        if entry.dims is None:
            raise file.error(
                f"input {entry.name!r} has no shape, not even its number of dimensions.",
                "Export the model again with the shapes of its inputs.",
            )
        if entry.dtype not in ITEM_BYTES:
            raise file.error(f"input {entry.name!r} holds {entry.dtype}, which planc cannot plan.")
    with_axis = [entry for entry in file.inputs if entry.dims]
    if not with_axis:
        raise file.error("no data input with a batch axis: every input is an initializer or a scalar.")
    return next((entry for entry in with_axis if entry.dtype in FLOATS), with_axis[0])


def _bind(
    file: ModelFile, entry: FileInput, batch: int, baked: int | None, sizes: Mapping[str, int], float_dtype: str
) -> TensorSpec:
    shape: list[int] = []
    rows = 0
    for axis, dim in enumerate(entry.dims or ()):
        given = _lookup(entry, axis, sizes)
        if axis == 0 and (dim == baked if isinstance(dim, int) else given in (None, batch)):
            rows = 1
            shape.append(batch)
        elif isinstance(dim, int):
            shape.append(dim)
        elif given is not None:
            shape.append(given)
        else:
            raise _unknown(file, entry, axis, dim)
    return TensorSpec(tuple(shape), float_dtype if entry.dtype in FLOATS else entry.dtype, rows)


def _lookup(entry: FileInput, axis: int, sizes: Mapping[str, int]) -> int | None:
    dim = (entry.dims or ())[axis]
    place = sizes.get(f"{entry.name}[{axis}]")
    return place if place is not None else sizes.get(dim) if isinstance(dim, str) else None


def _shown(dim: Dim) -> str:
    return f"{dim!r} in the file" if dim is not None else "unknown in the file"


def _unknown(file: ModelFile, entry: FileInput, axis: int, dim: Dim) -> ModelError:
    name = dim if isinstance(dim, str) else f"{entry.name}[{axis}]"
    return file.error(f"input {entry.name!r}, dimension {axis} is {_shown(dim)}.", f"Give it by --dim {name}=N.")


def _check_dims(file: ModelFile, dims: Mapping[str, int]) -> None:
    open_names: dict[str, None] = {}
    for entry in file.inputs:
        for axis, dim in enumerate(entry.dims or ()):
            if not isinstance(dim, int):
                open_names[f"{entry.name}[{axis}]"] = None
            if isinstance(dim, str):
                open_names[dim] = None
    for name, size in dims.items():
        if name not in open_names:
            known = ", ".join(open_names) or "none"
            raise UsageError(f"--dim {name}={size}: the model has no such open dimension.", f"Open are: {known}.")
        if size < 1:
            raise UsageError(f"--dim {name}={size}: a size must be at least 1.")
