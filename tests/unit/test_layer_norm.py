"""Normalization of each sample by itself: long and short rows, digits, memory, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from case import Case, Shape
from graph_case import load_case
from kernel_call import ALLOWANCE_BYTES, call

from planc.errors import ModelError

ROWS: tuple[tuple[Shape, int], ...] = (((64, 768), 1), ((2, 60_000), 1), ((3, 2, 300, 200), 2), ((40_000, 1), 1))
"""Rows that share a tile, rows longer than a block, and more rows than the sums of a tile have room for."""


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), ROWS)
def test_statistics_and_gradient_at_every_size(shape: Shape, axis: int, centred: int) -> None:
    rng = np.random.default_rng(0)
    x, dy, scale = rng.standard_normal(shape) + 3, rng.standard_normal(shape), rng.uniform(0.5, 2.0, shape[axis:])
    axes, form = tuple(range(axis, len(shape))), {"axis": axis, "centred": centred}
    stat = [np.empty((*shape[:axis], *(1,) * len(axes))) for _ in range(1 + centred)]
    assert call("RowStatistics", (x,), stat, {**form, "epsilon": "1e-5"}) < ALLOWANCE_BYTES
    mean = x.mean(axes, keepdims=True) * centred
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + 1e-5)
    # 1e-12 throughout: sums of up to 60,000 numbers below 10, in another order.
    for found, wanted in zip(stat, (mean, inverse)[1 - centred :], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    normal, slope = (x - mean) * inverse, dy * scale
    dx = dy.copy()
    assert call("RowNormalizeBackward", (dx, x, *stat, scale), (dx,), form) < ALLOWANCE_BYTES
    level = slope.mean(axes, keepdims=True) * centred
    tilt = (slope * normal).mean(axes, keepdims=True)
    np.testing.assert_allclose(dx, inverse * (slope - level - normal * tilt), rtol=0, atol=1e-12 * inverse.max())
    dscale = np.ones(scale.shape)
    assert call("RowScaleSumTo", (dy, x, *stat), (dscale,), form, accumulate=True) < ALLOWANCE_BYTES
    np.testing.assert_allclose(dscale, 1 + (dy * normal).sum(tuple(range(axis))), rtol=0, atol=1e-10)
    assert call("RowNormalize", (x, *stat, scale, scale), (x,), form) < ALLOWANCE_BYTES
    np.testing.assert_allclose(x, normal * scale + scale, rtol=0, atol=1e-12)


def test_a_large_mean_does_not_cost_the_variance_its_digits() -> None:
    """In float32 the mean square of these rows has no digit left of their variance, 1/4."""
    x = np.tile(np.array([10_000.0, 10_001.0], "f"), (3, 50_000))
    mean, inverse = np.empty((3, 1), "f"), np.empty((3, 1), "f")
    call("RowStatistics", (x,), (mean, inverse), {"axis": 1, "centred": 1, "epsilon": "0"})
    np.testing.assert_array_equal(inverse, np.full((3, 1), 2, "f"))


@pytest.mark.parametrize(
    ("inputs", "weights", "found"),
    [
        ({"x": (4, 3)}, {"scale": (2,)}, r"its scale has shape \[2\]"),
        ({"x": (4, 3)}, {"scale": (4, 1)}, r"its scale has shape \[4, 1\]; .* the same for every sample"),
        ({"x": (4, 3)}, {"scale": (3,), "bias": (1, 1, 3)}, r"its bias has shape \[1, 1, 3\]"),
        ({"x": (4, 3), "scale": (4, 3)}, {}, r"its scale has shape \[4, 3\]"),
    ],
)
def test_parameters_that_no_sample_can_share(inputs: Any, weights: Any, found: str) -> None:
    case = Case("norm", "LayerNormalization", 17, inputs, lambda t: t["x"], weights=weights)
    with pytest.raises(ModelError, match=rf"'norm' \(LayerNormalization\): {found}"):
        load_case(case, 0)


@pytest.mark.parametrize(
    ("x", "groups", "parameters", "found"),
    [
        ((4, 6, 2), 4, 6, "6 channels do not fall into 4 groups"),
        ((4, 6, 2), 0, 6, "6 channels do not fall into 0 groups"),
        ((4, 6, 2), 3, 3, r"its scale has shape \[3\]; \[6\] was expected at opset 21"),
        ((4,), 1, 1, r"its input has shape \[4\]; a batch axis and a channel axis"),
    ],
)
def test_groups_that_do_not_fit(x: Shape, groups: int, parameters: int, found: str) -> None:
    case = Case("norm", "GroupNormalization", 21, {"x": x}, lambda t: t["x"], attrs={"num_groups": groups},
                weights={"scale": (parameters,), "bias": (parameters,)})  # fmt: skip
    with pytest.raises(ModelError, match=found):
        load_case(case, 0)
