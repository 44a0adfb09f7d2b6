"""Policies: name -> candidates in the order they are tried. A candidate is a tuple of passes and a rule for the
sub-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from planc.ops.spec import TensorKind
from planc.passes.base import Pass, every_gap
from planc.passes.conv_algorithm import ChooseEach, FitWorkspaces, fastest, smallest
from planc.passes.flow_milp import FlowMilp
from planc.passes.gate import Gate
from planc.passes.inputs import HostInputs
from planc.passes.offload import OffloadEverything, OffloadOldest, OffloadWith, any_piece, convolution_input
from planc.passes.prefetch import AsEarlyAsFits, OneLayerAhead
from planc.passes.recompute import CheckpointSqrt
from planc.passes.visits import LongerVisits, Visits
from planc.passes.workspace import WorkspaceDivision, WorkspaceReuse


class SubBatches(StrEnum):
    """How a candidate cuts the batch."""

    WHOLE = "whole batch"
    MODNN = "moDNN's window rule"
    FEW = "1, 2, 4, each; where none of them fits 8, 16, ..., the first that does"
    EVERY = "1, 2, 4, ... single samples, the first that fits"


class Take(StrEnum):
    """Which candidate of a policy becomes the plan."""

    FIRST = "the first that fits"
    FASTEST = "the fastest in simulation"


@dataclass(frozen=True, slots=True)
class Candidate:
    """`passes` decide; then recomputations become tasks; then `timing` passes decide when what moves, and with which
    workspaces.
    """

    name: str
    passes: tuple[Pass, ...]
    timing: tuple[Pass, ...] = ()
    sub_batches: SubBatches = SubBatches.WHOLE
    micro_batches: str = "undivided"
    """Which micro-batch sizes its convolution calls may be cut into."""
    proves: bool = False
    """Its decisions come with a bound."""
    beyond_class: bool = False
    """Its plans may lie outside the class of plans that the bound speaks of (flow_model.py)."""
    last_resort: bool = False
    """Tried only if no candidate before it fits."""

    @property
    def fills(self) -> bool:
        """Whether it fills the memory it is given, so that a layout that overflows asks for a plan with less."""
        return self.proves or bool(self.visits and self.timing)

    @property
    def visits(self) -> tuple[Visits, ...]:
        """The passes that put persistent tensors on the host: those of every program, which share them."""
        return tuple(one for one in self.passes if isinstance(one, Visits))


def with_recompute(candidate: Candidate, recompute: str) -> Candidate:
    """The candidate with what its passes may recompute set: any, cheap, none (`--recompute`)."""
    passes = tuple(
        replace(one, recompute=recompute) if isinstance(one, (FlowMilp, CheckpointSqrt)) else one
        for one in candidate.passes
    )
    return replace(candidate, passes=passes)


def with_part_bytes(timing: tuple[Pass, ...], part_bytes: int) -> tuple[Pass, ...]:
    """Passes that cut copies into parts of that size."""
    return tuple(replace(one, part_bytes=part_bytes) if isinstance(one, Gate) else one for one in timing)


@dataclass(frozen=True, slots=True)
class Policy:
    take: Take
    candidates: tuple[Candidate, ...]
    summary: str


_FASTEST, _SMALLEST, _GREEDY = ChooseEach(fastest), ChooseEach(smallest), FitWorkspaces()
_ALL = (OffloadWith(any_piece), OneLayerAhead())
_CONV = (OffloadWith(convolution_input), OneLayerAhead())

KEEP_ALL = Candidate("keep all + fastest", (_FASTEST,))
KEEP_ALL_SMALL = Candidate("keep all + memory-optimal", (_SMALLEST,))
_KEEP_ALL_GREEDY = Candidate("keep all + greedy", (_FASTEST, _GREEDY))
_ALL_FASTEST = Candidate("offload all + fastest", (_FASTEST, *_ALL))
_ALL_GREEDY = Candidate("offload all + greedy", (_FASTEST, *_ALL, _GREEDY))
_ALL_SMALLEST = Candidate("offload all + memory-optimal", (_SMALLEST, *_ALL))
_CONV_FASTEST = Candidate("offload conv + fastest", (_FASTEST, *_CONV))
_CONV_GREEDY = Candidate("offload conv + greedy", (_FASTEST, *_CONV, _GREEDY))
_CONV_SMALLEST = Candidate("offload conv + memory-optimal", (_SMALLEST, *_CONV))

MINIMUM_MEMORY = Candidate(
    "minimum memory",
    (_SMALLEST, OffloadEverything(), HostInputs()),
    (),
    SubBatches.EVERY,
    beyond_class=True,
    last_resort=True,
)
"""Whatever is not wanted is away, with the smallest workspaces: its smallest arena is the smallest budget."""

_LITTLE_MEMORY = Candidate(
    "little memory",
    (_SMALLEST, HostInputs()),
    (Gate(every_gap), AsEarlyAsFits(), _FASTEST, _GREEDY),
    SubBatches.EVERY,
    beyond_class=True,
    last_resort=True,
)
"""As minimum memory, but what fits stays, and what room is left goes to earlier copies in and faster algorithms."""

MINIMUM_DEVICE = Candidate(
    "minimum memory, parameters on the host",
    (_SMALLEST, OffloadEverything(), HostInputs(), Visits()),
    (),
    SubBatches.EVERY,
    beyond_class=True,
    last_resort=True,
)
"""As minimum memory, with nothing resident but running statistics and constants."""


def _on_host(name: str, visits: Visits) -> Candidate:
    passes = (_SMALLEST, HostInputs(), visits)
    timing = (Gate(every_gap), LongerVisits(), AsEarlyAsFits(), _FASTEST, _GREEDY)
    return Candidate(name, passes, timing, SubBatches.EVERY, beyond_class=True, last_resort=True)


_STATE_ON_HOST = _on_host("optimizer state on the host", Visits(frozenset({TensorKind.STATE})))
_PARAMETERS_ON_HOST = _on_host("parameters on the host", Visits())

FLOW = Candidate(
    "flow program",
    (FlowMilp(),),
    (Gate(), AsEarlyAsFits(), _FASTEST, _GREEDY),
    SubBatches.FEW,
    micro_batches="powers",
    proves=True,
)
"""Offload, recomputation and configurations decided together, with a proof of how far they are from the best."""

_OLDEST_IN_PARTS = Candidate(
    "oldest in parts", (_SMALLEST,), (Gate(), AsEarlyAsFits(), _FASTEST, _GREEDY), micro_batches="powers"
)
"""As modnn without sub-batches, but copies go in parts, each gated by memory alone."""

_CHECKPOINT_SQRT = Candidate("checkpoint-sqrt", (_FASTEST, CheckpointSqrt()), (_FASTEST, _GREEDY), beyond_class=True)

MODNN = Candidate(
    "modnn",
    (_FASTEST, _GREEDY, OffloadOldest(), HostInputs()),
    (AsEarlyAsFits(window_percent=15), _FASTEST, _GREEDY),
    SubBatches.MODNN,
    beyond_class=True,
)

_VDNN_DYN = (
    KEEP_ALL,
    _CONV_FASTEST,
    _ALL_FASTEST,
    _CONV_GREEDY,
    _ALL_GREEDY,
    _CONV_SMALLEST,
    _ALL_SMALLEST,
)

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "keep-all": Policy(Take.FIRST, (KEEP_ALL,), "everything resident, fastest algorithms, lifetimes reused"),
        "vdnn-all": Policy(
            Take.FIRST, (_ALL_FASTEST, _ALL_SMALLEST), "offload the input of every layer, fetch one layer ahead"
        ),
        "vdnn-conv": Policy(
            Take.FIRST, (_CONV_FASTEST, _CONV_SMALLEST), "offload the input of every convolution, fetch one layer ahead"
        ),
        "vdnn-dyn": Policy(Take.FIRST, _VDNN_DYN, "the first that fits of vDNN's combinations"),
        "modnn": Policy(
            Take.FIRST, (MODNN,), "sub-batches, then offload the oldest where memory is short, then slower algorithms"
        ),
        "checkpoint-sqrt": Policy(
            Take.FIRST,
            (_CHECKPOINT_SQRT,),
            "keep every sqrt(n)-th activation, recompute the segments between",
        ),
        "ucudnn-wr": Policy(
            Take.FIRST,
            (Candidate("ucudnn-wr", (WorkspaceReuse(),), micro_batches="powers"),),
            "micro-batches within --workspace a call, everything resident",
        ),
        "ucudnn-wd": Policy(
            Take.FIRST,
            (Candidate("ucudnn-wd", (WorkspaceDivision(),), micro_batches="powers"),),
            "micro-batches within --workspace in all, everything resident",
        ),
        "auto": Policy(
            Take.FASTEST,
            (
                KEEP_ALL,
                FLOW,
                _KEEP_ALL_GREEDY,
                _OLDEST_IN_PARTS,
                _CHECKPOINT_SQRT,
                *_VDNN_DYN[1:],
                MODNN,
                _LITTLE_MEMORY,
                MINIMUM_MEMORY,
                _STATE_ON_HOST,
                _PARAMETERS_ON_HOST,
                MINIMUM_DEVICE,
            ),
            "the flow program, or whatever else is faster in simulation",
        ),
    }
)
"""auto's last candidate always fits from the smallest budget up."""
