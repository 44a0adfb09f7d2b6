"""Convolution algorithms by backend: `numpy` are planc's own kernels, `cudnn` is cuDNN 7.

Every call has an algorithm without workspace, but for one case: cuDNN pads both sides alike, so the difference of
asymmetric padding needs a padded copy of x, and that is workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from planc.conv_call import Algorithm, ConvCall, conv_call
from planc.conv_cudnn import CUDNN
from planc.conv_numpy import NUMPY

__all__ = ["FAMILIES", "Algorithm", "ConvCall", "conv_call"]

FAMILIES: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {
        "numpy": MappingProxyType({algorithm.name: algorithm for algorithm in NUMPY}),
        "cudnn": MappingProxyType({algorithm.name: algorithm for algorithm in CUDNN}),
    }
)
"""Backend -> name -> algorithm."""
