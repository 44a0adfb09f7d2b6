"""im2col and one matrix product, for one sample at a time or for the whole range at once.

The whole range makes one large product, which wins where a sample's map is small; it needs the workspace of all
samples, and one more copy because planned tensors keep the batch outermost.
Source: Chellapilla, Puri, Simard, "High Performance Convolutional Neural Networks for Document Processing", IWFHR 2006.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planc.runtime.kernels.conv_columns import gather, scatter, whole_map
from planc.runtime.kernels.conv_problem import Floats, Problem, Workspace, put_product


class _Buffers:
    """Workspace for blocks of `block` samples: columns, and a staging copy of y with the samples inside."""

    def __init__(self, p: Problem, workspace: Workspace, block: int) -> None:
        self._p = p
        self._block = block
        self._columns = workspace.take((p.x.shape[1] * p.taps * block * p.pixels,), p.x.dtype)
        self._staging = workspace.take((p.y.shape[1] * block * p.pixels if block > 1 else 0,), p.y.dtype)

    def blocks(self) -> Iterator[tuple[Floats, Floats]]:
        """Images as (c, samples, h, w), outputs as (k, samples, pixels): views."""
        p = self._p
        for start in range(0, p.x.shape[0], self._block):
            part = slice(start, start + self._block)
            outputs = p.y[part].reshape(-1, p.y.shape[1], p.pixels)
            yield p.x[part].swapaxes(0, 1), outputs.swapaxes(0, 1)

    def columns(self, samples: int) -> tuple[Floats, Floats]:
        """One memory, as (taps, c, samples, oh, ow) to gather and (groups, depth, samples * pixels) to multiply."""
        p = self._p
        c, (oh, ow) = p.x.shape[1], p.y.shape[2:]
        flat = self._columns[: c * p.taps * samples * p.pixels]
        by_tap = flat.reshape(c, p.taps, samples, oh, ow).swapaxes(0, 1)
        return by_tap, flat.reshape(p.groups, p.depth, samples * p.pixels)

    def staging(self, outputs: Floats) -> Floats:
        """(groups, k / groups, samples * pixels): memory of y itself for a single sample, else the staging copy."""
        memory = outputs if outputs.shape[1] == 1 else self._staging[: outputs.size]
        return memory.reshape(self._p.groups, -1, outputs.shape[1] * outputs.shape[2])


def _forward(p: Problem, workspace: Workspace, block: int) -> None:
    buffers = _Buffers(p, workspace, block)
    for images, outputs in buffers.blocks():
        by_tap, columns = buffers.columns(images.shape[1])
        gather(p, images, by_tap, whole_map(p), range(p.taps))
        staging = buffers.staging(outputs)
        np.matmul(p.filter_matrices(), columns, out=staging)
        if images.shape[1] > 1:
            outputs[...] = staging.reshape(outputs.shape)


def _backward_data(p: Problem, workspace: Workspace, block: int) -> None:
    buffers = _Buffers(p, workspace, block)
    for images, outputs in buffers.blocks():
        by_tap, columns = buffers.columns(images.shape[1])
        staging = buffers.staging(outputs)
        if images.shape[1] > 1:
            staging.reshape(outputs.shape)[...] = outputs
        np.matmul(p.filter_matrices().swapaxes(1, 2), staging, out=columns)
        images[...] = 0
        scatter(p, by_tap, images, whole_map(p), range(p.taps))


def _backward_filter(p: Problem, workspace: Workspace, block: int) -> None:
    buffers = _Buffers(p, workspace, block)
    add = p.accumulate
    for images, outputs in buffers.blocks():
        by_tap, columns = buffers.columns(images.shape[1])
        gather(p, images, by_tap, whole_map(p), range(p.taps))
        staging = buffers.staging(outputs)
        if images.shape[1] > 1:
            staging.reshape(outputs.shape)[...] = outputs
        put_product(staging, columns.swapaxes(1, 2), p.filter_matrices(), add)
        add = True


def whole_forward(p: Problem, workspace: Workspace) -> None:
    _forward(p, workspace, p.x.shape[0])


def whole_backward_data(p: Problem, workspace: Workspace) -> None:
    _backward_data(p, workspace, p.x.shape[0])


def whole_backward_filter(p: Problem, workspace: Workspace) -> None:
    _backward_filter(p, workspace, p.x.shape[0])


def sample_forward(p: Problem, workspace: Workspace) -> None:
    _forward(p, workspace, 1)


def sample_backward_data(p: Problem, workspace: Workspace) -> None:
    _backward_data(p, workspace, 1)


def sample_backward_filter(p: Problem, workspace: Workspace) -> None:
    _backward_filter(p, workspace, 1)
