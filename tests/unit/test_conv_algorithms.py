"""The cost model's view of convolution algorithms: what is on offer, workspaces, determinism."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conv_calls import CALLS, ConvShape
from hypothesis import given
from hypothesis import strategies as st

from planc.conv_algorithms import FAMILIES, ConvCall, conv_call
from planc.graph import TensorSpec

VGG = ConvShape(16, 64, 64, (56, 56), (3, 3), pads=(1, 1, 1, 1)).conv_call("forward", "float32")
CUDNN, NUMPY = FAMILIES["cudnn"], FAMILIES["numpy"]


@st.composite
def calls(draw: st.DrawFn) -> ConvCall:
    """Any call with an output."""
    groups = draw(st.sampled_from((1, 2, 4)))
    pad = draw(st.tuples(*[st.integers(0, 4)] * 4))
    return ConvCall(
        call=draw(st.sampled_from(CALLS)),
        n=draw(st.integers(1, 64)),
        rows=draw(st.integers(1, 2)),
        c=groups * draw(st.integers(1, 64)),
        h=draw(st.integers(12, 300)),
        w=draw(st.integers(12, 300)),
        k=groups * draw(st.integers(1, 64)),
        r=draw(st.integers(1, 5)),
        s=draw(st.integers(1, 5)),
        stride_h=draw(st.integers(1, 3)),
        stride_w=draw(st.integers(1, 3)),
        pad=pad,
        dilation_h=draw(st.integers(1, 2)),
        dilation_w=draw(st.integers(1, 2)),
        groups=groups,
        item_bytes=draw(st.sampled_from((2, 4, 8))),
    )


@given(call=calls())
def test_every_call_has_an_algorithm_without_workspace(call: ConvCall) -> None:
    assert any(a.supports(call) and a.workspace_bytes(call) == 0 for a in NUMPY.values())
    even = replace(call, pad=(call.pad[0], call.pad[1], call.pad[0], call.pad[1]))
    assert any(a.supports(even) and a.workspace_bytes(even) == 0 for a in CUDNN.values())
    assert any(a.supports(call) and a.deterministic(call) for a in CUDNN.values())


@pytest.mark.parametrize("family", FAMILIES)
@given(call=calls())
def test_figures_are_positive_and_grow_with_the_samples(family: str, call: ConvCall) -> None:
    more = call.with_samples(call.n + 7)
    for algorithm in FAMILIES[family].values():
        if algorithm.supports(call):
            assert algorithm.supports(more)
            assert 0 <= algorithm.workspace_bytes(call) <= algorithm.workspace_bytes(more), algorithm.name
            assert 0 < algorithm.padded_flops(call) <= algorithm.padded_flops(more), algorithm.name
            assert call.operand_bytes <= algorithm.bytes(call) < algorithm.bytes(more), algorithm.name


@given(call=calls())
def test_cudnn_needs_fp32_one_group_and_no_dilation_but_for_the_implicit_ones(call: ConvCall) -> None:
    plain = call.groups == call.dilation_h == call.dilation_w == 1
    offered = {name for name, algorithm in CUDNN.items() if algorithm.supports(call)}
    if not plain:
        assert offered <= {"IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "ALGO_0", "ALGO_1"}
    elif call.item_bytes != 4:
        assert offered <= {"IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "ALGO_0", "ALGO_1", "ALGO_3"}


def _workspaces(call: ConvCall) -> dict[str, int]:
    return {name: a.workspace_bytes(call) for name, a in CUDNN.items() if a.supports(call)}


def test_cudnn_workspaces_of_a_3x3_convolution() -> None:
    """N16 C64 K64 56x56: each formula written out with its numbers."""
    spectrum = 8 * 64 * 33
    assert _workspaces(VGG) == {
        "IMPLICIT_GEMM": 0,
        "IMPLICIT_PRECOMP_GEMM": 6 * 56 * 56 + 12,
        "GEMM": 4 * 16 * 64 * 9 * 56 * 56,
        "FFT": 2 * spectrum * (64 * 64 + 16 * 64) + 4 * 64 * 64 * 9,
        "FFT_TILING": 4352 * (64 * 64 + 2 * (16 * 64 + 16 * 64)) + 24576 * 2,
        "WINOGRAD": 4 * (64 * (16 * 64 + 9 * 64) + 64),
        "WINOGRAD_NONFUSED": 144 * (64 * 64 + 16 * 14 * 14 * (64 + 64)),
    }
    data = _workspaces(replace(VGG, call="backward-data", k=40))
    assert data["ALGO_0"] == 0
    assert data["ALGO_1"] == 65536
    assert data["FFT"] == 2 * spectrum * (64 * 40 + 16 * 40) + 4 * 64 * 40 * 9
    assert data["WINOGRAD"] == 4 * (64 * (16 * 40 + 9 * 40) + 64)
    filters = _workspaces(replace(VGG, call="backward-filter", k=40))
    assert filters["ALGO_3"] == 65536
    assert filters["FFT"] == 2 * spectrum * max(16 * 64 + 16 * 40, 64 * 40) + 4 * 16 * 40 * 56 * 56
    assert "WINOGRAD" not in filters


def test_cudnn_pads_asymmetrically_by_a_copy_of_x_in_the_workspace() -> None:
    call = replace(VGG, pad=(0, 1, 2, 1))
    copy = 16 * 64 * (56 + 2) * 56 * 4
    assert CUDNN["IMPLICIT_GEMM"].workspace_bytes(call) == copy
    assert CUDNN["GEMM"].workspace_bytes(call) == copy + CUDNN["GEMM"].workspace_bytes(VGG)


def test_fft_is_offered_while_the_filter_exceeds_the_padding_and_the_image_is_small() -> None:
    assert CUDNN["FFT"].supports(VGG)
    assert not CUDNN["FFT"].supports(replace(VGG, pad=(3, 3, 3, 3)))
    assert CUDNN["FFT"].supports(replace(VGG, w=254))
    assert not CUDNN["FFT"].supports(replace(VGG, w=255))
    assert not CUDNN["FFT"].supports(replace(VGG, stride_w=2))


def test_what_is_not_deterministic() -> None:
    unstable = {
        (a.name, call) for a in CUDNN.values() for call in a.calls if not a.deterministic(replace(VGG, call=call))
    }
    assert unstable == {("ALGO_0", "backward-data"), ("ALGO_0", "backward-filter"), ("ALGO_3", "backward-filter")}
    assert all(a.deterministic(replace(VGG, call=call)) for a in NUMPY.values() for call in CALLS)


def test_algorithms_that_save_operations_do() -> None:
    assert NUMPY["winograd"].padded_flops(VGG) < VGG.flops * 0.6
    assert CUDNN["WINOGRAD_NONFUSED"].padded_flops(VGG) * 4 == VGG.flops
    large = replace(VGG, r=11, s=11, pad=(5, 5, 5, 5))
    assert NUMPY["fft"].padded_flops(large) < large.flops / 8


def test_call_of_a_1d_launch_is_2d_with_height_1() -> None:
    shape = ConvShape(4, 6, 8, (30,), (5,), (2,), (3,), (4, 1), 2)
    call = shape.conv_call("backward-filter")
    assert (call.h, call.w, call.r, call.s) == (1, 30, 1, 5)
    assert (call.stride_h, call.stride_w, call.dilation_w, call.pad) == (1, 2, 3, (0, 4, 0, 1))
    assert (call.out_h, call.out_w) == (1, shape.y[2])
    assert call.flops == 2 * 4 * 8 * shape.y[2] * 3 * 5


def test_samples_may_be_several_images_or_have_no_batch_axis() -> None:
    attrs = ConvShape(1, 2, 3, (5, 5), (3, 3)).attrs
    w, y = TensorSpec((3, 2, 3, 3), "float32"), TensorSpec((12, 3, 3, 3), "float32", 4)
    call = conv_call("Conv", attrs, (TensorSpec((12, 2, 5, 5), "float32", 4), w), (y,))
    assert (call.n, call.images, call.with_samples(1).images) == (3, 12, 4)
    assert conv_call("Conv", attrs, (TensorSpec((12, 2, 5, 5), "float32"), w), (y,)).images == 12
