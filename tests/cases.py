"""The operator table: every row of every family. One row is one operator in one form (tests/case.py)."""

from __future__ import annotations

import cases_activation
import cases_convolution
import cases_einsum
import cases_elementwise
import cases_layer_norm
import cases_linear
import cases_loss
import cases_normalization
import cases_pooling
import cases_shape
from case import Case

CASES: tuple[Case, ...] = (
    *cases_activation.CASES,
    *cases_convolution.CASES,
    *cases_einsum.CASES,
    *cases_elementwise.CASES,
    *cases_layer_norm.CASES,
    *cases_linear.CASES,
    *cases_loss.CASES,
    *cases_normalization.CASES,
    *cases_pooling.CASES,
    *cases_shape.CASES,
)
