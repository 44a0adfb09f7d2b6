"""Einsum: memory of the kernel, its digits at real sizes, and the equations that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from case import Case, Shape
from graph_case import load_case
from kernel_call import ALLOWANCE_BYTES, call

from planc.errors import ModelError
from planc.graph import TensorSpec
from planc.ops import LAUNCHES


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    ("equation", "a", "b"),
    [
        ("bqhd,bkhd->bhqk", (2, 96, 4, 32), (2, 96, 4, 32)),  # scores: strided matrices
        ("bhqk,bkhd->bqhd", (2, 4, 96, 96), (2, 96, 4, 32)),
        ("bhsk,khd->bsd", (2, 8, 96, 16), (16, 8, 128)),  # two inner axes that are no one axis
        ("bsd,bse->de", (4, 128, 256), (4, 128, 192)),  # a weight's gradient
        ("bij,bij->bij", (4, 128, 64), (4, 128, 64)),
    ],
)
def test_no_operand_is_copied(equation: str, a: Shape, b: Shape, accumulate: bool) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal(a), rng.standard_normal(b)
    wanted = np.einsum(equation, first, second) + accumulate
    found = np.ones(wanted.shape)
    peak = call("EinsumSum", (first, second), (found,), {"equation": equation}, accumulate=accumulate)
    assert peak < ALLOWANCE_BYTES
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-11)  # sums of up to 512 products, in another order


def test_operations() -> None:
    """Two for each of 2 * 3 * 4 * 5 * 6 combinations of b, h, q, k, d."""
    inputs = (TensorSpec((2, 4, 3, 6), "float32", 1), TensorSpec((2, 5, 3, 6), "float32", 1))
    scores = (TensorSpec((2, 3, 4, 5), "float32", 1),)
    assert LAUNCHES["Einsum"].flops({"equation": "bqhd,bkhd->bhqk"}, inputs, scores) == 2 * 720


@pytest.mark.parametrize(
    ("equation", "found"),
    [
        ("bii,ij->bj", "has a letter twice in one term, a diagonal.*Transpose, ReduceSum and MatMul"),
        ("bij->bji", r"with 2 operand\(s\); planc multiplies two"),
        ("bij,jk->bz", "the result's 'z' is in no operand"),
        ("bij,j->bi", r"does not name the axes of operands of \[3, 2\] axes"),
        ("b..ij,jk->bk", "does not name the axes"),
        ("bik,jk->bij", "'k' stands for sizes 4 and 2; wanted one size"),
    ],
)
def test_equations_that_are_refused(equation: str, found: str) -> None:
    case = Case(
        "product",
        "Einsum",
        12,
        {"a": (4, 3, 2)},
        lambda t: t["a"],
        weights={"b": (2, 4)},
        attrs={"equation": equation},
    )
    with pytest.raises(ModelError, match=rf"'product' \(Einsum\): .*{found}"):
        load_case(case, 0)
