"""Backend: what a device must do so that the executor can run a plan on it. One literal table, imported when used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Protocol, cast

from planc.errors import UsageError
from planc.plan import Plan, Step
from planc.runtime.launch import Array, Hyper
from planc.runtime.places import Place

Action = Callable[[Hyper], None]
"""One thing a lane does for a step. Made before the first training step; running it allocates nothing of note."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step with the actions that carry it out, in order, on its lane."""

    step: Step
    actions: tuple[Action, ...]


class Runnable(Protocol):
    """A program prepared for its device; may be called any number of times."""

    def __call__(self, hyper: Hyper, /) -> None:
        """Run every step; returns when all lanes are empty.

        Raises:
            RunError: a lane failed; names the first failure.
        """
        ...


class Device(Protocol):
    """A device that holds one plan's arena and host pool."""

    def write(self, place: Place, values: Array, /) -> None:
        """Put `values` (the place's shape; converted to its dtype) there."""
        ...

    def read(self, place: Place, /) -> Array:
        """A copy of what is there."""
        ...

    def launch(
        self, step: Step, inputs: tuple[Place, ...], outputs: tuple[Place, ...], workspace: Place | None, /
    ) -> Action:
        """Run the step's kernel."""
        ...

    def copy(self, source: Place, target: Place, /) -> Action:
        """Copy the bytes of `source` to `target`."""
        ...

    def fill(self, place: Place, value: int, /) -> Action:
        """Set every byte of `place` to `value`."""
        ...

    def pause(self, seconds: Callable[[Hyper], float], /) -> Action:
        """Keep the lane busy for so long."""
        ...

    def program(self, steps: Sequence[Prepared], /) -> Runnable:
        """Prepare a program: lanes run asynchronously, ordered by lane and `waits` alone."""
        ...

    def fill_arena(self, sentinel: int, /) -> None:
        """Set every byte of the arena to `sentinel`."""
        ...

    def touched_bytes(self, sentinel: int, /) -> int:
        """The end of the highest byte of the arena that differs from `sentinel`; 0 if none does."""
        ...

    def intact(self) -> bool:
        """Whether nothing was written beside the arena and the host pool."""
        ...


class Backend(Protocol):
    """A kind of device."""

    name: str

    def check(self, plan: Plan, *, emulate: bool) -> None:
        """Refuse a plan the device cannot run.

        Args:
            emulate: allow algorithms the device lacks; they run as one that needs no workspace.

        Raises:
            RunError: what the plan needs and the device has not.
        """
        ...

    def open(self, plan: Plan, /) -> Device:
        """Allocate the plan's arena and host pool, once.

        Raises:
            RunError: there is not so much memory.
        """
        ...


BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "numpy": "planc.runtime.numpy_backend:NumpyBackend",
        "null": "planc.runtime.null_backend:NullBackend",
    }
)
"""Name -> module:class."""


def backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in BACKENDS:
        raise UsageError(f"backend {name!r}: not known.", f"Known are {', '.join(BACKENDS)}.")
    module, attribute = BACKENDS[name].split(":")
    return cast(Backend, getattr(import_module(module), attribute)())
