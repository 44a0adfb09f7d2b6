"""ByteMap: a range of bytes cut into parts, each with a value."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ByteMap(Generic[T]):
    """Bytes [0, size), at first one part with one value.

    Part i is [starts[i], starts[i + 1]), the last one ends at `size`. Cutting costs a search; a caller that fills what
    it has cut keeps the number of parts small, so that n accesses visit about n parts.

    Args:
        copy: makes the value of the second half when a part is cut in two.
    """

    __slots__ = ("_copy", "size", "starts", "values")

    def __init__(self, size: int, value: T, copy: Callable[[T], T]) -> None:
        self.size = size
        self.starts = [0]
        self.values = [value]
        self._copy = copy

    def cut(self, start: int, stop: int) -> slice:
        """The parts that make up [start, stop), 0 <= start <= stop <= size, cut at both ends."""
        if start == 0 and stop == self.size and start < stop:
            return slice(0, len(self.starts))
        first = self._index(start)
        return slice(first, max(first, self._index(stop)))

    def fill(self, parts: slice, value: T) -> None:
        """Make `parts`, at least one, a single part with `value`."""
        del self.starts[parts.start + 1 : parts.stop]
        self.values[parts] = [value]

    def _index(self, at: int) -> int:
        """The part that begins at `at`, cut if need be; one past the last for the end."""
        if at >= self.size:
            return len(self.starts)
        index = bisect_left(self.starts, at)
        if index == len(self.starts) or self.starts[index] != at:
            self.starts.insert(index, at)
            self.values.insert(index, self._copy(self.values[index - 1]))
        return index
