"""Sizes, times and decimals as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planc.errors import UsageError
from planc.units import align_up, decimal_text, format_bytes, format_ns, parse_bytes, parse_decimal


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4GB", 4_000_000_000),
        ("4GiB", 2**32),
        ("1.5gib", 3 * 2**29),
        ("123", 123),
        ("7 B".replace(" ", ""), 7),
        ("0.5KB", 500),
        ("1.9", 1),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["4 G B", "4gb5", "-1", "nan", "1e400", "", "GB", "70%", "٤GB", "9" * 30, "0x10"])
def test_other_forms_are_refused_with_the_accepted_ones(text: str) -> None:
    with pytest.raises(UsageError, match="Accepted are"):
        parse_bytes(text)


def test_a_share_is_rounded_down() -> None:
    assert parse_bytes("70%", whole_bytes=999) == 699
    assert parse_bytes("100%", whole_bytes=999) == 999
    assert parse_bytes("33.3%", whole_bytes=1000) == 333


def test_formats() -> None:
    assert format_bytes(131) == "131 B"
    assert format_bytes(20 * 2**20) == "20 MiB"
    assert format_bytes(int(5.36 * 2**30)) == "5.36 GiB"
    assert format_ns(12_400_000) == "12.4 ms"
    assert format_ns(7) == "7 ns"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_decimal_text_reads_back_exactly(value: float) -> None:
    assert float(decimal_text(value)) == value


@pytest.mark.parametrize("text", ["nan", "inf", "x", "", "1e400"])
def test_a_learning_rate_must_be_a_finite_number(text: str) -> None:
    with pytest.raises(UsageError, match="finite"):
        parse_decimal(text, "--lr")


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_align_up(value: int, alignment: int) -> None:
    up = align_up(value, alignment)
    assert up % alignment == 0
    assert value <= up < value + alignment
