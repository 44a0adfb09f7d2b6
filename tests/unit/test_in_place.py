"""What a launch may overwrite (LaunchSpec.inplace), its kernel can: the same bits with shared memory as without.

Every launch that the operator table gives rise to, forward and backward, is run a second time for every pair, with the
output laid into the memory of the input.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import interpret as harness
import numpy as np
import pytest
from case import Case
from cases import CASES
from graph_case import case_model, load_case

from planc.graph import Graph
from planc.onnx_loader import load_model
from planc.ops import LAUNCHES
from planc.ops.final_loss import LOSSES
from planc.ops.optimizer import OPTIMIZERS
from planc.runtime.kernels import KERNELS, blocks
from planc.runtime.launch import Hyper, Kernel, Launch
from planc.training import make_training_graph
from planc.training_graph import TrainingOptions


@dataclass
class Trials:
    """How often each launch ran in place, and for which input positions the result was another one."""

    tried: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, set[int]] = field(default_factory=dict)


def _checked(name: str, kernel: Kernel, trials: Trials) -> Kernel:
    def run(launch: Launch, hyper: Hyper) -> None:
        before = [array.copy() for array in launch.inputs]
        earlier = [array.copy() for array in launch.outputs]
        kernel(launch, hyper)
        for source, target in LAUNCHES[name].inplace:
            if source >= len(before) or before[source].nbytes != launch.outputs[target].nbytes or launch.accumulate:
                continue
            inputs = [array.copy() for array in before]
            outputs = [array.copy() for array in earlier]
            outputs[target] = inputs[source].reshape(-1).view(outputs[target].dtype).reshape(outputs[target].shape)
            kernel(replace(launch, inputs=tuple(inputs), outputs=tuple(outputs)), hyper)
            pairs = zip(outputs, launch.outputs, strict=True)
            if not all(np.array_equal(found, wanted, equal_nan=True) for found, wanted in pairs):
                trials.wrong.setdefault(name, set()).add(source)
            trials.tried[name] += 1

    return run


def _try_row(case: Case, graph: Graph) -> None:
    values = case.values(3)
    cotangents: dict[str, Any] = {
        name: np.random.default_rng(5).standard_normal(graph.tensors[name].shape) for name in graph.outputs
    }
    inputs = {name: values[name] for name in graph.inputs}
    harness.interpret(graph, inputs, cotangents=cotangents, ranges=((0, 1), (1, case.batch)))


def _try_training_step(optimizer: str, loss: str) -> None:
    """A step with a loss of planc's and an update, which no row has; what is not drawn is 77."""
    graph = load_case(Case("product", "MatMul", 13, {"x": (4, 3)}, lambda t: t["x"] @ t["w"], weights={"w": (3, 2)}), 3)
    step = make_training_graph(graph, TrainingOptions(loss=loss, optimizer=optimizer))
    labels = {tensor: np.ones(step.spec(tensor).shape, step.spec(tensor).dtype) for _, tensor in step.labels}
    harness.execute(step, labels, ((0, 4),))


DROPPING = Case("Dropout-half", "Dropout", 10, {"x": (5, 4)}, lambda t: t["x"], attrs={"ratio": 0.5})
"""No row of the table, as PyTorch draws other masks."""


@pytest.fixture(scope="module")
def trials() -> Trials:
    """What came of the whole table, and of what it cannot have."""
    trials = Trials()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 64)
        patch.setattr(harness, "KERNELS", {name: _checked(name, kernel, trials) for name, kernel in KERNELS.items()})
        for case in (*CASES, DROPPING):
            _try_row(case, load_case(case, seed=3))
            if case.op == "BatchNormalization":
                for kind in ("per-sub-batch", "frozen"):
                    _try_row(case, load_model(case_model(case, seed=3), precision="fp64", batch_norm=kind))
        for name in OPTIMIZERS:
            _try_training_step(name, "mse")
        for kind in LOSSES:
            _try_training_step("sgd", kind)
    return trials


@pytest.mark.parametrize("name", sorted(name for name, spec in LAUNCHES.items() if spec.inplace))
def test_kernel_is_right_in_place(name: str, trials: Trials) -> None:
    assert trials.tried[name], f"nothing runs {name} in place"
    assert name not in trials.wrong, f"{name} differs in place of inputs {sorted(trials.wrong[name])}"
