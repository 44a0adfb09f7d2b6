"""Activations: the error function to the last place, saturation, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from case import Case
from graph_case import load_case
from kernel_call import call
from onnx import TensorProto, helper

from planc.errors import ModelError
from planc.onnx_loader import load_model
from planc.runtime.kernels.activation import erf


def test_erf_is_right_to_two_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), np.geomspace(1e-300, 1, 500), [1.0, 6.0, np.inf, -np.inf, 0.0]])
    found = np.empty_like(x)
    erf(x, found)
    wanted = np.array([math.erf(value) for value in x])
    assert np.all(np.abs(found - wanted) <= 2 * np.spacing(np.abs(wanted)))


def test_erf_of_nan_is_nan() -> None:
    out = np.zeros(1)
    erf(np.array([np.nan]), out)
    assert np.isnan(out).all()


@pytest.mark.parametrize(("op", "attrs"), [("Mish", {}), ("Gelu", {"approximate": "none"}), ("Swish", {"alpha": "1"})])
def test_smooth_activations_are_the_identity_far_out(op: str, attrs: dict[str, str]) -> None:
    x = np.array([50.0, 1e4, 1e18], np.float32)
    y, dx = np.empty_like(x), np.empty_like(x)
    call(op, [x], [y], attrs)
    call(f"{op}Backward", [np.ones_like(x), x], [dx], attrs)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(dx, np.ones_like(x))


def test_wrong_attributes_are_refused() -> None:
    def row(op: str, opset: int, **attrs: object) -> Case:
        return Case("n", op, opset, {"x": (2, 3)}, lambda t: t["x"], attrs=attrs)

    with pytest.raises(ModelError, match="approximate is 'erf'; 'none' or 'tanh' was expected"):
        load_case(row("Gelu", 20, approximate="erf"), 0)
    with pytest.raises(ModelError, match=r"attribute 'alpha' is -1\.0; a number above 0 was expected"):
        load_case(row("Celu", 12, alpha=-1.0), 0)


def test_a_weight_behind_a_step_function_is_frozen_with_a_warning() -> None:
    weight = onnx.numpy_helper.from_array(np.full((3, 3), 0.4, np.float32), "w")
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Round", ["w"], ["r"], name="steps"), helper.make_node("MatMul", ["x", "r"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [weight],
        ),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    (warning,) = load_model(model).warnings
    assert "'steps'" in warning
    assert "frozen" in warning
