"""The same training step whatever the number of sub-batches (field cases B6, B7, B9): unequal ranges, batch norm,
dropout."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from trainings import Training, batches, compiled, error, train, workload

BATCH = 7
COUNTS = (2, 3, 5, BATCH)
"""Of 7 samples: 4+3, 3+2+2, 2+2+1+1+1, and one by one."""

TOLERANCE = 1e-10
"""float64 carries 2e-16; another grouping of sums of up to 1e4 terms, some of which cancel."""


@cache
def trained(model: str, count: int) -> Training:
    work = workload(model, dtype="float64", batch=BATCH)
    plan = compiled(work, budget="200%", policy="keep-all", sub_batches=count)
    assert plan.semantics == "exact"
    ranges = {step.samples for step in plan.train.steps if step.op == "Conv"}
    assert len(ranges) == count
    return train(plan, work, batches(work, 2), seed=3)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("model", ["tiny_residual_cnn", "vgg_like"])
def test_gradients_and_statistics_do_not_depend_on_the_sub_batches(model: str, count: int) -> None:
    whole, split = trained(model, 1), trained(model, count)
    np.testing.assert_allclose(split.losses, whole.losses, rtol=TOLERANCE)
    assert set(whole.gradients) == set(split.gradients)
    largest = max(np.abs(value).max() for value in whole.gradients.values())
    for name, value in whole.gradients.items():
        # a gradient 1e-6 below the others is a difference of numbers that large, and no more exact than they are
        scale = max(np.abs(value).max(), 1e-6 * largest)
        assert np.abs(split.gradients[name] - value).max() <= TOLERANCE * scale, name
    for name, value in whole.values.items():
        assert error(split.values[name], value) <= TOLERANCE, name


def test_models_have_what_could_go_wrong() -> None:
    kinds = {
        model: {node.op for node in workload(model, dtype="float64", batch=BATCH).graph.nodes}
        for model in ("tiny_residual_cnn", "vgg_like")
    }
    assert "BatchNormalization" in kinds["tiny_residual_cnn"]
    assert "Dropout" in kinds["vgg_like"]
    one, other = (
        train(compiled(work, policy="keep-all"), work, batches(work, 1), seed=seed).losses
        for seed in (3, 4)
        for work in (workload("vgg_like", dtype="float64", batch=BATCH),)
    )
    assert one != other, "dropout draws by the seed"
