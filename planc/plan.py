"""The plan: the contract between compiler, verifier, simulator, runtime and CI (the format is in README, "The plan
file").

Every number is an integer (bytes, ns, samples, indices); a real number is decimal text. Ids are positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

SCHEMA_VERSION = "planc-plan/1"

AttrValue = int | str | tuple[int, ...] | tuple[str, ...]


class Lane(StrEnum):
    """An ordered queue of steps."""

    COMPUTE = "compute"
    D2H = "d2h"
    H2D = "h2d"


class StepKind(StrEnum):
    LAUNCH = "launch"
    OFFLOAD = "offload"
    PREFETCH = "prefetch"


class Space(StrEnum):
    ARENA = "arena"
    HOST = "host"


class BufferKind(StrEnum):
    """What a buffer holds; the words of ops.spec.TensorKind plus two of its own."""

    INPUT = "input"
    LABEL = "label"
    PARAMETER = "parameter"
    STATISTIC = "running statistic"
    CONSTANT = "constant"
    STATE = "optimizer state"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    PARAMETER_GRADIENT = "parameter gradient"
    OUTPUT = "output"
    LOSS = "loss"
    WORKSPACE = "workspace"
    HOST_COPY = "host copy"


PERSISTENT_KINDS = frozenset({BufferKind.PARAMETER, BufferKind.STATISTIC, BufferKind.CONSTANT, BufferKind.STATE})
"""Buffers that hold their bytes from training step to training step, and that both programs share."""


@dataclass(frozen=True, slots=True)
class PlanTensor:
    """Shape and type of a tensor; `rows` rows of axis 0 a sample, 0 = no batch axis (graph.TensorSpec)."""

    id: int
    label: str
    shape: tuple[int, ...]
    dtype: str
    rows: int


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of a buffer's bytes at a place, for a part of the program.

    Bytes [first, first + bytes) of the buffer lie at [offset, offset + bytes) of its space, from the start of step
    `born` (None: from before the first step) until every step in `freed` has finished (empty: to the program's end).
    Extents of a buffer are in the order of their birth; a step's access means the last one born at or before that step.
    """

    first: int
    offset: int
    bytes: int
    born: int | None
    freed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes for one or more tensors (several when a step works in place), samples [start, stop) of them.

    `program`: "train", "evaluate", or "all" for persistent buffers. Step ids in its extents are of that program.
    What a persistent buffer in the host's space holds visits the arena: a program has a buffer of its own there, of
    the same kind and tensors, with an extent for each visit, which a prefetch begins; what the program updates, an
    offload brings home before its end.
    """

    id: int
    program: str
    kind: BufferKind
    space: Space
    tensors: tuple[int, ...]
    samples: tuple[int, int]
    bytes: int
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """One read or write: bytes [start, stop) of a buffer, seen as (a range of samples of) a tensor.

    The array has the tensor's dtype and shape, axis 0 cut to the samples it covers: (stop - start) / row bytes rows.
    `version` counts the writes to those bytes: what the host put there before the program is 0 (inputs, labels,
    persistent buffers), the first write of anything else is 1, each further write (in place, accumulating) one more.
    An offload writes to its host buffer, and a prefetch to the device buffer, the version they copy.
    """

    tensor: int
    buffer: int
    version: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of a program.

    launch:   op with attrs on samples [start, stop), from `reads` to `writes` in the order of the kernel's arguments.
              A write whose version follows a read of the same bytes by this step is in place.
              `accumulate`: the writes without a batch axis add to what is there (each reads its version - 1); of a
              tensor that sums over samples the first contribution writes, every later one accumulates.
              `configuration`: for a convolution call, (algorithm, samples) in order; `workspace` is a buffer id.
    offload:  one read (arena), one write (host). prefetch: one read (host), one write (arena).
    waits:    ids of steps on other lanes that must have finished.
    """

    id: int
    lane: Lane
    kind: StepKind
    op: str
    label: str
    attrs: Mapping[str, AttrValue]
    phase: str
    samples: tuple[int, int]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    accumulate: bool
    configuration: tuple[tuple[str, int], ...]
    workspace: int | None
    waits: tuple[int, ...]
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in an order that respects lanes and waits; step i has id i."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Persistent:
    """A persistent buffer: which tensor, where it is, where its first value comes from.

    `initializer`: the model file's name of it (a label; empty for optimizer state, which starts as zeros).
    `position`: for a parameter, statistic or constant its position in graph.Graph.constants;
                for optimizer state the position in `ModelInfo.persistent` of its parameter.
    `slot`: "" or the optimizer's word for the state (momentum, m, v). `trainable`: a parameter that is updated.
    """

    tensor: int
    buffer: int
    kind: BufferKind
    initializer: str
    position: int
    slot: str = ""
    trainable: bool = False


@dataclass(frozen=True, slots=True)
class Port:
    """A tensor that goes in or comes out: buffers in sample order (one, or one a piece), per program.

    An absent program has no buffers here (an output that training does not compute).
    """

    name: str
    train_tensor: int | None
    evaluate_tensor: int | None
    train: tuple[int, ...]
    evaluate: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """`inputs` are the model's, in its order; `labels` what the loss compares with (none if the model has its loss)."""

    batch: int
    inputs: tuple[Port, ...]
    labels: tuple[Port, ...]
    outputs: tuple[Port, ...]
    loss: Port
    loss_kind: str
    persistent: tuple[Persistent, ...]
    optimizer: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Predicted:
    """What simulation and bound say; None where the plan is outside the bound's class or the figure is not known."""

    makespan_ns: int
    ideal_ns: int | None
    bound_ns: int | None
    gap_ppm: int | None
    peak_bytes: int
    keep_all_bytes: int | None
    keep_all_zero_workspace_bytes: int | None
    bytes_by_kind: Mapping[str, int]
    """Live bytes by kind at the instant of the peak."""
    offloaded_bytes: int
    recomputed_bytes: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What was chosen for an activation or a convolution call, and the runner-up.

    `cost_ns`: what the runner-up would cost more than the choice (None: not known).
    """

    about: str
    subject: int
    label: str
    choice: str
    runner_up: str | None
    cost_ns: int | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a plan comes from. `options`: every option that matters, as text."""

    planc: str
    solver: str
    model_sha256: str
    profile: str
    profile_sha256: str
    estimated: bool
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Spaces:
    """`page_bytes` 0 = contiguous. `budget_bytes` bounds `arena_bytes`."""

    budget_bytes: int
    reserved_bytes: int
    device_bytes: int
    arena_bytes: int
    alignment: int
    page_bytes: int
    host_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything needed to execute the training step; see the module's docstring."""

    provenance: Provenance
    semantics: str
    semantics_reason: str
    model: ModelInfo
    spaces: Spaces
    tensors: tuple[PlanTensor, ...]
    buffers: tuple[Buffer, ...]
    programs: Mapping[str, Program]
    predicted: Predicted
    decisions: tuple[Decision, ...]
    schema: str = SCHEMA_VERSION

    @property
    def train(self) -> Program:
        return self.programs["train"]

    @property
    def evaluate(self) -> Program:
        return self.programs["evaluate"]
