"""One convolution as the NumPy kernels see it: three 4-D arrays, the geometry, and the memory it may use.

The same three arrays appear in all three calls: x (images), w (filter), y (its outputs). Forward writes y,
backward-data writes the gradient of x into x, backward-filter the gradient of w into w. 1-D is 2-D with height 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from planc.errors import InternalError
from planc.plan import AttrValue
from planc.runtime.launch import Launch

Floats: TypeAlias = npt.NDArray[np.floating[Any]]

ALIGNMENT = 64
"""Every array taken from a workspace starts, and is counted, in whole cache lines."""

SCRATCH_BYTES = 192 * 1024
"""Small temporaries on the heap: under the 256 KiB a kernel may allocate, and inside a core's own cache."""


@dataclass(frozen=True, slots=True)
class Problem:
    """x (n, c, h, w), w (k, c / groups, r, s), y (n, k, oh, ow); pairs are (vertical, horizontal).

    Padding at the bottom and right is implied by y's size. `accumulate`: backward-filter adds to w.
    """

    x: Floats
    w: Floats
    y: Floats
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int]
    groups: int
    accumulate: bool

    @property
    def taps(self) -> int:
        return int(self.w.shape[2] * self.w.shape[3])

    @property
    def depth(self) -> int:
        """Products summed for one output element: channels of a group times taps."""
        return int(self.w.shape[1] * self.taps)

    @property
    def pixels(self) -> int:
        return int(self.y.shape[2] * self.y.shape[3])

    @property
    def padded(self) -> tuple[int, int]:
        """Height and width of the padded image that the filter really touches."""
        (oh, ow), (r, s) = self.y.shape[2:], self.w.shape[2:]
        return (
            (oh - 1) * self.stride[0] + (r - 1) * self.dilation[0] + 1,
            (ow - 1) * self.stride[1] + (s - 1) * self.dilation[1] + 1,
        )

    @property
    def pointwise(self) -> bool:
        """Whether the images are their own columns: a matrix product, nothing to rearrange."""
        return self.taps == 1 and self.stride == (1, 1) and self.pad == (0, 0) and self.x.shape[2:] == self.y.shape[2:]

    def filter_matrices(self) -> Floats:
        """w as (groups, k / groups, depth)."""
        return self.w.reshape(self.groups, -1, self.depth)

    def samples(self, start: int, stop: int, accumulate: bool) -> Problem:
        """The problem on samples [start, stop)."""
        return Problem(
            self.x[start:stop],
            self.w,
            self.y[start:stop],
            self.stride,
            self.dilation,
            self.pad,
            self.groups,
            accumulate,
        )

    def require(self, condition: bool, algorithm: str, wanted: str) -> None:
        """Raise InternalError unless `condition`, which says that `algorithm` can do this problem."""
        if not condition:
            raise InternalError(
                f"convolution x {self.x.shape} w {self.w.shape}: algorithm {algorithm!r} needs {wanted}; "
                f"stride {self.stride}, dilation {self.dilation}, pad {self.pad}, groups {self.groups}"
            )


def make_problem(
    attrs: Mapping[str, AttrValue],
    x: npt.NDArray[np.generic],
    w: npt.NDArray[np.generic],
    y: npt.NDArray[np.generic],
    accumulate: bool,
) -> Problem:
    """The problem of a launch with explicit `pads`, `strides`, `dilations`, `group` (1-D or 2-D, C-contiguous)."""
    stride, dilation, pads = (cast(tuple[int, ...], attrs[key]) for key in ("strides", "dilations", "pads"))
    if x.ndim == 3:
        x, w, y = (a.reshape(*a.shape[:2], 1, a.shape[2]) for a in (x, w, y))
        stride, dilation, pads = (1, *stride), (1, *dilation), (0, pads[0])
    return Problem(
        cast(Floats, x),
        cast(Floats, w),
        cast(Floats, y),
        (stride[0], stride[1]),
        (dilation[0], dilation[1]),
        (pads[0], pads[1]),
        cast(int, attrs["group"]),
        accumulate,
    )


class Workspace:
    """Hands out arrays from the planned bytes of a launch, one after the other."""

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self._memory = memory
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An uninitialised C-contiguous array.

        Raises:
            InternalError: the plan gives less workspace than the algorithm takes.
        """
        size = prod(shape) * dtype.itemsize
        start = self._used
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        if self._used > self._memory.nbytes:
            raise InternalError(f"convolution workspace: {self._memory.nbytes} bytes planned, {self._used} needed")
        return self._memory[start : start + size].view(dtype).reshape(shape)


Algorithm = Callable[[Problem, Workspace], None]
"""One algorithm for one of the three calls; takes all memory of note from the workspace."""


def scratch(launch_dtype: np.dtype[Any]) -> Floats:
    """A flat array of SCRATCH_BYTES on the heap."""
    return np.empty(SCRATCH_BYTES // launch_dtype.itemsize, launch_dtype)


def put_product(a: Floats, b: Floats, out: Floats, add: bool, room: Floats | None = None) -> None:
    """out = a @ b, or out += a @ b, for stacks of matrices (g, m, q) and (g, q, p).

    np.matmul cannot add to what is there, so products are made block by block in a small flat `room` (scratch if None)
    and added: the block stays in cache, and nothing the size of `out` is allocated.
    """
    if not add:
        np.matmul(a, b, out=out)
        return
    g, m, p = out.shape
    room = scratch(out.dtype) if room is None else room
    columns = min(p, room.size // min(m, isqrt(room.size)))
    rows = min(m, room.size // columns)
    stack = max(1, room.size // (rows * columns)) if (rows, columns) == (m, p) else 1
    for i in range(0, g, stack):
        for top in range(0, m, rows):
            for left in range(0, p, columns):
                part = out[i : i + stack, top : top + rows, left : left + columns]
                block = room[: part.size].reshape(part.shape)
                np.matmul(a[i : i + stack, top : top + rows], b[i : i + stack, :, left : left + columns], out=block)
                part += block


def launch_problem(launch: Launch, accumulate: bool) -> Problem:
    """The problem of any of the three convolution launches."""
    first, second, out = launch.inputs[0], launch.inputs[1], launch.outputs[0]
    roles = {
        "Conv": (first, second, out),
        "ConvBackwardData": (out, second, first),
        "ConvBackwardFilter": (first, out, second),
    }
    x, w, y = roles[launch.op]
    return make_problem(launch.attrs, x, w, y, accumulate)
