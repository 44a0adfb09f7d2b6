"""The convolution algorithms of cuDNN 7, NCHW: preconditions, workspaces, padded tiles.

Workspaces reproduce 30 published fp32 shapes (groups 1, dilation 1), most of them to the byte. What no published shape
backs is said to be assumed. cuDNN 8 and 9 have other engines; a measured profile overrides all of this.

cuDNN pads both sides of an axis alike. The difference of asymmetric padding becomes a copy of x that is larger by it,
which counts as workspace of every algorithm; all formulas then see the larger x.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planc.conv_call import ALL, DATA, FILTER, FORWARD, Algorithm, ConvCall, Count, always, nothing
from planc.units import align_up

_KIB = 1024
_TILE_POINTS = 32 * 17
"""Frequencies of a 32 x 32 tile of real numbers."""


def _even(call: ConvCall) -> ConvCall:
    """The call on the copy of x that is padded by what the two sides differ."""
    top, left, bottom, right = call.pad
    low, across = min(top, bottom), min(left, right)
    return replace(call, h=call.h + abs(top - bottom), w=call.w + abs(left - right), pad=(low, across, low, across))


def _on_even(count: Count) -> Count:
    """`count` of the call that cuDNN really gets."""
    return lambda call: count(_even(call))


def _with_copy(workspace: Count) -> Count:
    """Workspace plus the padded copy of x, if there is one."""

    def total(call: ConvCall) -> int:
        even = _even(call)
        copy = even.images * even.c * even.h * even.w * even.item_bytes if even.pad != call.pad else 0
        return copy + workspace(even)

    return total


def _plain(call: ConvCall) -> bool:
    return call.plain


def _precomputed(call: ConvCall) -> int:
    """Offsets of the taps: about this, within some bytes of every published shape."""
    return 6 * call.pixels + 12


def _some(_: ConvCall) -> int:
    """An upper limit: published shapes took up to 36 KB backward-data, 47 KB backward-filter."""
    return 64 * _KIB


def _columns(call: ConvCall) -> int:
    return call.item_bytes * call.images * call.c * call.r * call.s * call.pixels


def _gemm_flops(call: ConvCall) -> int:
    """A product in tiles of 32 rows by 128 pixels and 8 deep (assumed); depthwise kernels have no tiles."""
    rows, depth, pixels = call.k // call.groups, call.c // call.groups, call.images * call.pixels
    if depth == 1:
        return call.flops
    if call.call == DATA:
        rows, depth = depth, rows
    if call.call == FILTER:
        taps_deep = align_up(depth * call.r * call.s, 32)
        return 2 * call.groups * align_up(rows, 32) * taps_deep * align_up(pixels, 8)
    return 2 * call.groups * align_up(rows, 32) * align_up(depth, 8) * call.r * call.s * align_up(pixels, 128)


def _single(call: ConvCall) -> bool:
    return call.item_bytes == 4 and call.plain and call.unit_stride


def _fft_needs(call: ConvCall) -> bool:
    even = _even(call)
    size = max(even.h + 2 * even.pad[0], even.w + 2 * even.pad[1])
    return _single(call) and size <= 256 and call.r > even.pad[0] and call.s > even.pad[1]


def _power(size: int) -> int:
    """The next power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def _fft_workspace(call: ConvCall) -> int:
    """Spectra of two operands at once, or of the result if that is more; twice; and the small array's copy."""
    high, wide = _power(call.h + 2 * call.pad[0]), _power(call.w + 2 * call.pad[1])
    spectrum = 8 * wide * (high // 2 + 1)
    x, filters, y = call.images * call.c, call.c * call.k, call.images * call.k
    if call.call == FORWARD:
        return 2 * spectrum * max(filters + x, y) + 4 * filters * call.r * call.s
    if call.call == DATA:
        return 2 * spectrum * max(filters + y, x) + 4 * filters * call.r * call.s
    return 2 * spectrum * max(x + y, filters) + 4 * y * call.pixels


def _fft_flops(call: ConvCall) -> int:
    high, wide = _power(call.h + 2 * call.pad[0]), _power(call.w + 2 * call.pad[1])
    return _spectral_flops(call, high * wide, wide * (high // 2 + 1), 1)


def _spectral_flops(call: ConvCall, points: int, frequencies: int, tiles: int) -> int:
    """Transforms of 5/2 p log2 p operations, and a complex product at every frequency of every tile."""
    maps = tiles * call.images * (call.c + call.k) + call.k * call.c
    transforms = maps * points * points.bit_length() * 5 // 2
    return transforms + 8 * tiles * call.images * call.k * call.c * frequencies


def _tiling_needs(call: ConvCall) -> bool:
    return _single(call) and call.r * call.s > 1 and max(call.r, call.s) <= 32


def _tiling_workspace(call: ConvCall) -> int:
    """Spectra of the filters and of one or two tiles of every map; backward-filter the same (assumed)."""
    at_once = 1 if max(call.h, call.w) <= 33 - call.r else 2
    maps = call.images * (call.c + call.k)
    return 8 * _TILE_POINTS * (call.c * call.k + at_once * maps) + 24 * _KIB * at_once


def _tiling_flops(call: ConvCall) -> int:
    tiles = -(-call.out_h // (33 - call.r)) * -(-call.out_w // (33 - call.s))
    return _spectral_flops(call, 32 * 32, _TILE_POINTS, tiles)


def _winograd_needs(call: ConvCall) -> bool:
    return _single(call) and call.r == call.s == 3


def _winograd_workspace(call: ConvCall) -> int:
    """F(2x2, 3x3): transformed and plain filters."""
    rows, results = (8, call.c) if call.call == DATA else (32, call.k)
    return 4 * (call.c * (16 * align_up(call.k, rows) + 9 * call.k) + results)


def _map(call: ConvCall) -> tuple[int, int]:
    """Sizes of the map that is cut into tiles: y's, in backward-data x's."""
    return (call.h, call.w) if call.call == DATA else (call.out_h, call.out_w)


def _tiles(call: ConvCall, edge: int) -> int:
    high, wide = _map(call)
    return call.images * -(-high // edge) * -(-wide // edge)


def _winograd_flops(call: ConvCall) -> int:
    return 2 * 16 * align_up(call.k, 32) * align_up(call.c, 8) * _tiles(call, 2)


def _nonfused_needs(call: ConvCall) -> bool:
    return _single(call) and call.r == call.s and call.r in (3, 5)


def _nonfused_tiles(call: ConvCall) -> int:
    """Tiles of 6 x 6 points: 4 x 4 outputs of a 3x3 filter, 2 x 2 of a 5x5 one (that one assumed)."""
    return _tiles(call, 7 - call.r)


def _nonfused_workspace(call: ConvCall) -> int:
    """36 points of every filter, of every tile read and of every tile written."""
    return 4 * 36 * (call.c * call.k + _nonfused_tiles(call) * (call.c + call.k))


def _nonfused_flops(call: ConvCall) -> int:
    return 2 * 36 * call.k * call.c * _nonfused_tiles(call)


def _algorithm(
    name: str,
    calls: tuple[str, ...],
    needs: Callable[[ConvCall], bool],
    workspace: Count,
    flops: Count = _gemm_flops,
    nondeterministic: tuple[str, ...] = (),
) -> Algorithm:
    """An algorithm that moves its operands once, and writes and reads its workspace."""
    total = _with_copy(workspace)
    return Algorithm(
        name=name,
        calls=calls,
        needs=needs,
        workspace=total,
        flops=_on_even(flops),
        traffic=lambda call: call.operand_bytes + 2 * total(call),
        nondeterministic=nondeterministic,
    )


_BACKWARD = (DATA, FILTER)

CUDNN = (
    _algorithm("IMPLICIT_GEMM", (FORWARD,), always, nothing),
    _algorithm("IMPLICIT_PRECOMP_GEMM", (FORWARD,), always, _precomputed),
    _algorithm("GEMM", (FORWARD,), _plain, _columns),
    _algorithm("FFT", ALL, _fft_needs, _fft_workspace, _fft_flops),
    _algorithm("FFT_TILING", ALL, _tiling_needs, _tiling_workspace, _tiling_flops),
    _algorithm("WINOGRAD", (FORWARD, DATA), _winograd_needs, _winograd_workspace, _winograd_flops),
    _algorithm("WINOGRAD_NONFUSED", ALL, _nonfused_needs, _nonfused_workspace, _nonfused_flops),
    _algorithm("ALGO_0", _BACKWARD, always, nothing, nondeterministic=_BACKWARD),
    _algorithm("ALGO_1", _BACKWARD, always, _some),
    _algorithm("ALGO_3", (FILTER,), _plain, _some, nondeterministic=(FILTER,)),
)
