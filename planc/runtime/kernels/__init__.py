"""NumPy kernels: one file a family, the same names as under ops/."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from planc.runtime.kernels import (
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
from planc.runtime.launch import Kernel

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

KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {name: kernel for family in _FAMILIES for name, kernel in family.KERNELS.items()}
)
"""Launch -> its NumPy kernel."""
