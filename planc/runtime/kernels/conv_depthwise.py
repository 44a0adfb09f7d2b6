"""Depthwise convolution without workspace: each tap a multiplication and an addition on blocks of channels.

A group is one channel here, so there is no product worth the name; memory decides, and blocks that stay in a core's
cache are what keeps it fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planc.runtime.kernels.conv_columns import Tile, tiles, windows
from planc.runtime.kernels.conv_problem import Floats, Problem, scratch


def fits(p: Problem) -> bool:
    """Whether the groups are single channels with few outputs each; with more, matrix products are faster."""
    return p.groups > 1 and p.w.shape[1] == 1 and p.w.shape[0] // p.groups <= 4


@dataclass(frozen=True, slots=True)
class _Block:
    """Channels of a sample, one of the outputs each has, a tile of the map."""

    x: Floats
    """(channels, h, w)"""
    w: Floats
    """(channels, taps)"""
    y: Floats
    """(channels, rows of the tile, columns of the tile)"""
    tile: Tile


def _blocks(p: Problem, room: int) -> Iterator[_Block]:
    """Blocks whose part of y has at most `room` elements."""
    oh, ow = p.y.shape[2:]
    multiple = p.w.shape[0] // p.groups
    w = p.w.reshape(p.groups, multiple, p.taps)
    y = p.y.reshape(-1, p.groups, multiple, oh, ow)
    channels = max(1, min(p.groups, room // p.pixels))
    for sample in range(p.x.shape[0]):
        for low in range(0, p.groups, channels):
            some = slice(low, low + channels)
            for which in range(multiple):
                for tile in tiles(oh, ow, room // channels):
                    part = y[sample, some, which, tile.top : tile.bottom, tile.left : tile.right]
                    yield _Block(p.x[sample, some], w[some, which], part, tile)


def forward(p: Problem) -> None:
    """y = w * x."""
    room = scratch(p.y.dtype)
    p.y[...] = 0
    for block in _blocks(p, room.size):
        for tap, outputs, inputs in windows(p, block.tile, range(p.taps)):
            target = block.y[:, *outputs]
            product = room[: target.size].reshape(target.shape)
            np.multiply(block.x[:, *inputs], block.w[:, tap, None, None], out=product)
            target += product


def backward_data(p: Problem) -> None:
    """x = the gradient of x."""
    room = scratch(p.y.dtype)
    p.x[...] = 0
    for block in _blocks(p, room.size):
        for tap, outputs, inputs in windows(p, block.tile, range(p.taps)):
            gradients = block.y[:, *outputs]
            product = room[: gradients.size].reshape(gradients.shape)
            np.multiply(gradients, block.w[:, tap, None, None], out=product)
            block.x[:, *inputs] += product


def backward_filter(p: Problem) -> None:
    """w += the gradient of w."""
    room = scratch(p.y.dtype)
    for block in _blocks(p, room.size):
        for tap, outputs, inputs in windows(p, block.tile, range(p.taps)):
            gradients = block.y[:, *outputs]
            product = room[: gradients.size].reshape(gradients.shape)
            np.multiply(gradients, block.x[:, *inputs], out=product)
            block.w[:, tap] += np.add.reduce(product.reshape(len(product), -1), axis=1)
