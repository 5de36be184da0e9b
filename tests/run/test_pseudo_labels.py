"""Compare pseudo_labels.csv with the tensors of the checkpoint, and refuse a changed file."""

import csv
import json

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from tagspread.data.tables.read import PSEUDO_LABEL_COLUMNS
from tagspread.run.folder import RunFolder
from tagspread.run.pseudo_labels import Entry, PseudoLabeledImage, pseudo_label_rows, ranks_in_class, read_pseudo_labels


@pytest.fixture
def run(tmp_path):
    """Create a run folder with the given lines of pseudo_labels.csv."""
    folder = RunFolder(tmp_path)
    folder.write_json("config.json", {"tagspread": "test"})

    def make(lines, header=PSEUDO_LABEL_COLUMNS):
        folder.write_csv("pseudo_labels.csv", header, lines)
        return tmp_path

    return make


def drawn(rows=40, classes=5, seed=0):
    rng = np.random.default_rng(seed)
    targets = rng.choice([1, 0, -1], (rows, classes), p=[0.2, 0.7, 0.1]).astype(np.int8)
    logits = rng.normal(size=(rows, classes)).round(1).astype(np.float32)  # rounded: ties
    flips = rng.choice([0, 0, 0, 1, 4], (rows, classes)).astype(np.int16)
    targets[3], flips[3] = 0, 0  # an image with nothing to tell
    return [f"p{k}.jpg" for k in range(rows)], [f"c{k}" for k in range(classes)], targets, logits, flips


def test_written_and_read_again(run):
    names, classes, targets, logits, flips = drawn()
    images = read_pseudo_labels(run(pseudo_label_rows(names, classes, targets, logits, flips)))
    assert [image.name for image in images] == names
    probability = torch.from_numpy(logits).sigmoid().numpy()
    for row, image in enumerate(images):
        listed = [k for k in range(5) if targets[row, k] != 0 or flips[row, k]]
        assert [entry.tag for entry in image.entries] == [classes[k] for k in listed]
        for k, entry in zip(listed, image.entries, strict=True):
            assert (entry.target, entry.flips) == (targets[row, k], flips[row, k])
            assert entry.score == pytest.approx(probability[row, k], rel=1e-5)
            higher = (logits[:, k] > logits[row, k]).sum() + (logits[:row, k] == logits[row, k]).sum()
            assert entry.rank == 1 + higher
        assert [entry.tag for entry in image.given] == [classes[k] for k in range(5) if targets[row, k] == 1]
    assert images[3].entries == []


def test_ranks_are_those_of_scipy():
    scores = np.random.default_rng(0).integers(0, 9, (50, 4)).astype(np.float32)
    np.testing.assert_array_equal(ranks_in_class(scores), rankdata(-scores, method="ordinal", axis=0))


def test_a_quota_takes_the_first_ranks():
    from tagspread import cat_targets

    names, classes, _, logits, flips = drawn(rows=30)
    targets = cat_targets(logits, np.array([1, 2, 3, 4, 5]), 10)
    lines = list(pseudo_label_rows(names, classes, targets, logits, np.zeros_like(flips)))
    for k, name in enumerate(classes):
        ranks = sorted(int(str(line[4])) for line in lines if line[1] == name and line[2] == "1")
        assert ranks == list(range(1, 3 * (k + 1) + 1))


def test_soft_targets_are_written_as_numbers(run):
    targets = np.array([[0.75, 0.25, -1.0]], np.float32)
    lines = pseudo_label_rows(["a.jpg"], ["x", "y", "z"], targets, np.zeros((1, 3)), np.array([[0, 2, 0]]))
    (image,) = read_pseudo_labels(run(lines))
    assert image.entries == [Entry("x", 0.75, 0.5, 1, 0), Entry("y", 0.25, 0.5, 1, 2), Entry("z", -1, 0.5, 1, 0)]
    assert [entry.given for entry in image.entries] == [True, False, False]


def test_certainty_is_that_of_the_least_sure_tag():
    sure, unsure = Entry("x", 1.0, 0.9, 1, 0), Entry("y", -1.0, 0.4, 5, 0)
    assert PseudoLabeledImage("a", [sure, unsure]).certainty == pytest.approx(0.6)
    assert PseudoLabeledImage("a", [sure]).certainty == pytest.approx(0.9)
    assert PseudoLabeledImage("a", []).certainty == 1.0


def test_names_with_commas_and_quotes(run):
    name = 'a, "b".jpg'
    (image,) = read_pseudo_labels(run([(name, "x", 1, 0.5, 1, 0)]))
    assert image.name == name


@pytest.mark.parametrize(
    "line",
    [("a",), ("a", "x", "yes", 0.5, 1, 0), ("a", "x", 1, "", 1, 0), ("a", "x", 1, 0.5, "first", 0), list("abcdefg")],
)
def test_damaged_lines_are_named(run, line):
    with pytest.raises(ValueError, match=r"pseudo_labels.csv line 3 is damaged"):
        read_pseudo_labels(run([("a.jpg", "x", 1, 0.5, 1, 0), line]))


def test_another_header_and_no_pseudo_labels_and_no_run(run, tmp_path):
    with pytest.raises(ValueError, match="has the columns image, tags, ignored instead of image, tag, target"):
        read_pseudo_labels(run([], header=("image", "tags", "ignored")))
    (tmp_path / "pseudo_labels.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"has the columns .* it was changed"):
        read_pseudo_labels(tmp_path)
    (tmp_path / "pseudo_labels.csv").unlink()
    with pytest.raises(ValueError, match=r"has no pseudo_labels.csv: training has not finished\."):
        read_pseudo_labels(tmp_path)
    for gain, words in (
        ({}, "this run did not use the unlabeled images."),
        ({"gain": {"left_out": "no gain"}}, "this run did not use the unlabeled images, because no gain."),
        ({"gain": {"not_measured": "no images"}}, "the file was removed after training"),
    ):
        (tmp_path / "metrics.json").write_text(json.dumps(gain))
        with pytest.raises(ValueError, match=words):
            read_pseudo_labels(tmp_path)
    with pytest.raises(ValueError, match="is not a run folder"):
        read_pseudo_labels(tmp_path / "nothing")


def test_a_failed_write_leaves_no_half_a_file(run, tmp_path, monkeypatch):
    def lines():
        yield ("a.jpg", "x", 1, 0.5, 1, 0)
        raise OSError("disk full")

    with pytest.raises(ValueError, match="disk full"):
        run(lines())
    assert not list(tmp_path.glob("pseudo_labels*"))
    with (run([("b.jpg", "x", 1, 0.5, 1, 0)]) / "pseudo_labels.csv").open(newline="") as opened:
        assert next(csv.DictReader(opened))["image"] == "b.jpg"
