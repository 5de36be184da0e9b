"""JSON of a run, validated: what training wrote passes, and every wrong value is one message with file and key."""

import json
import math
import shutil

import pytest

import tagspread as ts
from tagspread.run import schema
from tagspread.run.checkpoint import load_checkpoint
from tagspread.run.config import RunConfig
from tagspread.run.schema import CHECKPOINT, CONFIG, LABELS, LOG_LINE, METRICS, parse_json, read_log, validate

WRONG: list[object] = [None, True, -1, 1.5, math.nan, math.inf, 10**400, "x", "\ud800", [], {}, [[]], {"a": {"b": []}}]
SCHEMAS = {"config.json": CONFIG, "labels.json": LABELS, "metrics.json": METRICS, "a line": LOG_LINE}


@pytest.fixture(scope="session")
def written(run):
    found = {name: json.loads((run / name).read_text()) for name in ("config.json", "labels.json", "metrics.json")}
    return found | {"a line": json.loads((run / "log.jsonl").read_text().splitlines()[-1])}


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_training_writes_passes(name, written, run):
    validate(written[name], SCHEMAS[name], name)
    validate(load_checkpoint(run / "checkpoint" / "state.safetensors").facts, CHECKPOINT, "a checkpoint")
    assert len(read_log(run / "log.jsonl")) == written["a line"]["epoch"] + 1


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_key_is_named_and_a_kind_accepts_what_its_words_say(name, written):
    """Replace each value that the schema knows by each wrong one: it is refused with its key, or of the right kind."""
    refused = 0
    for key, kind in {**SCHEMAS[name].required, **SCHEMAS[name].optional}.items():
        for value in WRONG:
            try:
                validate(written[name] | {key: value}, SCHEMAS[name], "FILE")
            except ts.TagspreadError as error:
                assert str(error).startswith(f"FILE is damaged: {key}")  # noqa: PT017
                assert "\n" not in str(error)  # noqa: PT017
                refused += 1
            else:
                assert not list(kind.wrong(value, key))
        if key in SCHEMAS[name].required:
            without = {other: value for other, value in written[name].items() if other != key}
            with pytest.raises(ts.TagspreadError, match=f"FILE is damaged: {key} is missing"):
                validate(without, SCHEMAS[name], "FILE")
    assert refused >= 7 * len(SCHEMAS[name].required)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"calibration": {"slope": [1.0, 0.0], "intercept": [0, 0]}},
            r"calibration.slope\[1\] is 0.0, not a number above",
        ),
        (
            {"preprocessing": {"shape": [3, 16384, 16384]}},
            r"preprocessing.shape\[1\] is 16384, not a whole number from 1",
        ),
        ({"preprocessing": {"shape": [3, 24]}}, "preprocessing.shape has 2 items, not 3"),
        ({"model": "x" * 300}, "model is 'x+'?.*, not the name of a file"),
        ({"model": "a\0b"}, "model is .*, not the name of a file"),
        ({"backbone": ["small"]}, "backbone is a list, not text"),
        ({"thresholds": [10**400]}, r"thresholds\[0\] is a number with many digits, not a finite number"),
        ({"decision": {"policy": "f1"}}, "decision.chosen_on is missing"),
    ],
)
def test_what_is_wrong_with_labels_json(change, words, written):
    with pytest.raises(ts.TagspreadError, match=rf"labels.json is damaged: {words}"):
        validate(written["labels.json"] | change, LABELS, "labels.json")


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        ({}, "gain does not say what it is"),
        ({"difference": 0.1, "part": "test", "images": 9}, "interval_90 is missing"),
        ({"difference": 0.1, "interval_90": [0.0, 0.2], "part": "test", "images": 9}, "labeled_only is missing"),
        ({"difference": 0.1, "interval_90": [0.0]}, r"gain.interval_90 has 1 items, not 2"),
    ],
)
def test_a_gain_is_whole(gain, words):
    with pytest.raises(ts.TagspreadError, match=words):
        validate({"gain": gain}, METRICS, "metrics.json")
    validate({"gain": {"not_measured": "why"}}, METRICS, "metrics.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "1" * 5000 + "}", "a number has too many digits"),
        ('{\n"a" 1}', "line 2: Expecting ':' delimiter"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ("", "line 1: Expecting value"),
    ],
)
def test_what_is_not_json_is_refused_in_words(text, words):
    with pytest.raises(ValueError, match=words):
        parse_json(text)
    with pytest.raises(ts.TagspreadError, match=rf"FILE is damaged \(.*{words}\); copy it again\."):
        schema.parse_object(text, "FILE")


def test_settings_that_are_nested_too_deeply_are_refused(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    deep: object = 1
    for _ in range(200):
        deep = [deep]
    config = json.loads((run / "config.json").read_text())
    config["settings"]["loss_options"] = {"x": deep}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ts.TagspreadError, match=r"config.json is damaged: settings: one of them is not a plain value"):
        RunConfig.read(tmp_path / "run")
