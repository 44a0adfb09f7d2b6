"""Form: what a plan must be before anything can be said about its memory and its data.

Ids, references, ranges and sizes. A plan that breaks one of these rules is not looked at further, because its programs
have no meaning; so whatever comes after may index without care.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

from planc.plan import (
    PERSISTENT_KINDS,
    Access,
    Buffer,
    BufferKind,
    Lane,
    Plan,
    PlanTensor,
    Space,
    Step,
    StepKind,
)
from planc.verify_report import Report, Violation, name_buffer, name_step

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
}
_LANES = {StepKind.LAUNCH: Lane.COMPUTE, StepKind.OFFLOAD: Lane.D2H, StepKind.PREFETCH: Lane.H2D}
_SPACES = {StepKind.OFFLOAD: (Space.ARENA, Space.HOST), StepKind.PREFETCH: (Space.HOST, Space.ARENA)}


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of a tensor, and of one sample of it (None: it has no batch axis)."""

    whole: int
    sample: int | None

    def range(self, start: int, stop: int) -> int:
        """Bytes of samples [start, stop)."""
        return self.whole if self.sample is None else self.sample * (stop - start)


def tensor_size(tensor: PlanTensor, batch: int) -> Size:
    """The size of a tensor whose form is good."""
    whole = prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
    return Size(whole, whole // batch if tensor.rows else None)


def check_form(plan: Plan) -> tuple[Violation, ...]:
    """The violations of form, in the order of the document."""
    report = Report(plan, "")
    _check_tables(report)
    if report.found:
        return tuple(report.found)
    sizes = [tensor_size(tensor, plan.model.batch) for tensor in plan.tensors]
    for buffer in plan.buffers:
        _check_buffer(report, buffer, sizes)
    for name, program in plan.programs.items():
        in_program = Report(plan, name, report.found)
        form = _StepForm(in_program, len(program.steps), sizes)
        for position, step in enumerate(program.steps):
            form.check(position, step)
    return tuple(report.found)


def _check_tables(report: Report) -> None:
    """Programs, ids of tables, tensors."""
    plan = report.plan
    if "train" not in plan.programs or not plan.programs.keys() <= {"train", "evaluate"}:
        report.add("program", f"plan: its programs are {', '.join(plan.programs) or 'none'}, wanted train, evaluate.")
    if plan.model.batch < 1:
        report.add("model", f"model: its batch is {plan.model.batch}, wanted at least 1.")
        return
    tables = {"tensor": [tensor.id for tensor in plan.tensors], "buffer": [buffer.id for buffer in plan.buffers]}
    for word, ids in tables.items():
        for position, number in enumerate(ids):
            if number != position:
                report.add("id", f"{word} at position {position}: its id is {number}, wanted {position}.")
    for tensor in plan.tensors:
        rows = tensor.shape[0] if tensor.shape else 0
        batched = tensor.rows == 0 or (tensor.rows > 0 and rows == tensor.rows * plan.model.batch)
        if tensor.dtype not in ITEM_BYTES or min(tensor.shape, default=0) < 0 or not batched:
            report.add(
                "tensor-form",
                f"tensor {tensor.id} ({tensor.label!r}): {tensor.dtype} {list(tensor.shape)} with {tensor.rows} rows "
                f"a sample; wanted a known element type, and rows for {plan.model.batch} samples or 0.",
            )


def _check_buffer(report: Report, buffer: Buffer, sizes: Sequence[Size]) -> None:
    plan = report.plan
    name = name_buffer(plan, buffer)
    if buffer.program != "all" and buffer.program not in plan.programs:
        report.add("reference", f"{name}: is of program {buffer.program!r}, which does not exist.", (), (buffer.id,))
        return
    start, stop = buffer.samples
    if not 0 <= start <= stop <= plan.model.batch or buffer.bytes < 0:
        report.add("buffer-size", f"{name}: holds samples [{start}, {stop}) of {plan.model.batch}.", (), (buffer.id,))
        return
    for tensor in buffer.tensors:
        if not 0 <= tensor < len(sizes):
            report.add("reference", f"{name}: holds tensor {tensor}, which does not exist.", (), (buffer.id,))
        elif buffer.kind is not BufferKind.HOST_COPY and buffer.bytes < sizes[tensor].range(start, stop):
            report.add(
                "buffer-size",
                f"{name}: has {buffer.bytes} bytes; samples [{start}, {stop}) of {plan.tensors[tensor].label!r} "
                f"need {sizes[tensor].range(start, stop)}.",
                (),
                (buffer.id,),
            )
    _check_extents(report, buffer, name)


def _check_extents(report: Report, buffer: Buffer, name: str) -> None:
    persistent = buffer.program == "all"
    stays = all(extent.born is None and not extent.freed for extent in buffer.extents)
    visitor = not persistent and buffer.space is Space.ARENA and all(e.born is not None for e in buffer.extents)
    if (buffer.kind in PERSISTENT_KINDS and not (persistent or visitor)) or (
        persistent and not (stays and buffer.kind in PERSISTENT_KINDS)
    ):
        report.add(
            "persistent-place",
            f"{name}: is of program {buffer.program!r} and {'stays' if stays else 'moves'}; wanted a persistent buffer "
            "of both programs (`all`) in extents that are never born and never freed, or one of the arena and of one "
            "program that visits: all its extents are born.",
            (),
            (buffer.id,),
        )
        return
    if persistent and sum(extent.bytes for extent in buffer.extents) != buffer.bytes:
        report.add("persistent-place", f"{name}: its extents do not hold all of its bytes.", (), (buffer.id,))
    count = len(report.plan.programs[buffer.program].steps) if buffer.program != "all" else 0
    end, last = 0, -1
    for extent in sorted(buffer.extents, key=lambda e: (-1 if e.born is None else e.born, e.first)):
        born = -1 if extent.born is None else extent.born
        end = end if born == last else 0
        inside = extent.first >= end and extent.bytes >= 0 and extent.first + extent.bytes <= buffer.bytes
        alive = (extent.born is None or 0 <= born < count) and all(0 <= f < count for f in extent.freed)
        if not inside or not alive or extent.offset < 0:
            report.add(
                "extent-form",
                f"{name}: its extent of bytes [{extent.first}, {extent.first + extent.bytes}) born by {extent.born}, "
                f"freed by {list(extent.freed)} does not fit {buffer.bytes} bytes, {count} steps and the others.",
                (),
                (buffer.id,),
            )
        end, last = extent.first + extent.bytes, born
    births = [-1 if extent.born is None else extent.born for extent in buffer.extents]
    if births != sorted(births):
        report.add("extent-form", f"{name}: its extents are not in the order of their birth.", (), (buffer.id,))


@dataclass(frozen=True, slots=True)
class _StepForm:
    """Checks the steps of one program, `count` of them."""

    report: Report
    count: int
    sizes: Sequence[Size]

    def check(self, position: int, step: Step) -> None:
        report, batch = self.report, self.report.plan.model.batch
        if step.id != position:
            report.add("id", f"step at position {position}: its id is {step.id}, wanted {position}.", (position,))
            return
        start, stop = step.samples
        covered = sum(samples for _, samples in step.configuration)
        if (
            step.lane is not _LANES[step.kind]
            or not 0 <= start <= stop <= batch
            or step.duration_ns < 0
            or (step.configuration and (covered != stop - start or min(n for _, n in step.configuration) < 1))
        ):
            report.add(
                "step-form",
                f"{name_step(step)}: a {step.kind} on lane {step.lane}, samples [{start}, {stop}) of {batch}, "
                f"configuration for {covered} samples, {step.duration_ns} ns.",
                (position,),
            )
        for wait in step.waits:
            if not 0 <= wait < position or report.plan.programs[report.program].steps[wait].lane is step.lane:
                wanted = "wanted an earlier step of another lane"
                report.add("wait", f"{name_step(step)}: waits for step {wait}; {wanted}.", (position,))
        if not self._references(step):
            return
        if step.kind is StepKind.LAUNCH:
            self._launch(step)
        else:
            self._copy(step)

    def _references(self, step: Step) -> bool:
        """Whether every tensor and buffer the step names exists and belongs to the program."""
        report, buffers = self.report, self.report.plan.buffers
        good = True
        for access in (*step.reads, *step.writes):
            known = 0 <= access.tensor < len(self.sizes) and 0 <= access.buffer < len(buffers)
            if not known or buffers[access.buffer].program not in (report.program, "all"):
                report.add(
                    "reference",
                    f"{name_step(step)}: names tensor {access.tensor} in buffer {access.buffer}; "
                    "wanted a tensor and a buffer of this program.",
                    (step.id,),
                )
                good = False
        workspace = step.workspace
        if workspace is not None and not (
            0 <= workspace < len(buffers)
            and buffers[workspace].program == report.program
            and buffers[workspace].kind is BufferKind.WORKSPACE
        ):
            wanted = "wanted a workspace of this program"
            report.add("reference", f"{name_step(step)}: its workspace is buffer {workspace}; {wanted}.", (step.id,))
            good = False
        return good

    def _launch(self, step: Step) -> None:
        report, buffers = self.report, self.report.plan.buffers
        for access in (*step.reads, *step.writes):
            buffer, size = buffers[access.buffer], self.sizes[access.tensor]
            if buffer.space is not Space.ARENA or buffer.kind is BufferKind.WORKSPACE:
                wanted = "wanted a buffer of the arena, and not a workspace"
                report.add("access-space", f"{_names(report, step, access)}; {wanted}.", (step.id,), (buffer.id,))
                continue
            held = range(buffer.samples[0], buffer.samples[1])
            if size.sample is None:
                good = access.start == 0 and access.stop == size.whole <= buffer.bytes
            else:
                start, stop = (held.start + at // (size.sample or 1) for at in (access.start, access.stop))
                whole = size.sample == 0 or access.start % size.sample == access.stop % size.sample == 0
                good = whole and 0 <= access.start <= access.stop <= buffer.bytes and stop <= held.stop
                if good and size.sample and (start, stop) != step.samples:
                    report.add(
                        "access-samples",
                        f"{_names(report, step, access)}: that is samples [{start}, {stop}), but the step runs on "
                        f"[{step.samples[0]}, {step.samples[1]}).",
                        (step.id,),
                        (buffer.id,),
                    )
            if not good:
                wanted = f"wanted whole samples of [{held.start}, {held.stop}), or a whole tensor, inside the buffer"
                report.add("access-range", f"{_names(report, step, access)}; {wanted}.", (step.id,), (buffer.id,))
        for old, new in _overlaps(step):
            if old in step.writes or (old.start, old.stop, old.version + 1) != (new.start, new.stop, new.version):
                report.add(
                    "in-place-range",
                    f"{_names(report, step, new)} version {new.version}, over [{old.start}, {old.stop}) version "
                    f"{old.version} that it also {'writes' if old in step.writes else 'reads'}.",
                    (step.id,),
                    (new.buffer,),
                )

    def _copy(self, step: Step) -> None:
        report, buffers = self.report, self.report.plan.buffers
        if len(step.reads) != 1 or len(step.writes) != 1 or step.workspace is not None or step.accumulate:
            report.add("copy-form", f"{name_step(step)}: wanted one read, one write and nothing else.", (step.id,))
            return
        (source,), (target,) = step.reads, step.writes
        if source.stop - source.start != target.stop - target.start or source.version != target.version:
            report.add(
                "copy-form",
                f"{name_step(step)}: copies {source.stop - source.start} bytes, version {source.version}, to "
                f"{target.stop - target.start} bytes, version {target.version}.",
                (step.id,),
            )
        for access, space in zip((source, target), _SPACES[step.kind], strict=True):
            buffer = buffers[access.buffer]
            if buffer.space is not space:
                report.add(
                    "access-space", f"{_names(report, step, access)}; wanted the {space}.", (step.id,), (buffer.id,)
                )
            if not 0 <= access.start <= access.stop <= buffer.bytes:
                report.add(
                    "access-range",
                    f"{_names(report, step, access)}, which has {buffer.bytes}.",
                    (step.id,),
                    (buffer.id,),
                )


def _names(report: Report, step: Step, access: Access) -> str:
    return f"{name_step(step)}: names bytes [{access.start}, {access.stop}) of {report.buffer(access.buffer)}"


def _overlaps(step: Step) -> Iterator[tuple[Access, Access]]:
    """Pairs (read or earlier write, write) of the step that share bytes."""
    for old, new in (*product(step.reads, step.writes), *combinations(step.writes, 2)):
        if old.buffer == new.buffer and old.start < new.stop and new.start < old.stop:
            yield old, new
