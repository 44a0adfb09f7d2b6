"""Options: what a compilation depends on besides model and profile."""

from __future__ import annotations

from dataclasses import dataclass, field

from planc.errors import UsageError
from planc.ops.normalization import BATCH_NORMS
from planc.passes.recipes import RECOMPUTE
from planc.policies import POLICIES
from planc.profile import Profile
from planc.training_graph import TrainingOptions
from planc.units import parse_bytes

DEFAULT_PROFILE = "v100-16gb"
MAX_STEPS = 40_000
"""Sub-batch counts that would make more tasks than this are not tried."""

HOST_PARAMETERS = ("auto", "always", "never")


@dataclass(frozen=True, slots=True)
class Options:
    """What a compilation depends on besides model and profile; sizes are text as on the command line.

    budget: None = what the device has. workspace: what u-cuDNN's policies may use.
    recompute: what may be computed again: any, cheap (no convolutions, no products) or none.
    host_parameters: whether parameters and optimizer state may live on the host: auto (where no other plan fits),
        always (in auto, only such plans) or never. host_budget: what all host buffers may take; None = no bound.
    sub_batches: None = as the policy finds best. max_steps: no sub-batch count that makes more tasks is tried.
    """

    budget: str | None = None
    policy: str = "auto"
    training: TrainingOptions = field(default_factory=TrainingOptions)
    precision: str = "fp32"
    batch_norm: str = "exact"
    sub_batches: int | None = None
    max_steps: int = MAX_STEPS
    workspace: str | None = None
    recompute: str = "any"
    host_parameters: str = "auto"
    host_budget: str | None = None

    def check(self) -> None:
        """Raise UsageError for an option that has no such value."""
        for name, value, known in (
            ("policy", self.policy, tuple(POLICIES)),
            ("recompute", self.recompute, tuple(RECOMPUTE)),
            ("batch norm", self.batch_norm, tuple(BATCH_NORMS)),
            ("host parameters", self.host_parameters, HOST_PARAMETERS),
        ):
            if value not in known:
                raise UsageError(f"{name} {value!r}: unknown.", f"Use one of: {', '.join(known)}.")


def budget_bytes(text: str | None, profile: Profile, keep_all_bytes: int) -> int:
    """The budget in bytes; without one, what the device has beyond its reserve."""
    if text is None:
        return profile.memory_bytes - profile.reserved_bytes
    value = parse_bytes(text, whole_bytes=keep_all_bytes)
    if value < 1:
        raise UsageError(f"budget {text!r}: wanted at least one byte.")
    return value
