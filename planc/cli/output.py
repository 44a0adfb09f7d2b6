"""Output: results on stdout, notes and errors on stderr, and nothing else between a command and the terminal."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from planc.errors import InfeasibleError, PlancError, RunError

if TYPE_CHECKING:
    from rich.console import RenderableType

BROKEN_PIPE = 141
"""What shells report of a program that SIGPIPE ended."""

_JSON = "planc.cli.json"
_NARROW = 100
"""Columns where the result goes to a file or a pipe."""


def want_json(ctx: click.Context) -> None:
    """Note that this run of the program reports its errors as JSON too."""
    ctx.meta[_JSON] = True


def print_json(document: Mapping[str, object]) -> None:
    """The result as one JSON document."""
    _write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def print_result(*parts: RenderableType) -> None:
    """The result for people; in colour only on a terminal."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal or "COLUMNS" in os.environ else _NARROW, highlight=False)
    with console.capture() as captured:
        for part in parts:
            console.print(part, markup=False)
    _write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_lines(*lines: str) -> None:
    """The result as plain lines, unwrapped: they can be copied."""
    _write("".join(f"{printable(line)}\n" for line in lines))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """The result as comma-separated values with a line of names; an unknown value is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    _write(text.getvalue())


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr that is told how much is done, of how much; None where nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def note(text: str) -> None:
    """Something to know, on stderr."""
    click.echo(f"planc: {printable(text)}", err=True)


def warn(texts: Iterable[str]) -> None:
    """Warnings, each once, on stderr."""
    for text in dict.fromkeys(texts):
        note(f"warning: {text}")


def report_error(ctx: click.Context, error: PlancError) -> None:
    """What went wrong and what to do, on stderr; with --json also on stdout."""
    note(f"error: {error.message}")
    if error.remedy:
        click.echo(f"  {printable(error.remedy)}", err=True)
    if ctx.meta.get(_JSON) and not isinstance(error, OutputError):
        print_json({"error": error_document(error)})


def print_usage_error(message: str) -> None:
    """A wrong option or argument for machines."""
    print_json({"error": {"message": message, "remedy": "See planc --help.", "exit_code": 2}})


def error_document(error: PlancError) -> dict[str, object]:
    """An error for machines."""
    document: dict[str, object] = {
        "message": error.message,
        "remedy": error.remedy,
        "exit_code": error.exit_code,
    }
    if isinstance(error, InfeasibleError):
        document |= {
            "smallest_budget_bytes": error.smallest_budget_bytes,
            "bound_bytes": error.bound_bytes,
            "node": error.node,
        }
    return document


def printable(text: str) -> str:
    """`text` with control characters escaped: names come from files, and a terminal obeys what it is sent."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


class OutputError(RunError):
    """stdout cannot be written (the disk is full)."""


def discard_stdout() -> None:
    """Let what is still buffered for stdout go nowhere, so that Python's exit does not fail on it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(text: str) -> None:
    try:
        click.echo(text, nl=False)
    except BrokenPipeError:
        # Not let through: click would turn it into exit code 1, which means that the verdict is bad.
        discard_stdout()
        raise click.exceptions.Exit(BROKEN_PIPE) from None
    except OSError as error:
        discard_stdout()
        raise OutputError(f"standard output cannot be written ({error.strerror}).") from error
