"""Buffers -> places in the arena. METHODS: one file a method.

A method takes the items and a number of bytes that is enough: it may stop at the first layout within it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from planc.layout.best_fit import best_fit
from planc.layout.problem import Item, Layout, Span, peak_bytes

METHODS: Mapping[str, Callable[[tuple[Item, ...], int], Layout]] = MappingProxyType({"best-fit": best_fit})

__all__ = ["METHODS", "Item", "Layout", "Span", "peak_bytes"]
