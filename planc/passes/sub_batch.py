"""moDNN's sub-batch size (Chen et al., TPDS 2019, section 5)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planc.tasks import TaskList
from planc.units import align_up

WINDOW_PERCENT = 15
"""moDNN looks at the data of this share of consecutive tasks."""


def window_bytes(task_list: TaskList, alignment: int) -> int:
    """The most bytes that any WINDOW_PERCENT of consecutive tasks touch, persistent tensors included."""
    count, pieces = len(task_list.tasks), task_list.pieces
    persistent = sum(align_up(p.bytes, alignment) for p in pieces if p.persistent)
    width = max(1, count * WINDOW_PERCENT // 100)
    change = np.zeros(count + 1, dtype=np.int64)
    for piece in pieces:
        if piece.persistent:
            continue
        # The windows [w, w + width) that hold a use: the union of [use - width + 1, use] over the uses.
        covered = -1
        for use in piece.uses:
            first = max(use - width + 1, covered + 1, 0)
            if first <= use:
                change[first] += align_up(piece.bytes, alignment)
                change[use + 1] -= align_up(piece.bytes, alignment)
            covered = max(covered, use)
    return persistent + int(np.cumsum(change).max())


def largest_sub_batch(
    batch: int,
    budget_bytes: int,
    most: int,
    window_of: Callable[[int], int],
    worth: Callable[[int], bool] = bool,
) -> int | None:
    """The number of sub-batches that belongs to the largest sub-batch size whose windows fit the budget.

    `window_of(count)` gives the bytes with that many sub-batches, of which there may be `most`. Binary search over the
    size; when not even the smallest fits, it is taken all the same and the passes after it decide.

    `worth(count)` says whether that many, or any number above, is of use (default: all are): the search ends with None
    once it can only end at a number that is not.
    """
    low, high = -(-batch // min(most, batch)), batch
    if window_of(1) <= budget_bytes:
        return 1
    while low < high:
        size = (low + high + 1) // 2
        if window_of(-(-batch // size)) <= budget_bytes:
            low = size
        else:
            high = size - 1
            if not worth(-(-batch // high)):
                return None
    return -(-batch // low)
