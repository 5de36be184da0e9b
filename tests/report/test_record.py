import csv
import json
from typing import Any

import numpy as np
import pytest

import tagspread as ts
from tagspread.report.record import read_run
from tests.report.conftest import TAGS


def test_a_finished_run_tells_everything(run):
    record: Any = read_run(run)
    assert set(record.classes) == set(TAGS)
    assert [line["epoch"] for line in record.log] == list(range(7))
    assert record.metrics["test"]["images"] == 40
    assert record.missing == []


def test_the_unlabeled_is_as_the_pseudo_labels_says(run):
    record: Any = read_run(run)
    with (run / "pseudo_labels.csv").open(newline="") as opened:
        lines = list(csv.DictReader(opened))
    assert record.unlabeled.size == len({line["image"] for line in lines})
    counted = [sum((line["tag"], line["target"]) == (name, "1") for line in lines) for name in record.classes]
    assert record.unlabeled.positives.tolist() == counted
    assert record.unlabeled.flips.sum() == sum(line.get("flips", 0) for line in record.log)
    assert record.unlabeled.scores.shape == (record.unlabeled.size, len(record.classes))


def test_an_unfinished_run_tells_its_log(copied):
    for name in ("labels.json", "metrics.json"):
        (copied / name).unlink()
    record: Any = read_run(copied)
    assert record.classes == ()
    assert record.unlabeled is None
    assert record.metrics == {}
    assert len(record.log) == 7
    assert "not finished" in record.missing[0].why


def test_without_its_checkpoint_a_run_says_what_is_missing(copied):
    (copied / "checkpoint" / "state.safetensors").unlink()
    record: Any = read_run(copied)
    assert record.unlabeled is None
    assert "gone" in record.missing[0].why
    (copied / "checkpoint" / "state.safetensors").write_bytes(b"no")
    assert "cannot be read" in read_run(copied).missing[0].why


def test_a_run_without_a_unlabeled_has_none(folder, tmp_path):
    from tests.report.conftest import QUICK

    settings = QUICK | {"warmup_epochs": 1, "epochs": 0, "method": "asl"}
    record: Any = read_run(ts.train(folder, folder / "labels.csv", tmp_path / "run", **settings).path)
    assert record.unlabeled is None
    assert record.missing == []


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("log.jsonl", '{"epoch": 0}\n{"ep', "line 2"),
        ("log.jsonl", "[]\n", "line 1"),
        ("log.jsonl", '{"epoch": "x"}\n', "line 1"),
        ("config.json", '{"tagspread": "0.1.0"}', "no settings"),
        ("config.json", "{}", "not the folder of a run"),
        ("metrics.json", "{", "damaged"),
        ("labels.json", "{}", "no format number"),
    ],
)
def test_damaged_files_are_named(copied, name, text, words):
    (copied / name).write_text(text)
    with pytest.raises(ts.TagspreadError, match=words):
        read_run(copied)


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(ts.TagspreadError, match="not the folder of a run"):
        read_run(tmp_path)
    with pytest.raises(ts.TagspreadError, match="no folder"):
        read_run(tmp_path / "nowhere")


def test_soft_targets_count_from_a_half_on(copied):
    from safetensors.numpy import load_file, save_file

    file = copied / "checkpoint" / "state.safetensors"
    tensors = load_file(file)
    labels = np.zeros(tensors["targets.labels"].shape, np.float32)
    labels[0, 0], labels[1, 0], labels[2, 0], labels[3, 0] = 0.5, 0.4, 1.0, -1.0
    save_file(tensors | {"targets.labels": labels}, file, metadata={"tagspread": json.dumps({"format": 1})})
    unlabeled: Any = read_run(copied).unlabeled
    assert (unlabeled.positives[0], unlabeled.ignored[0], unlabeled.positives[1:].sum()) == (2, 1, 0)
