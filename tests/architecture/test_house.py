"""House rules that can be counted: sizes, docstrings, and a wheel that has every package in it."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import planc

ROOT = Path(planc.__file__).parent
TOP = ROOT.parent
FILES = sorted(ROOT.rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60
UNFINISHED = ("TODO", "FIXME", "XXX", "NotImplementedError")


def name_of(path: Path) -> str:
    return path.relative_to(TOP).as_posix()


def long_functions(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{node.name}: {lines} lines"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_keeps_the_rules(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(source)), "a file says what its noun is"
    assert len(source.splitlines()) <= MAX_FILE_LINES
    assert list(long_functions(source)) == []
    assert [word for word in UNFINISHED if word in source] == []


def test_a_long_function_is_found() -> None:
    body = "\n".join(["    pass"] * MAX_FUNCTION_LINES)
    assert list(long_functions(f"def f():\n{body}")) == [f"f: {MAX_FUNCTION_LINES + 1} lines"]


def test_every_package_is_in_the_wheel() -> None:
    pyproject = TOP / "pyproject.toml"
    if not pyproject.is_file():
        pytest.skip("planc is installed without its sources")
    listed = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    found = {".".join(("planc", *path.parent.relative_to(ROOT).parts)) for path in ROOT.rglob("__init__.py")}
    assert set(listed) == found | {"planc.device_profiles"}
    assert len(listed) == len(set(listed))
