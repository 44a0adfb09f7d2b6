"""Inputs and labels that wait on the host and come sub-batch by sub-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planc.ops.spec import TensorKind
from planc.passes.base import RETURNED, Decisions, Offload, Problem

_FROM_HOST = frozenset({TensorKind.INPUT, TensorKind.LABEL})


@dataclass(frozen=True, slots=True)
class HostInputs:
    """Every input is on the host when the program starts and is copied in before its first use.

    The host keeps it, so that one that leaves the device again needs no copy out.
    """

    name: str = "inputs.HostInputs"
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset({RETURNED})

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        pieces = problem.tasks.pieces
        cuts: dict[int, dict[int, int]] = {}
        for offload in decisions.offloads:  # arrive in the parts in which it leaves again
            cuts.setdefault(offload.piece, {})[offload.first] = offload.bytes
        arrivals = [
            Offload(p.index, first, size, -1, -1, 0, p.uses[0], p.uses[0], copied=False)
            for p in pieces
            if p.kind in _FROM_HOST and p.uses
            for first, size in sorted(cuts.get(p.index, {0: p.bytes}).items())
        ]
        inside = [
            replace(o, freed_by=o.leaves + 1, copied=False) if pieces[o.piece].kind in _FROM_HOST else o
            for o in decisions.offloads
        ]
        return replace(decisions, offloads=(*arrivals, *inside))
