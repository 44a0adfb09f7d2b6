"""Optimizers: how a parameter follows its gradient.

Launches take (parameter, gradient, *states) and put out (parameter, *states), one version on and in place. The learning
rate and the number of the step come with the run (`Hyper`), so that a plan serves any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from planc.ops.spec import LaunchSpec, OpSpec, Recompute, flops_per_output


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """One optimizer.

    slots:    the states it keeps for a parameter, each of the parameter's shape, zero at first.
    launch:   its update.
    settings: its settings with their defaults, decimal text; they are the launch's attributes.
    """

    slots: tuple[str, ...]
    launch: str
    settings: Mapping[str, str]


def _adam(weight_decay: str, decoupled: str) -> OptimizerSpec:
    settings = {
        "beta1": "0.9",
        "beta2": "0.999",
        "epsilon": "1e-08",
        "weight_decay": weight_decay,
        "decoupled": decoupled,
    }
    return OptimizerSpec(("m", "v"), "AdamUpdate", MappingProxyType(settings))


OPTIMIZERS: Mapping[str, OptimizerSpec] = MappingProxyType(
    {
        "sgd": OptimizerSpec((), "SgdUpdate", MappingProxyType({"weight_decay": "0"})),
        "momentum": OptimizerSpec(
            ("momentum",),
            "MomentumUpdate",
            MappingProxyType({"momentum": "0.9", "nesterov": "0", "weight_decay": "0"}),
        ),
        "adam": _adam(weight_decay="0", decoupled="0"),
        "adamw": _adam(weight_decay="0.01", decoupled="1"),
    }
)
"""Name of --optimizer -> meaning."""


def _update(states: int, flops: int) -> LaunchSpec:
    """The parameter is overwritten in place, and so is each state (input 2 + i is output 1 + i)."""
    pairs = ((0, 0), *((2 + i, 1 + i) for i in range(states)))
    return LaunchSpec(inplace=pairs, flops=flops_per_output(flops), recompute=Recompute.NEVER)


OPS: dict[str, OpSpec] = {}
LAUNCHES: dict[str, LaunchSpec] = {
    "SgdUpdate": _update(states=0, flops=4),
    "MomentumUpdate": _update(states=1, flops=6),
    "AdamUpdate": _update(states=2, flops=14),
}
