"""Model: what the host puts in before a program and takes out after it has buffers that can hold it."""

from __future__ import annotations

from planc.plan import PERSISTENT_KINDS, Buffer, Persistent, Plan, Port, Space
from planc.verify_form import Size, tensor_size
from planc.verify_report import Report, Violation


def check_model(plan: Plan) -> tuple[Violation, ...]:
    """The violations of codes `model` and `semantics`. The plan's form is good."""
    report = Report(plan, "")
    sizes = [tensor_size(tensor, plan.model.batch) for tensor in plan.tensors]
    model = plan.model
    if plan.semantics not in ("exact", "changed") or (plan.semantics == "changed") != bool(plan.semantics_reason):
        found = f"{plan.semantics!r} with the reason {plan.semantics_reason!r}"
        report.add("semantics", f"plan: its semantics are {found}; wanted exact, or changed and why.")
    for port in (*model.inputs, *model.labels):
        _check_port(report, port, sizes, given=True)
    for port in (*model.outputs, model.loss):
        _check_port(report, port, sizes, given=False)
    for entry in model.persistent:
        _check_persistent(report, entry)
    initialised = {entry.buffer for entry in model.persistent}
    for buffer in plan.buffers:
        if buffer.program == "all" and buffer.id not in initialised:
            report.add(
                "model", f"{report.buffer(buffer.id)}: no entry says where its first value is from.", (), (buffer.id,)
            )
    if report.found:
        return tuple(report.found)
    for program in plan.programs:
        homes = homes_of(plan, program)
        visitors = [b.id for b in plan.buffers if b.kind in PERSISTENT_KINDS and b.program == program]
        if homes.keys() != set(visitors) or len(set(homes.values())) < len(homes):
            wanted = "wanted a host buffer of the same tensor for each, and one visitor for each"
            report.add("model", f"{program}: its visitors are buffers {visitors}; {wanted}.", (), visitors)
    return tuple(report.found)


def homes_of(plan: Plan, program: str) -> dict[int, int]:
    """For every buffer that visits the device in `program` the persistent buffer on the host that it is a copy of."""
    places = {_identity(plan.buffers[entry.buffer]): entry.buffer for entry in plan.model.persistent}
    return {
        buffer.id: places[_identity(buffer)]
        for buffer in plan.buffers
        if buffer.kind in PERSISTENT_KINDS
        and buffer.program == program
        and _identity(buffer) in places
        and plan.buffers[places[_identity(buffer)]].space is Space.HOST
    }


def _identity(buffer: Buffer) -> tuple[object, ...]:
    return buffer.kind, buffer.tensors, buffer.samples, buffer.bytes


def given_buffers(plan: Plan, program: str) -> frozenset[int]:
    """The buffers that the host has filled before `program` starts."""
    ports = (*plan.model.inputs, *plan.model.labels)
    inputs = {buffer for port in ports for buffer in buffers_of(port, program)}
    return frozenset(inputs | {entry.buffer for entry in plan.model.persistent})


def buffers_of(port: Port, program: str) -> tuple[int, ...]:
    """The buffers of a port in `program`, in the order of their samples."""
    return port.train if program == "train" else port.evaluate


def tensor_of(port: Port, program: str) -> int | None:
    return port.train_tensor if program == "train" else port.evaluate_tensor


def _check_port(report: Report, port: Port, sizes: list[Size], *, given: bool) -> None:
    plan = report.plan
    for program in plan.programs:
        buffers, tensor = buffers_of(port, program), tensor_of(port, program)
        if not buffers:
            continue
        where = f"model: {port.name!r} in {program}"
        if tensor is None or not 0 <= tensor < len(sizes) or not all(0 <= b < len(plan.buffers) for b in buffers):
            report.add("model", f"{where}: is tensor {tensor} in buffers {list(buffers)}, which do not all exist.")
            continue
        held = [plan.buffers[buffer] for buffer in buffers]
        size = sizes[tensor]
        foreign = any(buffer.program not in (program, "all") for buffer in held)
        small = any(buffer.bytes < size.range(*buffer.samples) for buffer in held)
        if foreign or small or not _in_order(held, size, plan.model.batch):
            wanted = "wanted buffers of this program that hold it once, in the order of its samples"
            report.add("model", f"{where}: lies in buffers {list(buffers)}; {wanted}.", (), buffers)
        elif given and any(_bytes_at_start(buffer) < size.range(*buffer.samples) for buffer in held):
            report.add("model", f"{where}: has no place before the first step.", (), buffers)


def _in_order(held: list[Buffer], size: Size, batch: int) -> bool:
    if size.sample is None:
        return len(held) == 1
    borders = [0, *(buffer.samples[1] for buffer in held)]
    return borders[-1] == batch and borders[:-1] == [buffer.samples[0] for buffer in held]


def _bytes_at_start(buffer: Buffer) -> int:
    return sum(extent.bytes for extent in buffer.extents if extent.born is None)


def _check_persistent(report: Report, entry: Persistent) -> None:
    plan = report.plan
    if not 0 <= entry.buffer < len(plan.buffers) or not 0 <= entry.tensor < len(plan.tensors):
        report.add(
            "model", f"model: a {entry.kind} is tensor {entry.tensor} in buffer {entry.buffer}; both must exist."
        )
        return
    buffer = plan.buffers[entry.buffer]
    if entry.kind != buffer.kind or entry.kind not in PERSISTENT_KINDS or entry.tensor not in buffer.tensors:
        report.add(
            "model",
            f"{report.buffer(buffer.id)}: is listed as the {entry.kind} {plan.tensors[entry.tensor].label!r}.",
            (),
            (buffer.id,),
        )
