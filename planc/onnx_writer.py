"""Writes trained weights and running statistics back into the model they came from."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from planc.errors import ModelError, RunError
from planc.graph import Array
from planc.onnx_loader import inline_functions, parse_model, tensor_value

INLINE_LIMIT_BYTES = 1_900_000_000
"""Protobuf stops at 2 GiB; a model with more weights gets them in a second file beside it."""


def save_trained(model_path: str | Path, values: Mapping[str, Array], out_path: str | Path) -> None:
    """The model in `model_path` with the given tensors in place of its own, under `out_path`, whole or not at all.

    Nodes, names, inputs and metadata stay as they are, except that a Constant, ConstantOfShape or Identity node whose
    output is in `values` gives way to an initializer of that name, and local functions are inlined.

    Args:
        values: by initializer name, or by the name of a constant node's output (graph.Graph.initializers); each is
            cast to the type its tensor has in the file.

    Raises:
        ModelError: the model cannot be read, or has no such tensor of that shape.
        RunError: the file cannot be written.
    """
    label = str(model_path)
    folder = Path(model_path).resolve().parent
    model = inline_functions(parse_model(model_path), label)
    graph = model.graph
    for tensor in graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(onnx.numpy_helper.from_array(tensor_value(tensor, tensor.name, folder), tensor.name))
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output if name}
    added = []
    for name, value in values.items():
        if name in initializers:
            _check_shape(label, name, tuple(initializers[name].dims), value)
            initializers[name].CopyFrom(_tensor(value, _dtype(name, producers, initializers), name))
        elif name in producers:
            added.append(_tensor(value, _dtype(name, producers, initializers), name))
        else:
            raise ModelError(f"model {label!r}: it has no initializer or constant {name!r} to put trained values in.")
    _replace_nodes(graph, {tensor.name: producers[tensor.name] for tensor in added})
    graph.initializer.extend(added)
    if model.ir_version < 4:  # every initializer had to be an input as well
        graph.input.extend(
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tuple(tensor.dims)) for tensor in added
        )
    _write(model, Path(out_path))


def _check_shape(label: str, name: str, wanted: tuple[int, ...], value: Array) -> None:
    if value.shape != wanted:
        raise ModelError(f"model {label!r}: initializer {name!r} has shape {wanted}, the trained one {value.shape}.")


def _tensor(value: Array, dtype: np.dtype[np.generic], name: str) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.asarray(value, dtype=dtype, order="C"), name)


def _dtype(
    name: str, producers: Mapping[str, onnx.NodeProto], initializers: Mapping[str, onnx.TensorProto]
) -> np.dtype[np.generic]:
    """The element type a tensor has in the file: an initializer's, or that of a constant node through any Identity."""
    while name not in initializers and producers[name].op_type == "Identity":
        name = producers[name].input[0]
    if name in initializers:
        kind = initializers[name].data_type
    else:  # Constant and ConstantOfShape hold float32 unless their tensor `value` says otherwise
        held = [attribute.t.data_type for attribute in producers[name].attribute if attribute.name == "value"]
        kind = held[0] if held else onnx.TensorProto.FLOAT
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))


def _replace_nodes(graph: onnx.GraphProto, removed: Mapping[str, onnx.NodeProto]) -> None:
    """Take out the nodes that make the named tensors, and the initializers that only they read (a weight's shape)."""
    sources = {name for node in removed.values() for name in node.input}
    _keep(graph.node, [node for node in graph.node if not any(name in removed for name in node.output)])
    read = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    unread = sources - read
    _keep(graph.initializer, [tensor for tensor in graph.initializer if tensor.name not in unread])
    _keep(graph.input, [entry for entry in graph.input if entry.name not in unread])


def _keep(field: Any, kept: list[Any]) -> None:
    """Set a repeated protobuf field to some of its own entries."""
    del field[:]
    field.extend(kept)


def _write(model: onnx.ModelProto, out: Path) -> None:
    """Write into a folder beside the target, then rename, so that a reader sees the old file or the new one."""
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    data_name = f"{out.name}.data"
    try:
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
            written = Path(folder) / out.name
            onnx.save_model(
                model,
                written,
                format="protobuf",
                save_as_external_data=size > INLINE_LIMIT_BYTES,
                location=data_name,
            )
            if size > INLINE_LIMIT_BYTES:
                written.with_name(data_name).replace(out.with_name(data_name))
            written.replace(out)
    except OSError as error:
        raise RunError(f"trained model {str(out)!r}: cannot be written: {error.strerror}.") from error
