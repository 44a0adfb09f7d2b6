"""Plan <-> JSON text and files: the plan file.

Keys stand in the order of the dataclasses' fields, `schema` first; the keys of mappings are sorted. Every step, buffer,
tensor and decision has a line of its own, so that a diff shows decisions. Text is ASCII with LF and a final newline;
numbers are integers; an absent value is null. Equal plans give equal bytes.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from planc.errors import PlanFileError
from planc.plan import SCHEMA_VERSION, Plan
from planc.plan_codec import DamageError, encoder, parsed_object, record, show

MAX_FILE_BYTES = 2**29
"""A plan of 40,000 steps takes about 60 MB."""

_NAME, _VERSION = SCHEMA_VERSION.split("/")
_FIELDS = tuple(field.name for field in fields(Plan) if field.name != "schema")
_COMPILE_AGAIN = "Compile the model again."


def to_json(plan: Plan) -> str:
    """The plan file's text for `plan`."""
    plain = encoder(Plan)(plan)
    document = {"schema": plain.pop("schema"), **plain}
    lines = list[str]()
    _write(lines, document, "", "")
    return "\n".join(lines) + "\n"


def from_json(text: str) -> Plan:
    """The plan that `text` holds: all of it or nothing.

    Raises:
        PlanFileError: the text is not a plan, is one of another schema, or is damaged; a damaged one names the path of
            the first value that is not what it must be.
    """
    try:
        if len(text) > MAX_FILE_BYTES:
            raise DamageError(f"has {len(text)} characters, wanted at most {MAX_FILE_BYTES}", "document")
        document = _parse(text)
        _check_schema(document)
        del document["schema"]
        plan: Plan = record(Plan, _FIELDS)(document)
        _check_ids(plan)
    except DamageError as damage:
        path = damage.path.removeprefix(".")
        raise PlanFileError(f"plan: damaged. {path}: {damage.problem}.", _COMPILE_AGAIN) from None
    return plan


def read_plan(path: Path | str) -> Plan:
    """The plan in file `path`.

    Raises:
        PlanFileError: the file cannot be read, or `from_json` refuses it.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise PlanFileError(f"plan file {str(path)!r}: has more than {MAX_FILE_BYTES} bytes; it is no plan.")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise PlanFileError(f"plan file {str(path)!r}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise PlanFileError(f"plan file {str(path)!r}: is no text (byte {error.start}); wanted JSON.") from None
    try:
        return from_json(text)
    except PlanFileError as error:
        raise PlanFileError(f"plan file {str(path)!r}: {error.message.removeprefix('plan: ')}", error.remedy) from None


def check_place(path: Path) -> None:
    """Find out before the work whether a plan can be written to `path`.

    Raises:
        PlanFileError: there is no such folder, or the path is a folder itself.
    """
    problem = "is a folder" if path.is_dir() or not path.name else ""
    if not path.absolute().parent.is_dir():
        problem = "there is no such folder"
    if problem:
        raise PlanFileError(f"plan file {str(path)!r}: cannot be written ({problem}).", "Choose another place with -o.")


def write_plan(path: Path | str, plan: Plan) -> None:
    """Write `plan` to `path`, whole or not at all: a file beside it is written first, then renamed.

    Raises:
        PlanFileError: the file cannot be written; a plan that was there is still there.
    """
    path = Path(path)
    check_place(path)
    text = to_json(plan)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("x", encoding="ascii", newline="\n") as file:
            file.write(text)
        beside.replace(path)
    except OSError as error:
        raise PlanFileError(
            f"plan file {str(path)!r}: cannot be written ({error.strerror}).", "Choose another place with -o."
        ) from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


# Reading


def _parse(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text, object_pairs_hook=parsed_object)
    except json.JSONDecodeError as error:
        raise DamageError(
            f"is no JSON at line {error.lineno}, column {error.colno} ({error.msg})", "document"
        ) from None
    except RecursionError:
        raise DamageError("is nested too deeply", "document") from None
    except ValueError:
        raise DamageError("has a number of thousands of digits", "document") from None
    if type(document) is not dict:
        raise DamageError(f"{show(document)}, wanted an object", "document")
    return document


def _check_schema(document: dict[str, Any]) -> None:
    """Stop at any schema but this one, before anything else of the document is judged."""
    if "schema" not in document:
        raise DamageError(f"is missing, wanted {SCHEMA_VERSION!r}", "schema")
    schema = document["schema"]
    if schema == SCHEMA_VERSION:
        return
    known = re.fullmatch(rf"{re.escape(_NAME)}/([0-9]{{1,9}})", schema, re.ASCII) if type(schema) is str else None
    if known is not None and int(known[1]) < int(_VERSION):
        raise PlanFileError(
            f"plan: its schema {schema!r} is an old one, which this planc no longer reads; wanted {SCHEMA_VERSION!r}.",
            _COMPILE_AGAIN,
        )
    if type(schema) is str:
        raise PlanFileError(
            f"plan: its schema {show(schema)} is unknown, made by a newer planc or by something else; "
            f"this one reads {SCHEMA_VERSION!r}.",
            "Update planc, or compile the model again.",
        )
    raise DamageError(f"{show(schema)}, wanted {SCHEMA_VERSION!r}", "schema")


def _check_ids(plan: Plan) -> None:
    tables: list[tuple[str, tuple[Any, ...]]] = [("tensors", plan.tensors), ("buffers", plan.buffers)]
    tables += [(f"programs.{name}.steps", program.steps) for name, program in plan.programs.items()]
    for name, table in tables:
        for position, entry in enumerate(table):
            if entry.id != position:
                raise DamageError(f"{entry.id}, wanted its position {position}", f"{name}[{position}].id")


# Writing

_compact = json.JSONEncoder(ensure_ascii=True, allow_nan=False).encode


def _write(lines: list[str], value: Any, indent: str, tail: str) -> None:
    """Append the lines of `value` after what the last line already holds; objects are spread, except those in lists."""
    head = lines.pop() if lines else ""
    if type(value) is dict and value:
        lines.append(head + "{")
        last = len(value) - 1
        for number, (key, item) in enumerate(value.items()):
            lines.append(f"{indent}  {_compact(key)}: ")
            _write(lines, item, indent + "  ", "," if number < last else "")
        lines.append(f"{indent}}}{tail}")
    elif type(value) is list and value and type(value[0]) is dict:
        lines.append(head + "[")
        lines += [f"{indent}  {_compact(item)}," for item in value]
        lines[-1] = lines[-1][:-1]
        lines.append(f"{indent}]{tail}")
    else:
        lines.append(head + _compact(value) + tail)
