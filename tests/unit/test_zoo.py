"""Sample models are valid ONNX at any batch, drawn by seed; the digits can be learned."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from planc.digits import digits
from planc.zoo import ZOO


@pytest.mark.parametrize("name", ZOO)
def test_model_is_valid_and_takes_any_batch(name: str) -> None:
    model = ZOO[name]()
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    known = {value.name for value in inferred.graph.value_info} | {"scores"}
    assert known == {output for node in model.graph.node for output in node.output}
    (images,) = model.graph.input
    assert images.type.tensor_type.shape.dim[0].dim_param == "N"
    shape = [2] + [dim.dim_value for dim in images.type.tensor_type.shape.dim[1:]]
    (scores,) = ReferenceEvaluator(model).run(None, {"images": np.ones(shape, np.float32)})
    assert scores.shape == (2, 10)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("name", ZOO)
def test_weights_follow_the_seed(name: str) -> None:
    first, again, other = (ZOO[name](seed).SerializeToString() for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", ZOO)
def test_no_bias_before_batch_norm(name: str) -> None:
    model = ZOO[name]()
    makers = {node.output[0]: node for node in model.graph.node}
    normed = [makers[node.input[0]] for node in model.graph.node if node.op_type == "BatchNormalization"]
    assert all(len(node.input) == 2 for node in normed if node.op_type == "Conv")
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)


def test_convolutions_are_he_initialised() -> None:
    model = ZOO["tiny_residual_cnn"]()
    values = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    weights = [values[node.input[1]] for node in model.graph.node if node.op_type == "Conv"]
    assert len(weights) == 11
    last = weights[-2]  # 64x64x3x3: the deviation of 36,864 draws is known within 1 %
    np.testing.assert_allclose(last.std(), np.sqrt(2 / (64 * 9)), rtol=0.02)


def test_digits_are_the_same_for_a_seed_and_differ_between_seeds() -> None:
    images, labels = digits(25, seed=1, size=8)
    assert images.shape == (25, 1, 8, 8)
    assert images.dtype == np.float32
    assert labels.dtype == np.int64
    assert sorted(np.bincount(labels, minlength=10)) == [2] * 5 + [3] * 5
    again, other = digits(25, seed=1, size=8), digits(25, seed=2, size=8)
    np.testing.assert_array_equal(images, again[0])
    np.testing.assert_array_equal(labels, again[1])
    assert not np.array_equal(images, other[0])


@pytest.mark.parametrize("size", [8, 16])
def test_digits_are_told_apart_by_their_nearest_mean(size: int) -> None:
    """The simplest of classifiers is right most of the time on digits it has not seen; guessing is right in 10 %."""
    images, labels = digits(400, seed=0, size=size)
    means = np.stack([images[labels == digit].mean(axis=0) for digit in range(10)])
    unseen, truth = digits(200, seed=1, size=size)
    distance = ((unseen[:, None] - means[None]) ** 2).sum(axis=(2, 3, 4))
    assert (distance.argmin(axis=1) == truth).mean() > 0.7
