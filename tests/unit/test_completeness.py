"""Adding an operator takes an entry under ops/, kernels and a row of the operator table; this names what is missing."""

from __future__ import annotations

from cases import CASES

from planc.ops import LAUNCHES, OPS
from planc.runtime.kernels import KERNELS


def test_every_operator_has_a_row() -> None:
    missing = sorted(set(OPS) - {case.op for case in CASES})
    assert not missing, f"operators without a row in tests/cases_*.py: {missing}"


def test_every_row_has_an_operator() -> None:
    unknown = sorted({case.op for case in CASES} - set(OPS))
    assert not unknown, f"rows of operators that planc/ops does not have: {unknown}"


def test_every_launch_has_a_kernel() -> None:
    missing = sorted(set(LAUNCHES) - set(KERNELS))
    assert not missing, f"launches without a kernel in planc/runtime/kernels: {missing}"


def test_every_kernel_has_a_launch() -> None:
    unknown = sorted(set(KERNELS) - set(LAUNCHES))
    assert not unknown, f"kernels of launches that planc/ops does not have: {unknown}"


def test_in_place_pairs_are_distinct() -> None:
    """A launch may offer an input for one output only, and every pair once."""
    for name, spec in LAUNCHES.items():
        pairs = spec.inplace
        assert len(set(pairs)) == len(pairs), name
