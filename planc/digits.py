"""Digits: a small set of labelled images to train on, drawn on the spot.

Each digit is a pen stroke, moved, sized, slanted and thickened at random, with noise on top: in the manner of the 8x8
digits of the UCI repository (Alpaydin, Kaynak, 1998), which classifiers learn within seconds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Point = tuple[float, float]

_STROKES: tuple[tuple[Point, ...], ...] = (
    ((0.5, 0.1), (0.28, 0.25), (0.25, 0.7), (0.5, 0.9), (0.72, 0.75), (0.75, 0.3), (0.5, 0.1)),
    ((0.3, 0.3), (0.55, 0.1), (0.55, 0.9)),
    ((0.25, 0.3), (0.4, 0.1), (0.65, 0.12), (0.72, 0.35), (0.25, 0.9), (0.78, 0.9)),
    ((0.25, 0.1), (0.75, 0.1), (0.45, 0.42), (0.75, 0.65), (0.6, 0.88), (0.25, 0.88)),
    ((0.65, 0.9), (0.65, 0.1), (0.2, 0.62), (0.82, 0.62)),
    ((0.75, 0.1), (0.3, 0.1), (0.28, 0.45), (0.62, 0.42), (0.75, 0.65), (0.6, 0.88), (0.25, 0.88)),
    ((0.68, 0.1), (0.35, 0.4), (0.25, 0.68), (0.4, 0.9), (0.65, 0.88), (0.75, 0.65), (0.55, 0.5), (0.28, 0.62)),
    ((0.22, 0.1), (0.78, 0.1), (0.4, 0.9)),
    ((0.5, 0.47), (0.3, 0.28), (0.5, 0.1), (0.7, 0.28), (0.5, 0.47), (0.25, 0.7), (0.5, 0.9), (0.75, 0.7), (0.5, 0.47)),
    ((0.72, 0.4), (0.4, 0.5), (0.27, 0.3), (0.45, 0.1), (0.7, 0.18), (0.72, 0.4), (0.6, 0.9)),
)
"""The digits 0 to 9 as a pen draws them: points (right, down) in the unit square."""


def digits(count: int, seed: int = 0, size: int = 16) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """`count` images with their labels, the ten digits as often as each other, in random order.

    Returns:
        images (count, 1, size, size), ink near 1 on paper near 0; labels (count,). The same for the same arguments.
    """
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count, dtype=np.int64) % len(_STROKES))
    grid = (np.arange(size) + 0.5) / size - 0.5
    down, right = np.meshgrid(grid, grid, indexing="ij")
    images = np.empty((count, 1, size, size), np.float32)
    for index, label in enumerate(labels):
        scale = random.uniform(0.8, 1.05)
        slant = random.uniform(-0.2, 0.2)
        shift = random.uniform(-0.07, 0.07, 2)
        pen = random.uniform(0.05, 0.09)
        y = (down - shift[0]) / scale
        x = (right - shift[1]) / scale + slant * y
        ink = _ink(np.array(_STROKES[label]), x + 0.5, y + 0.5, pen, 1.0 / (scale * size))
        images[index, 0] = ink * random.uniform(0.7, 1.0) + random.normal(0.0, 0.08, ink.shape)
    return images, labels


def _ink(stroke: Floats, x: Floats, y: Floats, pen: float, pixel: float) -> Floats:
    """Ink from 0 to 1 at points (x, y): 1 within `pen` of the stroke, falling to 0 over the width of a pixel."""
    start, along = stroke[:-1, :, None, None], np.diff(stroke, axis=0)[:, :, None, None]
    away = np.stack([x, y]) - start
    share = np.clip((away * along).sum(axis=1) / (along**2).sum(axis=1), 0.0, 1.0)
    distance = np.sqrt(((away - share[:, None] * along) ** 2).sum(axis=1)).min(axis=0)
    result: Floats = np.clip(1.0 - (distance - pen) / pixel, 0.0, 1.0)
    return result
