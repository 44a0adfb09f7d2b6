"""Random bits by position: Philox4x32-10, a counter-based generator.

There is no state to keep or advance: the bits at a position are a function of the position, so a range of samples, a
recomputed launch and another backend draw the same ones.
Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_WORD = 2**32 - 1
_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(_WORD)
_HALF = np.uint64(32)

TILE = 3328
"""Counters enciphered at a time: six 64-bit words for each are 156 KiB of scratch."""


def philox4x32(words: Words, key: int) -> None:
    """Encipher n counters in place, ten rounds.

    Args:
        words: shape (6, n). Rows 0 to 3 are the words of the counters, below 2^32, and become those of the random
            blocks; rows 4 and 5 are scratch. Rows apart, because NumPy is slower on arrays it cannot see as one line.
        key: 64 bits.
    """
    c0, c1, c2, c3, p0, p1 = words
    for turn in range(_ROUNDS):
        k0, k1 = (np.uint64(((key >> 32 * half) + turn * _WEYL[half]) & _WORD) for half in (0, 1))
        np.multiply(c0, _MULTIPLIERS[0], out=p0)
        np.multiply(c2, _MULTIPLIERS[1], out=p1)
        for high, low, kept, word in ((c0, c1, p1, k0), (c2, c3, p0, k1)):
            np.right_shift(kept, _HALF, out=high)
            np.bitwise_xor(high, low, out=high)
            np.bitwise_xor(high, word, out=high)
            np.bitwise_and(kept, _LOW, out=low)


@dataclass(frozen=True, slots=True)
class Stream:
    """Where a launch draws: one 32-bit word for every element of every sample.

    Element e of sample s takes word e mod 4 of the block with counter (e div 4, s, node, step), key = seed.
    """

    seed: int
    step: int
    node: int


@dataclass(frozen=True, slots=True)
class Tile:
    """Draws for elements [start, stop) of samples [first, last), counted from the first sample asked for.

    `keep` has shape (last - first, stop - start).
    """

    first: int
    last: int
    start: int
    stop: int
    keep: npt.NDArray[np.bool_]


def keep_tiles(stream: Stream, first_sample: int, samples: int, elements: int, drop: float) -> Iterator[Tile]:
    """Tiles that cover `samples` samples of `elements` elements; an element is kept with probability 1 - `drop`.

    The arrays of a tile are valid until the next one. Resolution of the probability: 2^-32.
    """
    threshold = np.uint64(min(round(drop * 2**32), 2**32))
    blocks = -(-elements // 4)
    width = min(blocks, TILE)
    height = max(1, min(samples, TILE // max(width, 1)))
    words = np.empty((6, height * width), dtype=np.uint64)
    kept = np.empty((height * width, 4), dtype=np.bool_)
    for first in range(0, samples, height):
        last = min(first + height, samples)
        for block in range(0, blocks, width):
            end = min(block + width, blocks)
            shape = (last - first, end - block)
            used = words[:, : shape[0] * shape[1]]
            used[0].reshape(shape)[:] = np.arange(block, end, dtype=np.uint64)
            used[1].reshape(shape)[:] = np.arange(first_sample + first, first_sample + last, dtype=np.uint64)[:, None]
            used[2], used[3] = stream.node & _WORD, stream.step & _WORD
            philox4x32(used, stream.seed)
            keep = kept[: used.shape[1]]
            for lane in range(4):
                np.greater_equal(used[lane], threshold, out=keep[:, lane])
            stop = min(4 * end, elements)
            yield Tile(first, last, 4 * block, stop, keep.reshape(shape[0], -1)[:, : stop - 4 * block])
