"""The Builder of ops.spec: turns forward nodes into launches, over growing lists that `finish` freezes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from planc.errors import InternalError
from planc.gradient_flow import GradientFlow
from planc.graph import AttrValue, Graph, TensorSpec
from planc.losses import LossChoice
from planc.ops import LAUNCHES, OPS
from planc.ops.spec import PERSISTENT, BatchRule, TensorKind
from planc.training_graph import FORWARD, Launch, PersistentTensor, Tensor, TrainingGraph


class GraphBuilder:
    """The Builder of ops.spec over growing lists; `finish` freezes them."""

    def __init__(
        self, graph: Graph, flow: GradientFlow, *, training: bool, dropout: bool, slots: Sequence[str] = ()
    ) -> None:
        self.graph = graph
        self.training = training
        self.batch = graph.batch
        self.dropout = dropout
        self.flow = flow
        self.phase = FORWARD
        self.layer = 0
        self.label = ""
        self.kind = TensorKind.ACTIVATION
        self.tensors: list[Tensor] = []
        self.launches: list[Launch] = []
        self.persistent: list[PersistentTensor] = []
        self.names: dict[str, int] = {}
        self.labels: list[tuple[str, int]] = []
        self.states: dict[int, tuple[int, ...]] = {}
        for position, name in enumerate(graph.constants):
            self._add_constant(position, name)
        self._add_states(slots)
        self.inputs = [(name, self._add(name, graph.tensors[name], TensorKind.INPUT)) for name in graph.inputs]
        self.names.update(self.inputs)

    def _add_constant(self, position: int, name: str) -> None:
        kind = TensorKind.CONSTANT
        if name in self.flow.trainable:
            kind = TensorKind.PARAMETER
        elif name in self.flow.statistics:
            kind = TensorKind.STATISTIC
        label = self.graph.initializers.get(name, name)
        tensor = self._add(label, self.graph.tensors[name], kind)
        self.names[name] = tensor
        self.persistent.append(PersistentTensor(tensor, label, position, "", kind is TensorKind.PARAMETER))

    def _add(self, label: str, spec: TensorSpec, kind: TensorKind, root: int | None = None) -> int:
        index = len(self.tensors)
        self.tensors.append(Tensor(index, label, spec, kind, index if root is None else root))
        return index

    def _add_states(self, slots: Sequence[str]) -> None:
        """One optimizer state a slot for every trainable parameter."""
        for owner, item in enumerate(tuple(self.persistent)):
            if not item.trainable:
                continue
            spec = self.tensors[item.tensor].spec
            if spec.dtype in ("float16", "bfloat16"):
                spec = replace(spec, dtype="float32")
            states = []
            for slot in slots:
                states.append(self._add(f"{item.initializer}/{slot}", spec, TensorKind.STATE))
                self.persistent.append(PersistentTensor(states[-1], "", owner, slot))
            self.states[item.tensor] = tuple(states)

    def tensor(self, name: str) -> int:
        return self.names[name]

    def spec(self, tensor: int) -> TensorSpec:
        return self.tensors[tensor].spec

    def wants(self, name: str) -> bool:
        return self.training and name in self.flow.wanted

    def define(self, name: str, tensor: int) -> None:
        self.names[name] = tensor

    def view(self, tensor: int, spec: TensorSpec) -> int:
        source = self.tensors[tensor]
        if spec.bytes != source.spec.bytes:
            raise InternalError(f"view of {source.label!r}: {source.spec} is not the memory of {spec}")
        return self._add(source.label, spec, source.kind, source.root)

    def emit(
        self,
        op: str,
        inputs: Sequence[int],
        outputs: Sequence[TensorSpec],
        attrs: Mapping[str, AttrValue] | None = None,
        *,
        rule: BatchRule | None = None,
    ) -> tuple[int, ...]:
        ranged = any(self.tensors[i].spec.rows for i in inputs)
        if rule is None:
            if not ranged and not any(spec.rows for spec in outputs):
                rule = BatchRule.WHOLE
            elif all(spec.rows for spec in outputs):
                rule = BatchRule.PER_SAMPLE
            else:
                rule = BatchRule.SUM if LAUNCHES[op].sums else BatchRule.WHOLE
        made = tuple(self._add(self.label, spec, self.kind) for spec in outputs)
        self._launch(op, inputs, made, attrs or {}, rule)
        return made

    def overwrite(
        self,
        op: str,
        inputs: Sequence[int],
        targets: Sequence[int],
        attrs: Mapping[str, AttrValue],
        *,
        rule: BatchRule = BatchRule.WHOLE,
    ) -> None:
        self._launch(op, inputs, tuple(targets), attrs, rule)

    def _launch(
        self, op: str, inputs: Sequence[int], outputs: tuple[int, ...], attrs: Mapping[str, AttrValue], rule: BatchRule
    ) -> None:
        frozen = MappingProxyType(dict(sorted(attrs.items())))
        index = len(self.launches)
        self.launches.append(
            Launch(index, op, self.label, self.layer, self.phase, frozen, tuple(inputs), outputs, rule)
        )

    def forward(self, positions: frozenset[int]) -> dict[int, tuple[int, ...]]:
        """Lower the nodes at `positions`; returns the tensors each saved for its gradient."""
        saved: dict[int, tuple[int, ...]] = {}
        for position, node in enumerate(self.graph.nodes):
            if position not in positions:
                continue
            self.layer, self.label = position, node.name
            if node.op == "Dropout" and not self.dropout:
                self.define(node.outputs[0], self.tensor(node.inputs[0]))
                saved[position] = ()  # its gradient, with nothing saved, is the identity
                continue
            saved[position] = OPS[node.op].lower(self, node)
        return saved

    def add_labels(self, name: str, spec: TensorSpec) -> int:
        tensor = self._add(name, spec, TensorKind.LABEL)
        self.labels.append((name, tensor))
        return tensor

    def mark(self, tensor: int, kind: TensorKind) -> None:
        """Give an activation or gradient the more telling kind."""
        root = self.tensors[tensor].root
        if self.tensors[root].kind not in PERSISTENT | {TensorKind.INPUT}:
            self.tensors[root] = replace(self.tensors[root], kind=kind)

    def finish(
        self, choices: Sequence[LossChoice], loss: int, outputs: Sequence[str], optimizer: Mapping[str, str]
    ) -> TrainingGraph:
        for name in outputs:
            self.mark(self.tensor(name), TensorKind.OUTPUT)
        self.mark(loss, TensorKind.LOSS)
        return TrainingGraph(
            batch=self.batch,
            training=self.training,
            tensors=tuple(self.tensors),
            launches=tuple(self.launches),
            persistent=tuple(self.persistent),
            inputs=tuple(self.inputs),
            labels=tuple(self.labels),
            outputs=tuple((name, self.tensor(name)) for name in outputs),
            loss=("+".join(choice.output for choice in choices), loss),
            loss_kind="+".join(choice.kind for choice in choices),
            optimizer=MappingProxyType(dict(optimizer)),
            frozen=self.flow.frozen,
        )
