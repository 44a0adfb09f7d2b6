"""Optimizers against PyTorch's, several steps with fresh gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_call import call

from planc.ops.optimizer import OPTIMIZERS
from planc.runtime.launch import Hyper

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

LR = 0.03
CASES: dict[str, tuple[str, dict[str, str], Any, dict[str, Any]]] = {
    "sgd": ("sgd", {}, torch.optim.SGD, {}),
    "sgd-decay": ("sgd", {"weight_decay": "0.1"}, torch.optim.SGD, {"weight_decay": 0.1}),
    "momentum": ("momentum", {}, torch.optim.SGD, {"momentum": 0.9}),
    "nesterov-decay": (
        "momentum",
        {"momentum": "0.8", "nesterov": "1", "weight_decay": "0.1"},
        torch.optim.SGD,
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
    ),
    "adam": ("adam", {}, torch.optim.Adam, {}),
    "adam-decay": (
        "adam",
        {"beta1": "0.8", "beta2": "0.95", "epsilon": "0.0001", "weight_decay": "0.1"},
        torch.optim.Adam,
        {"betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1},
    ),
    "adamw": ("adamw", {}, torch.optim.AdamW, {}),
    "adamw-decay": ("adamw", {"weight_decay": "0.2"}, torch.optim.AdamW, {"weight_decay": 0.2}),
}


# float64: a dozen roundings a step of numbers near 1; float32: the same, 2^-24 each, relative to parameters up to 3.
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
@pytest.mark.parametrize("case", CASES)
def test_optimizer_follows_pytorch(case: str, dtype: str, tolerance: float) -> None:
    name, settings, optimizer, options = CASES[case]
    spec, rng = OPTIMIZERS[name], np.random.default_rng(0)
    parameter = rng.standard_normal((7, 5)).astype(dtype)
    states = [np.zeros_like(parameter) for _ in spec.slots]
    other = torch.tensor(parameter.copy(), requires_grad=True)
    follower = optimizer([other], lr=LR, **options)
    for step in range(1, 7):
        gradient = rng.standard_normal((7, 5)).astype(dtype)
        attrs = {**spec.settings, **settings}
        call(spec.launch, (parameter, gradient, *states), (parameter, *states), attrs, hyper=Hyper(0, step, LR))
        other.grad = torch.tensor(gradient)
        follower.step()
        np.testing.assert_allclose(parameter, other.detach().numpy(), rtol=0, atol=tolerance)
