"""planc: an offline training-plan compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from planc.candidates import compile
    from planc.session import Session

__all__ = ["Session", "__version__", "compile"]


def __getattr__(name: str) -> Any:
    """`planc.compile` and `planc.Session`, imported when first used so that `import planc` stays quick."""
    if name == "compile":
        from planc.candidates import compile

        return compile
    if name == "Session":
        from planc.session import Session

        return Session
    raise AttributeError(f"module 'planc' has no attribute {name!r}")
