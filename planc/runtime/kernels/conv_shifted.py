"""`shifted_gemm`: one matrix product a tap, on the padded image seen at a shift. Stride 1.

In an image padded to width v, the pixel that tap (i, j) meets lies i * v + j places behind the output pixel, so a
tap's columns are the image itself from there on: nothing is rearranged. Outputs get the same width v, and their
last v - ow columns are not used. Workspace is about three images whatever the filter, one sample at a time.
Source: Vasudevan, Anderson, Gregg, "Parallel Multi Channel Convolution using General Matrix Multiplication", ASAP 2017.
"""

from __future__ import annotations

from planc.runtime.kernels.conv_problem import Floats, Problem, Workspace, put_product, scratch


def forward(p: Problem, workspace: Workspace) -> None:
    """y = w * x."""
    p.require(p.stride == (1, 1), "shifted_gemm", "stride 1")
    filters = _filters(p, workspace)
    _correlate(p, workspace, p.x, filters, p.y, p.pad)


def backward_data(p: Problem, workspace: Workspace) -> None:
    """x = the gradient of x: y correlated with the filter turned by half a turn, its channels exchanged."""
    reach = tuple((size - 1) * step for size, step in zip(p.w.shape[2:], p.dilation))
    p.require(
        p.stride == (1, 1) and p.pad[0] <= reach[0] and p.pad[1] <= reach[1],
        "shifted_gemm",
        "stride 1 and no more padding than the filter reaches",
    )
    filters = _filters(p, workspace)[::-1].swapaxes(2, 3)
    _correlate(p, workspace, p.y, filters, p.x, (reach[0] - p.pad[0], reach[1] - p.pad[1]))


def _filters(p: Problem, workspace: Workspace) -> Floats:
    """w tap by tap: (taps, groups, k / groups, c / groups)."""
    k, channels = p.w.shape[:2]
    taps: Floats = workspace.take((p.taps, k, channels), p.w.dtype)
    taps[...] = p.w.reshape(k, channels, p.taps).transpose(2, 0, 1)
    return taps.reshape(p.taps, p.groups, -1, channels)


class _Plane:
    """A padded image (channels, height * width and the few places the last shift reaches beyond), and shifts in it."""

    def __init__(self, p: Problem, workspace: Workspace, channels: int, outputs: tuple[int, int]) -> None:
        r, s = p.w.shape[2:]
        self.height = outputs[0] + (r - 1) * p.dilation[0]
        self.width = outputs[1] + (s - 1) * p.dilation[1]
        self.run = outputs[0] * self.width
        self._groups = p.groups
        self._dilation = p.dilation
        self._across = s
        length = self.height * self.width + (s - 1) * p.dilation[1]
        self._memory: Floats = workspace.take((channels, length), p.x.dtype)
        self._memory[...] = 0

    def fill(self, image: Floats, pad: tuple[int, int]) -> None:
        """Put an image (channels, h, w) in; the padding stays 0, as every image has the same size."""
        inside = self._memory[:, : self.height * self.width].reshape(-1, self.height, self.width)
        bottom, right = self.height - pad[0], self.width - pad[1]
        part = image[:, :bottom, :right]
        inside[:, pad[0] : pad[0] + part.shape[1], pad[1] : pad[1] + part.shape[2]] = part

    def shifted(self, tap: int) -> Floats:
        """What tap meets: (groups, channels / groups, run)."""
        i, j = divmod(tap, self._across)
        start = i * self._dilation[0] * self.width + j * self._dilation[1]
        return self._memory[:, start : start + self.run].reshape(self._groups, -1, self.run)


def _correlate(
    p: Problem, workspace: Workspace, images: Floats, filters: Floats, outputs: Floats, pad: tuple[int, int]
) -> None:
    """outputs = images correlated with filters (taps, groups, out channels / groups, in channels / groups)."""
    height, width = outputs.shape[2:]
    plane = _Plane(p, workspace, images.shape[1], (height, width))
    total: Floats = workspace.take((outputs.shape[1], plane.run), outputs.dtype)
    stacked = total.reshape(p.groups, -1, plane.run)
    room = scratch(outputs.dtype)
    for image, output in zip(images, outputs):
        plane.fill(image, pad)
        for tap in range(p.taps):
            put_product(filters[tap], plane.shifted(tap), stacked, tap > 0, room)
        output[...] = total.reshape(-1, height, plane.width)[:, :, :width]


def backward_filter(p: Problem, workspace: Workspace) -> None:
    """w = the gradient of w, or w += it: a product of y, widened with zeros, and the shifted image for each tap."""
    p.require(p.stride == (1, 1), "shifted_gemm", "stride 1")
    k, channels = p.w.shape[:2]
    oh, ow = p.y.shape[2:]
    sums: Floats = workspace.take((p.taps, k, channels), p.w.dtype)
    stacked = sums.reshape(p.taps, p.groups, -1, channels)
    plane = _Plane(p, workspace, p.x.shape[1], (oh, ow))
    wide: Floats = workspace.take((k, oh, plane.width), p.y.dtype)
    wide[...] = 0
    room = scratch(p.w.dtype)
    for sample, (image, gradients) in enumerate(zip(p.x, p.y)):
        plane.fill(image, p.pad)
        wide[:, :, :ow] = gradients
        flat = wide.reshape(p.groups, -1, plane.run)
        for tap in range(p.taps):
            put_product(flat, plane.shifted(tap).swapaxes(1, 2), stacked[tap], sample > 0, room)
    result = p.w.reshape(k, channels, p.taps)
    if p.accumulate:
        result += sums.transpose(1, 2, 0)
    else:
        result[...] = sums.transpose(1, 2, 0)
