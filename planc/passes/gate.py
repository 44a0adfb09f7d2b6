"""When the copies of chosen activations begin and end, decided by memory alone (planning.md section 6).

An activation leaves and returns in parts; the memory of a part is free once its copy out has ended, and is taken again
only when its copy in begins. Copies out go first-in first-out by last forward use, and a task waits for the shortest
run of them that makes it fit. Copies in go first-in first-out by need, each as early as it fits at every task until
then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from planc.passes.base import (
    CONFIGURED,
    OFFLOADED,
    RETURNED,
    Decisions,
    Offload,
    Problem,
    every_gap,
    gaps,
    memory_bytes,
)
from planc.passes.offload import last_write
from planc.tasks import Piece
from planc.units import align_up

PART_BYTES = 16 * 2**20
"""A copy is cut into parts of this size: small enough that memory frees as the link works, large enough for its speed.

A multiple of every page size, so that parts end at page borders.
"""


@dataclass(frozen=True, slots=True)
class Gate:
    """Let the pieces chosen to leave do so (none chosen: whatever can). One that no task has to wait for stays.

    `gaps_of`: when pieces could be away; passes.base.gaps (between forward and backward) or every_gap.
    """

    gaps_of: Callable[[Problem], tuple[tuple[Piece, int, int], ...]] = gaps
    part_bytes: int = PART_BYTES
    name: str = "gate.Gate"
    requires: frozenset[str] = frozenset({CONFIGURED})
    ensures: frozenset[str] = frozenset({OFFLOADED, RETURNED})

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        pieces = problem.tasks.pieces
        arrivals = tuple(o for o in decisions.offloads if o.leaves < 0 or pieces[o.piece].persistent)
        on_host = {offload.piece for offload in arrivals}
        found = (gap for gap in self.gaps_of(problem) if decisions.leaving is None or gap[0].index in decisions.leaving)
        parts = sorted(
            (part for gap in found for part in in_parts(*gap, self.part_bytes, on_host=gap[0].index in on_host)),
            key=lambda part: (part.leaves, part.piece, part.first),
        )
        if self.gaps_of is every_gap:  # a piece may come back for its last use: its copy out has to wait for that
            parts = [replace(part, after=part.leaves) for part in parts]
        live = memory_bytes(problem, replace(decisions, offloads=(*arrivals, *parts)))
        freed = _frees(problem, parts, [int(size) for size in live])
        return replace(decisions, offloads=(*arrivals, *_leaving(parts, freed)))


def _frees(problem: Problem, parts: list[Offload], live: list[int]) -> dict[int, int]:
    """For the parts that some task must wait for: the first such task. `live`: bytes with every part away."""
    sizes = [align_up(part.bytes, problem.profile.alignment) for part in parts]
    leaving: dict[int, list[int]] = {}
    needed: dict[int, list[int]] = {}
    for number, part in enumerate(parts):
        leaving.setdefault(part.leaves + 1, []).append(number)
        needed.setdefault(part.needed_by, []).append(number)
    freed: dict[int, int] = {}
    waiting: deque[int] = deque()
    back = set[int]()
    held = 0
    for task, size in enumerate(live):
        for number in leaving.get(task, ()):
            waiting.append(number)
            held += sizes[number]
        for number in needed.get(task, ()):
            back.add(number)
            held -= 0 if number in freed else sizes[number]
        while held and size + held > problem.budget_bytes:
            number = waiting.popleft()
            if number not in back:
                freed[number] = task
                held -= sizes[number]
    return freed


def in_parts(piece: Piece, leaves: int, needed_by: int, part_bytes: int, *, on_host: bool = False) -> Iterator[Offload]:
    """A piece that leaves in parts, each with the shortest stays there are.

    The copy out may begin after the last write. `on_host`: none is needed.
    """
    after = last_write(piece, leaves)
    for first in range(0, piece.bytes, part_bytes):
        size = min(part_bytes, piece.bytes - first)
        yield Offload(piece.index, first, size, after, leaves, leaves + 1, needed_by, needed_by, copied=not on_host)


def _leaving(parts: list[Offload], freed: dict[int, int]) -> Iterator[Offload]:
    """Parts with their waits. A piece of which no part is waited for stays; of one that leaves, all parts do."""
    last: dict[tuple[int, int], int] = {}
    for number, task in freed.items():
        gap = parts[number].piece, parts[number].leaves
        last[gap] = max(task, last.get(gap, 0))
    for number, part in enumerate(parts):
        waited = last.get((part.piece, part.leaves))
        if waited is not None:
            # A part that nobody waits for follows the others: half way to its need its copy has long ended.
            middle = part.leaves + 1 if not part.copied else (waited + part.needed_by + 1) // 2
            yield replace(part, freed_by=freed.get(number, middle))
