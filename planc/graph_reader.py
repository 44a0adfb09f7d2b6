"""ModelFile -> Graph: one pass in topological order, with planc's own shape inference: no saved shape is trusted.

What becomes of a node whose inputs are all known (field cases A3, A5, A6, A10, A27):

- Shape of anything, and whatever is computed from integers, booleans and single-element floats: evaluated now. No
  device memory, no gradient.
- A float constant of several elements counts as a weight, wherever it stands: initializer, Constant, ConstantOfShape.
  A node that computes from a weight (Transpose of a tied embedding, Unsqueeze of a scale) stays a node, so that the
  weight keeps its gradient; if planc has no gradient for it, it is evaluated and a warning says the weight is frozen.
- Identity of a weight is that weight if nothing else reads it, else a parameter of its own: exporters write weights
  that happen to be equal once. `tie` shares them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from planc.errors import ModelError
from planc.graph import FLOATS, ITEM_BYTES, Array, Graph, Node, TensorSpec
from planc.input_binding import Binding
from planc.model_file import FileNode, ModelFile, live_nodes
from planc.ops import OPS
from planc.ops.normalization import BATCH_NORMS
from planc.ops.spec import RawNode

_FLOAT_CODES = {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}
"""ONNX's codes of the float types, as they stand in Cast's attribute `to`."""

_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
"""Operators whose result is not known although their inputs are."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """`float_dtype`: what every float tensor becomes. The others are those of `onnx_loader.load_model`."""

    float_dtype: str
    batch_norm: str
    tie: bool


def read_graph(file: ModelFile, binding: Binding, options: ReadOptions, warnings: tuple[str, ...] = ()) -> Graph:
    """The graph of a model at a fixed batch; nodes that reach no output are left out.

    Args:
        warnings: what is to stand first among the graph's warnings.

    Raises:
        ModelError: operators planc does not have (all of them in one message), or a node it cannot read.
    """
    reader = _Reader(file, binding, options)
    for node in reader.nodes:
        reader.step(node)
    reader.complain()
    return reader.graph(warnings)


class _Reader:
    """The state of the pass: what is known of each tensor that a node read so far defines.

    A tensor is in one of: `constants` (value known), `specs` (computed at run time), `lost` (an operator before it is
    missing) or `lost_constants` (would be known but for that); the last two only so that one error can list everything.
    """

    def __init__(self, file: ModelFile, binding: Binding, options: ReadOptions) -> None:
        self.file = file
        self.binding = binding
        self.options = options
        self.nodes = live_nodes(file)
        self.uses = Counter(name for node in self.nodes for name in node.inputs)
        self.specs: dict[str, TensorSpec] = dict(binding.inputs)
        self.constants: dict[str, Array] = {}
        self.same: dict[str, str] = {}
        self.lost: set[str] = set()
        self.lost_constants: set[str] = set()
        self.missing: dict[str, list[FileNode]] = {}
        self.first_error: ModelError | None = None
        self.kept: list[Node] = []
        self.copies: list[str] = []
        self.frozen: list[str] = []

    def step(self, node: FileNode) -> None:
        inputs = tuple(self.same.get(name, name) for name in node.inputs)
        if any(name in self.lost or name in self.lost_constants for name in inputs):
            self.lose(node, inputs)
            return
        try:
            for name in inputs:
                if name and name not in self.specs and name not in self.constants:
                    self.look_up(node, name)
            if _asks_shape(node):
                self.constants[node.outputs[0]] = self.shape_value(node, inputs[0])
            elif node.domain or node.control_flow or node.op in _RANDOM:
                self.note_missing(node)
            elif all(name in self.constants for name in inputs if name):
                self.constant_node(node, inputs)
            else:
                self.keep(node, inputs)
        except ModelError as error:
            self.first_error = self.first_error or error
            self.lost.update(node.outputs)

    def lose(self, node: FileNode, inputs: tuple[str, ...]) -> None:
        """Carry on behind a missing operator: note further missing ones, but not those that only compute shapes."""
        known = (self.lost_constants, self.constants, self.file.initializers)
        if _asks_shape(node) or all(any(name in part for part in known) for name in inputs if name):
            self.lost_constants.update(node.outputs)
        elif node.full_op in OPS:
            self.lost.update(node.outputs)
        else:
            self.note_missing(node)

    def note_missing(self, node: FileNode) -> None:
        self.missing.setdefault(node.full_op, []).append(node)
        self.lost.update(node.outputs)

    def look_up(self, node: FileNode, name: str) -> None:
        if name not in self.file.initializers:
            raise node.error(f"reads tensor {name!r}, an output of another node that planc does not compute.")
        self.constants[name] = self.file.initializer(name)

    def shape_value(self, node: FileNode, name: str) -> Array:
        shape = self.specs[name].shape if name in self.specs else self.constants[name].shape
        if node.op == "Size":
            return np.asarray(np.prod(shape, dtype=np.int64))
        start, end = node.attrs.get("start"), node.attrs.get("end")
        first = start if isinstance(start, int) else None
        return np.array(shape[first : end if isinstance(end, int) else None], dtype=np.int64)

    def constant_node(self, node: FileNode, inputs: tuple[str, ...]) -> None:
        """A node whose inputs are all known: pass the weight on, keep the node for its gradient, or evaluate it."""
        weights = [name for name in inputs if name and _is_weight(self.constants[name])]
        if node.op == "Identity":
            self.identity(node, inputs[0])
        elif weights and _has_gradient(node):
            self.keep(node, inputs)
        else:
            values = self.file.evaluate(node, tuple(self.constants[name] if name else None for name in inputs))
            self.constants.update((name, value) for name, value in zip(node.outputs, values) if name)
            if weights and any(_is_weight(value) for value in values):
                self.frozen.append(node.label)

    def identity(self, node: FileNode, source: str) -> None:
        value = self.constants[source]
        if _is_float(value) and (self.uses[node.inputs[0]] == 1 or self.options.tie):
            self.same[node.outputs[0]] = source
            return
        self.constants[node.outputs[0]] = value
        if _is_weight(value):
            self.copies.append(node.outputs[0])

    def keep(self, node: FileNode, inputs: tuple[str, ...]) -> None:
        spec = OPS.get(node.op)
        if spec is None:
            self.note_missing(node)
            return
        self.file.check(node)
        raw = RawNode(
            op=node.op,
            name=node.label,
            opset=self.file.opset,
            inputs=inputs,
            outputs=node.outputs,
            attrs=self.attributes(node),
            specs=tuple(self.spec(name) if name else None for name in inputs),
            constants=tuple(self.constants.get(name) for name in inputs),
            batch=self.binding.batch,
            file_batch=self.binding.file_batch,
        )
        reading = spec.read(raw)
        attrs = dict(reading.attrs)
        if node.op == "BatchNormalization":
            attrs["mode"] = BATCH_NORMS[self.options.batch_norm]
        kept = Node(node.op, node.label, reading.inputs, node.outputs[: reading.outputs], MappingProxyType(attrs))
        found = spec.infer(kept, tuple(self.spec(name) if name else None for name in kept.inputs), self.binding.batch)
        self.specs.update((name, out) for name, out in zip(kept.outputs, found) if name)
        self.kept.append(kept)

    def attributes(self, node: FileNode) -> Mapping[str, object]:
        """The file's attributes; a Cast to a float type casts to the run's."""
        if node.op == "Cast" and node.attrs.get("to") in _FLOAT_CODES.values():
            return {**node.attrs, "to": _FLOAT_CODES[self.options.float_dtype]}
        return node.attrs

    def spec(self, name: str) -> TensorSpec:
        found = self.specs.get(name)
        if found is not None:
            return found
        value = self.constants[name]
        dtype = self.options.float_dtype if _is_float(value) else value.dtype.name
        if dtype not in ITEM_BYTES:
            raise self.file.error(f"constant {name!r} holds {dtype}, which planc cannot plan.")
        return TensorSpec(value.shape, dtype)

    def complain(self) -> None:
        """Raise what was found: all missing operators in one message, else the first node that could not be read."""
        if self.missing:
            raise missing_operators(self.file, self.missing)
        if self.first_error is not None:
            raise self.first_error

    def graph(self, warnings: tuple[str, ...]) -> Graph:
        computed = {name for node in self.kept for name in node.outputs}
        outputs = tuple(name for name in self.file.outputs if name in computed)
        if not outputs:
            raise self.file.error("no output depends on an input through any operator: there is nothing to train.")
        nodes = _needed(self.kept, outputs)
        read = dict.fromkeys(name for node in nodes for name in node.inputs if name)
        inputs = tuple(entry.name for entry in self.file.inputs if entry.name in read)
        constants = {name: self.cast(self.constants[name]) for name in read if name in self.constants}
        names = (*inputs, *constants, *(name for node in nodes for name in node.outputs if name in self.specs))
        return Graph(
            batch=self.binding.batch,
            inputs=inputs,
            outputs=outputs,
            nodes=nodes,
            tensors=MappingProxyType({name: self.spec(name) for name in names}),
            constants=MappingProxyType(constants),
            initializers=MappingProxyType({name: name for name in constants}),
            warnings=(*warnings, *self.left_out(outputs, inputs), *self.weight_warnings(read)),
        )

    def left_out(self, outputs: tuple[str, ...], inputs: tuple[str, ...]) -> list[str]:
        constant = [name for name in self.file.outputs if name not in outputs]
        unread = [entry.name for entry in self.file.inputs if entry.name not in inputs]
        return [
            *(f"output {name!r} does not depend on the inputs; it is left out" for name in constant),
            *(f"input {name!r} is read by no operator; it is left out" for name in unread),
        ]

    def weight_warnings(self, read: Mapping[str, None]) -> list[str]:
        warnings = []
        copies = [name for name in self.copies if name in read]
        if copies:
            warnings.append(
                f"weights that are Identity of another weight: {len(copies)} (first {copies[0]!r}); "
                "each is trained as a parameter of its own"
            )
        if self.frozen:
            warnings.append(
                f"nodes without a gradient that compute from weights: {len(self.frozen)} (first {self.frozen[0]!r}); "
                "those weights are frozen"
            )
        return warnings

    def cast(self, value: Array) -> Array:
        """The value in the run's float type. A value that repeats one number (zero strides) keeps taking no memory."""
        dtype = self.options.float_dtype
        if not _is_float(value) or value.dtype.name == dtype:
            return value
        if value.size and not any(value.strides):
            return np.broadcast_to(value[(0,) * value.ndim].astype(dtype), value.shape)
        return value.astype(dtype)


def missing_operators(file: ModelFile, missing: Mapping[str, list[FileNode]]) -> ModelError:
    """One error for all operators that planc does not have."""
    parts = []
    for op, nodes in sorted(missing.items()):
        count = "1 node," if len(nodes) == 1 else f"{len(nodes)} nodes, first"
        flow = "; it holds a sub-graph" if nodes[0].control_flow else ""
        parts.append(f"{op} ({count} {nodes[0].label!r}{flow})")
    what = "1 operator" if len(parts) == 1 else f"{len(parts)} operators"
    return file.error(
        f"{what} planc does not have: {', '.join(parts)}.",
        "Export the model without them, or cut it before them.",
    )


def _needed(nodes: list[Node], outputs: tuple[str, ...]) -> tuple[Node, ...]:
    """Nodes that reach an output: folding may have left some behind whose only reader was a Shape."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(name for name in node.inputs if name)
            kept.append(node)
    return tuple(reversed(kept))


def _has_gradient(node: FileNode) -> bool:
    spec = OPS.get(node.op)
    to_integer = node.op == "Cast" and node.attrs.get("to") not in _FLOAT_CODES.values()
    return spec is not None and spec.gradient is not None and spec.differentiable != () and not to_integer


def _asks_shape(node: FileNode) -> bool:
    return node.op in ("Shape", "Size") and not node.domain and len(node.inputs) == 1


def _is_float(value: Array) -> bool:
    return value.dtype.name in FLOATS


def _is_weight(value: Array) -> bool:
    return value.size > 1 and _is_float(value)
