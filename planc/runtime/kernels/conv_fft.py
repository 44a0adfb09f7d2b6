"""`fft`: products of spectra. Stride 1, dilation 1, groups 1; the filter's size hardly matters.

All three calls are one: spectra of two of the arrays, a matrix product at every frequency, the way back. Padding costs
nothing: a cyclic correlation longer than the padded image has the padding in its wrap-around.
Source: Mathieu, Henaff, LeCun, "Fast Training of Convolutional Networks through FFTs", ICLR 2014.

Transforms use norm="ortho": it is the only norm for which numpy.fft keeps float32 both ways without a hidden copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from planc.runtime.kernels.conv_problem import Floats, Problem, Workspace

Spectrum: TypeAlias = npt.NDArray[Any]


def fast_length(size: int) -> int:
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


@dataclass(frozen=True, slots=True)
class _Transform:
    """Spectra of height x width planes, and the workspace for going there and back plane by plane."""

    height: int
    width: int
    real: np.dtype[Any]
    complex: np.dtype[Any]
    first: Spectrum
    second: Spectrum

    @property
    def frequencies(self) -> int:
        return self.height * (self.width // 2 + 1)

    def spectra(self, workspace: Workspace, a: int, b: int) -> Spectrum:
        """Room for the spectra of an array (a, b, ...): (frequencies, a, b)."""
        return workspace.take((self.frequencies, a, b), self.complex)

    def forward(self, planes: Floats, out: Spectrum) -> None:
        """out (frequencies, a, b) = spectra of planes (a, b, rows, columns)."""
        count, rows = planes.shape[1], planes.shape[2]
        across = self.first[:count, :rows]
        both = self.second[:count]
        for index, some in enumerate(planes):
            np.fft.rfft(some, n=self.width, axis=-1, norm="ortho", out=across)
            np.fft.fft(across, n=self.height, axis=-2, norm="ortho", out=both)
            out[:, index] = both.reshape(count, -1).T

    def backward(self, spectra: Spectrum, index: int) -> Floats:
        """The planes (b, height, width) of spectra[:, index]; they live until the next transform."""
        count = spectra.shape[2]
        both, down = self.first[:count], self.second[:count]
        both.reshape(count, -1)[...] = spectra[:, index].T
        np.fft.ifft(both, axis=-2, norm="ortho", out=down)
        flat = self.first.reshape(-1).view(self.real)[: count * self.height * self.width]
        planes = flat.reshape(count, self.height, self.width)
        np.fft.irfft(down, n=self.width, axis=-1, norm="ortho", out=planes)
        return planes


def _transform(p: Problem, workspace: Workspace) -> _Transform:
    p.require((p.stride, p.dilation, p.groups) == ((1, 1), (1, 1), 1), "fft", "stride 1, dilation 1 and groups 1")
    height, width = (fast_length(max(size, image)) for size, image in zip(p.padded, p.x.shape[2:]))
    real = p.x.dtype
    single = np.dtype(np.complex64 if real == np.float32 else np.complex128)
    shape = (max(p.w.shape[:2]), height, width // 2 + 1)
    return _Transform(height, width, real, single, workspace.take(shape, single), workspace.take(shape, single))


def forward(p: Problem, workspace: Workspace) -> None:
    """y = w * x."""
    t = _transform(p, workspace)
    (n, c), k = p.x.shape[:2], p.w.shape[0]
    images, filters = t.spectra(workspace, n, c), t.spectra(workspace, k, c)
    products = t.spectra(workspace, n, k)
    t.forward(p.x, images)
    t.forward(p.w, filters)
    np.conjugate(filters, out=filters)
    np.matmul(images, filters.swapaxes(1, 2), out=products)
    for sample in range(n):
        _crop(t, products, sample, p.y[sample], (-p.pad[0], -p.pad[1]), False)


def backward_data(p: Problem, workspace: Workspace) -> None:
    """x = the gradient of x."""
    t = _transform(p, workspace)
    (n, c), k = p.x.shape[:2], p.w.shape[0]
    gradients, filters = t.spectra(workspace, n, k), t.spectra(workspace, k, c)
    products = t.spectra(workspace, n, c)
    t.forward(p.y, gradients)
    t.forward(p.w, filters)
    np.matmul(gradients, filters, out=products)
    for sample in range(n):
        _crop(t, products, sample, p.x[sample], p.pad, False)


def backward_filter(p: Problem, workspace: Workspace) -> None:
    """w = the gradient of w, or w += it."""
    t = _transform(p, workspace)
    (n, c), k = p.x.shape[:2], p.w.shape[0]
    gradients, images = t.spectra(workspace, n, k), t.spectra(workspace, n, c)
    products = t.spectra(workspace, k, c)
    t.forward(p.y, gradients)
    t.forward(p.x, images)
    np.conjugate(gradients, out=gradients)
    np.matmul(gradients.swapaxes(1, 2), images, out=products)
    for output in range(k):
        _crop(t, products, output, p.w[output], (-p.pad[0], -p.pad[1]), p.accumulate)


def _crop(t: _Transform, spectra: Spectrum, index: int, target: Floats, origin: tuple[int, int], add: bool) -> None:
    """target (b, rows, columns) = the planes of spectra[:, index] from `origin` on, which may lie before the start."""
    planes = t.backward(spectra, index)
    planes *= sqrt(t.height * t.width)
    for rows, source_rows in _cyclic(origin[0], target.shape[1], t.height):
        for columns, source_columns in _cyclic(origin[1], target.shape[2], t.width):
            part = planes[:, source_rows, source_columns]
            if add:
                target[:, rows, columns] += part
            else:
                target[:, rows, columns] = part


def _cyclic(origin: int, length: int, period: int) -> list[tuple[slice, slice]]:
    """Pieces (of the target, of the source) for `length` places from `origin` on in a sequence with that period."""
    start = origin % period
    fits = min(length, period - start)
    pieces = [(slice(0, fits), slice(start, start + fits))]
    if fits < length:
        pieces.append((slice(fits, length), slice(0, length - fits)))
    return pieces
