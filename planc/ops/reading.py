"""Readers of what a node carries: a file's attributes and constant inputs, and the attributes of planc's normal form.

Functions that begin with `raw_` or `constant_` take a RawNode, and their errors name it; the others take the attributes
of a Node in normal form, whose values `read` has put there, so a missing one is a bug.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from planc.errors import ModelError
from planc.graph import Array, Attrs, Node, TensorSpec
from planc.ops.spec import RawNode
from planc.units import decimal_text


def float_text(value: float) -> str:
    """Decimal text of an ONNX float attribute.

    ONNX keeps such attributes as float32, so the shortest decimal that reads back as that float32 is meant: 1e-05,
    not 9.999999747378752e-06.
    """
    return decimal_text(float(str(np.float32(value))))


def raw_int(node: RawNode, name: str, default: int) -> int:
    """The integer attribute `name`, or `default` where the file has none."""
    value = node.attrs.get(name, default)
    if not isinstance(value, int):
        raise node.error(f"attribute {name!r} is {value!r}; an integer was expected.")
    return value


def raw_float(node: RawNode, name: str, default: float) -> float:
    """The float attribute `name`, or `default` where the file has none."""
    value = node.attrs.get(name, default)
    if not isinstance(value, int | float):
        raise node.error(f"attribute {name!r} is {value!r}; a number was expected.")
    return float(value)


def raw_float_text(node: RawNode, name: str, default: float) -> str:
    """The float attribute `name` as finite decimal text (`float_text`)."""
    value = raw_float(node, name, default)
    if not math.isfinite(value):
        raise node.error(f"attribute {name!r} is {value}; a finite number was expected.")
    return float_text(value)


def raw_text(node: RawNode, name: str, default: str) -> str:
    """The string attribute `name`, decoded, or `default` where the file has none."""
    value = node.attrs.get(name, default)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise node.error(f"attribute {name!r} is {value!r}; text was expected.")
    return value


def raw_ints(node: RawNode, name: str) -> tuple[int, ...] | None:
    """The integer list attribute `name`; None where the file has none."""
    value = node.attrs.get(name)
    if value is None:
        return None
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise node.error(f"attribute {name!r} is {value!r}; a list of integers was expected.")
    return tuple(int(entry) for entry in value)


def raw_input(node: RawNode, position: int) -> str:
    """The name of the input at `position`; "" where it is absent."""
    return node.inputs[position] if position < len(node.inputs) else ""


def raw_spec(node: RawNode, position: int) -> TensorSpec:
    """The spec of the input at `position`, which must be there."""
    spec = node.specs[position] if position < len(node.specs) else None
    if spec is None:
        raise node.error(f"input {position} is missing.")
    return spec


def raw_constant(node: RawNode, position: int, what: str) -> Array | None:
    """The value of the input at `position`, the node's `what`; None where the input is absent.

    Raises:
        ModelError: the input is there but its value depends on data.
    """
    name = raw_input(node, position)
    if not name:
        return None
    value = node.constants[position]
    if value is None:
        raise node.error(
            f"its {what} (input {name!r}) depends on data, so no shape is known before the run.",
            f"Export the model with a constant {what}, or simplify it first.",
        )
    return value


def constant_ints(node: RawNode, position: int, what: str) -> tuple[int, ...] | None:
    """The constant integers that input `position` holds, flattened; None where the input is absent.

    Raises:
        ModelError: the value depends on data, or is not of an integer type.
    """
    value = raw_constant(node, position, what)
    if value is None:
        return None
    if value.dtype.kind not in "iu":
        raise node.error(f"its {what} (input {raw_input(node, position)!r}) is {value.dtype}; integers were expected.")
    return tuple(int(entry) for entry in value.reshape(-1))


def constant_float(node: RawNode, position: int, what: str) -> float | None:
    """The constant single number that input `position` holds; None where the input is absent.

    Raises:
        ModelError: the value depends on data, or has not exactly one element.
    """
    value = raw_constant(node, position, what)
    if value is None:
        return None
    if value.size != 1:
        raise node.error(f"its {what} (input {raw_input(node, position)!r}) has {value.size} elements; 1 was expected.")
    return float(value.reshape(-1)[0])


def normal_axis(node: RawNode, axis: int, rank: int) -> int:
    """`axis` of a tensor of `rank` axes, counted from the front.

    Raises:
        ModelError: the axis is outside [-rank, rank).
    """
    if not -rank <= axis < rank:
        raise node.error(f"axis {axis} is outside the {rank} axes of its tensor.")
    return axis % rank


def normal_axes(node: RawNode, axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """`axes` counted from the front, in the order given.

    Raises:
        ModelError: an axis is outside [-rank, rank) or given twice.
    """
    normal = tuple(normal_axis(node, axis, rank) for axis in axes)
    if len(set(normal)) != len(normal):
        raise node.error(f"axes {list(normal)} name an axis twice.")
    return normal


def integer(attrs: Attrs, name: str) -> int:
    """The integer `name` of a node in normal form."""
    value = attrs[name]
    assert isinstance(value, int), (name, value)
    return value


def text(attrs: Attrs, name: str) -> str:
    """The text (or decimal text) `name` of a node in normal form."""
    value = attrs[name]
    assert isinstance(value, str), (name, value)
    return value


def integers(attrs: Attrs, name: str) -> tuple[int, ...]:
    """The integers `name` of a node in normal form."""
    value = attrs[name]
    assert isinstance(value, tuple), (name, value)
    return tuple(int(entry) for entry in value)


def present(spec: TensorSpec | None) -> TensorSpec:
    """The spec of an input that the operator cannot be without."""
    assert spec is not None
    return spec


def node_error(node: Node, problem: str, remedy: str = "") -> ModelError:
    """A ModelError that names a node in normal form."""
    return ModelError(f"node {node.name!r} ({node.op}): {problem}", remedy)
