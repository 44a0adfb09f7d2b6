"""ModelFile: what an ONNX file holds, as plain Python data, and the order its nodes are read in."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from planc.errors import ModelError
from planc.graph import Array

Dim = int | str | None
"""A saved dimension: known, symbolic, or unknown (absent, 0 or negative in the file)."""


@dataclass(frozen=True, slots=True)
class FileNode:
    """A node as saved. `label` is its name if that is unique in the file, else made from its position.

    `attrs` holds int, float, bytes, list or array; `control_flow` says that an attribute holds a sub-graph.
    """

    position: int
    domain: str
    op: str
    label: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, object]
    control_flow: bool = False

    @property
    def full_op(self) -> str:
        """The operator with its domain, where that is not ONNX's own."""
        return f"{self.domain}:{self.op}" if self.domain else self.op

    def error(self, problem: str, remedy: str = "") -> ModelError:
        return ModelError(f"node {self.label!r} ({self.full_op}): {problem}", remedy)


@dataclass(frozen=True, slots=True)
class FileInput:
    """A graph input that is not an initializer. `dims` is None where the file gives no shape at all."""

    name: str
    dtype: str
    dims: tuple[Dim, ...] | None


@dataclass(frozen=True, slots=True)
class ModelFile:
    """An ONNX model, functions inlined. Everything that needs the `onnx` package is behind the three callables.

    initializer: name -> its value, read when it is first asked for; ModelError if its bytes are missing or short.
    evaluate:    (node, its input values) -> its output values, by ONNX's reference evaluator.
    check:       raises ModelError if a node has inputs or attributes its operator does not have.
    """

    label: str
    opset: int
    nodes: tuple[FileNode, ...]
    inputs: tuple[FileInput, ...]
    outputs: tuple[str, ...]
    initializers: frozenset[str]
    initializer: Callable[[str], Array]
    evaluate: Callable[[FileNode, tuple[Array | None, ...]], tuple[Array, ...]]
    check: Callable[[FileNode], None]

    def error(self, problem: str, remedy: str = "") -> ModelError:
        return ModelError(f"model {self.label!r}: {problem}", remedy)


def node_labels(names: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A unique label for each (operator, name): the name, or operator / name with the position where that fails."""
    pairs = tuple(names)
    uses = Counter(name for _, name in pairs)
    taken = {name for name, count in uses.items() if count == 1}
    labels: list[str] = []
    for position, (op, name) in enumerate(pairs):
        label = name
        if not name or uses[name] > 1:
            label = f"{name or op}_{position}"
            while label in taken:
                label += "_"
            taken.add(label)
        labels.append(label)
    return tuple(labels)


def live_nodes(file: ModelFile) -> tuple[FileNode, ...]:
    """The nodes that some output needs, each after the nodes it reads; otherwise in the order of the file.

    Raises:
        ModelError: a tensor is defined twice or not at all, or nodes wait for each other in a circle.
    """
    producer = _producers(file)
    needed: set[int] = set()
    pending = list(file.outputs)
    for name in file.outputs:
        if name not in producer and not _given(file, name):
            raise file.error(f"output {name!r} is defined by no node, input or initializer.")
    while pending:
        node = producer.get(pending.pop())
        if node is not None and node.position not in needed:
            needed.add(node.position)
            pending.extend(name for name in node.inputs if name)
    return _sorted(file, tuple(node for node in file.nodes if node.position in needed), producer)


def _given(file: ModelFile, name: str) -> bool:
    return name in file.initializers or any(entry.name == name for entry in file.inputs)


def _producers(file: ModelFile) -> dict[str, FileNode]:
    producer: dict[str, FileNode] = {}
    given = {entry.name for entry in file.inputs} | file.initializers
    for node in file.nodes:
        for name in node.outputs:
            if not name:
                continue
            if name in producer:
                raise file.error(f"tensor {name!r} is defined twice, by {producer[name].label!r} and {node.label!r}.")
            if name in given:
                raise file.error(f"tensor {name!r} is an input or initializer and also defined by {node.label!r}.")
            producer[name] = node
    return producer


def _sorted(file: ModelFile, nodes: tuple[FileNode, ...], producer: Mapping[str, FileNode]) -> tuple[FileNode, ...]:
    """Kahn's algorithm, the earliest ready node of the file first: a sorted file keeps its order."""
    given = {entry.name for entry in file.inputs} | file.initializers
    waiting: dict[int, int] = {}
    readers: dict[int, list[FileNode]] = {}
    for node in nodes:
        sources: set[int] = set()
        for name in node.inputs:
            if name in producer:
                sources.add(producer[name].position)
            elif name and name not in given:
                raise node.error(f"reads tensor {name!r}, which no node, input or initializer defines.")
        waiting[node.position] = len(sources)
        for source in sources:
            readers.setdefault(source, []).append(node)
    by_position = {node.position: node for node in nodes}
    ready = [position for position, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: list[FileNode] = []
    while ready:
        node = by_position[heapq.heappop(ready)]
        order.append(node)
        for reader in readers.get(node.position, ()):
            waiting[reader.position] -= 1
            if waiting[reader.position] == 0:
                heapq.heappush(ready, reader.position)
    if len(order) < len(nodes):
        raise _cycle(file, {node.position for node in nodes} - {node.position for node in order}, producer)
    return tuple(order)


def _cycle(file: ModelFile, stuck: set[int], producer: Mapping[str, FileNode]) -> ModelError:
    """The error for nodes that wait for each other; names a tensor and the two nodes it joins in the circle."""
    node = next(node for node in file.nodes if node.position in stuck)
    seen: set[int] = set()
    while node.position not in seen:
        seen.add(node.position)
        tensor = next(name for name in node.inputs if name in producer and producer[name].position in stuck)
        reader, node = node, producer[tensor]
    return file.error(
        f"a cycle: node {reader.label!r} reads tensor {tensor!r}, and its producer {node.label!r} needs it."
    )
