"""Reads an ONNX file: the only module besides the writer and the model zoo that knows the `onnx` package."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.defs
import onnx.inliner

from planc.errors import ModelError, UsageError
from planc.graph import Array, Graph
from planc.graph_reader import ReadOptions, read_graph
from planc.input_binding import bind_inputs, open_sizes
from planc.model_file import Dim, FileInput, FileNode, ModelFile, node_labels
from planc.ops import OPS
from planc.ops.normalization import BATCH_NORMS

FLOAT_DTYPES: Mapping[str, str] = MappingProxyType({"fp32": "float32", "fp64": "float64"})
OLDEST_OPSET = 7

_QUANTISED = re.compile(r"(Dynamic)?(Quantize|Dequantize)Linear|QLinear\w+|QGemm|\w+Integer(ToFloat)?")
_FOLDED_CONV = re.compile(r"onnx::Conv_\d+")
"""What PyTorch's exporter calls a convolution's weights once it has folded a batch norm into them."""


def load_model(
    model: str | Path | onnx.ModelProto,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    precision: str = "fp32",
    batch_norm: str = "exact",
    tie: bool = False,
    strict: bool = False,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Graph:
    """The forward model in an ONNX file, at a fixed batch.

    Args:
        model: path of the file, or a model in memory.
        batch: samples; None takes the batch the file was saved with.
        dims: sizes for open dimensions, by symbol (`sequence`) or place (`input[2]`).
        precision: "fp32" or "fp64": what every float tensor becomes.
        batch_norm: "exact": it trains on the whole batch, whatever the file's `training_mode` says, since most files
            are saved for inference; "per-sub-batch": each sub-batch is normalised by itself; "frozen": by the running
            statistics.
        tie: Identity of a weight shares that weight instead of being a parameter of its own.
        shapes: shapes of inputs by name, from a plan, for dimensions that are open and not in `dims`.
        strict: what looks like a mistake of the export is an error and not a warning.

    Raises:
        ModelError: the file cannot be read, or holds something planc cannot train.
        UsageError: a size or the precision is not one planc takes.
    """
    if precision not in FLOAT_DTYPES:
        raise UsageError(f"precision {precision!r}: not one planc has.", f"Choose from {', '.join(FLOAT_DTYPES)}.")
    if batch_norm not in BATCH_NORMS:
        raise UsageError(f"batch norm {batch_norm!r}: unknown.", f"Use one of: {', '.join(BATCH_NORMS)}.")
    if isinstance(model, onnx.ModelProto):
        file = _model_file(model, "(in memory)", None)
    else:
        file = _model_file(parse_model(model), str(model), Path(model).resolve().parent)
    _refuse_quantised(file)
    complaints = _export_complaints(file)
    if strict and complaints:
        raise file.error(f"{'; '.join(complaints)}.", "Export the model in training mode, or leave out --strict.")
    options = ReadOptions(FLOAT_DTYPES[precision], batch_norm=batch_norm, tie=tie)
    sizes = {**open_sizes(file, shapes or {}), **(dims or {})}
    binding = bind_inputs(file, batch=batch, dims=sizes, float_dtype=options.float_dtype)
    return read_graph(file, binding, options, warnings=complaints)


def parse_model(path: str | Path) -> onnx.ModelProto:
    """The protobuf message in a file, its external data not read.

    Raises:
        ModelError: there is no such file, or it is not an ONNX model.
    """
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"model {str(path)!r}: cannot be read: {reason}.") from error
    remedy = "Give a file that an exporter wrote, such as torch.onnx.export."
    if not data:
        raise ModelError(f"model {str(path)!r}: the file is empty.", remedy)
    try:
        proto = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's DecodeError: which class that is depends on its implementation
        raise ModelError(f"model {str(path)!r}: not an ONNX file, or cut off.", remedy) from error
    if not proto.HasField("graph") or not proto.graph.output:
        raise ModelError(f"model {str(path)!r}: not an ONNX model: it has no graph with an output.", remedy)
    return proto


def inline_functions(proto: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """The model with calls of its local functions replaced by their bodies; the model itself if it has none."""
    if not proto.functions:
        return proto
    try:
        return onnx.inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"model {label!r}: its functions cannot be inlined: {_line(error)}.") from error


def _model_file(proto: onnx.ModelProto, label: str, folder: Path | None) -> ModelFile:
    opset = _opset(proto, label)
    proto = inline_functions(proto, label)
    graph = proto.graph
    if graph.sparse_initializer:
        name = graph.sparse_initializer[0].values.name
        raise ModelError(f"model {label!r}: initializer {name!r} is sparse.", "Export the model with dense weights.")
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    labels = node_labels((node.op_type, node.name) for node in graph.node)
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {entry.domain: entry.version for entry in proto.opset_import}

    def check(node: FileNode) -> None:
        try:
            onnx.checker.check_node(graph.node[node.position], context)
        except onnx.checker.ValidationError as error:
            if node.op in OPS and onnx.defs.get_schema(node.op, opset).deprecated:
                return  # refused for that alone, such as the GroupNormalization of opsets 18 to 20
            raise node.error(f"not a valid node of opset {opset}: {_line(error)}.") from error

    return ModelFile(
        label=label,
        opset=opset,
        nodes=tuple(_node(node, position, labels[position], folder) for position, node in enumerate(graph.node)),
        inputs=tuple(_input(entry, label) for entry in graph.input if entry.name not in tensors),
        outputs=tuple(entry.name for entry in graph.output),
        initializers=frozenset(tensors),
        initializer=lambda name: tensor_value(tensors[name], name, folder),
        evaluate=_evaluator(graph, opset),
        check=check,
    )


def _opset(proto: onnx.ModelProto, label: str) -> int:
    newest = onnx.defs.onnx_opset_version()
    found = [entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")]
    opset = max(found, default=1)
    if not OLDEST_OPSET <= opset <= newest:
        raise ModelError(
            f"model {label!r}: opset {opset}; planc reads opsets {OLDEST_OPSET} to {newest}.",
            "Convert it with onnx.version_converter, or export it again.",
        )
    return opset


def _node(node: onnx.NodeProto, position: int, label: str, folder: Path | None) -> FileNode:
    attrs: dict[str, object] = {}
    control_flow = False
    for attribute in node.attribute:
        kind = attribute.type
        if kind in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            control_flow = True
        elif kind == onnx.AttributeProto.TENSOR:
            attrs[attribute.name] = tensor_value(attribute.t, f"{label}.{attribute.name}", folder)
        else:
            value = onnx.helper.get_attribute_value(attribute)
            attrs[attribute.name] = value if isinstance(value, int | float | bytes) else list(value)
    domain = "" if node.domain == "ai.onnx" else node.domain
    return FileNode(position, domain, node.op_type, label, tuple(node.input), tuple(node.output), attrs, control_flow)


def _input(entry: onnx.ValueInfoProto, label: str) -> FileInput:
    if not entry.type.HasField("tensor_type"):
        raise ModelError(f"model {label!r}: input {entry.name!r} is no tensor (a sequence, map or optional).")
    kind = entry.type.tensor_type
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)).name
    except KeyError as error:
        raise ModelError(f"model {label!r}: input {entry.name!r} has no element type.") from error
    dims = tuple(_dim(dim) for dim in kind.shape.dim) if kind.HasField("shape") else None
    return FileInput(entry.name, dtype, dims)


def _dim(dim: Any) -> Dim:
    if dim.dim_param:
        return str(dim.dim_param)
    return int(dim.dim_value) if dim.dim_value > 0 else None


def tensor_value(tensor: onnx.TensorProto, name: str, folder: Path | None) -> Array:
    """The array in a tensor of the file; external data is mapped, not read.

    Args:
        folder: where the model file lies; None for a model in memory, which cannot have external data.

    Raises:
        ModelError: the bytes are missing, short, or outside `folder`.
    """
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external_value(tensor, name, folder)
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"tensor {name!r}: its data does not fit its type and shape: {_line(error)}.") from error


def _external_value(tensor: onnx.TensorProto, name: str, folder: Path | None) -> Array:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(f"tensor {name!r}: its data is in file {location!r}.", "Give the model's path instead.")
    path = (folder / location).resolve()
    if not location or not path.is_relative_to(folder):
        raise ModelError(f"tensor {name!r}: its data file {location!r} lies outside the model's folder.")
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        shape = tuple(tensor.dims)
        offset = int(entries.get("offset", "0"))
        need = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        size = path.stat().st_size
    except OSError as error:
        raise ModelError(
            f"tensor {name!r}: its data file {location!r} cannot be read: {error.strerror}.",
            "Put it beside the model file.",
        ) from error
    except (ValueError, KeyError) as error:
        raise ModelError(f"tensor {name!r}: its reference to external data is damaged: {_line(error)}.") from error
    if offset < 0 or size < need:
        raise ModelError(f"tensor {name!r}: its data file {location!r} has {size} bytes, wanted {need}.")
    if need == offset:
        return np.zeros(shape, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r", offset=offset, shape=shape))


def _evaluator(graph: onnx.GraphProto, opset: int) -> Callable[[FileNode, tuple[Array | None, ...]], tuple[Array, ...]]:
    """Evaluates single nodes by ONNX's reference evaluator, weights that repeat one number without memory."""

    def evaluate(node: FileNode, inputs: tuple[Array | None, ...]) -> tuple[Array, ...]:
        try:
            literal = node.attrs.get("value")
            if node.op == "Constant" and isinstance(literal, np.ndarray):
                return (literal,)
            if node.op == "ConstantOfShape" and inputs and inputs[0] is not None:
                value = np.asarray(node.attrs.get("value", np.zeros(1, np.float32)))
                return (np.broadcast_to(value.reshape(()), tuple(int(size) for size in inputs[0])),)
            return _reference(graph.node[node.position], inputs, opset)
        except Exception as error:  # the evaluator raises whatever its NumPy code runs into
            raise node.error(f"its constant inputs cannot be evaluated: {_line(error)}.") from error

    return evaluate


def _reference(node: onnx.NodeProto, inputs: tuple[Array | None, ...], opset: int) -> tuple[Array, ...]:
    from onnx.reference import ReferenceEvaluator  # 25 ms to import, and few models need it

    feeds = {name: value for name, value in zip(node.input, inputs) if name and value is not None}
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [node],
            "constant",
            [onnx.ValueInfoProto(name=name) for name in feeds],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        ),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
    )
    values = iter(ReferenceEvaluator(model).run(None, feeds))
    return tuple(np.asarray(next(values)) if name else np.zeros(0) for name in node.output)


def _refuse_quantised(file: ModelFile) -> None:
    counts: dict[str, int] = {}
    for node in file.nodes:
        if _QUANTISED.fullmatch(node.op):
            counts[node.op] = counts.get(node.op, 0) + 1
    if counts:
        found = ", ".join(f"{op} ({count} nodes)" for op, count in sorted(counts.items()))
        raise file.error(f"it is quantised: {found}.", "Give the float model it was made from.")


def _export_complaints(file: ModelFile) -> tuple[str, ...]:
    """Signs that the file was exported for inference. Only what an exporter states counts, never a mere absence."""
    signs = []
    ops = {node.op for node in file.nodes}
    if any(node.op == "BatchNormalization" and node.attrs.get("training_mode") == 0 for node in file.nodes):
        signs.append("BatchNormalization says training_mode=0")
    folded = [
        node
        for node in file.nodes
        if node.op == "Conv" and len(node.inputs) == 3 and all(_FOLDED_CONV.fullmatch(name) for name in node.inputs[1:])
    ]
    if folded and "BatchNormalization" not in ops:
        signs.append(f"{len(folded)} convolutions have a batch norm folded in (first {folded[0].label!r})")
    return (f"looks like an export for inference: {', '.join(signs)}",) if signs else ()


def _line(error: Exception) -> str:
    """The first line of an exception's text, short enough for a message."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:200]
