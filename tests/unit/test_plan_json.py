"""The plan file: its text, its schema, and what is said of files that are not plans."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from verify_plans import chain_plan, training_plan

import planc
from planc import plan as plan_module
from planc.errors import InternalError, PlanFileError
from planc.plan import SCHEMA_VERSION, Plan
from planc.plan_json import MAX_FILE_BYTES, from_json, read_plan, to_json, write_plan

SCHEMA = json.loads((Path(planc.__file__).parent / "plan.schema.json").read_text())


def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(to_json(training_plan()))
    return document


def test_a_plan_comes_back_as_it_was() -> None:
    plan = training_plan()
    text = to_json(plan)
    assert from_json(text) == plan
    assert to_json(from_json(text)) == text


def test_every_step_buffer_tensor_and_decision_has_its_own_line() -> None:
    plan = training_plan()
    lines = to_json(plan).splitlines()
    for table in (plan.buffers, plan.tensors, plan.train.steps, plan.evaluate.steps):
        for entry in table:
            assert sum(line.strip().startswith(f'{{"id": {entry.id}, ') for line in lines) >= 1
    tables = (plan.buffers, plan.tensors, plan.train.steps, plan.evaluate.steps)
    assert sum(line.strip().startswith('{"id": ') for line in lines) == sum(map(len, tables))
    assert sum(line.strip().startswith('{"about": ') for line in lines) == len(plan.decisions)


def test_one_decision_changes_one_line() -> None:
    plan = training_plan()
    steps = list(plan.train.steps)
    steps[7] = replace(steps[7], configuration=(("winograd", 2),))
    other = replace(plan, programs={**plan.programs, "train": plan_module.Program(tuple(steps))})
    before, after = to_json(plan).splitlines(), to_json(other).splitlines()
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_the_text_is_ascii_with_line_feeds_and_a_final_newline() -> None:
    plan = training_plan()
    tensors = (replace(plan.tensors[0], label='Größe "☃"\n\u2028'), *plan.tensors[1:])
    text = to_json(replace(plan, tensors=tensors))
    assert text.isascii()
    assert text.endswith("}\n")
    assert "\r" not in text
    assert from_json(text).tensors == tensors


def test_keys_stand_in_the_order_of_the_fields_and_mappings_are_sorted() -> None:
    plan = replace(training_plan(), programs={"train": training_plan().train, "evaluate": training_plan().evaluate})
    document = json.loads(to_json(plan))
    assert list(document) == ["schema", *(field.name for field in fields(Plan) if field.name != "schema")]
    assert list(document["programs"]) == ["evaluate", "train"]
    assert list(document["provenance"]["options"]) == ["batch", "budget"]
    turned = replace(plan, programs=dict(reversed(plan.programs.items())))
    assert to_json(turned) == to_json(plan)


def test_equal_plans_give_equal_bytes_under_every_hash_seed() -> None:
    code = "from verify_plans import *; from planc.plan_json import *; print(to_json(training_plan()))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])},
            cwd=Path(planc.__file__).parents[1],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert texts == {to_json(training_plan()) + "\n"}


@pytest.mark.parametrize("value", [1.5, True, "4", [4], b"4"], ids=["float", "flag", "text", "list", "bytes"])
def test_what_could_not_be_read_back_is_not_written(value: Any) -> None:
    plan = training_plan()
    with pytest.raises(InternalError):
        to_json(replace(plan, predicted=replace(plan.predicted, makespan_ns=value)))
    with pytest.raises(InternalError):
        to_json(replace(plan, spaces=replace(plan.spaces, page_bytes=None)))  # type: ignore[arg-type]


# Other schemas, other files


def test_a_newer_schema_says_so() -> None:
    document = {"schema": "planc-plan/2", "steps": "in another form"}
    with pytest.raises(PlanFileError, match=r"'planc-plan/2' is unknown, made by a newer planc.*Update planc"):
        from_json(json.dumps(document))


def test_a_foreign_schema_is_unknown() -> None:
    with pytest.raises(PlanFileError, match="'tensorboard/1' is unknown"):
        from_json('{"schema": "tensorboard/1"}')


def test_an_old_schema_says_so() -> None:
    with pytest.raises(PlanFileError, match=r"'planc-plan/0' is an old one.*Compile the model again"):
        from_json('{"schema": "planc-plan/0"}')


Break = Callable[[dict[str, Any]], object]
DAMAGES: dict[str, tuple[Break, str]] = {
    "negative": (
        lambda d: d["buffers"][12]["extents"][0].update(offset=-4),
        "buffers[12].extents[0].offset: -4, wanted an integer >= 0.",
    ),
    "float": (lambda d: d["spaces"].update(arena_bytes=1e9), "spaces.arena_bytes: 1000000000.0, wanted an integer"),
    "whole float": (lambda d: d["tensors"][0].update(rows=1.0), "tensors[0].rows: 1.0, wanted an integer >= 0."),
    "nan": (lambda d: d["predicted"].update(peak_bytes=float("nan")), "predicted.peak_bytes: nan, wanted an integer"),
    "infinity": (lambda d: d["predicted"].update(peak_bytes=float("inf")), "predicted.peak_bytes: inf, wanted"),
    "flag": (lambda d: d["model"].update(batch=True), "model.batch: True, wanted an integer >= 0."),
    "number for flag": (
        lambda d: d["programs"]["train"]["steps"][3].update(accumulate=0),
        "programs.train.steps[3].accumulate: 0, wanted true or false.",
    ),
    "text": (lambda d: d["model"].update(batch="4"), "model.batch: '4', wanted an integer >= 0."),
    "null": (lambda d: d["model"].update(batch=None), "model.batch: null, wanted an integer >= 0."),
    "long text": (lambda d: d["model"].update(batch="4" * 99), "model.batch: '4444"),
    "list for text": (lambda d: d.update(semantics=["exact"]), "semantics: a list of 1, wanted text."),
    "object for list": (lambda d: d.update(tensors={}), "tensors: an object, wanted a list."),
    "list for object": (lambda d: d.update(spaces=[]), "spaces: a list of 0, wanted an object."),
    "list for mapping": (lambda d: d.update(programs=[]), "programs: a list of 0, wanted an object."),
    "missing": (
        lambda d: d["programs"]["train"]["steps"][3].pop("waits"),
        "programs.train.steps[3].waits: is missing.",
    ),
    "missing in an access": (
        lambda d: d["programs"]["train"]["steps"][3]["reads"][1].pop("stop"),
        "programs.train.steps[3].reads[1].stop: is missing.",
    ),
    "renamed in an access": (
        lambda d: d["programs"]["train"]["steps"][3]["reads"][1].update(
            end=d["programs"]["train"]["steps"][3]["reads"][1].pop("stop")
        ),
        "programs.train.steps[3].reads[1].stop: is missing.",
    ),
    "missing part": (lambda d: d.pop("decisions"), "decisions: is missing."),
    "unknown": (
        lambda d: d["tensors"][2].update(colour="red"),
        "tensors[2].colour: is a key this schema does not have.",
    ),
    "unknown part": (lambda d: d.update(extra=1), "extra: is a key this schema does not have."),
    "word": (
        lambda d: d["programs"]["train"]["steps"][0].update(lane="gpu"),
        "programs.train.steps[0].lane: 'gpu', wanted one of 'compute', 'd2h', 'h2d'.",
    ),
    "huge": (lambda d: d["model"].update(batch=2**62 + 1), f"model.batch: {2**62 + 1}, wanted an integer <= 2^62."),
    "absurd": (lambda d: d["model"].update(batch=10**900), "model.batch: an integer of 2990 bits, wanted"),
    "pair": (lambda d: d["buffers"][0].update(samples=[0]), "buffers[0].samples: a list of 1, wanted a list of 2."),
    "in a pair": (lambda d: d["buffers"][0].update(samples=[0, -1]), "buffers[0].samples[1]: -1, wanted an integer"),
    "attribute": (
        lambda d: d["programs"]["train"]["steps"][0].update(attrs={"axis": 1.5}),
        "programs.train.steps[0].attrs.axis: 1.5, wanted an integer, text, or a list of either.",
    ),
    "mixed attribute": (
        lambda d: d["programs"]["train"]["steps"][0].update(attrs={"axes": [1, "x"]}),
        "programs.train.steps[0].attrs.axes[1]: 'x', wanted an integer.",
    ),
    "huge attribute": (
        lambda d: d["programs"]["train"]["steps"][0].update(attrs={"axes": [-(2**62) - 1]}),
        "programs.train.steps[0].attrs.axes[0]: -4611686018427387905, wanted an integer within",
    ),
    "tensor id": (lambda d: d["tensors"][3].update(id=5), "tensors[3].id: 5, wanted its position 3."),
    "buffer id": (lambda d: d["buffers"].pop(0), "buffers[0].id: 1, wanted its position 0."),
    "step id": (
        lambda d: d["programs"]["evaluate"]["steps"][1].update(id=0),
        "programs.evaluate.steps[1].id: 0, wanted its position 1.",
    ),
    "schema": (lambda d: d.pop("schema"), f"schema: is missing, wanted '{SCHEMA_VERSION}'."),
    "schema type": (lambda d: d.update(schema=1), f"schema: 1, wanted '{SCHEMA_VERSION}'."),
}


@pytest.mark.parametrize(("change", "wanted"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_plan_names_the_path(change: Break, wanted: str) -> None:
    document = _document()
    change(document)
    with pytest.raises(PlanFileError) as caught:
        from_json(json.dumps(document))
    assert caught.value.message.startswith(f"plan: damaged. {wanted}")
    assert caught.value.exit_code == 2


def test_negative_attributes_and_costs_are_good() -> None:
    document = _document()
    document["programs"]["train"]["steps"][0]["attrs"] = {"axes": [-1, 2], "mode": "same", "names": ["a"], "none": []}
    document["decisions"][0].update(runner_up="3 sub-batches", cost_ns=-5)
    plan = from_json(json.dumps(document))
    assert plan.train.steps[0].attrs == {"axes": (-1, 2), "mode": "same", "names": ("a",), "none": ()}
    assert plan.decisions[0].cost_ns == -5
    assert from_json(to_json(plan)) == plan


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "document: is no JSON at line 1, column 1"),
        ("PK\x03\x04", "document: is no JSON"),
        ("[]", "document: a list of 0, wanted an object"),
        ("null", "document: null, wanted an object"),
        ("[" * 100_000, "document: is nested too deeply"),
        ('{"schema": ' + "1" * 5000 + "}", "document: has a number of thousands of digits"),
        ('{"schema": "planc-plan/1", "schema": "planc-plan/1"}', "document: an object with the key 'schema' twice"),
    ],
    ids=["empty", "binary", "list", "null", "nested", "digits", "twice"],
)
def test_what_is_no_plan_is_refused(text: str, wanted: str) -> None:
    with pytest.raises(PlanFileError) as caught:
        from_json(text)
    assert wanted in caught.value.message


def test_a_key_that_comes_twice_is_named() -> None:
    text = to_json(training_plan()).replace('{"id": 3, "lane"', '{"id": 3, "id": 3, "lane"', 1)
    with pytest.raises(PlanFileError, match=r"programs\.train\.steps\[3\]: an object with the key 'id' twice"):
        from_json(text)


def test_every_cut_of_a_plan_is_refused() -> None:
    text = to_json(training_plan())
    for length in range(0, len(text) - 1, 97):
        with pytest.raises(PlanFileError):
            from_json(text[:length])


# Files


def test_a_plan_file_is_written_whole_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, training_plan())
    write_plan(str(path), chain_plan(3))
    assert path.read_bytes() == to_json(chain_plan(3)).encode("ascii")
    assert read_plan(path) == chain_plan(3)
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_a_failed_write_leaves_the_old_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, training_plan())

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(PlanFileError, match=r"plan\.json': cannot be written \(No space left on device\)"):
        write_plan(path, chain_plan(3))
    monkeypatch.undo()
    assert read_plan(path) == training_plan()
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match=r"nowhere\.json': cannot be read \(No such file or directory\)"):
        read_plan(tmp_path / "nowhere.json")
    with pytest.raises(PlanFileError, match="cannot be read"):
        read_plan(tmp_path)
    with pytest.raises(PlanFileError, match="cannot be written"):
        write_plan(tmp_path / "no" / "folder" / "plan.json", training_plan())
    (tmp_path / "binary").write_bytes(b"{\xff\xfe")
    with pytest.raises(PlanFileError, match=r"binary': is no text \(byte 1\)"):
        read_plan(tmp_path / "binary")
    (tmp_path / "damaged").write_text("{}")
    with pytest.raises(PlanFileError, match=r"plan file '.*damaged': damaged\. schema: is missing"):
        read_plan(tmp_path / "damaged")


def test_a_file_of_absurd_size_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # sparse: takes no room
    with pytest.raises(PlanFileError, match="it is no plan"):
        read_plan(path)


# The JSON Schema


@pytest.mark.parametrize("plan", [training_plan(), chain_plan(4)], ids=["training", "chain"])
def test_plans_fit_the_json_schema(plan: Plan) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator.validate(json.loads(to_json(plan)))


def test_the_json_schema_has_the_fields_of_the_data_types_in_their_order() -> None:
    assert SCHEMA["properties"]["schema"] == {"const": SCHEMA_VERSION}
    records = {name: entry for name, entry in SCHEMA["$defs"].items() if "properties" in entry}
    assert len(records) == 13
    for name, entry in {**records, "Plan": SCHEMA}.items():
        names = [field.name for field in fields(getattr(plan_module, name))]
        if name == "Plan":
            names = ["schema", *(n for n in names if n != "schema")]
        assert list(entry["properties"]) == names == entry["required"]
        assert entry["additionalProperties"] is False


DAMAGES_BEYOND_SCHEMA = {"tensor id", "buffer id", "step id"}
"""Ids are positions: no schema can say that."""
# JSON Schema holds 1.0 for an integer; the reader does not.
DAMAGES_WITHIN_SCHEMA = DAMAGES_BEYOND_SCHEMA | {"whole float", "float"}


@pytest.mark.parametrize("name", [name for name in DAMAGES if name not in DAMAGES_WITHIN_SCHEMA])
def test_the_json_schema_refuses_what_the_reader_refuses(name: str) -> None:
    document = _document()
    DAMAGES[name][0](document)
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(document)
