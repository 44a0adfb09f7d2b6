"""Buffers -> places in the arena. METHODS: one file a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from planc.layout.best_fit import best_fit
from planc.layout.problem import Item, Layout, peak_bytes

METHODS: Mapping[str, Callable[[tuple[Item, ...]], Layout]] = MappingProxyType({"best-fit": best_fit})

__all__ = ["METHODS", "Item", "Layout", "peak_bytes"]
