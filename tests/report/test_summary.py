import csv
import hashlib
import json
from typing import Any

import numpy as np
import pytest

import tagspread as ts
from tagspread.report.summary import summarize_run
from tests.report.conftest import TAGS


def test_a_finished_run_tells_everything(run):
    summary: Any = summarize_run(run)
    assert set(summary.classes) == set(TAGS)
    assert [line["epoch"] for line in summary.log] == list(range(7))
    assert summary.metrics["test"]["images"] == 40
    assert summary.missing == []


def test_the_unlabeled_is_as_the_pseudo_labels_says(run):
    summary: Any = summarize_run(run)
    with (run / "pseudo_labels.csv").open(newline="") as opened:
        lines = list(csv.DictReader(opened))
    assert summary.unlabeled.size == len({line["image"] for line in lines})
    counted = [sum((line["tag"], line["target"]) == (name, "1") for line in lines) for name in summary.classes]
    assert summary.unlabeled.positives.tolist() == counted
    assert summary.unlabeled.flips.sum() == sum(line.get("flips", 0) for line in summary.log)
    assert summary.unlabeled.scores.shape == (summary.unlabeled.size, len(summary.classes))


def test_an_unfinished_run_tells_its_log(copied):
    for name in ("labels.json", "metrics.json"):
        (copied / name).unlink()
    summary: Any = summarize_run(copied)
    assert summary.classes == ()
    assert summary.unlabeled is None
    assert summary.metrics == {}
    assert len(summary.log) == 7
    assert "not finished" in summary.missing[0].why


def test_without_its_checkpoint_a_run_says_what_is_missing(copied):
    (copied / "checkpoint" / "state.safetensors").unlink()
    summary: Any = summarize_run(copied)
    assert summary.unlabeled is None
    assert "was removed" in summary.missing[0].why
    (copied / "checkpoint" / "state.safetensors").write_bytes(b"no")
    assert "cannot be read" in summarize_run(copied).missing[0].why


def test_a_run_without_unlabeled_images_has_no_pseudo_labels(folder, tmp_path):
    from tests.report.conftest import QUICK

    settings = QUICK | {"warmup_epochs": 1, "epochs": 0, "method": "asl"}
    summary: Any = summarize_run(ts.train(folder, folder / "labels.csv", tmp_path / "run", **settings).path)
    assert summary.unlabeled is None
    assert summary.missing == []


def sign(run, name):
    """Enter the digest of a changed file in ``labels.json``, so that the file itself is read."""
    facts = json.loads((run / "labels.json").read_text())
    facts["sha256"][name] = hashlib.sha256((run / name).read_bytes()).hexdigest()
    (run / "labels.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("log.jsonl", '{"epoch": 0}\n{"ep', "line 2"),
        ("log.jsonl", "[]\n", "line 1"),
        ("log.jsonl", '{"epoch": "x"}\n', "line 1"),
        ("config.json", '{"tagspread": "0.1.0"}', "settings is missing"),
        ("config.json", "{}", "not a run folder"),
        ("metrics.json", "{", "damaged"),
        ("labels.json", "{}", "no format number"),
    ],
)
def test_damaged_files_are_named(copied, name, text, words):
    (copied / name).write_text(text)
    if name == "log.jsonl":
        with pytest.raises(ts.TagspreadError, match="is not the file that training wrote"):
            summarize_run(copied)
        sign(copied, name)
    with pytest.raises(ts.TagspreadError, match=words):
        summarize_run(copied)


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(ts.TagspreadError, match="not a run folder"):
        summarize_run(tmp_path)
    with pytest.raises(ts.TagspreadError, match="does not exist"):
        summarize_run(tmp_path / "nowhere")


def test_soft_targets_count_from_a_half_on(copied):
    from safetensors.numpy import load_file, save_file

    file = copied / "checkpoint" / "state.safetensors"
    tensors = load_file(file)
    labels = np.zeros(tensors["targets.labels"].shape, np.float32)
    labels[0, 0], labels[1, 0], labels[2, 0], labels[3, 0] = 0.5, 0.4, 1.0, -1.0
    save_file(tensors | {"targets.labels": labels}, file, metadata={"tagspread": json.dumps({"format": 1})})
    unlabeled: Any = summarize_run(copied).unlabeled
    assert (unlabeled.positives[0], unlabeled.ignored[0], unlabeled.positives[1:].sum()) == (2, 1, 0)
