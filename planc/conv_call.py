"""A convolution call (forward, backward-data or backward-filter on some samples), and what an algorithm for it is.

Tensors are x (n, c, h, w), the filter (k, c / groups, r, s) and y (n, k, out_h, out_w) in all three calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from planc.graph import ITEM_BYTES, Attrs, TensorSpec

FORWARD = "forward"
DATA = "backward-data"
FILTER = "backward-filter"
ALL = (FORWARD, DATA, FILTER)


@dataclass(frozen=True, slots=True)
class ConvCall:
    """One call on `n` samples of `rows` images each. `pad` is (top, left, bottom, right); 1-D has height 1."""

    call: str
    n: int
    rows: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride_h: int
    stride_w: int
    pad: tuple[int, int, int, int]
    dilation_h: int
    dilation_w: int
    groups: int
    item_bytes: int

    def with_samples(self, n: int) -> ConvCall:
        """The same call on `n` samples."""
        return replace(self, n=n)

    @property
    def images(self) -> int:
        return self.n * self.rows

    @property
    def out_h(self) -> int:
        return (self.h + self.pad[0] + self.pad[2] - self.reach_h - 1) // self.stride_h + 1

    @property
    def out_w(self) -> int:
        return (self.w + self.pad[1] + self.pad[3] - self.reach_w - 1) // self.stride_w + 1

    @property
    def reach_h(self) -> int:
        """Rows from the first to the last tap."""
        return (self.r - 1) * self.dilation_h

    @property
    def reach_w(self) -> int:
        return (self.s - 1) * self.dilation_w

    @property
    def pixels(self) -> int:
        return self.out_h * self.out_w

    @property
    def depth(self) -> int:
        """Products summed for one output element."""
        return self.c // self.groups * self.r * self.s

    @property
    def flops(self) -> int:
        """Operations of the definition: the same for all three calls."""
        return 2 * self.images * self.k * self.pixels * self.depth

    @property
    def operand_bytes(self) -> int:
        """x, filter and y, each once."""
        elements = self.images * (self.c * self.h * self.w + self.k * self.pixels) + self.k * self.depth
        return elements * self.item_bytes

    @property
    def unit_stride(self) -> bool:
        return self.stride_h == self.stride_w == 1

    @property
    def plain(self) -> bool:
        """One group, no dilation."""
        return self.groups == self.dilation_h == self.dilation_w == 1


def conv_call(
    op: str, attrs: Attrs, input_specs: tuple[TensorSpec, ...], output_specs: tuple[TensorSpec, ...]
) -> ConvCall:
    """The call that the launch `op` (Conv, ConvBackwardData, ConvBackwardFilter) makes on tensors of these specs.

    A tensor without a batch axis counts each of its images as a sample.
    """
    first, second, out = input_specs[0], input_specs[1], output_specs[0]
    call, x, w = {
        "Conv": (FORWARD, first, second),
        "ConvBackwardData": (DATA, out, second),
        "ConvBackwardFilter": (FILTER, first, out),
    }[op]
    strides, dilations, pads = (cast(tuple[int, ...], attrs[key]) for key in ("strides", "dilations", "pads"))
    height, taps_high = 1, 1
    if len(x.shape) == 4:
        height, taps_high = x.shape[2], w.shape[2]
    else:
        strides, dilations, pads = (1, *strides), (1, *dilations), (0, pads[0], 0, pads[1])
    rows = max(1, x.rows)
    return ConvCall(
        call=call,
        n=x.shape[0] // rows,
        rows=rows,
        c=x.shape[1],
        h=height,
        w=x.shape[-1],
        k=w.shape[0],
        r=taps_high,
        s=w.shape[-1],
        stride_h=strides[0],
        stride_w=strides[1],
        pad=(pads[0], pads[1], pads[2], pads[3]),
        dilation_h=dilations[0],
        dilation_w=dilations[1],
        groups=cast(int, attrs["group"]),
        item_bytes=ITEM_BYTES[x.dtype],
    )


Count = Callable[[ConvCall], int]


def once(_: ConvCall) -> int:
    """`rounds` of an algorithm that is a single launch of compiled code."""
    return 1


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm of a family: `name` in the calls `calls`, where `needs` holds.

    workspace: bytes it takes besides its operands. flops: operations it really does, its padding included.
    traffic: bytes it really moves, its workspace included. `nondeterministic`: calls that add in varying order.
    rounds: how often it goes round its innermost loop outside of compiled code, each time at the profile's overhead.
    """

    name: str
    calls: tuple[str, ...]
    needs: Callable[[ConvCall], bool]
    workspace: Count
    flops: Count
    traffic: Count
    nondeterministic: tuple[str, ...] = ()
    rounds: Count = once

    def supports(self, call: ConvCall) -> bool:
        return call.call in self.calls and self.needs(call)

    def workspace_bytes(self, call: ConvCall) -> int:
        return self.workspace(call)

    def padded_flops(self, call: ConvCall) -> int:
        return self.flops(call)

    def bytes(self, call: ConvCall) -> int:
        return self.traffic(call)

    def deterministic(self, call: ConvCall) -> bool:
        return call.call not in self.nondeterministic


def always(_: ConvCall) -> bool:
    """`needs` of an algorithm that can do every call."""
    return True


def nothing(_: ConvCall) -> int:
    """`workspace` of an algorithm that takes none."""
    return 0
