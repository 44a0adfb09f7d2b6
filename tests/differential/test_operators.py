"""Every row of the operator table against PyTorch (forward and all gradients) and onnx.reference (forward), in float64.

An error is the largest difference of a tensor over its largest value.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
from case import Case
from cases import CASES
from graph_case import case_model, load_case
from interpret import Result, interpret
from onnx.reference import ReferenceEvaluator

from planc.runtime.kernels import blocks

TOLERANCE = 1e-9
"""float64 carries 2e-16; operators here add at most some thousand terms, and algorithms may differ."""

REFERENCE_TOLERANCE = 1e-6
"""The reference evaluator takes an attribute such as 0.2 as the float32 it is stored as, and computes some in it."""

SEED = 7


def _inputs(case: Case) -> dict[str, Any]:
    values = case.values(SEED)
    return {name: values[name] for name in case.inputs}


def _ranges(batch: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """The whole batch, and two ways to cut it into ranges of different sizes."""
    return ((0, batch),), ((0, 1), (1, batch)), ((0, batch - 2), (batch - 2, batch - 1), (batch - 1, batch))


def _run(case: Case, ranges: tuple[tuple[int, int], ...]) -> Result:
    graph = load_case(case, SEED)
    cotangents = {name: _cotangent(name, graph.tensors[name].shape) for name in graph.outputs}
    return interpret(graph, _inputs(case), cotangents=cotangents, ranges=ranges)


def _cotangent(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(name) + sum(map(ord, name))).standard_normal(shape)


def _error(found: Any, wanted: Any) -> float:
    assert found.shape == wanted.shape
    scale = float(np.max(np.abs(wanted), initial=0.0)) or 1.0
    return float(np.max(np.abs(found - wanted), initial=0.0)) / scale


@cache
def _torch(index: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs and gradients of a row by PyTorch."""
    torch = pytest.importorskip("torch")
    case = CASES[index]
    tensors = {name: torch.tensor(value) for name, value in case.values(SEED).items()}
    for name in case.compared:
        tensors[name].requires_grad_()
    result = case.torch(tensors)
    outputs = result if isinstance(result, tuple | list) else (result,)
    named = dict(zip(case.node_outputs, outputs, strict=False))
    if case.compared:
        torch.autograd.backward(
            list(named.values()), [torch.tensor(_cotangent(name, tuple(y.shape))) for name, y in named.items()]
        )
    gradients = {name: tensors[name].grad.numpy() for name in case.compared}
    return {name: y.detach().numpy() for name, y in named.items()}, gradients


_ROWS = [pytest.param(index, id=case.id) for index, case in enumerate(CASES)]


def test_row_names_are_unique() -> None:
    names = [case.id for case in CASES]
    assert len(set(names)) == len(names)


@pytest.mark.torch
@pytest.mark.parametrize("cut", [0, 1, 2], ids=["whole", "two-ranges", "three-ranges"])
@pytest.mark.parametrize("index", _ROWS)
def test_agrees_with_pytorch(index: int, cut: int) -> None:
    _compare_with_pytorch(index, cut)


@pytest.mark.torch
@pytest.mark.parametrize("index", _ROWS)
def test_agrees_with_pytorch_over_many_blocks(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are smaller than a block; with blocks of 8 values the walk over them shows, too."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)
    _compare_with_pytorch(index, 1)


def _compare_with_pytorch(index: int, cut: int) -> None:
    case = CASES[index]
    outputs, gradients = _torch(index)
    result = _run(case, _ranges(case.batch)[cut])
    assert set(result.outputs) == set(outputs)
    for name, wanted in outputs.items():
        assert _error(result.outputs[name], wanted) <= TOLERANCE, name
    for name, wanted in gradients.items():
        assert _error(result.gradients[name], wanted) <= TOLERANCE, f"gradient of {name}"


@pytest.mark.parametrize("index", [row for row, case in zip(_ROWS, CASES, strict=True) if case.reference])
def test_agrees_with_reference(index: int) -> None:
    case = CASES[index]
    with warnings.catch_warnings():
        # The evaluator's own arithmetic, such as exp(1000), is not what is tested.
        warnings.simplefilter("ignore")
        wanted = ReferenceEvaluator(case_model(case, SEED)).run(None, _inputs(case))
    result = _run(case, ((0, case.batch),))
    for name, value in zip(case.node_outputs, wanted, strict=True):
        if name in result.outputs:
            assert _error(result.outputs[name], np.asarray(value)) <= REFERENCE_TOLERANCE, name
