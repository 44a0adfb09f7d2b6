"""Any plan, however odd, comes back from its file as it was; any text that is no plan is refused in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st
from verify_plans import training_plan

from planc.errors import PlanFileError
from planc.plan import SCHEMA_VERSION, Buffer, Plan, PlanTensor, Program, Step
from planc.plan_codec import MAX_INTEGER, SIGNED
from planc.plan_json import from_json, to_json

COUNTS = st.integers(0, MAX_INTEGER)
INTEGERS = st.integers(-MAX_INTEGER, MAX_INTEGER)
TEXTS = st.text(max_size=8)
ATTRIBUTES = INTEGERS | TEXTS | st.lists(INTEGERS, max_size=3).map(tuple) | st.lists(TEXTS, max_size=3).map(tuple)


def _values(hint: Any, signed: bool = False) -> st.SearchStrategy[Any]:
    """Values of a type that plans use."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is int:
        return INTEGERS if signed else COUNTS
    if hint is str:
        return TEXTS
    if hint is bool:
        return st.booleans()
    if origin is UnionType:
        return st.none() | _values(args[0], signed) if NoneType in args else ATTRIBUTES
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(_values(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(_values, args))
    if origin is Mapping:
        return st.dictionaries(TEXTS, _values(args[1]), max_size=3)
    if issubclass(hint, StrEnum):
        return st.sampled_from(list(hint))
    assert is_dataclass(hint)
    return _records(hint)


def _records(kind: Any, **given_fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    parts = {field.name: _values(hints[field.name], field.name in SIGNED) for field in fields(kind)}
    return st.builds(kind, **{**parts, **given_fields})


def _numbered(kind: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    """Entries of a table; ids are positions."""
    return st.lists(_records(kind), max_size=3).map(
        lambda entries: tuple(replace(entry, id=position) for position, entry in enumerate(entries))
    )


PLANS = _records(
    Plan,
    schema=st.just(SCHEMA_VERSION),
    tensors=_numbered(PlanTensor),
    buffers=_numbered(Buffer),
    programs=st.dictionaries(TEXTS, _numbered(Step).map(Program), max_size=2),
)
"""Plans of the right types; nothing else about them makes sense."""


@settings(max_examples=60, deadline=None)
@given(PLANS)
def test_any_plan_comes_back(plan: Plan) -> None:
    text = to_json(plan)
    again = from_json(text)
    assert again == plan
    assert to_json(again) == text
    assert text.isascii()


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, child in children for found in _paths(child, (*path, key)))]


PATHS = _paths(json.loads(to_json(training_plan())))[1:]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PATHS), JSON_VALUES)
def test_a_damaged_plan_is_refused_in_words_or_read_whole(path: tuple[Any, ...], value: Any) -> None:
    document = json.loads(to_json(training_plan()))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    text = json.dumps(document)
    try:
        plan = from_json(text)
    except PlanFileError as error:
        assert error.message.startswith("plan: ")  # noqa: PT017 - either outcome is good, each in its way
    else:
        assert json.loads(to_json(plan)) == document


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | JSON_VALUES.map(json.dumps))
def test_any_other_text_is_refused_in_words(text: str) -> None:
    try:
        from_json(text)
    except PlanFileError as error:
        assert error.remedy  # noqa: PT017 - that it raises is the point of the else branch
    else:
        raise AssertionError("this is no plan")
