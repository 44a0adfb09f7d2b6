"""The structural hash of a model: equal for models that train alike, whatever their names and weights."""

from __future__ import annotations

import hashlib
import json

from planc.graph import Array, Graph, TensorSpec


def model_sha256(graph: Graph) -> str:
    """SHA-256 over operators, attributes, wiring, shapes, element types, batch rows and integer constants.

    Names, doc strings, warnings and the values of float constants are left out: tensors are numbered in the order of
    their first appearance, so that renaming every node and tensor leaves the hash as it is. Integer constants (indices)
    are part of what the model computes and count with their values.
    """
    numbers: dict[str, int] = {"": -1}
    for name in (*graph.inputs, *graph.constants):
        numbers[name] = len(numbers) - 1
    nodes = []
    for node in graph.nodes:
        inputs = [numbers[name] for name in node.inputs]
        for name in node.outputs:
            numbers.setdefault(name, len(numbers) - 1)
        outputs = [[numbers[name], _spec(graph.tensors[name])] for name in node.outputs if name in graph.tensors]
        nodes.append([node.op, sorted(node.attrs.items()), inputs, outputs])
    document = {
        "batch": graph.batch,
        "inputs": [_spec(graph.tensors[name]) for name in graph.inputs],
        "constants": [[_spec(graph.tensors[name]), _digest(value)] for name, value in graph.constants.items()],
        "nodes": nodes,
        "outputs": [numbers[name] for name in graph.outputs],
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _spec(spec: TensorSpec) -> list[object]:
    return [list(spec.shape), spec.dtype, spec.rows]


def _digest(value: Array) -> str:
    """Of an integer or boolean constant its content; of a float one nothing."""
    if value.dtype.kind not in "iub":
        return ""
    return hashlib.sha256(value.astype(value.dtype.newbyteorder("<")).tobytes()).hexdigest()
