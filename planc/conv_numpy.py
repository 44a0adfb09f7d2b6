"""The convolution algorithms of the NumPy backend: what runtime/kernels/conv_*.py can do, take and move.

Workspaces are theirs to the byte (a test holds both against each other). Every array a kernel takes from its
workspace counts in whole lines of 64 bytes.
"""

from __future__ import annotations

from planc.conv_call import ALL, DATA, FILTER, FORWARD, Algorithm, ConvCall, always, nothing
from planc.units import align_up


def _taken(call: ConvCall, *elements: int, item_bytes: int = 0) -> int:
    return sum(align_up(count * (item_bytes or call.item_bytes), 64) for count in elements)


def _pointwise(call: ConvCall) -> bool:
    return call.r == call.s == 1 and call.unit_stride and call.pad == (0, 0, 0, 0)


def _real(call: ConvCall) -> bool:
    """float32 or float64: what BLAS and numpy.fft work in."""
    return call.item_bytes >= 4


def _column_bytes(call: ConvCall) -> int:
    return call.images * call.c * call.r * call.s * call.pixels * call.item_bytes


def _column_traffic(call: ConvCall) -> int:
    """Operands, and columns written and read; backward-data also adds them up in x."""
    if _pointwise(call):
        return call.operand_bytes
    return call.operand_bytes + (4 if call.call == DATA else 2) * _column_bytes(call)


def _definition(call: ConvCall) -> int:
    return call.flops


def _im2col_needs(call: ConvCall) -> bool:
    return _real(call)


def _im2col_sample_needs(call: ConvCall) -> bool:
    return _real(call) and not _pointwise(call)


def _im2col_block(call: ConvCall, images: int) -> int:
    """Columns of a block of images; with several, also y with the images inside."""
    columns = call.c * call.r * call.s * images * call.pixels
    return _taken(call, columns, call.k * images * call.pixels if images > 1 else 0)


def _im2col_workspace(call: ConvCall) -> int:
    return _im2col_block(call, call.images)


def _im2col_sample_workspace(call: ConvCall) -> int:
    return _im2col_block(call, 1)


def _im2col_traffic(call: ConvCall) -> int:
    staging = call.images * call.k * call.pixels * call.item_bytes if call.images > 1 else 0
    columns = (4 if call.call == DATA else 2) * _column_bytes(call)
    return call.operand_bytes + columns + 2 * staging


def _shifted_needs(call: ConvCall) -> bool:
    inside = call.call != DATA or (call.pad[0] <= call.reach_h and call.pad[1] <= call.reach_w)
    return _real(call) and call.unit_stride and inside


def _shifted_sizes(call: ConvCall) -> tuple[int, int]:
    """Elements of the padded plane, and of one output map of the plane's width."""
    high, wide = (call.h, call.w) if call.call == DATA else (call.out_h, call.out_w)
    width = wide + call.reach_w
    return (high + call.reach_h) * width + call.reach_w, high * width


def _shifted_workspace(call: ConvCall) -> int:
    plane, wide = _shifted_sizes(call)
    sources, results = (call.k, call.c) if call.call == DATA else (call.c, call.k)
    return _taken(call, call.k * call.depth, sources * plane, results * wide)


def _shifted_flops(call: ConvCall) -> int:
    _, wide = _shifted_sizes(call)
    return 2 * call.images * call.k * call.depth * wide


def _shifted_traffic(call: ConvCall) -> int:
    """Operands, the plane filled and read, and each tap's product added to the sum."""
    plane, wide = _shifted_sizes(call)
    sources, results = (call.k, call.c) if call.call == DATA else (call.c, call.k)
    added = call.k * call.depth if call.call == FILTER else call.r * call.s * results * wide
    return call.operand_bytes + call.images * (2 * sources * plane + 3 * added) * call.item_bytes


def _winograd_needs(call: ConvCall) -> bool:
    inside = call.call == FORWARD or max(call.pad[:2]) <= 2
    return _real(call) and call.r == call.s == 3 and call.unit_stride and call.plain and inside


def _winograd_sizes(call: ConvCall) -> tuple[int, int, int, int]:
    """Channels read, channels written, tiles high, tiles wide."""
    if call.call == DATA:
        return call.k, call.c, -(-call.h // 2), -(-call.w // 2)
    return call.c, call.k, -(-call.out_h // 2), -(-call.out_w // 2)


def _winograd_workspace(call: ConvCall) -> int:
    """Filters, the image in four phases, one row of transformed tiles, transformed tiles, products."""
    sources, results, high, wide = _winograd_sizes(call)
    block = min(call.images, max(1, 512 // (high * wide)))
    image = sources * block
    return _taken(
        call,
        16 * call.k * call.c,
        4 * image * (high + 1) * (wide + 1),
        2 * image * high * (wide + 1),
        16 * image * high * wide,
        16 * results * block * high * wide,
    )


def _winograd_flops(call: ConvCall) -> int:
    """16 products a tile, 32 additions a tile read and 24 a tile written, and the filters' transformation."""
    sources, results, high, wide = _winograd_sizes(call)
    tile = 32 * call.k * call.c + 32 * sources + 24 * results
    return call.images * high * wide * tile + 2 * 16 * 9 * call.k * call.c


def _winograd_traffic(call: ConvCall) -> int:
    sources, results, high, wide = _winograd_sizes(call)
    tile = (4 + 3 * 8 + 3 * 16) * sources + (2 * 16 + 3 * 24) * results
    moved = call.images * high * wide * tile + 2 * 16 * call.k * call.c
    return call.operand_bytes + moved * call.item_bytes


def _fft_needs(call: ConvCall) -> bool:
    return _real(call) and call.unit_stride and call.plain and call.r * call.s > 1


def _fast_length(size: int) -> int:
    """The smallest product of twos, threes and fives that is at least `size`."""
    length = size
    while True:
        rest = length
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return length
        length += 1


def _fft_grid(call: ConvCall) -> tuple[int, int]:
    """Real points and complex frequencies of a plane."""
    high = _fast_length(max(call.h, call.out_h + call.reach_h))
    wide = _fast_length(max(call.w, call.out_w + call.reach_w))
    return high * wide, high * (wide // 2 + 1)


def _planes(call: ConvCall) -> int:
    return call.images * call.c + call.k * call.c + call.images * call.k


def _fft_workspace(call: ConvCall) -> int:
    """Two stages of a transform, and the spectra of x, filter and y."""
    _, frequencies = _fft_grid(call)
    stage = max(call.k, call.c)
    counts = (stage, stage, call.images * call.c, call.k * call.c, call.images * call.k)
    return _taken(call, *(count * frequencies for count in counts), item_bytes=2 * call.item_bytes)


def _fft_flops(call: ConvCall) -> int:
    points, frequencies = _fft_grid(call)
    return _spectral_flops(call, points, frequencies)


def _spectral_flops(call: ConvCall, points: int, frequencies: int) -> int:
    """Transforms of 5/2 p log2 p operations, and a complex product at every frequency."""
    transforms = _planes(call) * points * points.bit_length() * 5 // 2
    return transforms + 8 * call.images * call.k * call.c * frequencies


def _fft_traffic(call: ConvCall) -> int:
    """Operands; each spectrum written and read by two transforms, a transposition and the product."""
    _, frequencies = _fft_grid(call)
    return call.operand_bytes + 8 * _planes(call) * frequencies * 2 * call.item_bytes


def _each_tap(call: ConvCall) -> int:
    """im2col of the whole range: rearranges tap by tap."""
    return 1 if _pointwise(call) else call.r * call.s


def _each_image_and_tap(call: ConvCall) -> int:
    if _pointwise(call):
        return call.images if call.call == FILTER else 1
    return call.images * call.r * call.s


def _each_image_of_taps(call: ConvCall) -> int:
    """shifted_gemm: goes through the images even where the filter is one tap."""
    return call.images * call.r * call.s


def _each_block(call: ConvCall) -> int:
    """winograd: images with small maps go together."""
    _, _, high, wide = _winograd_sizes(call)
    return -(-call.images // max(1, 512 // (high * wide)))


def _each_transform(call: ConvCall) -> int:
    """fft: forward transforms image by image and filter by filter, and back."""
    return 2 * call.images + call.k


NUMPY = (
    Algorithm("direct", ALL, always, nothing, _definition, _column_traffic, rounds=_each_image_and_tap),
    Algorithm("im2col_gemm", ALL, _im2col_needs, _im2col_workspace, _definition, _im2col_traffic, rounds=_each_tap),
    Algorithm(
        "im2col_gemm_sample",
        ALL,
        _im2col_sample_needs,
        _im2col_sample_workspace,
        _definition,
        _column_traffic,
        rounds=_each_image_and_tap,
    ),
    Algorithm(
        "shifted_gemm",
        ALL,
        _shifted_needs,
        _shifted_workspace,
        _shifted_flops,
        _shifted_traffic,
        rounds=_each_image_of_taps,
    ),
    Algorithm(
        "winograd",
        (FORWARD, DATA),
        _winograd_needs,
        _winograd_workspace,
        _winograd_flops,
        _winograd_traffic,
        rounds=_each_block,
    ),
    Algorithm("fft", ALL, _fft_needs, _fft_workspace, _fft_flops, _fft_traffic, rounds=_each_transform),
)
