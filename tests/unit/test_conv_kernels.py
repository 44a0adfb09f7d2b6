"""NumPy convolution kernels: memory they take, how micro-batches add up, what they refuse."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from conv_calls import CALLS, OPS, ConvShape, arguments, draw, run, workspace_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from planc.conv_algorithms import FAMILIES
from planc.errors import InternalError
from planc.runtime.kernels.convolution import ALGORITHMS, KERNELS
from planc.runtime.launch import Hyper, Launch

HIDDEN_BYTES = 256 * 1024
"""What a kernel may allocate besides its workspace (runtime/launch.py)."""


@st.composite
def shapes(draw_: st.DrawFn) -> ConvShape:
    """Small convolutions of every kind that have an output."""
    groups = draw_(st.sampled_from((1, 1, 2, 3)))
    square = draw_(st.booleans())
    kernel = (3, 3) if square else (draw_(st.integers(1, 5)), draw_(st.integers(1, 4)))
    small = st.integers(1, 2) if draw_(st.booleans()) else st.just(1)
    return ConvShape(
        n=draw_(st.integers(1, 4)),
        c=groups * draw_(st.integers(1, 4)),
        k=groups * draw_(st.integers(1, 4)),
        size=(draw_(st.integers(9, 14)), draw_(st.integers(9, 14))),
        kernel=kernel,
        stride=(draw_(small), draw_(small)),
        dilation=(draw_(small), draw_(small)),
        pads=tuple(draw_(st.lists(st.integers(0, 3), min_size=4, max_size=4))),
        groups=groups,
    )


def _supported(shape: ConvShape, dtype: str = "float64") -> Iterator[tuple[str, str]]:
    for name, algorithm in FAMILIES["numpy"].items():
        for call in CALLS:
            if algorithm.supports(shape.conv_call(call, dtype)):
                yield name, call


@settings(max_examples=60, deadline=None)
@given(shape=shapes(), dtype=st.sampled_from(("float32", "float64")))
def test_workspace_is_what_the_cost_model_says_to_the_byte(shape: ConvShape, dtype: str) -> None:
    """The formula's bytes are enough (guard bytes stand around them), one byte less is refused."""
    arrays = draw(shape, dtype)
    for name, call in _supported(shape, dtype):
        inputs, made = arguments(call, arrays)
        out = np.full_like(arrays[made], np.nan)
        configuration = ((name, shape.n),)
        run(shape, call, inputs, out, configuration)
        assert np.isfinite(out).all(), (name, call)
        size = workspace_bytes(shape, call, configuration, dtype)
        if size:
            with pytest.raises(InternalError, match="workspace"):
                run(shape, call, inputs, out, configuration, workspace=np.empty(size - 1, np.uint8))


@settings(max_examples=60, deadline=None)
@given(shape=shapes())
def test_all_algorithms_agree(shape: ConvShape) -> None:
    """They compute the same sums of at most 80 products in another order; 1e-12 leaves some thousand roundings."""
    arrays = draw(shape)
    results = dict[str, np.ndarray]()
    for name, call in _supported(shape):
        inputs, made = arguments(call, arrays)
        out = np.full_like(arrays[made], np.nan)
        run(shape, call, inputs, out, ((name, shape.n),))
        reference = results.setdefault(call, out)
        np.testing.assert_allclose(
            out, reference, rtol=0, atol=1e-12 * np.abs(reference).max(), err_msg=f"{name} {call}"
        )


def test_backward_filter_first_micro_batch_follows_the_caller_and_later_ones_accumulate() -> None:
    shape = ConvShape(5, 3, 4, (6, 5), (3, 3), pads=(1, 1, 1, 1))
    arrays = draw(shape)
    inputs, _ = arguments("backward-filter", arrays)
    once = np.full(shape.w, np.nan)
    run(shape, "backward-filter", inputs, once, (("im2col_gemm", 5),))
    for name in (n for n, call in _supported(shape) if call == "backward-filter"):
        written = np.full(shape.w, np.nan)
        run(shape, "backward-filter", inputs, written, ((name, 2), (name, 2), (name, 1)))
        np.testing.assert_allclose(written, once, rtol=1e-12, atol=1e-12)
        added = np.full(shape.w, 10.0)
        run(shape, "backward-filter", inputs, added, ((name, 2), (name, 3)), accumulate=True)
        np.testing.assert_allclose(added, once + 10, rtol=1e-12, atol=1e-12)


MEMORY_SHAPES = (
    ConvShape(3, 96, 160, (30, 29), (3, 3), pads=(1, 1, 1, 1)),
    ConvShape(3, 96, 160, (30, 29), (3, 3), stride=(2, 2), pads=(0, 1, 1, 0)),
    ConvShape(3, 128, 256, (28, 28), (1, 1)),
    ConvShape(3, 128, 256, (28, 28), (1, 1), groups=4),
    ConvShape(3, 128, 128, (28, 28), (3, 3), pads=(1, 1, 1, 1), groups=16),
    ConvShape(3, 512, 512, (14, 14), (3, 3), stride=(2, 2), pads=(1, 1, 1, 1), groups=512),
    ConvShape(2, 24, 32, (80, 81), (5, 5), pads=(2, 2, 2, 2)),
    ConvShape(3, 64, 64, (2000,), (9,), (1,), (2,), (8, 8)),
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", MEMORY_SHAPES, ids=str)
def test_nothing_large_is_allocated_besides_the_workspace(shape: ConvShape, dtype: str) -> None:
    """tracemalloc sees NumPy's arrays, its iterators' buffers and hidden copies; operands here are far larger."""
    arrays = draw(shape, dtype)
    for name, call in _supported(shape, dtype):
        inputs, made = arguments(call, arrays)
        configuration = ((name, shape.n - 1), (name, 1))
        workspace = np.empty(workspace_bytes(shape, call, configuration, dtype), np.uint8)
        out = np.empty_like(arrays[made])
        tracemalloc.start()
        try:
            run(shape, call, inputs, out, configuration, workspace)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < HIDDEN_BYTES, (name, call)


STALE_SHAPE = ConvShape(4, 6, 8, (13, 11), (3, 3), pads=(1, 1, 1, 1))


@pytest.mark.parametrize(("name", "call"), tuple(_supported(STALE_SHAPE)))
def test_results_do_not_depend_on_stale_memory(name: str, call: str) -> None:
    """Bit for bit the same whatever workspace and output held before."""
    shape = STALE_SHAPE
    inputs, made = arguments(call, draw(shape))
    size = workspace_bytes(shape, call, ((name, 4),), "float64")
    results = []
    for stale in (0x00, 0x7F, 0xFF):
        out = np.full(getattr(shape, made), np.frombuffer(bytes([stale] * 8), np.float64)[0])
        workspace = np.full(size + 64, stale, np.uint8)
        start = -workspace.ctypes.data % 64
        run(shape, call, inputs, out, ((name, 4),), workspace[start : start + size])
        results.append(out.tobytes())
    assert results[0] == results[1] == results[2]


def test_kernels_and_cost_model_know_the_same_algorithms() -> None:
    wanted = {name: {OPS[call] for call in algorithm.calls} for name, algorithm in FAMILIES["numpy"].items()}
    assert {name: set(calls) for name, calls in ALGORITHMS.items()} == wanted


@settings(max_examples=40, deadline=None)
@given(shape=shapes())
def test_kernels_refuse_what_the_cost_model_does_not_offer(shape: ConvShape) -> None:
    """Two exceptions are only not offered because `direct` does the same: im2col of a pointwise sample, FFT of 1x1."""
    arrays = draw(shape)
    workspace = np.empty(1 << 24, np.uint8)
    offered = set(_supported(shape))
    for name, launches in ALGORITHMS.items():
        for call in CALLS:
            if (name, call) in offered or OPS[call] not in launches or shape.kernel == (1, 1):
                continue
            inputs, made = arguments(call, arrays)
            with pytest.raises(InternalError, match=name):
                run(shape, call, inputs, arrays[made], ((name, shape.n),), workspace)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("configuration", [(), (("WINOGRAD_NONFUSED", 3),), (("GEMM", 1), ("FFT", 2))])
def test_emulated_configurations_run_as_direct(call: str, configuration: tuple[tuple[str, int], ...]) -> None:
    shape = ConvShape(3, 4, 6, (7, 6), (3, 3), pads=(1, 1, 1, 1))
    inputs, made = arguments(call, draw(shape))
    out, wanted = np.full(getattr(shape, made), np.nan), np.full(getattr(shape, made), np.nan)
    run(shape, call, inputs, out, configuration, workspace=np.empty(0, np.uint8))
    run(shape, call, inputs, wanted, tuple(("direct", n) for _, n in configuration))
    assert out.tobytes() == wanted.tobytes()


def test_micro_batches_that_do_not_cover_the_range_are_refused() -> None:
    shape = ConvShape(5, 3, 4, (6, 5), (3, 3))
    inputs, _ = arguments("forward", draw(shape))
    with pytest.raises(InternalError, match="5 images, but micro-batches of 4 samples"):
        run(shape, "forward", inputs, np.empty(shape.y), (("direct", 2), ("direct", 2)))


def test_a_sample_may_be_several_images() -> None:
    shape = ConvShape(6, 3, 4, (6, 5), (3, 3))
    inputs, _ = arguments("forward", draw(shape))
    out, wanted = np.full(shape.y, np.nan), np.full(shape.y, np.nan)
    run(shape, "forward", inputs, out, (("direct", 1), ("direct", 2)))
    run(shape, "forward", inputs, wanted)
    assert out.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("size", [(6, 5), (7,)])
def test_bias_is_added_once_to_every_output_of_its_channel(size: tuple[int, ...]) -> None:
    ones = (1,) * len(size)
    shape = ConvShape(3, 2, 4, size, ones, ones, ones, (0, 0) * len(size))
    (x, w), _ = arguments("forward", draw(shape))
    bias = np.array([1.0, -2.0, 3.0, 0.5])
    plain, biased = np.full(shape.y, np.nan), np.full(shape.y, np.nan)
    run(shape, "forward", (x, w), plain)
    run(shape, "forward", (x, w, bias), biased, (("direct", 1), ("direct", 2)))
    np.testing.assert_array_equal(biased, plain + bias.reshape(-1, *ones))


@pytest.mark.parametrize("shape", [(5, 4, 6, 7), (5, 4, 9), (5, 4)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_channel_sum(shape: tuple[int, ...], accumulate: bool) -> None:
    """Sums of at most 210 numbers in float64: 1e-12 is thousands of roundings."""
    gradients = np.random.default_rng(0).standard_normal(shape)
    total = np.full(4, 3.0 if accumulate else np.nan)
    KERNELS["ChannelSum"](
        Launch("ChannelSum", {}, (gradients,), (total,), np.empty(0, np.uint8), accumulate, 0, 5, ()),
        Hyper(0, 1, 0.1),
    )
    wanted = gradients.sum(axis=(0, *range(2, len(shape)))) + (3.0 if accumulate else 0.0)
    np.testing.assert_allclose(total, wanted, rtol=1e-12, atol=1e-12)
