"""Profile: what planc knows of one device, read from YAML (profiles/README.md describes every field and its unit).

In the file a number stands beside where it comes from, `{value: 12400000000, source: "..."}`; in a `Profile` the
numbers are fields and `sources` maps each field to its text.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import yaml

from planc.errors import ProfileError
from planc.units import decimal_text

BACKENDS = ("cudnn", "numpy")
KINDS = ("datasheet", "calibrated", "measured")
CALLS = ("forward", "backward-data", "backward-filter")
DTYPES = ("float64", "float32", "float16", "bfloat16")

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Coefficients:
    """How fast one convolution algorithm is in one direction.

    Time of a call = padded_flops / (efficiency * peak_flops) + bytes / (bandwidth * memory_bandwidth) + rounds *
    overhead_ns + launch_ns. `efficiency` may exceed 1 only if the algorithm's padded_flops count operations it saves.
    """

    efficiency: float
    bandwidth: float
    overhead_ns: int


@dataclass(frozen=True, slots=True)
class Profile:
    """One device. Rates are per second, memory in bytes, times in ns; `sources` names where each number is from.

    backend:      which family of convolution algorithms is on offer, "cudnn" or "numpy".
    kind:         what durations rest on: "datasheet", "calibrated" or "measured", in rising order of trust.
    reserved_bytes: what context and libraries take outside any arena.
    peak_flops:   dense floating-point operations per second by dtype; a dtype that is missing is not supported.
    duplex_h2d, duplex_d2h: share (decimal text) of a direction's rate that is left while the other one is busy.
    copy_latency_ns: fixed part of every copy. launch_ns: fixed part of every launch.
    alignment:    every offset in the arena is a multiple of it. page_bytes: size of a page of a paged arena.
    matrix_efficiency: share of peak_flops a plain matrix product reaches.
    elementwise_efficiency: share of memory_bandwidth a launch reaches that only streams memory.
    algorithms:   convolution algorithm -> call (one of CALLS) -> coefficients; a call that is missing is not offered.
    """

    name: str
    title: str
    backend: str
    kind: str
    memory_bytes: int
    reserved_bytes: int
    peak_flops: Mapping[str, int]
    memory_bandwidth_bytes_per_s: int
    h2d_bytes_per_s: int
    d2h_bytes_per_s: int
    duplex_h2d: str
    duplex_d2h: str
    copy_latency_ns: int
    launch_ns: int
    alignment: int
    page_bytes: int
    matrix_efficiency: float
    elementwise_efficiency: float
    algorithms: Mapping[str, Mapping[str, Coefficients]]
    sources: Mapping[str, str]

    @property
    def h2d_duplex_bytes_per_s(self) -> int:
        """The one rate planner, bound and simulator use host to device: bandwidth x duplex factor, rounded down."""
        return int(self.h2d_bytes_per_s * Decimal(self.duplex_h2d))

    @property
    def d2h_duplex_bytes_per_s(self) -> int:
        """The one rate planner, bound and simulator use device to host: bandwidth x duplex factor, rounded down."""
        return int(self.d2h_bytes_per_s * Decimal(self.duplex_d2h))

    @property
    def estimated(self) -> bool:
        """Whether durations are a roofline from a datasheet, so that plans must say they are estimates."""
        return self.kind == "datasheet"


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that planc ships, sorted."""
    return tuple(sorted(path.stem for path in _shipped_folder().glob("*.yaml")))


def load_profile(name_or_path: str | Path) -> Profile:
    """The profile of that name among those planc ships, else the one in that file.

    Raises:
        ProfileError: there is none, or a field is missing, unknown or wrong; the message names file and field.
    """
    text = str(name_or_path)
    shipped = _shipped_folder() / f"{text}.yaml"
    if isinstance(name_or_path, str) and Path(text).name == text and shipped.is_file():
        return _read(shipped, text)
    path = Path(name_or_path)
    if path.is_file():
        return _read(path, text)
    names = profile_names()
    close = difflib.get_close_matches(text.lower(), names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(close)}?" if close else f"Shipped are: {', '.join(names)}."
    raise ProfileError(f"profile {text!r}: neither a profile that planc ships nor a file.", hint)


def profile_sha256(profile: Profile) -> str:
    """Hash of everything in a profile that a plan can depend on: all but its name, title and sources."""
    content: dict[str, Any] = {
        field.name: getattr(profile, field.name)
        for field in fields(Profile)
        if field.name not in ("name", "title", "sources")
    }
    content["peak_flops"] = dict(profile.peak_flops)
    content["algorithms"] = {
        algorithm: {
            call: [decimal_text(entry.efficiency), decimal_text(entry.bandwidth), entry.overhead_ns]
            for call, entry in calls.items()
        }
        for algorithm, calls in profile.algorithms.items()
    }
    for share in ("matrix_efficiency", "elementwise_efficiency"):
        content[share] = decimal_text(content[share])
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _shipped_folder() -> Path:
    """Where the shipped profiles lie: in the package once installed, at the repository's root in a checkout."""
    installed = _HERE / "device_profiles"
    return installed if installed.is_dir() else _HERE.parent / "profiles"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML's safe loader, which besides refuses a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(mapping) != len(node.value):
            raise yaml.MarkedYAMLError(problem="a key stands twice in one mapping", problem_mark=node.start_mark)
        return mapping


def _read(path: Path, shown: str) -> Profile:
    try:
        document = yaml.load(path.read_bytes(), Loader=_Loader)
    except OSError as error:
        raise ProfileError(f"profile {shown!r}: cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ProfileError(f"profile {shown!r}: not YAML that planc can read: {reason}.") from error
    return _Reader(shown, document).profile()


@dataclass(frozen=True, slots=True)
class _Reader:
    """Takes a parsed document apart; every complaint names file, field, what was found and what was wanted."""

    file: str
    document: object

    def profile(self) -> Profile:
        table = self.mapping("", self.document)
        wanted = {field.name for field in fields(Profile)} - {"sources"}
        self.known("", table, wanted)
        sources: dict[str, str] = {}

        def whole(name: str, unit: str, least: int = 1) -> int:
            return self.whole(name, self.sourced(name, table[name], sources), unit, least)

        def share(name: str, of: str) -> float:
            return self.share(name, self.sourced(name, table[name], sources), of)

        return Profile(
            name=self.text("name", table["name"]),
            title=self.text("title", table["title"]),
            backend=self.choice("backend", table["backend"], BACKENDS),
            kind=self.choice("kind", table["kind"], KINDS),
            memory_bytes=whole("memory_bytes", "bytes"),
            reserved_bytes=whole("reserved_bytes", "bytes", 0),
            peak_flops=self.peaks(table["peak_flops"], sources),
            memory_bandwidth_bytes_per_s=whole("memory_bandwidth_bytes_per_s", "bytes per second"),
            h2d_bytes_per_s=whole("h2d_bytes_per_s", "bytes per second"),
            d2h_bytes_per_s=whole("d2h_bytes_per_s", "bytes per second"),
            duplex_h2d=decimal_text(share("duplex_h2d", "h2d_bytes_per_s")),
            duplex_d2h=decimal_text(share("duplex_d2h", "d2h_bytes_per_s")),
            copy_latency_ns=whole("copy_latency_ns", "ns", 0),
            launch_ns=whole("launch_ns", "ns", 0),
            alignment=self.power_of_two("alignment", whole("alignment", "bytes")),
            page_bytes=self.power_of_two("page_bytes", whole("page_bytes", "bytes")),
            matrix_efficiency=share("matrix_efficiency", "peak_flops"),
            elementwise_efficiency=share("elementwise_efficiency", "memory_bandwidth_bytes_per_s"),
            algorithms=self.algorithms(table["algorithms"], sources),
            sources=MappingProxyType(sources),
        )

    def peaks(self, value: object, sources: dict[str, str]) -> Mapping[str, int]:
        table = self.mapping("peak_flops", value)
        peaks: dict[str, int] = {}
        for dtype, entry in table.items():
            field = f"peak_flops.{dtype}"
            self.choice("peak_flops", dtype, DTYPES)
            peaks[dtype] = self.whole(field, self.sourced(field, entry, sources), "operations per second", 1)
        if not peaks:
            self.fail("peak_flops", value, "at least one dtype")
        return MappingProxyType(peaks)

    def algorithms(self, value: object, sources: dict[str, str]) -> Mapping[str, Mapping[str, Coefficients]]:
        algorithms: dict[str, Mapping[str, Coefficients]] = {}
        for name, calls in self.mapping("algorithms", value).items():
            field = f"algorithms.{name}"
            table: dict[str, Coefficients] = {}
            for call, entry in self.mapping(field, calls).items():
                self.choice(field, call, CALLS)
                table[call] = self.coefficients(f"{field}.{call}", entry, sources)
            if not table:
                self.fail(field, calls, f"at least one of {', '.join(CALLS)}")
            algorithms[name] = MappingProxyType(table)
        if not algorithms:
            self.fail("algorithms", value, "at least one convolution algorithm")
        return MappingProxyType(algorithms)

    def coefficients(self, field: str, entry: object, sources: dict[str, str]) -> Coefficients:
        table = self.mapping(field, entry)
        self.known(field, table, {"efficiency", "bandwidth", "overhead_ns", "source"})
        sources[field] = self.text(f"{field}.source", table["source"])
        return Coefficients(
            efficiency=self.share(f"{field}.efficiency", table["efficiency"], "peak_flops"),
            bandwidth=self.share(f"{field}.bandwidth", table["bandwidth"], "memory_bandwidth_bytes_per_s"),
            overhead_ns=self.whole(f"{field}.overhead_ns", table["overhead_ns"], "ns", 0),
        )

    def sourced(self, field: str, entry: object, sources: dict[str, str]) -> object:
        """The value of a `{value: ..., source: ...}` entry; its source goes into `sources`."""
        table = self.mapping(field, entry, "{value: ..., source: ...}")
        self.known(field, table, {"value", "source"})
        sources[field] = self.text(f"{field}.source", table["source"])
        return table["value"]

    def mapping(self, field: str, value: object, wanted: str = "a mapping") -> dict[str, object]:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            self.fail(field or "(whole file)", value, wanted)
        return value

    def known(self, field: str, table: Mapping[str, object], wanted: set[str]) -> None:
        prefix = f"{field}." if field else ""
        for name in table:
            if name not in wanted:
                close = difflib.get_close_matches(name, sorted(wanted), n=1)
                hint = f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(sorted(wanted))}."
                raise ProfileError(f"profile {self.file!r}: field {prefix + name!r}: planc knows no such field.", hint)
        for name in sorted(wanted):
            if name not in table:
                self.fail(prefix + name, None, "this field")

    def text(self, field: str, value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            self.fail(field, value, "text")
        return value

    def choice(self, field: str, value: object, options: tuple[str, ...]) -> str:
        if not isinstance(value, str) or value not in options:
            self.fail(field, value, f"one of {', '.join(options)}")
        return value

    def whole(self, field: str, value: object, unit: str, least: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**62:
            self.fail(field, value, f"a whole number of {unit}, at least {least}")
        return value

    def share(self, field: str, value: object, of: str) -> float:
        """Shares above 1 are let in up to 4: an algorithm may do fewer operations than its padded_flops count."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 4:
            self.fail(field, value, f"a share of {of}, above 0 (1 = all of it)")
        return float(value)

    def power_of_two(self, field: str, value: int) -> int:
        if value & (value - 1):
            self.fail(field, value, "a power of two (bytes)")
        return value

    def fail(self, field: str, found: object, wanted: str) -> NoReturn:
        shown = "nothing" if found is None or found == {} else repr(found)[:80]
        raise ProfileError(f"profile {self.file!r}: field {field!r}: found {shown}, wanted {wanted}.")
