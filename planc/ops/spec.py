"""What an operator is to planc: two literal tables are filled with these types, one entry an operator.

`OpSpec` says what an ONNX operator *means*: how its node is read into planc's normal form, what shape comes out, which
launches compute it and which launches compute its gradient. `LaunchSpec` says what planners need to know of a launch:
how it treats the batch, what it may overwrite, how much it computes. Numbers live in `runtime/kernels/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import Protocol

from planc.errors import ModelError
from planc.graph import Array, Attrs, AttrValue, Node, TensorSpec


class BatchRule(StrEnum):
    """How a launch treats the batch (planning.md section 1)."""

    PER_SAMPLE = "per-sample"
    """Each sample by itself; may run on any range of samples. Or each range by itself, where that is what was asked for
    (`--batch-norm per-sub-batch`)."""
    SUM = "sum"
    """Its outputs without a batch axis add up over ranges: the first range writes, later ranges accumulate."""
    WHOLE = "whole"
    """Must see the batch at once, or sees no batch at all (an update)."""


class TensorKind(StrEnum):
    """What a tensor of the training graph is."""

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


PERSISTENT = frozenset({TensorKind.PARAMETER, TensorKind.STATISTIC, TensorKind.CONSTANT, TensorKind.STATE})
"""Kinds that last from step to step."""

VISITORS = frozenset({TensorKind.PARAMETER, TensorKind.STATE})
"""Persistent kinds that may live on the host and visit the arena."""


@dataclass(frozen=True, slots=True)
class RawNode:
    """A node as the file has it.

    `attrs` are Python values as onnx.helper gives them (int, float, bytes, list, TensorProto); `specs` and `constants`
    run parallel to `inputs`: None where an input is absent, and for `constants` where its value is not known.
    """

    op: str
    name: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, object]
    specs: tuple[TensorSpec | None, ...]
    constants: tuple[Array | None, ...]
    batch: int
    file_batch: int | None
    """The batch the file was saved with, where it is baked in and differs from `batch`."""

    def error(self, problem: str, remedy: str = "") -> ModelError:
        """A ModelError that names this node."""
        return ModelError(f"node {self.name!r} ({self.op}): {problem}", remedy)


@dataclass(frozen=True, slots=True)
class Reading:
    """A node in normal form: its attributes and the inputs that stay tensors ("" = absent)."""

    inputs: tuple[str, ...]
    attrs: Attrs = field(default_factory=dict)
    outputs: int | None = None
    """How many of the node's outputs are kept, the first ones; None = all."""


class Builder(Protocol):
    """What an operator's `lower` and `gradient` may do to the training graph. Tensors are integers here."""

    @property
    def training(self) -> bool:
        """Whether the training program is built (else `evaluate`: running statistics, dropout off, nothing saved)."""
        ...

    @property
    def batch(self) -> int: ...

    def tensor(self, name: str) -> int:
        """The tensor that holds the forward value `name`."""
        ...

    def spec(self, tensor: int) -> TensorSpec: ...

    def wants(self, name: str) -> bool:
        """Whether a gradient with respect to the forward value `name` is needed."""
        ...

    def emit(
        self,
        op: str,
        inputs: Sequence[int],
        outputs: Sequence[TensorSpec],
        attrs: Mapping[str, AttrValue] | None = None,
        *,
        rule: BatchRule | None = None,
    ) -> tuple[int, ...]:
        """Add a launch; returns its new output tensors.

        The rule, if not given: no input with a batch axis -> WHOLE; all outputs with a batch axis -> PER_SAMPLE;
        else SUM if the launch can accumulate (`LaunchSpec.sums`), else WHOLE.
        """
        ...

    def define(self, name: str, tensor: int) -> None:
        """Say that `tensor` holds the forward value `name`."""
        ...

    def view(self, tensor: int, spec: TensorSpec) -> int:
        """The same memory under another shape (same bytes, same order of elements); no launch."""
        ...

    def overwrite(
        self,
        op: str,
        inputs: Sequence[int],
        targets: Sequence[int],
        attrs: Mapping[str, AttrValue],
        *,
        rule: BatchRule = BatchRule.WHOLE,
    ) -> None:
        """Add a launch whose outputs are the persistent tensors `targets` themselves, one version on (running
        statistics); with PER_SAMPLE one version a range.
        """
        ...


Grads = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One ONNX operator.

    read:      RawNode -> Reading. Brings every opset's form into one; constant inputs become attributes. Raises
    ModelError.
    infer:     (Node, input specs, batch) -> output specs. `rows` of an output is 0 if the node mixes the batch axis
    with others.
    lower:     (Builder, Node) -> saved tensors. Emits the forward launches and `define`s the node's outputs.
    gradient:  (Builder, Node, saved, gradients of the outputs) -> gradients of the inputs, None where there is none or
               `Builder.wants` says none is wanted. Gradients have the shape and rows of what they are the gradient of.
               None in place of the function: the operator has no gradient.
    differentiable: positions of inputs that have a gradient, None = all. () with a gradient: the derivative is 0
               wherever there is one, so nothing flows back, and this is no error as a missing gradient is.
    parameters: positions where a float constant is a trainable parameter, None = all the differentiable ones.
               Single-element constants of arithmetic operators are literals, never parameters (`literal_scalars`).
    statistics: positions that hold running statistics.
    """

    read: Callable[[RawNode], Reading]
    infer: Callable[[Node, tuple[TensorSpec | None, ...], int], tuple[TensorSpec, ...]]
    lower: Callable[[Builder, Node], tuple[int, ...]]
    gradient: Callable[[Builder, Node, tuple[int, ...], Grads], Grads] | None
    differentiable: tuple[int, ...] | None = None
    parameters: tuple[int, ...] | None = None
    statistics: tuple[int, ...] = ()
    literal_scalars: bool = False


class Recompute(StrEnum):
    """Whether planners may run a forward launch a second time (`--recompute`)."""

    CHEAP = "cheap"
    COSTLY = "costly"
    """Convolutions and matrix products: only under `--recompute any`."""
    NEVER = "never"


Flops = Callable[[Attrs, tuple[TensorSpec, ...], tuple[TensorSpec, ...]], int]


def flops_per_output(count: int) -> Flops:
    """`count` operations for each element of the first output."""
    return lambda attrs, inputs, outputs: count * prod(outputs[0].shape)


def flops_per_input(count: int) -> Flops:
    """`count` operations for each element of the first input."""
    return lambda attrs, inputs, outputs: count * prod(inputs[0].shape)


_ONE_PER_OUTPUT = flops_per_output(1)


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What planners know of a launch.

    inplace: pairs (input position, output position) that may share memory, if the input dies there and both have equal
             bytes. The kernel must then be right when both arrays are the same memory.
    sums:    the outputs without a batch axis add up over ranges of samples; the kernel honours `accumulate`.
    flops:   operations for the shapes given (of the range that runs).
    recompute: see `Recompute`.
    matrix:  runs on the matrix units at `matrix` efficiency of the profile (a product), not at memory speed.
    passes:  how often it streams its inputs.
    """

    inplace: tuple[tuple[int, int], ...] = ()
    sums: bool = False
    flops: Flops = _ONE_PER_OUTPUT
    recompute: Recompute = Recompute.CHEAP
    matrix: bool = False
    passes: int = 1
