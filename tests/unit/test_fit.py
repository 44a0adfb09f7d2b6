"""Which device fits: every answer agrees with compile, and one sample more does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from planc.candidates import compile as compile_plan
from planc.cli import planc
from planc.errors import InfeasibleError
from planc.fit import Answer, Verdict, fit, gpu_profiles, largest_batch
from planc.plan import Plan
from planc.profile import load_profile, profile_names
from planc.source import Source
from planc.zoo import ZOO

BATCH = 32
UP_TO = 64


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(planc, [str(argument) for argument in arguments], prog_name="planc")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fit") / "lenet.onnx"
    path.write_bytes(ZOO["lenet"]().SerializeToString())
    return path


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """V100s with so little memory that the batch does not fit, fits with a plan, fits, and has much to spare."""
    folder = tmp_path_factory.mktemp("profiles")
    text = (Path(__file__).parents[2] / "profiles" / "v100-16gb.yaml").read_text(encoding="utf-8")
    real = load_profile("v100-16gb")
    assert f"memory_bytes: {{value: {real.memory_bytes:_}," in text
    names = []
    for kilobytes in (500, 1200, 8000, 100_000):
        path = folder / f"v100-{kilobytes}k.yaml"
        memory = real.reserved_bytes + kilobytes * 1000
        path.write_text(text.replace(f"value: {real.memory_bytes:_},", f"value: {memory},"), encoding="utf-8")
        names.append(str(path))
    return names


@pytest.fixture(scope="module")
def answers(model: Path, devices: list[str]) -> tuple[Answer, ...]:
    return fit(Source(model), batch=BATCH, profiles=devices, up_to=UP_TO)


def attempt(model: Path, **options: Any) -> Plan | InfeasibleError:
    try:
        return compile_plan(model, **options)
    except InfeasibleError as error:
        return error


def compiles(model: Path, batch: int, profile: str, policy: str) -> bool:
    return isinstance(attempt(model, batch=batch, profile=profile, policy=policy), Plan)


def test_all_verdicts_are_there(answers: tuple[Answer, ...]) -> None:
    verdicts = [answer.verdict for answer in answers]
    assert verdicts == [Verdict.NOT, Verdict.WITH_PLAN, Verdict.AS_IT_IS, Verdict.AS_IT_IS]
    assert [answer.budget_bytes for answer in answers] == [500_000, 1_200_000, 8_000_000, 100_000_000]


def test_answers_agree_with_compile(model: Path, devices: list[str], answers: tuple[Answer, ...]) -> None:
    for answer, device in zip(answers, devices, strict=True):
        assert compiles(model, BATCH, device, "keep-all") == (answer.verdict is Verdict.AS_IT_IS)
        plan = attempt(model, batch=BATCH, profile=device)
        if isinstance(plan, InfeasibleError):
            assert answer.verdict is Verdict.NOT
            assert answer.smallest_budget_bytes == plan.smallest_budget_bytes
            assert answer.makespan_ns is None
            continue
        assert answer.makespan_ns == plan.predicted.makespan_ns
        assert answer.arena_bytes == plan.spaces.arena_bytes
        assert answer.ideal_ns == plan.predicted.ideal_ns
        assert answer.keep_all_bytes == plan.predicted.keep_all_bytes


def test_largest_batches_agree_with_compile(model: Path, devices: list[str], answers: tuple[Answer, ...]) -> None:
    for answer, device in zip(answers, devices, strict=True):
        for policy, largest in (("keep-all", answer.largest_as_it_is), ("auto", answer.largest_with_plan)):
            assert largest is not None
            assert largest == 0 or compiles(model, largest, device, policy)
            assert largest == UP_TO or not compiles(model, largest + 1, device, policy)
    assert answers[-1].largest_as_it_is == UP_TO
    assert len({answer.largest_as_it_is for answer in answers}) >= 3


def test_shipped_gpus_are_the_default(model: Path) -> None:
    assert set(gpu_profiles()) < set(profile_names())
    assert "cpu" not in gpu_profiles()
    done = invoke("fit", model, "--batch", 4, "--up-to", 4, "--jobs", 1, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)["devices"]
    assert {row["profile"] for row in found} == set(gpu_profiles())
    assert [row["budget_bytes"] for row in found] == sorted(row["budget_bytes"] for row in found)
    assert {row["verdict"] for row in found} == {"fits as it is"}


def test_the_table_has_a_line_a_device(model: Path, devices: list[str]) -> None:
    words = [word for device in devices for word in ("--profile", device)]
    shown = invoke("fit", model, "--batch", BATCH, "--up-to", UP_TO, "--jobs", 2, *words).stdout
    assert "missing" in shown
    assert "fits with a plan at +" in shown
    assert "fits as it is" in shown
    assert f"{UP_TO} or more" in shown


def test_exit_3_where_it_fits_no_device(model: Path, devices: list[str]) -> None:
    done = invoke("fit", model, "--batch", BATCH, "--up-to", 1, "--profile", devices[0], "--jobs", 1)
    assert done.exit_code == 3
    assert invoke("fit", model, "--batch", BATCH, "--profile", "no-such-gpu").exit_code == 2


@given(
    first=st.integers(0, 50),
    each=st.integers(1, 20),
    more=st.integers(0, 5),
    room=st.integers(0, 3000),
    up_to=st.integers(1, 300),
    known=st.booleans(),
)
def test_the_search_finds_what_trying_every_batch_finds(
    first: int, each: int, more: int, room: int, up_to: int, known: bool
) -> None:
    def needs(batch: int) -> int:
        return first + each * batch + batch // 7

    def fits(batch: int) -> bool:
        return needs(batch) + more * (batch // 10) <= room

    expected = max((batch for batch in range(1, up_to + 1) if fits(batch)), default=0)
    assert largest_batch(needs, fits, room, up_to, known=expected // 2 if known else 0) == expected
