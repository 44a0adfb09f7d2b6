"""Kernels of the shape operators (ops/shape.py): those that move elements; a view needs none."""

from __future__ import annotations

import numpy as np

from planc.runtime.kernels.blocks import integers
from planc.runtime.launch import Hyper, Kernel, Launch


def _copy(launch: Launch, hyper: Hyper) -> None:
    (x,), (y,) = launch.inputs, launch.outputs
    np.copyto(y, x.reshape(y.shape))


def _transpose(launch: Launch, hyper: Hyper) -> None:
    np.copyto(launch.outputs[0], launch.inputs[0].transpose(integers(launch.attrs, "perm")))


KERNELS: dict[str, Kernel] = {
    "Copy": _copy,
    "Transpose": _transpose,
}
