"""Codec: dataclasses of integers, text, tuples and mappings <-> plain JSON values, driven by their type hints.

Reading is strict: every key there once, none besides, every value of its very type and range; whatever is not, is
reported by its path within the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from operator import itemgetter, length_hint
from types import MappingProxyType, NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from planc.errors import InternalError

MAX_INTEGER = 2**62
"""Bytes and ns of every device there will be; within 64 bits even after a few additions."""

SIGNED = frozenset({"attrs", "cost_ns"})
"""Fields whose integers may be negative: attributes (axes), and what a runner-up would cost more."""

_EMPTY: Mapping[str, Any] = MappingProxyType({})

Encoder = Callable[[Any], Any]
Decoder = Callable[[Any], Any]


class DamageError(Exception):
    """A value that is not what its place, `path` within the document, wants."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path


class Repeated:
    """Stands in a parsed document for an object that has a key twice."""

    def __init__(self, key: str) -> None:
        self.key = key


def parsed_object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | Repeated:
    """`object_pairs_hook` of json: a key that comes twice must not silently win."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen = set[str]()
    return Repeated(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]


def show(value: object) -> str:
    """A value as a message shows it."""
    if isinstance(value, Repeated):
        return f"an object with the key {value.key!r} twice"
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _wanted(value: object, wanted: str) -> DamageError:
    return DamageError(f"{show(value)}, wanted {wanted}")


# Reading


@cache
def decoder(hint: Any, signed: bool = False) -> Decoder:
    """The function that makes a value of type `hint` from a parsed JSON value, or raises DamageError."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is int:
        return _read_signed if signed else _read_count
    if hint is str:
        return _read_text
    if hint is bool:
        return _read_flag
    if origin is UnionType:
        return _union(args, signed)
    if origin is tuple and args[-1] is Ellipsis:
        return _list(decoder(args[0], signed))
    if origin is tuple:
        return _pair(tuple(decoder(arg, signed) for arg in args))
    if origin is Mapping:
        return _mapping(decoder(args[1], signed))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _word(hint)
    if is_dataclass(hint):
        return record(hint, tuple(field.name for field in fields(hint)))
    raise InternalError(f"plan codec: no JSON form for {hint}")


def _read_count(value: Any) -> int:
    if type(value) is int and 0 <= value <= MAX_INTEGER:
        return value
    raise _wanted(value, "an integer >= 0" if type(value) is not int or value < 0 else "an integer <= 2^62")


def _read_signed(value: Any) -> int:
    if type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER:
        return value
    raise _wanted(value, "an integer" if type(value) is not int else "an integer within +-2^62")


def _read_text(value: Any) -> str:
    if type(value) is str:
        return value
    raise _wanted(value, "text")


def _read_flag(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise _wanted(value, "true or false")


def _word(words: type[StrEnum]) -> Decoder:
    known = {word.value: word for word in words}

    def read(value: Any) -> StrEnum:
        found = known.get(value) if type(value) is str else None
        if found is None:
            raise _wanted(value, f"one of {', '.join(map(repr, known))}")
        return found

    return read


def _list(item: Decoder) -> Decoder:
    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wanted(value, "a list")
        if not value:
            return ()
        rest = iter(value)
        try:
            return tuple([item(element) for element in rest])
        except DamageError as damage:
            raise _within(f"[{_reached(value, rest)}]", damage) from None

    return read


def _pair(items: tuple[Decoder, ...]) -> Decoder:
    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(items):
            raise _wanted(value, f"a list of {len(items)}")
        rest = iter(value)
        try:
            return tuple([item(element) for item, element in zip(items, rest)])
        except DamageError as damage:
            raise _within(f"[{_reached(value, rest)}]", damage) from None

    return read


def _mapping(item: Decoder) -> Decoder:
    def read(value: Any) -> Mapping[str, Any]:
        if type(value) is not dict:
            raise _wanted(value, "an object")
        if not value:
            return _EMPTY
        keys = sorted(value)
        rest = iter(keys)
        try:
            return MappingProxyType({key: item(value[key]) for key in rest})
        except DamageError as damage:
            raise _within(f".{keys[_reached(keys, rest)]}", damage) from None

    return read


def _union(args: tuple[Any, ...], signed: bool) -> Decoder:
    """`X | None`, or the type of attributes: integer, text, or a list of either."""
    plain = tuple(arg for arg in args if arg is not NoneType)
    if len(plain) < len(args) and len(plain) == 1:
        inner = decoder(plain[0], signed)
        return lambda value: None if value is None else inner(value)
    integers, texts = _list(_read_signed), _list(_read_text)

    def read(value: Any) -> Any:
        if type(value) is int:
            return _read_signed(value)
        if type(value) is str:
            return value
        if type(value) is list:
            return texts(value) if value and type(value[0]) is str else integers(value)
        raise _wanted(value, "an integer, text, or a list of either")

    return read


def record(cls: Any, names: tuple[str, ...]) -> Decoder:
    """Reads the fields `names` of dataclass `cls` from an object that has these keys and no other."""
    hints = get_type_hints(cls)
    readers = [decoder(hints[name], name in SIGNED) for name in names]
    counts = len(names) > 1 and all(reader is _read_count for reader in readers)
    expected = set(names)

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _wanted(value, "an object")
        if value.keys() != expected:
            missing = [name for name in names if name not in value]
            if missing:
                raise DamageError("is missing", f".{missing[0]}")
            raise DamageError("is a key this schema does not have", f".{min(value.keys() - expected)}")
        rest = iter(names)
        try:
            return cls(*[reader(value[name]) for reader, name in zip(readers, rest)])
        except DamageError as damage:
            raise _within(f".{names[_reached(names, rest)]}", damage) from None

    return _counts_first(cls, names, read) if counts else read


def _counts_first(cls: Any, names: tuple[str, ...], read: Decoder) -> Decoder:
    """`read` for a record of counts alone: accesses are most of a plan, and nearly all are good, so those go first."""
    pick = itemgetter(*names)

    def read_counts(value: Any) -> Any:
        if type(value) is dict and len(value) == len(names):
            try:
                parts = pick(value)
            except KeyError:
                return read(value)
            for part in parts:
                if type(part) is not int or not 0 <= part <= MAX_INTEGER:
                    return read(value)
            return cls(*parts)
        return read(value)

    return read_counts


def _reached(whole: Sequence[Any], rest: Iterator[Any]) -> int:
    """The position in `whole` of what the iterator `rest` over it gave last; the good case pays nothing for it."""
    return len(whole) - length_hint(rest) - 1


def _within(path: str, damage: DamageError) -> DamageError:
    return DamageError(damage.problem, path + damage.path)


# Writing


@cache
def encoder(hint: Any) -> Encoder:
    """The function that makes a JSON value of a value of type `hint`; it refuses what could not be read back."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in (int, str, bool):
        return _leaf(hint)
    if origin is UnionType:
        return _write_union
    if origin is tuple:
        items = tuple(encoder(arg) for arg in args if arg is not Ellipsis)
        one = items[0]
        if args[-1] is Ellipsis:
            return lambda value: [one(element) for element in value] if value else []
        return lambda value: [item(element) for item, element in zip(items, value, strict=True)]
    if origin is Mapping:
        inner = encoder(args[1])
        return lambda value: {key: inner(value[key]) for key in sorted(value)}
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return lambda value: hint(value).value
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        names = tuple(field.name for field in fields(hint))
        writers = [encoder(hints[name]) for name in names]
        pairs = list(zip(names, writers, strict=True))
        return lambda value: {name: write(getattr(value, name)) for name, write in pairs}
    raise InternalError(f"plan codec: no JSON form for {hint}")


@cache
def _leaf(kind: type) -> Encoder:
    def write(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise InternalError(f"plan: {value!r} is a {type(value).__name__}, wanted {kind.__name__}")

    return write


def _write_union(value: Any) -> Any:
    if value is None or type(value) is int or type(value) is str:
        return value
    if type(value) is tuple and len({type(element) for element in value} | {int, str}) == 2:
        return list(value)
    raise InternalError(f"plan: {value!r} is a {type(value).__name__}, wanted an integer, text or a tuple of either")
