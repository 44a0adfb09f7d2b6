"""The exception tree of planc.

    PlancError                what a user can cause; the command line prints it and exits with its code
    +-- UsageError            an option is wrong or missing                         exit 2
    +-- ModelError            the ONNX file cannot be read or trained               exit 2
    +-- ProfileError          the device profile cannot be read                     exit 2
    +-- PlanFileError         the plan file is unreadable, old, unknown or damaged  exit 2
    +-- InfeasibleError       no plan was found for the budget                      exit 3
    +-- VerificationError     a plan breaks a rule it must keep                     exit 1
    +-- RunError              a run failed (NaN, lane failure, full disk)           exit 4
    InternalError             a bug in planc; the traceback is kept                 exit 70

A message names the object, what was found and what was wanted; the remedy says what to do about it.
"""

from __future__ import annotations

from typing import ClassVar


class PlancError(Exception):
    """An error a user can cause and mend.

    Args:
        message: the object, what was found, what was wanted.
        remedy: what to do; empty if the message says it all.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message


class UsageError(PlancError):
    """A command-line option or argument of the Python interface is wrong."""


class ModelError(PlancError):
    """The model file cannot be read, or holds something planc cannot train."""


class ProfileError(PlancError):
    """A device profile is missing, damaged or lacks a field."""


class PlanFileError(PlancError):
    """A plan file is unreadable, damaged, or of an unknown schema."""


class InfeasibleError(PlancError):
    """No plan was found within the budget.

    Args:
        smallest_budget_bytes: the smallest budget for which planc makes a plan, if known.
        bound_bytes: no plan of this model, batch and optimizer needs less (proven).
        node: label of the node that sets the bound.

    Attributes:
        bound_ns: no plan of the flow program's class is faster, where that was proven before the failure.
    """

    exit_code: ClassVar[int] = 3

    def __init__(
        self,
        message: str,
        remedy: str = "",
        *,
        smallest_budget_bytes: int | None = None,
        bound_bytes: int | None = None,
        node: str | None = None,
    ) -> None:
        super().__init__(message, remedy)
        self.smallest_budget_bytes = smallest_budget_bytes
        self.bound_bytes = bound_bytes
        self.node = node
        self.bound_ns: int | None = None


class VerificationError(PlancError):
    """A plan breaks a rule of its format."""

    exit_code: ClassVar[int] = 1


class RunError(PlancError):
    """A training run failed."""

    exit_code: ClassVar[int] = 4


class InternalError(Exception):
    """A bug in planc: an invariant of its own does not hold."""

    exit_code: ClassVar[int] = 70
