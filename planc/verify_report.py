"""Violation: one rule of the plan format that a plan breaks, and the table of all such rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from planc.plan import Buffer, Plan, Step

CODES: Mapping[str, str] = MappingProxyType(
    {
        # Form: what a plan must be for its programs to have a meaning.
        "program": "there is a program `train`; the only other one is `evaluate`",
        "id": "the id of a step, buffer or tensor is its position",
        "step-form": "a step runs on its kind's lane, on samples of the batch; its configuration adds up to them",
        "wait": "a step waits only for earlier steps, on other lanes",
        "reference": "a tensor or buffer that is named exists and belongs to the program",
        "tensor-form": "a tensor has a known element type, and rows of every sample of the batch",
        "buffer-size": "a buffer is large enough for its samples of its tensors",
        "extent-form": "an extent lies in its buffer, is born and freed by steps of its program, in order of birth",
        "access-range": "an access covers whole tensors or whole samples that its buffer holds",
        "access-samples": "a launch reads and writes the samples it runs on",
        "access-space": "launches work in the arena; an offload goes from arena to host, a prefetch from host to arena",
        "copy-form": "a copy has one read and one write of the same size and version",
        "in-place-range": "what a step writes overlaps what it reads or writes only as the same bytes one version on",
        "model": "inputs, outputs and persistent tensors name their buffers, in order and completely",
        "semantics": "semantics are `exact`, or `changed` with the reason",
        "persistent-place": "a persistent buffer stays where it is: all its bytes in extents never born, never freed; "
        "or it is one of a program's that visits the arena: all its extents are born",
        # Memory: who holds which bytes when.
        "arena-budget": "the arena is not larger than the budget",
        "extent-place": "an extent lies inside its space",
        "extent-alignment": "an extent's place in the arena is a multiple of the alignment",
        "extent-missing": "every byte of an access lies somewhere",
        "extent-scattered": "without pages, the bytes of an access lie in one piece",
        "extent-life": "an extent is freed by a step that follows its birth",
        "extent-overlap": "two extents that may be alive at one time share no byte",
        "page-border": "with pages, the places of an access meet at page borders",
        "page-shared": "a page with addresses of its own for one buffer holds nothing of another at that time",
        "access-early": "an access follows the birth of its bytes",
        "access-late": "an access ends before its bytes are given away",
        # Data: which version of what a step sees.
        "read-unwritten": "what is read has been written by an earlier step",
        "read-overwritten": "what is read has not been overwritten by an earlier step",
        "read-tensor": "what is read is the tensor it is read as",
        "read-race": "what is read has been written before, whatever the timing",
        "write-race": "what is overwritten has been written and read before, whatever the timing",
        "write-version": "a write makes the next version",
        "write-lost": "a value is overwritten only by a step that reads it or adds to it",
        "copy-content": "a prefetch brings back the bytes that were offloaded, to their own place in their buffer",
        "sum-start": "a step adds only to a sum that an earlier step began",
        "sum-twice": "no sample is added to a sum twice",
        "sum-missing": "every sample of the batch is added to a sum",
        "sum-early": "a sum is read after its last contribution",
        "output-lost": "outputs and losses are there when the program has ended",
        # Training: the step can be repeated.
        "update-missing": "a trainable parameter is updated",
        "update-twice": "a trainable parameter is updated once",
        "update-phase": "a trainable parameter is written only by launches of the phase `update`",
        "update-gradient": "an update reads a gradient",
        "update-early": "a parameter is not read after its update in the same training step",
        "persistent-version": "a statistic or optimizer state goes one version on at most (where semantics changed, a "
        "statistic may with each sub-batch in turn), a constant never",
        "persistent-end": "what visits is back on the host, as it was last, when the program has ended",
        "evaluate-writes": "evaluation changes no persistent buffer",
    }
)
"""Code of a violation -> the rule that a plan keeps."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Rule `code` of CODES is broken. `steps` are ids in the program that the message names first."""

    code: str
    message: str
    steps: tuple[int, ...] = ()
    buffers: tuple[int, ...] = ()


@dataclass(slots=True)
class Report:
    """Collects the violations of one program (or, with `program` empty, of the plan's tables)."""

    plan: Plan
    program: str
    found: dict[Violation, None] = field(default_factory=dict)

    def add(self, code: str, message: str, steps: Iterable[int] = (), buffers: Iterable[int] = ()) -> None:
        """Note a violation, once."""
        where = f"{self.program}: " if self.program else ""
        self.found[Violation(code, where + message, tuple(steps), tuple(buffers))] = None

    def step(self, step: int) -> str:
        """How a message names a step: `step 12 (offload 'conv1/relu')`."""
        return name_step(self.plan.programs[self.program].steps[step])

    def buffer(self, buffer: int) -> str:
        """How a message names a buffer: `buffer 7 (activation 'conv1')`."""
        return name_buffer(self.plan, self.plan.buffers[buffer])


def name_step(step: Step) -> str:
    return f"step {step.id} ({step.op or step.kind} {step.label!r})"


def name_buffer(plan: Plan, buffer: Buffer) -> str:
    tensors = [plan.tensors[t].label for t in buffer.tensors if 0 <= t < len(plan.tensors)]
    return f"buffer {buffer.id} ({buffer.kind}{''.join(f' {label!r}' for label in tensors[:1])})"
