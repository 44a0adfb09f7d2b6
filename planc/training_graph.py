"""The training graph: one list of launches over tensors, forward, loss, backward and update.

A launch is named by `op` (a key of ops.LAUNCHES). Reshapes and identities are views, not launches. Values are never
overwritten, with two exceptions that planners rely on: a launch with rule SUM adds range after range to its outputs
without a batch axis, and updates write the persistent tensors they read. Who shares memory with whom is decided later
(tasks.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from planc.graph import Attrs, TensorSpec
from planc.ops.spec import BatchRule, TensorKind

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the training graph; `root` is the tensor whose memory it is a view of (itself if none)."""

    index: int
    label: str
    spec: TensorSpec
    kind: TensorKind
    root: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch on the whole batch. `layer` is the position of the forward node it serves."""

    index: int
    op: str
    label: str
    layer: int
    phase: str
    attrs: Attrs
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    rule: BatchRule


@dataclass(frozen=True, slots=True)
class PersistentTensor:
    """A tensor that stays from step to step (see plan.Persistent, whose fields these become)."""

    tensor: int
    initializer: str
    position: int
    slot: str = ""
    trainable: bool = False


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What is trained and how.

    loss:     one or more texts (planc/losses.py); None or none = the plain one.
    settings: of the optimizer, as decimal text; `lr` is among them.
    """

    loss: str | tuple[str, ...] | None = None
    optimizer: str = "momentum"
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({"lr": "0.01"}))
    dropout: bool = True


NO_PATH = "no differentiable path to the loss"
"""Why a weight that nobody froze is not trained."""


@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """Launches in a valid order. Persistent tensors come first and are the same in the training and the evaluation
    program."""

    batch: int
    training: bool
    tensors: tuple[Tensor, ...]
    launches: tuple[Launch, ...]
    persistent: tuple[PersistentTensor, ...]
    inputs: tuple[tuple[str, int], ...]
    labels: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]
    loss: tuple[str, int]
    loss_kind: str
    optimizer: Mapping[str, str]
    frozen: tuple[tuple[str, str], ...]
    """Constants that are not trained: (initializer, reason)."""

    def spec(self, tensor: int) -> TensorSpec:
        return self.tensors[tensor].spec

    def root(self, tensor: int) -> int:
        return self.tensors[tensor].root
