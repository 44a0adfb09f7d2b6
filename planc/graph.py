"""The forward model: tensors with static shapes, nodes in topological order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

AttrValue = int | str | tuple[int, ...] | tuple[str, ...]
"""An attribute: integers and text only; a real number is decimal text (`units.decimal_text`)."""

Attrs = Mapping[str, AttrValue]
Array = npt.NDArray[np.generic]

ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "float16": 2,
        "bfloat16": 2,
        "int64": 8,
        "int32": 4,
        "int16": 2,
        "int8": 1,
        "uint64": 8,
        "uint32": 4,
        "uint16": 2,
        "uint8": 1,
        "bool": 1,
    }
)
FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, element type and batch layout of a tensor.

    `rows` is the number of rows of axis 0 that belong to one sample, so that samples [a, b) are the rows
    [a * rows, b * rows), one contiguous piece of memory. 0 means the tensor has no batch axis in front
    (a parameter, a sum over samples, or something only a whole-batch node can make or read).
    """

    shape: tuple[int, ...]
    dtype: str
    rows: int = 0

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample; 0 for a tensor without a batch axis."""
        return self.rows * prod(self.shape[1:]) * ITEM_BYTES[self.dtype]

    def range_shape(self, samples: int) -> tuple[int, ...]:
        """The shape that `samples` samples have."""
        return (samples * self.rows, *self.shape[1:]) if self.rows else self.shape

    def range_bytes(self, samples: int) -> int:
        """Bytes that `samples` samples have."""
        return self.sample_bytes * samples if self.rows else self.bytes


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the forward model, in planc's one normal form (attributes never come as inputs).

    `inputs` are tensor names, `""` where an optional input is absent. `name` is a label for people only.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Attrs = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Graph:
    """A forward model at a fixed batch.

    `constants` holds every tensor that is known before the run, in order of first use: parameters, running
    statistics, frozen values. `initializers` names the initializer (or constant output) of the file that each came
    from.
    """

    batch: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    tensors: Mapping[str, TensorSpec]
    constants: Mapping[str, Array]
    initializers: Mapping[str, str]
    warnings: tuple[str, ...] = ()
