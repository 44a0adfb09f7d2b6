"""Kernel of the einsum (ops/einsum.py): one stack of matrix products on the operands as they lie.

One letter of the first operand, one of the second and one they share become the matrices' rows, columns and inner axis,
the others the stack. NumPy walks strided matrices without a copy, and hands those to BLAS that have an axis of adjacent
numbers, so letters that stand side by side in every term are first taken as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.runtime.kernels.linear import add_product
from planc.runtime.launch import Hyper, Kernel, Launch

Values = npt.NDArray[Any]


def _terms(launch: Launch) -> list[str]:
    left, _, result = str(launch.attrs["equation"]).partition("->")
    return [*left.split(","), result]


def _pair(terms: Sequence[str]) -> str | None:
    """Two letters that stand side by side in every term that has either."""
    for pair in (term[at : at + 2] for term in terms for at in range(len(term) - 1)):
        if all(pair in term or set(pair).isdisjoint(term) for term in terms):
            return pair
    return None


def _merged(terms: list[str], arrays: list[Values]) -> tuple[list[str], list[Values]]:
    """Terms and C-contiguous arrays with pairs of letters made one, under the first one's name."""
    while pair := _pair(terms):
        for position, term in enumerate(terms):
            if pair in term:
                axis, shape = term.index(pair), arrays[position].shape
                merged = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
                arrays[position], terms[position] = arrays[position].reshape(merged), term.replace(pair, pair[0])
    return terms, arrays


def _axis_of(letters: set[str], terms: Sequence[str], sizes: dict[str, int]) -> str:
    """The letter for an axis of the matrices: one whose numbers are adjacent, then the longest; "" = there is none."""
    rank = sorted(letters, key=lambda letter: (sum(term.endswith(letter) for term in terms), sizes[letter], letter))
    return rank[-1] if rank else ""


def _stacked(array: Values, term: str, stack: str, matrix: tuple[str, str]) -> Values:
    """`array` as (stack..., matrix), with axes of size 1 for the letters that its term lacks."""
    wanted = [*stack, *matrix]
    view = array.transpose([term.index(letter) for letter in wanted if letter and letter in term])
    index = tuple(slice(None) if letter and letter in term else None for letter in wanted)
    return view[index]


def _einsum(launch: Launch, hyper: Hyper) -> None:
    """Einsum(a, b) -> y, where every letter is in two terms at least."""
    terms, arrays = _merged(_terms(launch), [*launch.inputs, launch.outputs[0]])
    if terms[2] and terms[2][-1] not in terms[1]:  # the result's adjacent numbers are to be a matrix's columns
        terms, arrays = [terms[1], terms[0], terms[2]], [arrays[1], arrays[0], arrays[2]]
    a, b, y = (set(term) for term in terms)
    sizes = {
        letter: size
        for term, array in zip(terms, arrays, strict=True)
        for letter, size in zip(term, array.shape, strict=True)
    }
    rows, columns, inner = (_axis_of(letters, terms, sizes) for letters in (a - b, b - a, (a & b) - y))
    stack = "".join(letter for letter in terms[2] if letter not in rows + columns)
    summed = "".join(sorted((a & b) - y - {inner}))
    first = _stacked(arrays[0], terms[0], summed + stack, (rows, inner))
    second = _stacked(arrays[1], terms[1], summed + stack, (inner, columns))
    out = _stacked(arrays[2], terms[2], stack, (rows, columns))
    if not summed and not launch.accumulate:
        np.matmul(first, second, out=out)
        return
    shape = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    first, second = (np.broadcast_to(part, (*shape, *part.shape[-2:])) for part in (first, second))
    matrices = prod(shape)
    # The letters summed over come first: every matrix of the result is met once for each of their indices.
    met_once = matrices // prod(sizes[letter] for letter in summed)
    for number in range(matrices):
        index = tuple(map(int, np.unravel_index(number, shape)))
        place, add = out[index[len(summed) :]], launch.accumulate or number >= met_once
        add_product(first[index], second[index], place, 1.0, accumulate=add)


KERNELS: dict[str, Kernel] = {
    "Einsum": _einsum,
    "EinsumSum": _einsum,
}
