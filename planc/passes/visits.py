"""Parameters and optimizer state that live on the host and visit the device around their uses.

Such a tensor is on the host when a program starts and when it ends. A visit begins with a copy in; the visit in which
the tensor is updated ends with a copy out, to where it came from, and no other visit needs one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from planc.ops.spec import VISITORS, TensorKind
from planc.passes.base import NEVER, RETURNED, Decisions, Offload, Problem, memory_bytes
from planc.passes.gate import PART_BYTES, in_parts
from planc.tasks import Piece
from planc.units import align_up


@dataclass(frozen=True, slots=True)
class Visits:
    """Every tensor of `kinds` visits, for each run of neighbouring tasks that use it, no longer than it must."""

    kinds: frozenset[TensorKind] = VISITORS
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset({RETURNED})

    @property
    def name(self) -> str:
        return "visits.Visits"

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        found = [o for p in problem.tasks.pieces if p.kind in self.kinds and p.bytes for o in _visits(p)]
        return replace(decisions, offloads=(*decisions.offloads, *found))


def _visits(piece: Piece) -> Iterator[Offload]:
    """A piece's way in, out and in again between runs of uses, and home. Parts are cut alike each time."""
    if not piece.uses:
        yield Offload(piece.index, 0, piece.bytes, -1, -1, 0, NEVER, NEVER, copied=False)
        return
    for part in in_parts(piece, -1, piece.uses[0], PART_BYTES, on_host=True):
        yield replace(part, after=-1, freed_by=0)
    written = piece.written[0] if piece.written else NEVER
    for before, behind in pairwise(piece.uses):
        if behind > before + 1:
            yield from in_parts(piece, before, behind, PART_BYTES, on_host=before < written)
    last = piece.uses[-1]
    for part in in_parts(piece, last, NEVER, PART_BYTES, on_host=written == NEVER):
        yield replace(part, after=last)


@dataclass(frozen=True, slots=True)
class LongerVisits:
    """Where memory allows it, visits that follow each other become one, shortest pauses first, and what was updated
    has time to leave.
    """

    name: str = "visits.LongerVisits"
    requires: frozenset[str] = frozenset({RETURNED})
    ensures: frozenset[str] = frozenset({RETURNED})

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        pieces, budget = problem.tasks.pieces, problem.budget_bytes
        live = memory_bytes(problem, decisions)
        stays = set[tuple[int, int]]()
        pauses = {(o.piece, o.leaves): o for o in decisions.offloads if o.leaves >= 0 and pieces[o.piece].persistent}
        for key, pause in sorted(pauses.items(), key=lambda item: (item[1].needed_by - item[1].leaves, item[0])):
            size = problem.bytes(pieces[pause.piece])
            absent = slice(pause.freed_by, pause.returns)
            if pause.comes_back and live[absent].max(initial=0) + size <= budget:
                live[absent] += size
                stays.add(key)
        left = [o for o in decisions.offloads if (o.piece, o.leaves) not in stays]
        for number, offload in enumerate(left):
            if offload.copied and not offload.comes_back:
                freed_by = offload.freed_by
                size = align_up(offload.bytes, problem.profile.alignment)
                time = 2 * problem.costs.d2h_ns(offload.bytes)
                while freed_by < len(live) and time > 0 and live[freed_by] + size <= budget:
                    live[freed_by] += size
                    time -= problem.costs.duration_ns(freed_by, decisions.configurations[freed_by])
                    freed_by += 1
                left[number] = replace(offload, freed_by=freed_by)
        return replace(decisions, offloads=tuple(left))
