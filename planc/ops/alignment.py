"""Alignment: how the tensors of one launch line up, their shapes under broadcasting and their batch axes.

Broadcasting is NumPy's: shapes are aligned at their last axes. A batch axis is of use only in front: where operands put
samples anywhere else, or bring a whole batch without saying so, the launch must see the batch at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from planc.graph import AttrValue, Node, TensorSpec
from planc.ops.reading import node_error
from planc.ops.spec import BatchRule, Builder


def broadcast_spec(node: Node, specs: Sequence[TensorSpec]) -> TensorSpec:
    """What comes out of an elementwise operator on `specs`.

    Raises:
        ModelError: the shapes do not broadcast, or the element types differ.
    """
    found = ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in specs)
    if len({spec.dtype for spec in specs}) > 1:
        raise node_error(node, f"its operands are {found}; one element type was expected.", "Add a Cast.")
    try:
        shape = np.broadcast_shapes(*(spec.shape for spec in specs))
    except ValueError:
        raise node_error(node, f"its operands are {found}, which do not broadcast to one shape.") from None
    return TensorSpec(shape, specs[0].dtype, common_rows(shape, specs))


def common_rows(shape: tuple[int, ...], specs: Sequence[TensorSpec]) -> int:
    """Rows a sample of a result of `shape` made of `specs`; 0 if samples don't stay apart in front."""
    rows = {spec.rows for spec in specs if spec.rows}
    if len(rows) != 1:
        return 0
    for spec in specs:
        in_front = len(spec.shape) == len(shape)
        apart = in_front and spec.shape[0] == shape[0] if spec.rows else not in_front or spec.shape[0] == 1
        if not apart:
            return 0
    return rows.pop()


def emit_aligned(
    builder: Builder,
    op: str,
    inputs: Sequence[int],
    output: TensorSpec,
    attrs: Mapping[str, AttrValue] | None = None,
) -> int:
    """Add a launch whose tensors are aligned by broadcasting (its output perhaps summed).

    Whole-batch if the batch axis of some tensor is not in front, or a tensor without one spans the front axis.
    """
    specs = [builder.spec(tensor) for tensor in inputs]
    rank = max(len(spec.shape) for spec in (*specs, output))
    scattered = any(spec.rows and len(spec.shape) < rank for spec in (*specs, output))
    spanning = any(not spec.rows and len(spec.shape) == rank and rank and spec.shape[0] != 1 for spec in specs)
    (made,) = builder.emit(op, inputs, (output,), attrs, rule=BatchRule.WHOLE if scattered or spanning else None)
    return made


def emit_moved(
    builder: Builder,
    op: str,
    inputs: Sequence[int],
    output: TensorSpec,
    attrs: Mapping[str, AttrValue] | None = None,
) -> int:
    """Add a launch that moves elements; whole-batch if an input lacks the batch axis that the output has."""
    gathers = output.rows and not all(builder.spec(tensor).rows for tensor in inputs)
    (made,) = builder.emit(op, inputs, (output,), attrs, rule=BatchRule.WHOLE if gathers else None)
    return made


def sum_to(builder: Builder, gradient: int, target: TensorSpec) -> int:
    """`gradient` summed over the axes along which a tensor of `target` was broadcast; itself if there are none."""
    if builder.spec(gradient) == target:
        return gradient
    return emit_aligned(builder, "SumTo", (gradient,), target)


def reshaped(builder: Builder, tensor: int, spec: TensorSpec) -> int:
    """`tensor` under the shape of `spec`: a view, or a copy where the batch axis is lost or found on the way.

    Ranges of samples are ranges of bytes only while both sides have a batch axis, so there planners need a launch.
    """
    found = builder.spec(tensor)
    if found == spec:
        return tensor
    if bool(found.rows) == bool(spec.rows):
        return builder.view(tensor, spec)
    (made,) = builder.emit("Copy", (tensor,), (spec,), rule=BatchRule.WHOLE)
    return made
