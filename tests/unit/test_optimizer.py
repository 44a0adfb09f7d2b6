"""Updates: what one step does, in place, in small memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kernel_call import ALLOWANCE_BYTES, call

from planc.ops import LAUNCHES
from planc.ops.optimizer import OPTIMIZERS
from planc.runtime.launch import Hyper

Array = npt.NDArray[Any]


def _step(name: str, p: Array, g: Array, states: list[Array], hyper: Hyper, **settings: str) -> int:
    spec = OPTIMIZERS[name]
    return call(spec.launch, (p, g, *states), (p, *states), {**spec.settings, **settings}, hyper=hyper)


def test_sgd_by_hand() -> None:
    p, g = np.array([1.0, 2.0]), np.array([0.5, -1.0])
    _step("sgd", p, g, [], Hyper(0, 1, 0.5), weight_decay="0.25")
    np.testing.assert_array_equal(p, [1 - 0.5 * (0.5 + 0.25), 2 - 0.5 * (-1 + 0.5)])


@pytest.mark.parametrize("nesterov", ["0", "1"])
def test_momentum_by_hand(nesterov: str) -> None:
    p, g, b = np.array([1.0]), np.array([2.0]), np.array([4.0])
    _step("momentum", p, g, [b], Hyper(0, 7, 0.5), momentum="0.5", nesterov=nesterov)
    assert b == 0.5 * 4 + 2
    assert p == 1 - 0.5 * (2 + 0.5 * 4 if nesterov == "1" else 4.0)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_first_adam_step_is_one_learning_rate_long(name: str) -> None:
    """Bias correction makes m' / sqrt(v') the gradient's sign at step 1, whatever the gradient's size."""
    p, g, states = np.array([1.0, 1.0]), np.array([1e-3, -50.0]), [np.zeros(2), np.zeros(2)]
    _step(name, p, g, states, Hyper(0, 1, 0.1))
    shrunk = 1 - 0.1 * 0.01 if name == "adamw" else 1.0
    np.testing.assert_allclose(
        p, [shrunk - 0.1, shrunk + 0.1], rtol=0, atol=2e-6
    )  # epsilon 1e-8 beside 1e-3: 1e-5 of 0.1
    # 1 - beta2 is rounded: 0.001 within 1e-13 of itself.
    np.testing.assert_allclose(states, [0.1 * g, 0.001 * g**2], rtol=1e-12)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_updates_in_place_equal_updates_apart_and_take_no_memory_of_note(name: str, dtype: str) -> None:
    rng, spec, hyper = np.random.default_rng(0), OPTIMIZERS[name], Hyper(0, 3, 0.01)
    size = 40_001  # three blocks of float32, the last one short
    arrays = [abs(rng.standard_normal(size)).astype(dtype) for _ in range(2 + len(spec.slots))]
    attrs = {**spec.settings, "weight_decay": "0.1"}
    apart = [np.empty_like(arrays[0]) for _ in range(1 + len(spec.slots))]
    call(spec.launch, arrays, apart, attrs, hyper=hyper)
    p, g, *states = (array.copy() for array in arrays)
    assert _step(name, p, g, states, hyper, weight_decay="0.1") < ALLOWANCE_BYTES
    for found, expected in zip((p, *states), apart, strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(g, arrays[1])
    assert not np.array_equal(p, arrays[0])


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_launches_say_which_state_they_overwrite(name: str) -> None:
    spec = OPTIMIZERS[name]
    pairs = ((0, 0), *((2 + i, 1 + i) for i in range(len(spec.slots))))
    assert LAUNCHES[spec.launch].inplace == pairs
