"""Python's cyclic garbage collection, put off while planc compiles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_cyclic_collection() -> Iterator[None]:
    """A compilation makes many small objects and no cycles: looking for cycles would take a third of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
