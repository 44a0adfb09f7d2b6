"""The lower bound: below every plan there is, and set by the node that it names."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_models import floats, make_model
from trainings import compiled, workload

from planc.bounds import lower_bound
from planc.candidates import compile_workload
from planc.errors import InfeasibleError
from planc.onnx_loader import load_model
from planc.ops.spec import PERSISTENT
from planc.options import Options
from planc.training import make_training_graph
from planc.training_graph import TrainingOptions


def dense(batch: int, inner: int, optimizer: str = "sgd") -> tuple[int, int, str]:
    """Bound, persistent bytes and node of x (batch, 8) -> w (8, inner) -> v (inner, 4), mse."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="wide"),
        helper.make_node("MatMul", ["h", "v"], ["y"], name="narrow"),
    ]
    weights = {"w": np.ones((8, inner), np.float32), "v": np.ones((inner, 4), np.float32)}
    graph = load_model(make_model(nodes, [floats("x", (batch, 8))], weights=weights))
    options = TrainingOptions(loss="mse", optimizer=optimizer, settings={})
    bound = lower_bound(make_training_graph(graph, options), resident=True)
    return bound.bytes, bound.persistent_bytes, bound.label


def test_by_hand() -> None:
    """The gradient of w (8 x 100) is the largest working set: it, a sample of x and a sample of h's gradient."""
    persistent = 4 * (8 * 100 + 100 * 4)
    assert dense(batch=16, inner=100) == (persistent + 4 * (800 + 8 + 100), persistent, "wide")


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 1), ("momentum", 2), ("adam", 3)])
def test_optimizer_state_is_counted_from_the_first_step(optimizer: str, copies: int) -> None:
    """Field case B4."""
    assert dense(16, 100, optimizer)[1] == copies * dense(16, 100)[1]


def test_the_batch_does_not_count_where_single_samples_will_do() -> None:
    assert dense(batch=16, inner=100) == dense(batch=512, inner=100)


@pytest.mark.parametrize("model", ["lenet", "tiny_residual_cnn", "vgg_like", "inception_like"])
@pytest.mark.parametrize("sub_batches", [1, 6])
def test_no_plan_needs_less(model: str, sub_batches: int) -> None:
    work = workload(model, batch=6)
    bound = lower_bound(work.training, resident=True)
    assert lower_bound(work.training).bytes <= bound.bytes
    plan = compiled(work, policy="vdnn-all", budget="300%", sub_batches=sub_batches)
    assert bound.bytes <= plan.predicted.peak_bytes <= plan.spaces.arena_bytes
    assert bound.persistent_bytes == sum(
        t.spec.bytes for t in work.training.tensors if t.kind in PERSISTENT and t.root == t.index
    )
    assert bound.label in {launch.label for launch in work.training.launches}


def test_just_above_the_bound_nothing_is_promised_and_below_it_nothing_is_found() -> None:
    work = workload("lenet", batch=6)
    bound = lower_bound(work.training)
    with pytest.raises(InfeasibleError) as caught:
        compile_workload(work, Options(budget=str(bound.bytes - 1)))
    assert caught.value.bound_bytes == bound.bytes
    assert caught.value.node == bound.label
    assert caught.value.smallest_budget_bytes is not None
    assert caught.value.smallest_budget_bytes >= bound.bytes
