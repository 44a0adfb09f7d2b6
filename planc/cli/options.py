"""Options that several commands share, and what their values may look like."""

from __future__ import annotations

from pathlib import Path

import click

from planc.cli.output import want_json
from planc.errors import UsageError
from planc.units import parse_bytes, parse_decimal

FILE = click.Path(path_type=Path)
"""Any path: the library says what is wrong with a file, in its own words."""


def budget(text: str) -> str:
    """A size such as 4GB, 4GiB, 70% or a number of bytes; kept as text, because a share needs the model."""
    parse_bytes(text, whole_bytes=1)
    return text


def decimal(text: str) -> str:
    """A finite decimal, as the plan holds it."""
    return parse_decimal(text, "number")


def dimension(text: str) -> tuple[str, int]:
    """`NAME=N`: a size for an open dimension of the model."""
    name, _, size = text.rpartition("=")
    if not name or not size.isascii() or not size.isdecimal() or not 0 < int(size[:10]) < 2**31:
        raise UsageError(f"--dim {text!r}: not a dimension and its size.", "Give NAME=N, such as sequence=128.")
    return name, int(size)


def complete_profile(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """The names of shipped profiles that begin so, for shell completion."""
    from planc.profile import profile_names

    return [name for name in profile_names() if name.startswith(incomplete)]


def _note_json(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    if value:
        want_json(ctx)
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=_note_json, help="Print the result as JSON."
)

plan_argument = click.argument("plan", type=FILE, metavar="PLAN")
