"""`--batch-norm per-sub-batch` against PyTorch run micro-batch by micro-batch, gradients accumulated.

A sample counts as in the whole batch's loss: each micro-batch's mean is weighed by its share of the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from interpret import interpret
from trainings import Training, batches, compiled, error, train, workload

from planc.onnx_loader import load_model
from planc.pipeline import Workload
from planc.plan import Plan
from planc.verify import verify

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch_graph import TorchGraph  # noqa: E402 - after it is known that there is a torch

TOLERANCE = 1e-9
"""float64 carries 2e-16, and sums have up to 1e4 terms here."""

BATCH, COUNT, STEPS, LR = 6, 3, 3, 0.01
MODEL = "tiny_residual_cnn"


@pytest.mark.parametrize("ranges", [((0, 8),), ((0, 5), (5, 8)), ((0, 3), (3, 4), (4, 8))])
@pytest.mark.parametrize("shape", [(8, 3, 10), (8, 4, 5, 6)])
def test_a_node_on_unequal_ranges(shape: tuple[int, ...], ranges: Sequence[tuple[int, int]]) -> None:
    random = np.random.default_rng(3)
    channels, momentum = shape[1], 0.75
    x, dy = random.standard_normal(shape) * 2 + 3, random.standard_normal(shape)
    stored = {name: random.uniform(0.5, 2, channels) for name in ("scale", "bias", "mean", "variance")}
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("BatchNormalization", ["x", *stored], ["y"], momentum=momentum)],
            "graph",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, shape)],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, None)],
            [onnx.numpy_helper.from_array(value, name) for name, value in stored.items()],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 15)],
        ir_version=8,
    )
    graph = load_model(model, precision="fp64", batch_norm="per-sub-batch")
    found = interpret(graph, {"x": x}, cotangents={"y": dy}, ranges=ranges)
    leaves = {"x": torch.tensor(x), "scale": torch.tensor(stored["scale"]), "bias": torch.tensor(stored["bias"])}
    for leaf in leaves.values():
        leaf.requires_grad_()
    mean, variance, parts = stored["mean"], stored["variance"], []
    for start, stop in ranges:
        own = leaves["x"][start:stop]
        parts.append(torch.nn.functional.batch_norm(own, None, None, leaves["scale"], leaves["bias"], training=True))
        axes = (0, *range(2, len(shape)))
        mean = momentum * mean + (1 - momentum) * x[start:stop].mean(axes)
        variance = momentum * variance + (1 - momentum) * x[start:stop].var(axes)
    y = torch.cat(parts)
    y.backward(torch.tensor(dy))
    assert error(found.outputs["y"], y.detach()) <= TOLERANCE
    for name, leaf in leaves.items():
        assert error(found.gradients[name], leaf.grad) <= TOLERANCE, name
    assert error(found.constants["mean"], mean) <= TOLERANCE
    assert error(found.constants["variance"], variance) <= TOLERANCE


def _work(batch: int = BATCH) -> Workload:
    return workload(MODEL, dtype="float64", batch=batch, batch_norm="per-sub-batch")


@cache
def _by_torch() -> Training:
    work, share = _work(), BATCH // COUNT
    net = TorchGraph(_work(share).graph)
    follower = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    losses: list[float] = []
    gradients: dict[str, Any] = {}
    for batch in batches(work, STEPS):
        follower.zero_grad()
        losses.append(0.0)
        for start in range(0, BATCH, share):
            own = {name: values[start : start + share] for name, values in batch.items()}
            scores = net.scores({"images": own["images"]})
            loss = torch.nn.functional.cross_entropy(scores, torch.tensor(own["labels"])) * share / BATCH
            loss.backward()
            losses[-1] += loss.item()
        for name, value in net.weights.items():
            if value.requires_grad:
                gradients.setdefault(name, value.grad.numpy().copy())
        follower.step()
    values = {name: value.detach().numpy() for name, value in net.weights.items()}
    return Training(losses, gradients, {**values, **net.population_statistics(STEPS * COUNT)}, "")


def _plan(budget: str) -> Plan:
    return compiled(_work(), budget=budget, sub_batches=COUNT)


@pytest.mark.parametrize("budget", ["200%", "40%"])
def test_training_is_that_of_accumulated_micro_batches(budget: str) -> None:
    wanted, found = _by_torch(), train(_plan(budget), _work(), batches(_work(), STEPS))
    np.testing.assert_allclose(found.losses, wanted.losses, rtol=TOLERANCE)
    largest = max(np.abs(value).max() for value in wanted.gradients.values())
    assert set(found.gradients) == set(wanted.gradients)
    for name, value in wanted.gradients.items():
        # a gradient 1e-6 below the others is a difference of numbers that large, and no more exact than they are
        scale = max(np.abs(value).max(), 1e-6 * largest)
        assert np.abs(found.gradients[name] - value).max() <= TOLERANCE * scale, name
    for name, value in wanted.values.items():
        assert error(found.values[name], value) <= TOLERANCE, name


def test_it_is_another_function_than_the_whole_batch_trains() -> None:
    work = workload(MODEL, dtype="float64", batch=BATCH)
    exact = train(compiled(work, sub_batches=COUNT, budget="200%"), work, batches(work, 1))
    assert abs(exact.losses[0] / _by_torch().losses[0] - 1) > 1e-3


def test_the_plan_says_that_semantics_changed() -> None:
    split, whole = _plan("200%"), compiled(_work(), sub_batches=1)
    assert split.semantics == "changed"
    assert split.semantics_reason == "batch norm: 11 normalise each of 3 sub-batches by itself"
    assert (whole.semantics, whole.semantics_reason) == ("exact", "")
    assert verify(split) == verify(whole) == ()


def test_the_verifier_finds_a_plan_that_claims_to_be_exact() -> None:
    codes = {violation.code for violation in verify(replace(_plan("200%"), semantics="exact", semantics_reason=""))}
    assert codes == {"persistent-version"}


def test_one_sub_batch_is_the_whole_batch() -> None:
    work = workload(MODEL, dtype="float64", batch=BATCH)
    exact, own = (train(compiled(one, sub_batches=1), one, batches(work, 2)) for one in (work, _work()))
    np.testing.assert_allclose(own.losses, exact.losses, rtol=TOLERANCE)
    for name, value in exact.values.items():
        assert error(own.values[name], value) <= TOLERANCE, name
