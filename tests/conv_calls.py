"""Convolution launches on plain arrays: shapes, arrays, and a workspace between guard bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.conv_algorithms import FAMILIES, ConvCall, conv_call
from planc.graph import AttrValue, TensorSpec
from planc.runtime.kernels.convolution import KERNELS
from planc.runtime.launch import Hyper, Launch

Array = npt.NDArray[Any]

OPS = {"forward": "Conv", "backward-data": "ConvBackwardData", "backward-filter": "ConvBackwardFilter"}
CALLS = tuple(OPS)
GUARD = 0xA5
GUARD_BYTES = 256


@dataclass(frozen=True, slots=True)
class ConvShape:
    """A convolution: x (n, c, *size), w (k, c / groups, *kernel); pads begin of every axis, then end of every axis."""

    n: int
    c: int
    k: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    groups: int = 1

    @property
    def attrs(self) -> dict[str, AttrValue]:
        return {
            "pads": self.pads,
            "strides": self.stride,
            "dilations": self.dilation,
            "group": self.groups,
            "kernel_shape": self.kernel,
        }

    @property
    def x(self) -> tuple[int, ...]:
        return (self.n, self.c, *self.size)

    @property
    def w(self) -> tuple[int, ...]:
        return (self.k, self.c // self.groups, *self.kernel)

    @property
    def y(self) -> tuple[int, ...]:
        axes = len(self.size)
        padded = (self.size[i] + self.pads[i] + self.pads[i + axes] for i in range(axes))
        reach = (self.dilation[i] * (self.kernel[i] - 1) + 1 for i in range(axes))
        return (self.n, self.k, *((p - r) // s + 1 for p, r, s in zip(padded, reach, self.stride)))

    def conv_call(self, call: str, dtype: str = "float64") -> ConvCall:
        """The call as costs see it; x and y have one image a sample, w has no batch axis."""
        x, w, y = TensorSpec(self.x, dtype, 1), TensorSpec(self.w, dtype), TensorSpec(self.y, dtype, 1)
        inputs, output = {"forward": ((x, w), y), "backward-data": ((y, w), x), "backward-filter": ((x, y), w)}[call]
        return conv_call(OPS[call], self.attrs, inputs, (output,))


class GuardedWorkspace:
    """Workspace of exactly `size` bytes, 64-byte aligned, full of NaN patterns, with guard bytes on both sides."""

    def __init__(self, size: int) -> None:
        self._memory = np.full(size + 2 * GUARD_BYTES + 64, GUARD, np.uint8)
        start = GUARD_BYTES + -(self._memory.ctypes.data + GUARD_BYTES) % 64
        self._before, self._after = self._memory[:start], self._memory[start + size :]
        self.bytes = self._memory[start : start + size]
        self.bytes[...] = 0xFF

    @property
    def intact(self) -> bool:
        """Whether nothing was written beside the workspace."""
        return bool((self._before == GUARD).all() and (self._after == GUARD).all())


def workspace_bytes(shape: ConvShape, call: str, configuration: tuple[tuple[str, int], ...], dtype: str) -> int:
    """What the cost model says that a configuration takes: the largest of its micro-batches."""
    whole = shape.conv_call(call, dtype)
    return max(
        (FAMILIES["numpy"][name].workspace_bytes(whole.with_samples(n)) for name, n in configuration),
        default=0,
    )


def run(
    shape: ConvShape,
    call: str,
    inputs: tuple[Array, ...],
    out: Array,
    configuration: tuple[tuple[str, int], ...] = (),
    workspace: Array | None = None,
    accumulate: bool = False,
) -> None:
    """Launch `call`; `workspace` None: guarded, of the size that the cost model says."""
    guarded = None
    if workspace is None:
        guarded = GuardedWorkspace(workspace_bytes(shape, call, configuration, str(out.dtype)))
        workspace = guarded.bytes
    launch = Launch(
        op=OPS[call],
        attrs=shape.attrs,
        inputs=inputs,
        outputs=(out,),
        workspace=workspace,
        accumulate=accumulate,
        first_sample=0,
        batch=shape.n,
        configuration=configuration,
    )
    KERNELS[launch.op](launch, Hyper(seed=0, step=1, lr=0.1))
    assert guarded is None or guarded.intact


def draw(shape: ConvShape, dtype: str = "float64", seed: int = 0) -> dict[str, Array]:
    """Random x, w, y (or their gradients), C-contiguous."""
    rng = np.random.default_rng(seed)
    shapes = {"x": shape.x, "w": shape.w, "y": shape.y}
    return {name: rng.standard_normal(size).astype(dtype) for name, size in shapes.items()}


def arguments(call: str, arrays: dict[str, Array]) -> tuple[tuple[Array, Array], str]:
    """The inputs of `call`, and the name of what it makes."""
    roles = {"forward": ("x", "w", "y"), "backward-data": ("y", "w", "x"), "backward-filter": ("x", "y", "w")}
    first, second, made = roles[call]
    return (arrays[first], arrays[second]), made
