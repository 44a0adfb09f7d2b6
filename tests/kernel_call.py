"""Calls a kernel alone: plain arrays in, plain arrays out, and the memory it took on the way."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.plan import AttrValue
from planc.runtime.kernels import KERNELS
from planc.runtime.launch import Hyper, Launch

Array = npt.NDArray[Any]

FIRST_STEP = Hyper(seed=0, step=1, lr=0.01)
ALLOWANCE_BYTES = 256 * 1024
"""What a kernel may allocate at any time (planc.runtime.launch.Launch)."""


def call(
    op: str,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    attrs: Mapping[str, AttrValue] | None = None,
    *,
    accumulate: bool = False,
    hyper: Hyper = FIRST_STEP,
) -> int:
    """Run the kernel of `op`; returns the most bytes it had allocated at any time."""
    samples = max((array.shape[0] for array in inputs if array.ndim), default=1)
    launch = Launch(
        op=op,
        attrs=attrs or {},
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        workspace=np.empty(0, np.uint8),
        accumulate=accumulate,
        first_sample=0,
        batch=samples,
        configuration=(),
    )
    tracemalloc.start()
    try:
        KERNELS[op](launch, hyper)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
