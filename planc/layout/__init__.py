"""Buffers -> places in the arena. METHODS: the contiguous ones, one file a method, in the order in which to try them.

A method takes the items and a number of bytes that is enough: it may stop at the first layout within it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from planc.layout.best_fit import best_fit
from planc.layout.paged import paged
from planc.layout.problem import Item, Layout, Run, Span, peak_bytes
from planc.layout.search import search

METHODS: Mapping[str, Callable[[tuple[Item, ...], int], Layout]] = MappingProxyType(
    {"best-fit": best_fit, "search": search}
)

__all__ = ["METHODS", "Item", "Layout", "Run", "Span", "best_fit", "paged", "peak_bytes", "search"]
