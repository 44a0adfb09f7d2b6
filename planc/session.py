"""Session: a plan, a model's weights and a backend; training steps one call each."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from planc.errors import RunError, UsageError
from planc.graph import Array, Graph
from planc.initial_values import initial_values
from planc.model_hash import model_sha256
from planc.ops.normalization import BATCH_NORMS
from planc.plan import BufferKind, Persistent, Plan
from planc.runtime.backend import backend as find_backend
from planc.runtime.data import Batch, Wanted, check_batch, wanted
from planc.runtime.executor import Debug, Executor, Observer
from planc.runtime.launch import Hyper
from planc.runtime.measure import Measured, ProcessMemory, measure

_INIT = re.compile(r"random:([0-9]{1,18})", re.ASCII)
_DRAWN = frozenset({BufferKind.PARAMETER, BufferKind.STATISTIC})
_HASHED = frozenset({BufferKind.PARAMETER, BufferKind.STATISTIC, BufferKind.STATE})


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the evaluation program gives for a batch: the loss and the model's outputs by name."""

    loss: float
    outputs: Mapping[str, Array]


class Session:
    """Trains a model by a plan.

    Args:
        plan: the plan, for this model.
        model: the ONNX file, or the graph it was compiled from.
        backend: a key of `planc.runtime.backend.BACKENDS`.
        seed: of dropout.
        init: "random:SEED" draws the weights (see `initial_values`); None takes the model's.
        poison, chaos: debug switches that change no result (see `planc.runtime.executor.Debug`).
        directed: training step id -> seconds by which that step starts late.
        observe: called after each launch with copies of what it read and wrote.
        emulate: run a plan whose convolution algorithms the backend lacks with one that needs no workspace.
        lr: learning rate; None takes the plan's. May be changed between steps.

    Attributes:
        inputs: what a batch consists of.
        steps: training steps so far.
        memory: growth of the process since the model was read and before arena and host pool were allocated.

    Raises:
        UsageError: the plan is for another model, or an argument is wrong.
        ModelError: the model cannot be read.
        PlanFileError: the plan contradicts itself.
        RunError: the backend cannot run the plan, or there is too little memory.
    """

    def __init__(
        self,
        plan: Plan,
        model: str | Path | Graph,
        *,
        backend: str = "numpy",
        seed: int = 0,
        init: str | None = None,
        poison: bool = False,
        chaos: int | None = None,
        directed: Mapping[int, float] | None = None,
        observe: Observer | None = None,
        emulate: bool = False,
        lr: float | None = None,
    ) -> None:
        self.plan = plan
        self.lr = _learning_rate(plan, lr)
        self.steps = 0
        self.inputs: tuple[Wanted, ...] = wanted(plan)
        self._seed = seed
        self._init_seed = _init_seed(init)
        found = find_backend(backend)
        found.check(plan, emulate=emulate)
        source = model if isinstance(model, Graph) else Path(model)
        self._path = None if isinstance(source, Graph) else source
        self._graph = _matching_graph(plan, source)
        self.memory = ProcessMemory()
        debug = Debug(poison, chaos, directed or {}, observe)
        self._executor = Executor(plan, found.open(plan), debug)
        self._load_values()

    def step(self, batch: Batch) -> float:
        """One training step on a batch (arrays of the whole batch, by name). Returns the loss before the update.

        Raises:
            UsageError: the batch does not fit the plan.
            RunError: a lane failed, or the loss is not finite.
        """
        check_batch(self.inputs, batch)
        self.steps += 1
        self._run("train", batch)
        loss = self._executor.loss("train")
        if not math.isfinite(loss):
            raise RunError(
                f"training step {self.steps}: the loss is {loss}.",
                f"Lower --lr (now {self.lr:g}), or look for values in the data that are not finite.",
            )
        return loss

    def evaluate(self, batch: Batch) -> Evaluation:
        """The model as it is used (running statistics, dropout off) on a batch; changes nothing.

        Raises:
            UsageError: the batch does not fit the plan.
            RunError: a lane failed.
        """
        check_batch(self.inputs, batch)
        self._run("evaluate", batch)
        outputs = {port.name: self._executor.output("evaluate", port.name) for port in self.plan.model.outputs}
        found = {name: values for name, values in outputs.items() if values is not None}
        return Evaluation(self._executor.loss("evaluate"), found)

    def measure(self, batch: Batch) -> Measured:
        """What a training step touches and allocates: a dry run that counts as no step and leaves no trace.

        Raises:
            UsageError: the session has trained already; its state would be lost.
        """
        if self.steps:
            raise UsageError(f"session: {self.steps} steps were trained; measure before the first.")
        check_batch(self.inputs, batch)

        def load() -> None:
            self._load_values()
            self._put("train", batch)

        self.steps = 1  # what the first step will see; with 0 an optimizer would correct its bias by a division by 0
        try:
            return measure(self._executor.device, load, lambda: self._executor.run("train", self._hyper()))
        finally:
            self.steps = 0
            self._load_values()

    def values(self) -> dict[str, Array]:
        """Parameters and running statistics as they are now, by the model file's name for each."""
        device, place = self._executor.device, self._executor.place
        return {item.initializer: device.read(place(item)) for item in self.plan.model.persistent if _is_saved(item)}

    def state_sha256(self) -> str:
        """Hash of parameters, running statistics and optimizer state, in the plan's order."""
        digest = hashlib.sha256()
        for item in self.plan.model.persistent:
            if item.kind in _HASHED:
                digest.update(self._executor.device.read(self._executor.place(item).raw()).data)
        return digest.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write the model with its weights as they are now.

        Raises:
            UsageError: the session was made from a graph; there is no file to put the weights into.
        """
        if self._path is None:
            raise UsageError("session: made from a graph, it knows no model file.", "Give Session the ONNX file.")
        from planc.onnx_writer import save_trained  # as for the loader

        save_trained(self._path, self.values(), Path(path))

    def _hyper(self) -> Hyper:
        return Hyper(self._seed, self.steps, self.lr)

    def _run(self, program: str, batch: Batch) -> None:
        self._put(program, batch)
        self._executor.run(program, self._hyper())

    def _put(self, program: str, batch: Batch) -> None:
        for want in self.inputs:
            self._executor.put(program, want.name, batch[want.name])

    def _load_values(self) -> None:
        """Put every persistent tensor's first value into the arena."""
        device = self._executor.device
        constants = tuple(self._graph.constants.values())
        for item in self.plan.model.persistent:
            place = self._executor.place(item)
            if item.kind is BufferKind.STATE:
                device.fill(place, 0)(self._hyper())
            elif self._init_seed is not None and item.kind in _DRAWN:
                for start, values in initial_values(self._graph, item.position, self._init_seed):
                    device.write(place.elements(start, start + values.size), values)
            else:
                device.write(place, constants[item.position])


def _is_saved(item: Persistent) -> bool:
    return item.kind in _DRAWN


def _learning_rate(plan: Plan, lr: float | None) -> float:
    found = float(plan.model.optimizer["lr"]) if lr is None else lr
    if not math.isfinite(found):
        raise UsageError(f"learning rate {found}: not a finite number.", "Give a decimal such as 0.01.")
    return found


def _init_seed(init: str | None) -> int | None:
    if init is None:
        return None
    found = _INIT.fullmatch(init)
    if found is None:
        raise UsageError(f"init {init!r}: not known.", "Give random:SEED, for example random:0.")
    return int(found[1])


def _matching_graph(plan: Plan, model: Path | Graph) -> Graph:
    """The graph the plan was made for. A plan knows its model by structure, since it takes values by position; how
    batch norm is trained shows there too, so that a file is read in each way until one fits.

    Raises:
        UsageError: the plan was made for another model.
    """
    if isinstance(model, Graph):
        graphs: Iterator[Graph] = iter((model,))
    else:
        graphs = (_load(plan, model, batch_norm) for batch_norm in BATCH_NORMS)
    found = []
    for graph in graphs:
        found.append(model_sha256(graph)[:12])
        if model_sha256(graph) == plan.provenance.model_sha256:
            return graph
    raise UsageError(
        f"plan: made for the model {plan.provenance.model_sha256[:12]} at batch {plan.model.batch}; "
        f"this one is {' or '.join(dict.fromkeys(found))}.",
        "Give the model the plan was compiled from, or compile a plan for this one.",
    )


def _load(plan: Plan, path: Path, batch_norm: str) -> Graph:
    from planc.onnx_loader import load_model  # onnx takes a while to import, and a Graph does without

    wide = any(plan.tensors[item.tensor].dtype == "float64" for item in plan.model.persistent)
    precision = "fp64" if wide else "fp32"
    ports = ((port.name, port.train_tensor, port.evaluate_tensor) for port in plan.model.inputs)
    tensors = ((name, one if one is not None else two) for name, one, two in ports)
    return load_model(
        path,
        batch=plan.model.batch,
        precision=precision,
        batch_norm=batch_norm,
        shapes={name: plan.tensors[tensor].shape for name, tensor in tensors if tensor is not None},
    )
