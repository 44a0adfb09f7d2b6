"""Units: bytes, nanoseconds, decimal text, alignment."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from planc.errors import UsageError

_FACTORS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,12})?)([a-z]*)", re.IGNORECASE | re.ASCII)
_SHARE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,9})?)%", re.ASCII)
_FORMS = "Accepted are a number of bytes (4000000000), 4GB (10^9), 4GiB (2^30), KB, MB, TB, KiB, MiB, TiB"
_MAX_BYTES = 2**62


def parse_bytes(text: str, *, whole_bytes: int | None = None) -> int:
    """Bytes meant by `text`: `4GB` = 4 * 10^9, `4GiB` = 2^32, a bare number is bytes, `70%` a share of `whole_bytes`.

    Raises:
        UsageError: the text has another form, or is a share and `whole_bytes` is not given.
    """
    share = _SHARE.fullmatch(text)
    if share is not None and whole_bytes is not None:
        return int(Decimal(share[1]) * whole_bytes / 100)
    size = _SIZE.fullmatch(text)
    if size is not None and size[2].upper() in _FACTORS:
        value = int(Decimal(size[1]) * _FACTORS[size[2].upper()])
        if value <= _MAX_BYTES:
            return value
    forms = _FORMS + (", or a share like 70%." if whole_bytes is not None else ".")
    raise UsageError(f"size {text!r}: not a size planc can read.", forms)


def is_share(text: str) -> bool:
    """Whether `text` has the form `70%`."""
    return _SHARE.fullmatch(text) is not None


def format_bytes(value: int) -> str:
    """`value` for people: `5.36 GiB`, `20.0 MiB`, `131 B`."""
    if value < 1024:
        return f"{value} B"
    amount = float(value)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1000:
            return f"{amount:.3g} {unit}" if amount < 100 else f"{amount:.0f} {unit}"
    return f"{amount / 1024:.3g} TiB"


def format_ns(value: int) -> str:
    """`value` nanoseconds for people: `12.4 ms`."""
    for factor, unit in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value} ns"


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is at least `value`."""
    return -(-value // alignment) * alignment


def decimal_text(value: float) -> str:
    """The shortest decimal that reads back as `value`: how a plan and an attribute hold a real number."""
    text = repr(float(value))
    return text[:-2] if text.endswith(".0") else text


def parse_decimal(text: str, what: str) -> str:
    """The canonical form of a finite decimal given by a user.

    Raises:
        UsageError: `text` is not a finite number.
    """
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("nan")
    if not value.is_finite() or abs(float(value)) == float("inf"):
        raise UsageError(f"{what} {text!r}: not a finite number.", "Give a decimal such as 0.01.")
    return decimal_text(float(value))
