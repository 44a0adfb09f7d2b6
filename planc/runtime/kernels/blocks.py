"""Blocks: how a kernel walks arrays of any size with little scratch memory.

A kernel may allocate under 256 KiB at any time (runtime/launch.py), and an array that stays in the processor's cache is
computed on several times faster, so kernels work on blocks of 64 KiB: `blocks` cuts arrays of one size, `tiles` an
index space over which arrays are broadcast. A piece of scratch is a block long and is used for every block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from planc.plan import AttrValue
from planc.runtime.launch import Array

BLOCK_BYTES = 64 * 1024
"""Size of a block. Three pieces of scratch of this size stay under the kernels' allowance."""

Index = tuple[slice, ...]
Floats = npt.NDArray[np.floating[Any]]
Parts = tuple[Floats, ...]
"""Pieces of the arrays of a launch, which all have one type where arithmetic is done."""


def blocks(*arrays: Array, scratch: int = 0) -> Iterator[Parts]:
    """Consecutive flat blocks of C-contiguous `arrays` of equal size, each with `scratch` arrays of the block's size.

    Scratch has the type of the last array, the output as a rule. At most three pieces of scratch.
    """
    flat = [cast(Floats, array).reshape(-1) for array in arrays]
    total = flat[-1].size
    length = block_length(flat[-1].dtype)
    pieces = [spare(flat[-1], length) for _ in range(scratch)]
    for start in range(0, total, length):
        count = min(length, total - start)
        yield (*(array[start : start + count] for array in flat), *(array[:count] for array in pieces))


def spare(like: Array, length: int) -> Floats:
    """Scratch of the type of `like`: `length` elements, or as many as it has if these are fewer."""
    return np.empty(min(length, like.size), cast(Floats, like).dtype)


def block_length(dtype: np.dtype[np.generic]) -> int:
    """Elements of a block."""
    return BLOCK_BYTES // max(dtype.itemsize, 1)


def tiles(shape: tuple[int, ...], length: int) -> Iterator[Index]:
    """Indices that cut `shape` into tiles of at most `length` elements, in C order.

    A tile is one index of each leading axis, a range of the next axis and all of the others, so that a tile of a
    C-contiguous array of that shape is itself contiguous.
    """
    axis = 0
    while axis < len(shape) and prod(shape[axis + 1 :]) > length:
        axis += 1
    if axis == len(shape):
        yield (slice(None),) * len(shape)
        return
    step = max(1, length // max(1, prod(shape[axis + 1 :])))
    for leading in np.ndindex(*shape[:axis]):
        front = tuple(slice(index, index + 1) for index in leading)
        for start in range(0, shape[axis], step):
            middle = slice(start, min(start + step, shape[axis]))
            yield (*front, middle, *(slice(None),) * (len(shape) - axis - 1))


def project(index: Index, shape: tuple[int, ...]) -> Index:
    """The part of an array of `shape` that is broadcast onto the tile `index`.

    `shape` may have fewer axes than the index and axes of size 1.
    """
    aligned = index[len(index) - len(shape) :]
    return tuple(slice(None) if size == 1 else part for size, part in zip(shape, aligned, strict=True))


def operands(arrays: Sequence[Array], index: Index) -> Parts:
    """Of every array the part that is broadcast onto the tile `index`."""
    return tuple(cast(Floats, array)[project(index, array.shape)] for array in arrays)


def number(attrs: Mapping[str, AttrValue], name: str, default: float | None = None) -> float:
    """The decimal text or integer `name` of a launch's attributes as a float."""
    value = attrs[name] if default is None else attrs.get(name, default)
    if isinstance(value, tuple):
        raise TypeError(f"attribute {name!r} is {value!r}; a number was expected")
    return float(value)


def integer(attrs: Mapping[str, AttrValue], name: str, default: int | None = None) -> int:
    """The integer `name` of a launch's attributes."""
    value = attrs[name] if default is None else attrs.get(name, default)
    if not isinstance(value, int):
        raise TypeError(f"attribute {name!r} is {value!r}; an integer was expected")
    return value


def integers(attrs: Mapping[str, AttrValue], name: str) -> tuple[int, ...]:
    """The integers `name` of a launch's attributes."""
    value = attrs[name]
    if not isinstance(value, tuple):
        raise TypeError(f"attribute {name!r} is {value!r}; integers were expected")
    return tuple(int(entry) for entry in value)
