"""Inputs and labels that wait on the host and come sub-batch by sub-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planc.ops.spec import TensorKind
from planc.passes.base import RETURNED, Decisions, Problem
from planc.passes.gate import PART_BYTES, in_parts

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
        whole = {offload.piece for offload in decisions.offloads if offload.bytes == pieces[offload.piece].bytes}
        arrivals = [
            replace(part, after=-1, leaves=-1, freed_by=0)
            for p in pieces
            if p.kind in _FROM_HOST and p.uses
            for part in in_parts(p, 0, p.uses[0], p.bytes if p.index in whole else PART_BYTES, on_host=True)
        ]
        inside = [
            replace(o, freed_by=o.leaves + 1, copied=False) if pieces[o.piece].kind in _FROM_HOST else o
            for o in decisions.offloads
        ]
        return replace(decisions, offloads=(*arrivals, *inside))
