"""Kernels of elementwise operators, arithmetic, shapes and reductions allocate under 256 KiB, whatever the arrays."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from planc.ops import activation, broadcast, elementwise, reduction, shape, slicing
from planc.runtime.kernels import KERNELS
from planc.runtime.launch import Hyper, Launch

ALLOWANCE_BYTES = 256 * 1024
"""runtime/launch.py."""

FULL, GATE, BIAS = (8, 64, 32, 32), (8, 64, 1, 1), (64, 32, 32)
_NUMBERS = {
    "alpha": "0.5",
    "beta": "0.25",
    "factor": "2",
    "offset": "1",
    "exponent": "1.7",
    "min": "-1",
    "max": "1",
    "approximate": "none",
}
_CUT = {"starts": (0, 32, 0, 0), "steps": (1, 1, 1, 1)}

ROWS: Mapping[str, tuple[tuple[tuple[int, ...], ...], tuple[int, ...], Mapping[str, Any]]] = {
    **{
        name: ((FULL,) * (2 if name.endswith("Backward") else 1), FULL, _NUMBERS)
        for name in (*activation.LAUNCHES, *elementwise.LAUNCHES)
    },
    **{name: ((FULL, BIAS), FULL, {}) for name in ("Add", "Sub", "Mul", "Div", "Power", "PRelu")},
    "DivSumTo": ((FULL, BIAS), GATE, {}),
    "DivisorSumTo": ((FULL, FULL, BIAS), BIAS, {}),
    "MulSumTo": ((FULL, GATE), BIAS, {}),
    "PReluBackward": ((FULL, FULL, BIAS), FULL, {}),
    "PReluSlopeSumTo": ((FULL, FULL), BIAS, {}),
    "Pow": ((FULL,), FULL, _NUMBERS),
    "PowBackward": ((FULL, FULL), FULL, _NUMBERS),
    "PowerBaseSumTo": ((FULL, FULL, BIAS), GATE, {}),
    "PowerExponentSumTo": ((FULL, FULL, FULL), BIAS, {}),
    "SumTo": ((FULL,), BIAS, {}),
    "MeanTo": ((FULL,), GATE, {"count": 1024}),
    "Expand": ((GATE,), FULL, {"count": 1024}),
    "Copy": ((FULL,), FULL, {}),
    "Transpose": ((FULL,), (8, 32, 32, 64), {"perm": (0, 2, 3, 1)}),
    "Concat": ((FULL, FULL), (8, 128, 32, 32), {"axis": 1}),
    "SplitBackward": ((FULL,), (8, 128, 32, 32), {"axis": 1, "offsets": (32,)}),
    "Slice": ((FULL,), (8, 32, 32, 32), _CUT),
    "SliceBackward": (((8, 32, 32, 32),), FULL, _CUT),
    "Pad": ((FULL,), (8, 64, 34, 34), {"pads": (0, 0, 1, 1) * 2, "mode": "reflect", "value": "0"}),
    "PadBackward": (((8, 64, 34, 34),), FULL, {"pads": (0, 0, 1, 1) * 2, "mode": "edge"}),
}


def test_every_launch_is_here() -> None:
    families = (activation, broadcast, elementwise, reduction, shape, slicing)
    assert set(ROWS) == {name for family in families for name in family.LAUNCHES}


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("name", sorted(ROWS))
def test_allocates_little(name: str, accumulate: bool) -> None:
    inputs, output, attrs = ROWS[name]
    launch = Launch(
        op=name,
        attrs=attrs,
        inputs=tuple(np.full(shape, 1.5, np.float32) for shape in inputs),
        outputs=(np.zeros(output, np.float32),),
        workspace=np.empty(0, np.uint8),
        accumulate=accumulate,
        first_sample=0,
        batch=8,
        configuration=(),
    )
    tracemalloc.start()
    try:
        KERNELS[name](launch, Hyper(0, 1, 0.01))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < ALLOWANCE_BYTES
