"""Matrix products: which launches they become, sums over samples, memory."""

from __future__ import annotations

import numpy as np
import pytest
from interpret import interpret
from kernel_call import ALLOWANCE_BYTES, call

from planc.errors import ModelError
from planc.graph import Graph, Node, TensorSpec
from planc.ops import LAUNCHES, OPS
from planc.ops.spec import RawNode

RNG = np.random.default_rng(0)


def _infer(op: str, *specs: TensorSpec | None, **attrs: int) -> TensorSpec:
    full = {"trans_a": 0, "trans_b": 0, "alpha": "1", "beta": "1"} | attrs if op == "Gemm" else {}
    return OPS[op].infer(Node(op, "fc", ("a", "b", "c"), ("y",), full), specs, 4)[0]


def _f(*shape: int, rows: int = 0) -> TensorSpec:
    return TensorSpec(shape, "float64", rows)


@pytest.mark.parametrize(
    ("a", "b", "shape", "rows"),
    [
        (_f(4, 3, rows=1), _f(3, 2), (4, 2), 1),
        (_f(12, 3, rows=3), _f(3, 2), (12, 2), 3),
        (_f(4, 5, 3, rows=1), _f(3, 2), (4, 5, 2), 1),
        (_f(4, 5, 3, rows=1), _f(4, 3, 2, rows=1), (4, 5, 2), 1),
        (_f(4, 5, 3, rows=1), _f(8, 3, 2, rows=2), None, None),  # leading axes 4 and 8 do not broadcast
        (_f(4, 5, 3, rows=1), _f(4, 3, 2), (4, 5, 2), 0),  # one matrix a sample, but not laid out by sample
        (_f(4, 3, rows=1), _f(6, 3, 2), (6, 4, 2), 0),  # the batch ends up behind
        (_f(2, 4), _f(4, 3, rows=1), (2, 3), 0),  # the batch is summed over
        (_f(4, rows=1), _f(4, 3, rows=1), (3,), 0),
        (_f(3), _f(4, 3, 2, rows=1), (4, 2), 1),
        (_f(4, 5, 3, rows=1), _f(3), (4, 5), 1),
        (_f(5, 3), _f(3, 2), (5, 2), 0),
    ],
)
def test_matmul_keeps_samples_in_front_or_gives_up_the_batch_axis(
    a: TensorSpec, b: TensorSpec, shape: tuple[int, ...] | None, rows: int | None
) -> None:
    if shape is None:
        with pytest.raises(ModelError, match=r"'fc' \(MatMul\): found leading axes \[4\] and \[8\]"):
            _infer("MatMul", a, b)
    else:
        assert _infer("MatMul", a, b) == TensorSpec(shape, "float64", rows or 0)


def test_gemm_rows() -> None:
    x, w = _f(12, 3, rows=3), _f(3, 2)
    assert _infer("Gemm", x, w, None).rows == 3
    assert _infer("Gemm", x, w, _f(2)).rows == 3
    assert _infer("Gemm", x, w, _f(12, 1, rows=3)).rows == 3
    assert _infer("Gemm", x, w, _f(12, 2)).rows == 0
    assert _infer("Gemm", x, _f(12, 2), None, trans_a=1).rows == 0
    assert _infer("Gemm", _f(5, 3), x, None, trans_b=1) == _f(5, 12)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ((_f(4, 3, rows=1), _f(2, 5), None), "found 3 columns in the first operand and 2 rows in the second"),
        ((_f(4, 3, 1, rows=1), _f(3, 5), None), r"shape \[4, 3, 1\] and \[3, 5\], wanted two matrices"),
        ((_f(4, 3, rows=1), _f(3, 5), _f(4)), r"C of shape \[4\], wanted one that broadcasts to \[4, 5\]"),
    ],
)
def test_gemm_names_the_node_and_the_shapes(specs: tuple[TensorSpec | None, ...], message: str) -> None:
    with pytest.raises(ModelError, match=rf"node 'fc' \(Gemm\).*{message}"):
        _infer("Gemm", *specs)


def test_gemm_factors_are_read_as_the_decimals_that_were_meant() -> None:
    """ONNX stores 0.1 as a float32, 0.10000000149011612."""
    attrs = {"alpha": float(np.float32(0.1)), "beta": 0.0}
    specs = (_f(4, 3, rows=1), _f(3, 2), _f(2))
    raw = RawNode("Gemm", "fc", 13, ("a", "b", "c"), ("y",), attrs, specs, (None,) * 3, 4, None)
    reading = OPS["Gemm"].read(raw)
    assert reading.attrs == {"trans_a": 0, "trans_b": 0, "alpha": "0.1", "beta": "0"}
    assert reading.inputs == ("a", "b", "")  # beta 0: C has no part in it, so nobody keeps or trains it


def test_weight_gradient_adds_up_over_ranges_whatever_was_there_before() -> None:
    x, dy = RNG.standard_normal((10, 2, 3)), RNG.standard_normal((10, 2, 5))
    whole = np.full((3, 5), 99.0)  # the first write must overwrite it
    for start, stop in ((0, 4), (4, 7), (7, 10)):
        call("MatMulSum", (x[start:stop], dy[start:stop]), (whole,), {"trans_a": 1}, accumulate=start > 0)
    # 1e-14: sums of 20 products of numbers near 1 in another order.
    np.testing.assert_allclose(whole, np.einsum("bsk,bsn->kn", x, dy), rtol=0, atol=1e-14)


def test_a_large_weight_gradient_accumulates_in_small_memory_and_right_at_every_tile() -> None:
    x, dy = RNG.standard_normal((3, 700)).astype("f"), RNG.standard_normal((3, 1100)).astype("f")
    total = np.ones((700, 1100), "f")
    assert call("MatMulSum", (x, dy), (total,), {"trans_a": 1, "alpha": "0.5"}, accumulate=True) < ALLOWANCE_BYTES
    # 1e-5: three float32 products of numbers below 5.
    np.testing.assert_allclose(total, 1 + 0.5 * (x.T @ dy), rtol=0, atol=1e-5)


@pytest.mark.parametrize("attrs", [{}, {"beta": "0.5"}])
def test_forward_takes_no_memory_of_note(attrs: dict[str, str]) -> None:
    x, w, c, y = (RNG.standard_normal(shape) for shape in ((64, 300), (800, 300), (800,), (64, 800)))
    assert call("Gemm", (x, w, c), (y,), {"trans_b": 1, **attrs}) < ALLOWANCE_BYTES
    # 1e-11: sums of 300 products of numbers near 1.
    np.testing.assert_allclose(y, x @ w.T + float(attrs.get("beta", "1")) * c, rtol=0, atol=1e-11)


@pytest.mark.parametrize("trans", [{"trans_a": 1}, {"trans_b": 1}])
def test_transposed_batches_of_matrices_are_not_copied(trans: dict[str, int]) -> None:
    a, b = RNG.standard_normal((2, 8, 96, 64)), RNG.standard_normal((2, 8, 96, 64))
    left, right = (a.swapaxes(2, 3), b) if "trans_a" in trans else (a, b.swapaxes(2, 3))
    y = np.empty((2, 8, left.shape[2], right.shape[3]))
    assert call("MatMul", (a, b), (y,), trans) < ALLOWANCE_BYTES
    np.testing.assert_array_equal(y, left @ right)


def test_flops_of_a_product_are_two_a_multiplication() -> None:
    flops = LAUNCHES["MatMul"].flops
    assert flops({}, (_f(4, 5, 3), _f(3, 2)), (_f(4, 5, 2),)) == 2 * 4 * 5 * 3 * 2
    assert flops({"trans_a": 1}, (_f(4, 5, 3), _f(4, 5, 2)), (_f(3, 2),)) == 2 * 4 * 5 * 3 * 2
    assert flops({}, (_f(3), _f(4, 3, 2)), (_f(4, 2),)) == 2 * 4 * 3 * 2


def test_a_square_gets_both_of_its_gradients() -> None:
    graph = Graph(
        batch=4,
        inputs=("x",),
        outputs=("y",),
        nodes=(Node("MatMul", "product", ("x", "x"), ("y",)),),
        tensors={"x": TensorSpec((4, 2, 2), "float64", 1), "y": TensorSpec((4, 2, 2), "float64", 1)},
        constants={},
        initializers={},
    )
    x, dy = RNG.standard_normal((4, 2, 2)), RNG.standard_normal((4, 2, 2))
    result = interpret(graph, {"x": x}, cotangents={"y": dy}, ranges=((0, 1), (1, 4)))
    expected = dy @ x.swapaxes(1, 2) + x.swapaxes(1, 2) @ dy
    # 1e-14: sums of four products in another order.
    np.testing.assert_allclose(result.gradients["x"], expected, rtol=0, atol=1e-14)
