import json
import shutil
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import tagspread as ts
from tagspread.run.artifact import FORMAT, file_digest, read_artifact
from tagspread.run.pseudo_labels import read_pseudo_labels


@pytest.fixture
def copy(run, tmp_path):
    """The run with changes to its labels.json, loaded."""

    def make(**changes):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(run, tmp_path / "copy")
        facts = json.loads((run / "labels.json").read_text())
        for name, value in changes.items():
            if value is None:
                del facts[name]
            else:
                facts[name] = value(facts[name]) if callable(value) else value
        (tmp_path / "copy" / "labels.json").write_text(json.dumps(facts))
        return tmp_path / "copy"

    return make


def refused(path, words):
    with pytest.raises(ts.TagspreadError, match=words) as caught:
        ts.load(path, device="cpu")
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")


def test_what_a_run_says_about_its_tagger(run):
    facts = json.loads((run / "labels.json").read_text())
    assert facts["format"] == FORMAT
    assert len(facts["classes"]) == len(facts["thresholds"]) == len(facts["calibration"]["slope"])
    assert facts["preprocessing"]["shape"] == [3, 24, 24]
    assert facts["model"] == "ema.safetensors"
    together = ("split.csv", "log.jsonl", "metrics.json", "pseudo_labels.csv")
    weights = [f"{name}.safetensors" for name in ("model", "ema", "labeled_only")]
    assert facts["sha256"].items() >= {name: file_digest(run / name) for name in (*together, *weights)}.items()


def test_two_files_are_enough(run, tagger, drawn, tmp_path):
    for name in ("labels.json", "ema.safetensors"):
        shutil.copy(run / name, tmp_path)
    found = ts.load(tmp_path, device="cpu").predict(drawn.images[:5])
    np.testing.assert_array_equal(found.probabilities, tagger.predict(drawn.images[:5]).probabilities)


def test_what_is_no_run_is_refused(run, tmp_path):
    refused(tmp_path / "nowhere", "the run folder .*nowhere does not exist")
    refused(tmp_path, "has no labels.json: it is not a run folder")
    shutil.copy(run / "config.json", tmp_path)
    refused(tmp_path, "has no labels.json: training has not finished")
    refused(run / "labels.json", "the run folder .* does not exist")
    (tmp_path / "labels.json").write_text("{")
    refused(tmp_path, "labels.json is damaged .line 1")
    (tmp_path / "labels.json").write_text("[]")
    refused(tmp_path, "is not a JSON object")
    (tmp_path / "labels.json").write_text("{}")
    refused(tmp_path, "has no format number")


def test_changed_and_missing_files_are_refused(copy):
    path = copy()
    with (path / "ema.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    refused(path, "is not the file that training wrote")
    (path / "ema.safetensors").write_bytes(b"")
    refused(path, "is not the file that training wrote")
    (path / "ema.safetensors").unlink()
    refused(path, "has no ema.safetensors, the weights listed")
    refused(copy(sha256={}), "is not the file that training wrote")
    refused(copy(sha256=3), "is not the file that training wrote")
    broken = copy()
    (broken / "ema.safetensors").write_bytes(b"no tensors")
    facts = json.loads((broken / "labels.json").read_text())
    facts["sha256"] = {"ema.safetensors": file_digest(broken / "ema.safetensors")}
    (broken / "labels.json").write_text(json.dumps(facts))
    refused(broken, "cannot be read")


@pytest.mark.parametrize("name", ["metrics.json", "log.jsonl"])
def test_a_file_of_another_run_is_refused(copy, name):
    path = copy()
    (path / name).write_text((path / name).read_text() + " ")
    refused(path, f"{name} is not the file that training wrote .*: the files of several runs were mixed")


def test_settings_of_another_run_are_refused_and_other_paths_are_not(copy):
    path = copy()
    config = json.loads((path / "config.json").read_text())
    config["data"]["images"] = "/moved"
    (path / "config.json").write_text(json.dumps(config))
    assert ts.load(path, device="cpu").classes
    (path / "config.json").write_text(json.dumps(config | {"id": "another"}))
    refused(path, "config.json is not the file that training wrote .*: the files of several runs were mixed")


def test_pseudo_labels_of_another_run_are_refused(copy):
    path = copy()
    assert read_pseudo_labels(path)
    with (path / "pseudo_labels.csv").open("a") as file:
        file.write("p001.png,,,,,\n")
    with pytest.raises(ts.TagspreadError, match=r"pseudo_labels.csv is not the file that training wrote"):
        read_pseudo_labels(path)


def test_an_older_format_is_refused(copy):
    refused(copy(format=1), "has format 1 of an earlier version, .* train again, or install the version that wrote")


def test_another_list_of_classes_is_refused(copy):
    def longer(values):
        return [*values, values[-1]]

    refused(
        copy(classes=lambda names: [*names, "new"]), "11 classes but 10 thresholds; the list of classes was changed"
    )
    refused(copy(classes=lambda names: names[1:]), "9 classes but 10 thresholds")
    both = {"classes": lambda names: [*names, "new"], "thresholds": longer}
    refused(copy(**both), "11 classes but 10 slopes")
    all_of_them = {
        **both,
        "calibration": lambda c: {**c, "slope": longer(c["slope"]), "intercept": longer(c["intercept"])},
    }
    refused(copy(**all_of_them), "are not those that training wrote")
    before = all_of_them | {"classes_sha256": None}  # runs of earlier days do not state it
    refused(copy(**before), "11 classes but the network has 10 outputs")


def test_a_newer_format_is_refused(copy):
    refused(
        copy(format=FORMAT + 1),
        f"has format {FORMAT + 1}, but tagspread .* reads formats up to {FORMAT}; install a newer",
    )
    refused(copy(format="1"), "has no format number")
    refused(copy(format=True), "has no format number")


@pytest.mark.parametrize(
    "changes",
    [
        {"thresholds": None},
        {"classes": None},
        {"calibration": None},
        {"preprocessing": {}},
        {"classes": [1] * 10},
        {"classes": []},
        {"thresholds": "many"},
        {"thresholds": ["many"] * 10},
        {"calibration": {"slope": [None] * 10, "intercept": [0] * 10}},
        {"preprocessing": lambda p: {**p, "shape": [3, 0, 0]}},
        {"preprocessing": lambda p: {**p, "shape": [1, 24, 24]}},
        {"preprocessing": lambda p: {**p, "shape": [3, 24, 10**6]}},
        {"thresholds": [float("nan")] * 10},
        {"model": None},
        {"backbone": None},
        {"method_options": None},
        {"method_options": 3},
    ],
)
def test_damaged_facts_are_refused(copy, changes):
    refused(copy(**changes), "labels.json is damaged")


def test_another_network_is_refused(copy, tmp_path):
    refused(copy(head="ml_decoder"), "does not match the network 'small'")
    refused(copy(backbone="smal"), "there is no backbone 'smal'")
    path = copy()
    save_file(load_file(path / "ema.safetensors") | {"extra": load_file(path / "ema.safetensors")["scale"]}, path / "x")
    (path / "x").replace(path / "ema.safetensors")
    facts = json.loads((path / "labels.json").read_text())
    facts["sha256"] = {"ema.safetensors": file_digest(path / "ema.safetensors")}
    (path / "labels.json").write_text(json.dumps(facts))
    refused(path, "'extra' differs or is missing")


def test_nothing_outside_the_run_is_read(copy, tmp_path):
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes(b"secret")
    refused(copy(model=str(outside)), "has no outside.safetensors")
    refused(copy(model="../outside.safetensors"), "has no outside.safetensors")


def test_a_method_from_a_file_is_never_executed(copy, tmp_path, drawn):
    trap = tmp_path / "trap.py"
    trap.write_text("raise SystemExit('executed')")
    loaded = ts.load(copy(method=f"{trap}:Rule", method_options={"x": 1}), device="cpu")
    assert len(loaded.predict(drawn.images[:1]).tags) == 1


@pytest.mark.parametrize("method", ["cap", "asl", "d2l"])
def test_every_kind_of_network_loads(method, drawn, tmp_path):
    if method not in ts.METHODS:
        pytest.skip("no such method")
    y = drawn.y.copy()
    y[40:] = -1
    settings: dict[str, Any] = {
        "backbone": "small",
        "weights": "none",
        "warmup_epochs": 1,
        "epochs": 1,
        "batch": 16,
        "quiet": True,
    }
    result = ts.train(
        drawn.images, y, tmp_path / "run", method=method, preset="paper", device="cpu",
        test_images=drawn.images[:40], test_labels=drawn.y[:40], **settings,
    )  # fmt: skip
    found = ts.load(result.path, device="cpu").predict(drawn.images[:40])
    assert ts.mean_average_precision(found.probabilities, drawn.y[:40]) == pytest.approx(result.metrics["test"]["mAP"])


def test_never_is_null_in_the_file(copy):
    path = copy(thresholds=lambda cuts: [None, *cuts[1:]])
    assert read_artifact(path).thresholds[0] == np.inf
