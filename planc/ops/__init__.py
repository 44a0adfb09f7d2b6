"""What each operator means. Two literal tables: OPS by ONNX operator, LAUNCHES by launch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from planc.ops import (
    activation,
    broadcast,
    convolution,
    einsum,
    elementwise,
    final_loss,
    layer_norm,
    linear,
    loss,
    normalization,
    optimizer,
    pooling,
    reduction,
    shape,
    slicing,
)
from planc.ops.spec import LaunchSpec, OpSpec

_FAMILIES = (
    activation,
    broadcast,
    convolution,
    einsum,
    elementwise,
    final_loss,
    layer_norm,
    linear,
    loss,
    normalization,
    optimizer,
    pooling,
    reduction,
    shape,
    slicing,
)

OPS: Mapping[str, OpSpec] = MappingProxyType({name: spec for family in _FAMILIES for name, spec in family.OPS.items()})
"""ONNX operator -> meaning."""

LAUNCHES: Mapping[str, LaunchSpec] = MappingProxyType(
    {name: spec for family in _FAMILIES for name, spec in family.LAUNCHES.items()}
)
"""Launch -> what planners know of it. `runtime/kernels/` has the numbers under the same names."""
