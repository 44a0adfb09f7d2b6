"""Every NumPy convolution algorithm, in all three calls and in micro-batches, against PyTorch."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from conv_calls import CALLS, ConvShape, arguments, draw, run

from planc.conv_algorithms import FAMILIES

pytestmark = pytest.mark.torch

TOLERANCES = {"float64": 1e-12, "float32": 2e-5}
"""Of the largest value. An output sums at most some thousand products: about 100 roundings of 1.1e-16 or 6e-8 each,
if they fall at random; Winograd and FFT lose another digit. PyTorch computes in float64 for both."""

SHAPES = {
    "3x3": ConvShape(5, 4, 6, (9, 8), (3, 3), pads=(1, 1, 1, 1)),
    "3x3_valid": ConvShape(5, 3, 4, (7, 6), (3, 3)),
    "3x3_full": ConvShape(3, 2, 3, (5, 4), (3, 3), pads=(2, 2, 2, 2)),
    "asymmetric": ConvShape(4, 4, 6, (9, 8), (3, 3), pads=(0, 2, 1, 0)),
    "deep": ConvShape(2, 300, 140, (9, 9), (3, 3), pads=(1, 1, 1, 1)),
    "pointwise": ConvShape(4, 8, 5, (6, 6), (1, 1)),
    "pointwise_groups": ConvShape(4, 8, 6, (6, 6), (1, 1), groups=2),
    "pointwise_stride_2": ConvShape(4, 8, 6, (6, 7), (1, 1), stride=(2, 2)),
    "5x5": ConvShape(3, 3, 5, (11, 11), (5, 5), pads=(2, 2, 2, 2)),
    "7x7_stride_2": ConvShape(3, 3, 5, (15, 13), (7, 7), stride=(2, 2), pads=(3, 3, 3, 3)),
    "even_stride_2": ConvShape(3, 4, 6, (9, 8), (4, 2), stride=(2, 2), pads=(1, 0, 2, 1)),
    "stride_3": ConvShape(3, 4, 6, (10, 11), (3, 3), stride=(3, 3), pads=(1, 1, 1, 1)),
    "stride_over_kernel": ConvShape(3, 4, 6, (10, 11), (2, 2), stride=(3, 4), pads=(0, 1, 1, 0)),
    "dilated": ConvShape(3, 4, 6, (9, 10), (3, 3), dilation=(2, 3), pads=(2, 3, 2, 3)),
    "dilated_stride_2": ConvShape(3, 4, 6, (11, 12), (3, 2), (2, 3), (1, 2), (1, 0, 2, 3), 2),
    "pads_over_kernel": ConvShape(3, 2, 3, (5, 5), (2, 2), pads=(3, 1, 2, 4)),
    "groups": ConvShape(3, 6, 9, (7, 8), (3, 3), pads=(1, 1, 1, 1), groups=3),
    "depthwise": ConvShape(3, 6, 6, (7, 9), (3, 3), pads=(1, 1, 1, 1), groups=6),
    "depthwise_stride_2": ConvShape(3, 6, 12, (7, 9), (5, 3), (2, 2), (1, 1), (2, 1, 2, 1), 6),
    "depthwise_many_outputs": ConvShape(3, 3, 18, (7, 9), (3, 3), pads=(1, 1, 1, 1), groups=3),
    "wide_row": ConvShape(1, 2, 300, (9, 130), (13, 9), pads=(6, 4, 6, 4)),
    "large_kernel": ConvShape(1, 1, 2, (170, 169), (150, 150)),
    "1d": ConvShape(4, 3, 5, (17,), (5,), (1,), (1,), (2, 2)),
    "1d_stride_2_dilated": ConvShape(4, 4, 6, (30,), (5,), (2,), (3,), (4, 2), 2),
}


@cache
def _wanted(name: str) -> dict[str, Any]:
    """What PyTorch makes of the shape's arrays: y from x and w, and the gradients of x and w for the drawn y."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional

    shape, arrays = SHAPES[name], draw(SHAPES[name])
    axes = len(shape.size)
    x, w = (torch.tensor(arrays[key], requires_grad=True) for key in "xw")
    sides = [shape.pads[axis + side * axes] for axis in reversed(range(axes)) for side in (0, 1)]
    convolve = functional.conv1d if axes == 1 else functional.conv2d
    y = convolve(functional.pad(x, sides), w, None, shape.stride, 0, shape.dilation, shape.groups)
    y.backward(torch.tensor(arrays["y"]))
    return {"y": y.detach().numpy(), "x": x.grad.numpy(), "w": w.grad.numpy()}


def _configurations(algorithm: str, n: int) -> list[tuple[tuple[str, int], ...]]:
    """The range at once; sample by sample; unequal parts; and another algorithm in between."""
    if n == 1:
        return [((algorithm, 1),)]
    mixed = ((algorithm, 1), ("direct", n - 1))
    return [((algorithm, n),), ((algorithm, 1),) * n, ((algorithm, n - 1), (algorithm, 1)), mixed]


CASES = [
    (name, algorithm, call)
    for name, shape in SHAPES.items()
    for algorithm, known in FAMILIES["numpy"].items()
    for call in CALLS
    if known.supports(shape.conv_call(call))
]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("name", "algorithm", "call"), CASES)
def test_algorithm_agrees_with_torch(name: str, algorithm: str, call: str, dtype: str) -> None:
    shape = SHAPES[name]
    inputs, made = arguments(call, draw(shape, dtype))
    wanted = _wanted(name)[made]
    for configuration in _configurations(algorithm, shape.n):
        out = np.full(wanted.shape, np.nan, dtype)
        run(shape, call, inputs, out, configuration)
        assert np.max(np.abs(out - wanted)) <= TOLERANCES[dtype] * np.max(np.abs(wanted)), configuration


@pytest.mark.parametrize(("name", "algorithm"), [(n, a) for n, a, call in CASES if call == "backward-filter"])
def test_filter_gradient_is_added_to_what_is_there(name: str, algorithm: str) -> None:
    shape = SHAPES[name]
    inputs, _ = arguments("backward-filter", draw(shape))
    before = np.random.default_rng(1).standard_normal(shape.w)
    wanted = before + _wanted(name)["w"]
    for configuration in _configurations(algorithm, shape.n):
        out = before.copy()
        run(shape, "backward-filter", inputs, out, configuration, accumulate=True)
        assert np.max(np.abs(out - wanted)) <= TOLERANCES["float64"] * np.max(np.abs(wanted)), configuration


def test_every_algorithm_meets_torch_in_every_call_it_knows() -> None:
    known = {(a.name, call) for a in FAMILIES["numpy"].values() for call in a.calls}
    assert {(algorithm, call) for _, algorithm, call in CASES} == known
