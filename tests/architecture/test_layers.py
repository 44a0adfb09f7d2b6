"""Who may know whom: every import of planc goes down the layers, and a few packages have one home each."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import planc

ROOT = Path(planc.__file__).parent

LAYERS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("errors", "units"),),
    (("graph",), ("profile",), ("plan", "plan_codec", "plan_json"), ("digits",), ("zoo",), ("collection",)),
    (("ops",), ("model_hash",)),
    (
        ("onnx_loader", "onnx_writer", "graph_reader", "input_binding", "model_file"),
        ("training", "training_graph", "graph_builder", "gradient_flow", "losses"),
    ),
    (("tasks", "stretches"), ("bounds",)),
    (("costs", "micro_batch", "conv_algorithms", "conv_call", "conv_cudnn", "conv_numpy"),),
    (("passes", "rebuild"),),
    (("policies",),),
    (("schedule", "layout", "placement", "assembly", "decisions_report"),),
    (
        (
            "verify",
            "verify_data",
            "verify_form",
            "verify_memory",
            "verify_model",
            "verify_pages",
            "verify_report",
            "verify_training",
            "byte_map",
            "happens_before",
        ),
        ("simulate",),
        ("runtime",),
    ),
    (("pipeline",),),
    (("yardsticks", "options"),),
    (("candidates", "choice", "like", "finishing"),),
    (("source",), ("parallel",)),
    (("compare",), ("capabilities",), ("sweep",), ("fit",), ("explain",)),
    (("session", "initial_values", "training_run"), ("report",)),
    (("cli",),),
)
"""From the ground up. Modules (or packages) of a group may import each other; groups side by side may not."""

GROUND = frozenset({"plan", "errors", "units"})

HOMES: Mapping[str, frozenset[str]] = {
    "onnx": frozenset({"onnx_loader", "onnx_writer", "zoo"}),
    "highspy": frozenset({"passes.flow_milp"}),
    "cupy": frozenset({"runtime.cupy_backend"}),
    "yaml": frozenset({"profile", "check"}),
    "click": frozenset({"cli"}),
    "rich": frozenset({"cli", "report"}),
    "matplotlib": frozenset({"report.svg"}),
    "torch": frozenset(),
}
"""Package -> the modules (or packages) of planc that may import it."""


@cache
def modules() -> dict[str, Path]:
    """Dotted name below `planc` -> file; a package has its own name, planc itself has the name ''."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """What a file imports anywhere in it, dotted in full; `from planc import x` is the module x where there is one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            inside = (node.module or "").removeprefix("planc").removeprefix(".")
            for alias in node.names:
                below = f"{inside}.{alias.name}".removeprefix(".")
                is_module = (node.module or "").split(".")[0] == "planc" and below in known
                yield f"planc.{below}" if is_module else node.module or ""


@cache
def own_imports() -> dict[str, set[str]]:
    """Module of planc -> modules of planc it imports, names below `planc`."""
    known = modules()
    return {
        name: {target.removeprefix("planc.") for target in imported(path, known) if target.startswith("planc.")}
        for name, path in known.items()
    }


def place(module: str) -> tuple[int, int] | None:
    """(layer, group) of a module or of the package it is in."""
    for layer, groups in enumerate(LAYERS):
        for position, group in enumerate(groups):
            if module in group or module.partition(".")[0] in group:
                return layer, position
    return None


def upward(imports: Mapping[str, set[str]]) -> list[str]:
    """Imports that neither go down nor stay in their group."""
    found = []
    for module, targets in imports.items():
        here = place(module)
        for target in sorted(targets):
            there = place(target)
            if here and there and here != there and there[0] >= here[0]:
                found.append(f"{module} imports {target}")
    return found


def reached(start: str, imports: Mapping[str, set[str]]) -> set[str]:
    """Every module that importing `start` (or any module of that package) brings in."""
    found: set[str] = set()
    waiting = [name for name in imports if name == start or name.startswith(f"{start}.")]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting.extend(imports.get(module, ()))
    return found


def test_every_module_has_a_layer() -> None:
    assert [name for name in modules() if name and place(name) is None] == []


def test_every_layer_has_its_modules() -> None:
    known = modules()
    assert [name for groups in LAYERS for group in groups for name in group if name not in known] == []


def test_imports_go_down() -> None:
    assert upward(own_imports()) == []


def test_an_import_that_goes_up_is_found() -> None:
    assert upward({"runtime.executor": {"plan", "schedule"}}) == []  # down, though forbidden: see below
    assert upward({"schedule": {"simulate"}, "verify": {"simulate"}, "tasks": {"stretches"}}) == [
        "schedule imports simulate",
        "verify imports simulate",
    ]


def test_the_package_itself_imports_nothing_when_imported() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    outside = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {node.module for node in outside if isinstance(node, ast.ImportFrom)} == {"__future__", "typing"}
    assert not [node for node in outside if isinstance(node, ast.Import)]


def test_the_runtime_reaches_the_plan_and_nothing_else() -> None:
    found = reached("runtime", own_imports())
    assert {name for name in found if name.partition(".")[0] != "runtime"} <= GROUND


@pytest.mark.parametrize("module", [name for name in modules() if name.startswith("verify")])
def test_the_verifier_reaches_the_plan_and_nothing_else(module: str) -> None:
    (family,) = (group for groups in LAYERS for group in groups if "verify" in group)
    assert reached(module, own_imports()) - set(family) <= GROUND


def test_what_is_reached_is_found_through_others() -> None:
    assert reached("a", {"a": {"b"}, "a.x": {"d"}, "b": {"c"}, "c": set(), "d": set(), "e": {"a"}}) == {
        "a",
        "a.x",
        "b",
        "c",
        "d",
    }


@pytest.mark.parametrize("package", HOMES)
def test_a_package_is_imported_at_home_alone(package: str) -> None:
    known = modules()
    users = {name for name, path in known.items() if package in {i.partition(".")[0] for i in imported(path, known)}}
    homes = HOMES[package]
    assert {name for name in users if name not in homes and name.partition(".")[0] not in homes} == set()
