"""Training: sums are complete, outputs are there at the end, parameters are updated once, the step can be repeated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from planc.plan import PERSISTENT_KINDS, Access, BufferKind, Persistent, PlanTensor, Step, StepKind
from planc.verify_data import DataFlow, Sum
from planc.verify_memory import locate
from planc.verify_model import buffers_of, homes_of, tensor_of
from planc.verify_report import Report


def check_sums(report: Report, flow: DataFlow) -> None:
    """Every contribution once, all of them, and no reader before the last.

    The contributions of one launch are the steps with its operator, attributes and tensors; if these have samples, the
    ranges they ran on must be the batch. Semantics "changed" may sum over less, by intention.
    """
    plan = report.plan
    steps = plan.programs[report.program].steps
    for value in flow.sums.values():
        last = value.steps[-1]
        if value.first_reader is not None and value.first_reader < last:
            reader = report.step(value.first_reader)
            message = f"{reader}: reads {report.buffer(value.buffer)} before {report.step(last)} has added to it."
            report.add("sum-early", message, (value.first_reader, last), (value.buffer,))
        groups = defaultdict[object, list[Step]](list)
        for number in value.steps:
            step = steps[number]
            if any(plan.tensors[access.tensor].rows for access in (*step.reads, *step.writes)):
                groups[_launch(step)].append(step)
        for group in groups.values():
            _check_ranges(report, value, group)


def _launch(step: Step) -> object:
    reads, writes = (tuple(access.tensor for access in accesses) for accesses in (step.reads, step.writes))
    return step.op, tuple(sorted(step.attrs.items(), key=lambda item: item[0])), reads, writes


def _check_ranges(report: Report, value: Sum, group: list[Step]) -> None:
    batch = report.plan.model.batch
    group.sort(key=lambda step: step.samples)
    end, last = 0, group[0]
    missing = []
    for step in group:
        start, stop = step.samples
        if start < end:
            again = f"samples [{start}, {min(stop, end)})"
            message = f"{report.step(step.id)}: adds {again} that {report.step(last.id)} has added."
            report.add("sum-twice", message, (step.id, last.id), (value.buffer,))
        if start > end:
            missing.append(f"[{end}, {start})")
        if stop >= end:
            end, last = stop, step
    if end < batch:
        missing.append(f"[{end}, {batch})")
    if missing and report.plan.semantics == "exact":
        message = f"{report.buffer(value.buffer)}: samples {', '.join(missing)} of {batch} are missing from the sum."
        report.add("sum-missing", message, [step.id for step in group], (value.buffer,))


def check_outputs(report: Report, flow: DataFlow) -> None:
    """Outputs and the loss lie complete in memory that nobody takes."""
    plan = report.plan
    end = len(plan.programs[report.program].steps)
    for port in (*plan.model.outputs, plan.model.loss):
        tensor = tensor_of(port, report.program)
        for number in buffers_of(port, report.program):
            problem = _output_problem(report, flow, number, tensor or 0, end)
            if problem:
                message = f"output {port.name!r}: {report.buffer(number)} {problem} when the program has ended."
                report.add("output-lost", message, (), (number,))


def _output_problem(report: Report, flow: DataFlow, number: int, tensor: int, end: int) -> str:
    buffer = report.plan.buffers[number]
    pieces, missing = locate(buffer, 0, buffer.bytes, end)
    if missing or any(buffer.extents[piece.extent].freed for piece in pieces):
        return "has given its memory away"
    contents = flow.contents(pieces)
    if any(content.version < 0 for content in contents):
        return "has not been written completely"
    return "" if all(flow.is_tensor(content, tensor, number) for content in contents) else "holds another tensor"


def check_homes(report: Report, flow: DataFlow) -> None:
    """What visited is back on the host as it was last, all of it: the next step begins with that."""
    plan = report.plan
    steps = plan.programs[report.program].steps
    for visitor, home in homes_of(plan, report.program).items():
        writes = [a for s in steps if s.kind is StepKind.LAUNCH for a in s.writes if a.buffer == visitor]
        newest = max((access.version for access in writes), default=0)
        pieces, _ = locate(plan.buffers[home], 0, plan.buffers[home].bytes, len(steps))
        old = {content.version for content in flow.contents(pieces)} - {newest}
        if old:
            message = f"{report.buffer(home)}: has version {min(old)} of bytes that became version {newest} on the "
            message += "device when the program has ended."
            report.add("persistent-end", message, (), (home, visitor))


Users = Mapping[int, Sequence[tuple[Step, Access]]]


def check_training(report: Report) -> None:
    """Parameters, statistics and optimizer state end one version on at most, by the right launches."""
    plan = report.plan
    homes = homes_of(plan, report.program)
    kept = {entry.buffer for entry in plan.model.persistent}
    reads, writes = (defaultdict[int, list[tuple[Step, Access]]](list) for _ in range(2))
    for step in plan.programs[report.program].steps:
        for found, accesses in ((reads, step.reads), (writes, step.writes)):
            for access in accesses if step.kind is StepKind.LAUNCH else ():
                place = homes.get(access.buffer, access.buffer)
                if place in kept:
                    found[place].append((step, access))
    for entry in plan.model.persistent:
        if entry.trainable:
            _check_update(report, entry, reads, writes)
        else:
            _check_version(report, entry, writes)


def _check_update(report: Report, entry: Persistent, reads: Users, writes: Users) -> None:
    name, buffer = _name(report, entry), entry.buffer
    writers = [step for step, _ in writes.get(buffer, ())]
    if not writers:
        report.add("update-missing", f"{name}: no step updates it.", (), (buffer,))
    if len(writers) > 1:
        steps = [step.id for step in writers]
        report.add("update-twice", f"{name}: {' and '.join(map(report.step, steps))} update it.", steps, (buffer,))
    for step in writers:
        if step.phase != "update":
            message = f"{report.step(step.id)}: writes {name} in phase {step.phase!r}, wanted 'update'."
            report.add("update-phase", message, (step.id,), (buffer,))
        if all(report.plan.buffers[access.buffer].kind in PERSISTENT_KINDS for access in step.reads):
            message = f"{report.step(step.id)}: updates {name} without reading a gradient."
            report.add("update-gradient", message, (step.id,), (buffer,))
    for step, access in reads.get(buffer, ()):
        if access.version > 0 and step not in writers[1:]:
            message = f"{report.step(step.id)}: reads {name} after its update in the same training step."
            report.add("update-early", message, (step.id,), (buffer,))


def _check_version(report: Report, entry: Persistent, writes: Users) -> None:
    changing = entry.kind in (BufferKind.STATISTIC, BufferKind.STATE)
    found = [step for step, _ in writes.get(entry.buffer, ())]
    writers = [step.id for step in found]
    if len(writers) > int(changing) and not (entry.kind is BufferKind.STATISTIC and _in_turn(report, found)):
        wanted = "one step may" if changing else "no step may"
        message = f"{_name(report, entry)}: {' and '.join(map(report.step, writers))} write it; {wanted}."
        report.add("persistent-version", message, writers, (entry.buffer,))


def _in_turn(report: Report, writers: Sequence[Step]) -> bool:
    """Whether each sub-batch moves a statistic once, in their order: semantics "changed", one launch."""
    borders = [0, *(step.samples[1] for step in writers)]
    follow = [step.samples[0] for step in writers] == borders[:-1] and borders[-1] == report.plan.model.batch
    return follow and report.plan.semantics == "changed" and len({_launch(step) for step in writers}) == 1


def check_evaluation(report: Report) -> None:
    """No persistent buffer is written, nor what visits but by its copy in."""
    homes = homes_of(report.plan, report.program)
    for step in report.plan.programs[report.program].steps:
        for access in step.writes:
            visitor = access.buffer in homes and step.kind is StepKind.LAUNCH
            if visitor or report.plan.buffers[access.buffer].program == "all":
                message = f"{report.step(step.id)}: writes {report.buffer(access.buffer)}."
                report.add("evaluate-writes", message, (step.id,), (access.buffer,))


def _name(report: Report, entry: Persistent) -> str:
    tensor: PlanTensor = report.plan.tensors[entry.tensor]
    return f"{entry.kind} {tensor.label!r}"
