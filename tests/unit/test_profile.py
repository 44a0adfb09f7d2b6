"""Profiles: the shipped ones, and how a wrong one is refused."""

from __future__ import annotations

import copy
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from planc.errors import ProfileError
from planc.profile import CALLS, load_profile, profile_names, profile_sha256

ROOT = Path(__file__).resolve().parents[2]

GPUS = [
    *("titan-x-12gb", "k80-12gb", "p100-16gb", "v100-16gb", "t4-16gb", "rtx-3060-12gb", "rtx-3090-24gb"),
    *("rtx-4090-24gb", "a100-40gb", "a100-80gb", "h100-80gb", "h200-141gb"),
]


def document(name: str = "v100-16gb") -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "profiles" / f"{name}.yaml").read_text())
    return loaded


def write(folder: Path, content: object) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_shipped_profiles() -> None:
    assert profile_names() == tuple(sorted([*GPUS, "cpu"]))


@pytest.mark.parametrize("name", [*GPUS, "cpu"])
def test_shipped_profile(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.backend == ("numpy" if name == "cpu" else "cudnn")
    assert 0 <= profile.reserved_bytes < profile.memory_bytes
    assert {"float32", "float64"} <= set(profile.peak_flops)
    assert all(text.strip() for text in profile.sources.values())
    offered = {call for calls in profile.algorithms.values() for call in calls}
    assert offered == set(CALLS)
    for call in CALLS:
        speeds = [calls[call] for calls in profile.algorithms.values() if call in calls]
        assert len(set(speeds)) > 1, "one speed for all would make the choice of an algorithm meaningless"


@pytest.mark.parametrize("name", GPUS)
def test_only_rooflines_from_a_datasheet_count_as_estimated(name: str) -> None:
    assert load_profile(name).estimated == (load_profile(name).kind == "datasheet")


def test_figures_of_the_default_profile() -> None:
    """Against the datasheet and the measured link, so that a slip of a unit or a digit shows."""
    v100 = load_profile("v100-16gb")
    assert v100.memory_bytes == 16160 * 2**20
    assert v100.reserved_bytes == 600 * 2**20
    assert v100.peak_flops["float32"] == 15.7e12
    assert v100.memory_bandwidth_bytes_per_s == 900e9
    assert (v100.h2d_duplex_bytes_per_s, v100.d2h_duplex_bytes_per_s) == (11_160_000_000, 11_790_000_000)
    assert (v100.alignment, v100.page_bytes) == (256, 2**21)


def test_loading_is_quick() -> None:
    """The whole compile has 1.5 s; a profile may take 15 ms of it (best of five, for a busy machine)."""
    best = min(_timed(lambda: load_profile("v100-16gb")) for _ in range(5))
    assert best < 0.015


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    content = document() | {"name": "mine", "title": "My device"}
    path = write(tmp_path, content)
    assert load_profile(path).name == load_profile(str(path)).name == "mine"


def test_names_never_reach_out_of_the_shipped_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shipped name wins over a file of that name in the working folder; a Path is always a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cpu").write_text("not a profile")
    assert load_profile("cpu").name == "cpu"
    with pytest.raises(ProfileError):
        load_profile(Path("cpu"))
    with pytest.raises(ProfileError, match="neither a profile that planc ships nor a file"):
        load_profile("../profiles/cpu")


def test_unknown_name_gets_close_matches() -> None:
    with pytest.raises(ProfileError, match=r"profile 'V100': neither .* Did you mean v100-16gb"):
        load_profile("V100")
    with pytest.raises(ProfileError, match=r"profile 'zzz': .* Shipped are: a100-40gb, .*, v100-16gb\."):
        load_profile("zzz")


def _set(*place: str, to: object) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in place[:-1]:
            content = content[key]
        content[place[-1]] = to

    return change


def _drop(*place: str) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in place[:-1]:
            content = content[key]
        del content[place[-1]]

    return change


WINOGRAD = ("algorithms", "WINOGRAD", "forward")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop("memory_bytes"), "field 'memory_bytes': found nothing, wanted this field"),
        (_set("memory_byte", to=1), "field 'memory_byte': planc knows no such field. Did you mean 'memory_bytes'?"),
        (_set("memory_bytes", to=16), "field 'memory_bytes': found 16, wanted {value: ..., source: ...}"),
        (
            _set("memory_bytes", "value", to="16 GB"),
            "field 'memory_bytes': found '16 GB', wanted a whole number of bytes, at least 1",
        ),
        (_set("memory_bytes", "value", to=0), "found 0, wanted a whole number of bytes"),
        (_set("memory_bytes", "value", to=True), "found True, wanted a whole number of bytes"),
        (_set("memory_bytes", "value", to=1e9), "found 1000000000.0, wanted a whole number of bytes"),
        (_set("copy_latency_ns", "value", to=-1), "found -1, wanted a whole number of ns, at least 0"),
        (_drop("h2d_bytes_per_s", "source"), "field 'h2d_bytes_per_s.source': found nothing, wanted this field"),
        (_set("h2d_bytes_per_s", "source", to=" "), "field 'h2d_bytes_per_s.source': found ' ', wanted text"),
        (_set("backend", to="cuda"), "field 'backend': found 'cuda', wanted one of cudnn, numpy"),
        (_set("kind", to=None), "field 'kind': found nothing, wanted one of datasheet, calibrated, measured"),
        (_set("peak_flops", to={}), "field 'peak_flops': found nothing, wanted at least one dtype"),
        (_set("peak_flops", "fp32", to={}), "field 'peak_flops': found 'fp32', wanted one of float64"),
        (_set("alignment", "value", to=48), "field 'alignment': found 48, wanted a power of two (bytes)"),
        (_set("duplex_h2d", "value", to=0), "field 'duplex_h2d': found 0, wanted a share of h2d_bytes_per_s"),
        (_set("matrix_efficiency", "value", to=float("nan")), "field 'matrix_efficiency': found nan, wanted a share"),
        (_set("algorithms", to={}), "field 'algorithms': found nothing, wanted at least one convolution algorithm"),
        (_set("algorithms", "WINOGRAD", to={}), "field 'algorithms.WINOGRAD': found nothing, wanted at least one of"),
        (_set("algorithms", "WINOGRAD", "sideways", to={}), "field 'algorithms.WINOGRAD': found 'sideways', wanted"),
        (
            _set(*WINOGRAD, "efficiency", to=9),
            "field 'algorithms.WINOGRAD.forward.efficiency': found 9, wanted a share",
        ),
        (_set(*WINOGRAD, "overhead_ns", to=1.5), "found 1.5, wanted a whole number of ns, at least 0"),
        (_drop(*WINOGRAD, "source"), "field 'algorithms.WINOGRAD.forward.source': found nothing, wanted this field"),
    ],
)
def test_every_field_is_checked(tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    content = document()
    change(content)
    path = write(tmp_path, content)
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert str(caught.value).startswith(f"profile '{path}': ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"just text", b"[1, 2]", b"{", b"\xff\xfe\x00", b"a: !!python/object:os.system {}", b"1: 2", b"a: 1\na: 2\n"],
)
def test_what_is_no_profile_is_a_profile_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"mine\.yaml"):
        load_profile(path)


def test_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text((ROOT / "profiles" / "cpu.yaml").read_text() + "kind: measured\n")
    with pytest.raises(ProfileError, match="a key stands twice"):
        load_profile(path)


def test_hash_counts_what_a_plan_depends_on(tmp_path: Path) -> None:
    base = document()
    expected = profile_sha256(load_profile("v100-16gb"))

    def changed(change: Callable[[dict[str, Any]], None]) -> str:
        content = copy.deepcopy(base)
        change(content)
        return profile_sha256(load_profile(write(tmp_path, content)))

    assert changed(_set("title", to="Another")) == expected
    assert changed(_set("name", to="another")) == expected
    assert changed(_set("memory_bytes", "source", to="a friend")) == expected
    for place in (("memory_bytes", "value"), ("peak_flops", "float32", "value"), (*WINOGRAD, "overhead_ns")):
        assert changed(_set(*place, to=12345)) != expected
    assert changed(_set(*WINOGRAD, "efficiency", to=0.123)) != expected
    assert changed(_set("duplex_h2d", "value", to=0.123)) != expected
    assert changed(_drop(*WINOGRAD)) != expected


def test_every_package_and_every_profile_is_in_the_wheel() -> None:
    """The list in pyproject.toml stands in for `find`, which cannot take in profiles/."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "planc").rglob("__init__.py")}
    assert set(settings["packages"]) == found | {"planc.device_profiles"}
    assert settings["package-dir"] == {"planc.device_profiles": "profiles"}
