"""What a kernel gets: arrays, attributes, workspace. No kernel ever sees a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planc.plan import AttrValue

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Hyper:
    """What may differ from step to step: the kernels read it, the session sets it.

    `step` counts training steps from 1; `lr` is the learning rate now in force.
    """

    seed: int
    step: int
    lr: float


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel on samples [first_sample, first_sample + n) of `batch`.

    Inputs and outputs are C-contiguous views of the arena; where the launch's LaunchSpec allows it, an output may be
    the very memory of an input. `accumulate`: outputs without a batch axis add to what is there. `workspace` is a 1-D
    uint8 array of the planned size, 64-byte aligned (may be empty). `configuration` is for convolutions: (algorithm,
    samples) in order. Kernels write into outputs and workspace; what else they allocate stays under 256 KiB at any
    time.
    """

    op: str
    attrs: Mapping[str, AttrValue]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    workspace: npt.NDArray[np.uint8]
    accumulate: bool
    first_sample: int
    batch: int
    configuration: tuple[tuple[str, int], ...]


Kernel = Callable[[Launch, Hyper], None]
