"""From answers to labels: exported, added to a table, and trained on."""

import csv
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tagspread as ts
from tagspread.cli.review import review as review_command
from tagspread.data.datasets.digits import CLASSES, digit_canvases
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError
from tagspread.review.answers import AnswerStore
from tagspread.review.index import fresh_index
from tagspread.review.prepare import prepare_index
from tagspread.review.session import Given, Review
from tagspread.review.table import Answered, add_answers, read_answered
from tagspread.run.split import Part, read_split

QUICK: dict[str, Any] = {
    "backbone": "small", "weights": "none", "image_size": 24, "batch": 32, "lr": 0.003, "flip": False, "device": "cpu",
    "warmup_epochs": 2, "epochs": 1, "preset": "paper", "quiet": True,
}  # fmt: skip
LABELED, TEST, COUNT = 30, 20, 90


@pytest.fixture(scope="module")
def drawn():
    return digit_canvases(COUNT, 1, seed=0)[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, drawn):
    """A trained run with 40 unlabeled images, its folder of images, and its two tables."""
    top = tmp_path_factory.mktemp("photos")
    for k, image in enumerate(drawn.images):
        Image.fromarray(image.transpose(1, 2, 0)).save(top / f"p{k:03}.png")
    for name, rows in (("labels.csv", range(LABELED)), ("test.csv", range(LABELED, LABELED + TEST))):
        lines = [(f"p{k:03}.png", "|".join(np.array(CLASSES)[drawn.y[k] == 1])) for k in rows]
        with (top / name).open("w", newline="") as opened:
            csv.writer(opened).writerows([("image", "tags"), *lines])
    run = ts.train(top, top / "labels.csv", top.parent / "reviewed", test_labels=top / "test.csv", **QUICK).path
    prepare_index(run, device="cpu", quiet=True)
    return run, top


@pytest.fixture
def answers(trained):
    """The index of the run and its review, whose answers are removed afterwards."""
    run, _ = trained
    index = fresh_index(run)
    assert index is not None
    with AnswerStore.open(run, create=True) as store:
        yield index, Review(run, index, store)
        for name in ("steps", "answers", "visits", "tags", "leases"):
            store._connection.execute(f"DELETE FROM {name}")


def answer_truthfully(index, review, drawn, count=10):
    images = [item["image"] for item in review.next("page", count)]
    for k in images:
        truth = drawn.y[int(index.names[k][1:4])]
        given = [Given(k, tag, "yes" if value else "no") for tag, value in zip(CLASSES, truth, strict=True)]
        review.record("ann", f"batch-{k}", given, [k])
    return [index.names[k] for k in images]


def test_answers_are_exported_retrained_and_compared(trained, answers, drawn, tmp_path, capsys):
    run, folder = trained
    index, review = answers
    assert index.scores[index.unlabeled].shape == (COUNT - LABELED - TEST, len(CLASSES))
    assert set(read_split(run).rows(Part.UNLABELED)) == set(index.rows[index.unlabeled])
    names = answer_truthfully(index, review, drawn)
    review_command(run, export=tmp_path / "all.csv")
    assert "30 labeled images of the run and 10 reviewed images with 100 answers" in capsys.readouterr().out
    table = read_table(tmp_path / "all.csv", folder)
    assert len(table) == 40
    for path, y in zip(table.paths, table.y, strict=True):
        np.testing.assert_array_equal(y, drawn.y[int(path.name[1:4])])

    first = ts.train(folder, tmp_path / "all.csv", tmp_path / "exported", test_labels=folder / "test.csv", **QUICK)
    second = ts.train(
        folder, folder / "labels.csv", tmp_path / "added", test_labels=folder / "test.csv", answers=run, **QUICK
    )
    splits = [read_split(one.path) for one in (first, second)]
    labels = [dict(zip(split.names, map(tuple, split.y.tolist()), strict=True)) for split in splits]
    assert labels[0] == labels[1]  # both ways train on the same labels
    for split in splits:
        labeled = {split.names[row] for row in split.rows(Part.LABELED)}
        assert set(names) <= labeled
        assert len(labeled) == 40
    before = read_split(run)
    assert len(before.rows(Part.LABELED)) == 30
    assert first.metrics["test"]["images"] == second.metrics["test"]["images"] == TEST
    assert first.metrics["test"]["mAP"] is not None


def test_unknown_is_no_label_and_new_tags_are_unknown_elsewhere(trained, answers, tmp_path):
    run, folder = trained
    index, review = answers
    review.add_tag("lynx", "ann")
    review.record("ann", "batch-0001", [Given(0, "lynx", "yes"), Given(0, "0", "unknown"), Given(1, "lynx", "no")])
    review_command(run, export=tmp_path / "out.csv")
    table = read_table(tmp_path / "out.csv", folder)
    lynx = dict(zip([path.name for path in table.paths], table.y[:, table.classes.index("lynx")].tolist(), strict=True))
    assert (lynx.pop(index.names[0]), lynx.pop(index.names[1])) == (1, 0)
    assert set(lynx.values()) == {-1}
    [row] = [k for k, path in enumerate(table.paths) if path.name == index.names[0]]
    assert table.y[row, table.classes.index("0")] == -1


def test_answers_win_over_a_table_and_what_they_overrule_is_said():
    table = LabelTable(["a.png", "b.png"], ("cat", "dog"), np.array([[1, 0], [0, -1]]), unlisted=0)  # type: ignore[list-item]
    given = LabelTable(["b.png", "c.png", "t.png"], ("dog", "cat", "cow", "lynx"),  # type: ignore[list-item]
                       np.array([[1, 1, -1, 1], [-1, 0, 1, -1], [1, 1, 1, 1]]))  # fmt: skip
    answered = Answered(given, ("lynx",), ("gone.png",), ())
    merged, notes = add_answers(table, answered, [given.paths[2]])
    assert [path.name for path in merged.paths] == ["a.png", "b.png", "c.png"]
    assert merged.classes == ("cat", "dog", "cow", "lynx")
    assert merged.y.tolist() == [[1, 0, 0, -1], [1, 1, 0, 1], [0, -1, 1, -1]]
    text = "\n".join(notes)
    assert "1 answered image cannot be found, so their answers are not used (gone.png)" in text
    assert "1 answered image of the test set: the answers are not used" in text
    assert "answers overrule 1 label of the table (b.png: 'cat' is 0 in the table, 1 by the answer)" in text


def test_images_are_found_by_their_content_after_they_were_renamed(trained, answers, drawn, tmp_path):
    run, folder = trained
    index, review = answers
    names = answer_truthfully(index, review, drawn, 3)
    moved = tmp_path / "moved"
    moved.mkdir()
    for k, name in enumerate(names[:2]):
        (moved / f"other{k}.png").write_bytes((folder / name).read_bytes())
    (moved / names[2]).write_bytes((folder / names[0]).read_bytes() + b"changed")  # another file of the same name
    answered = read_answered(run, moved)
    assert sorted(path.name for path in answered.table.paths) == ["other0.png", "other1.png"]
    assert answered.missing == (names[2],)


def test_people_who_disagree_are_named(trained, answers, tmp_path, capsys):
    run, _ = trained
    index, review = answers
    review.record("ann", "batch-0001", [Given(0, "3", "yes")])
    review.record("bob", "batch-0002", [Given(0, "3", "no")])
    review_command(run, export=tmp_path / "out.csv")
    assert f"{index.names[0]}: '3' is no by bob, yes by ann" in capsys.readouterr().out


def test_tables_are_not_overwritten(trained, answers, tmp_path):
    run, folder = trained
    _, review = answers
    review.record("ann", "batch-0001", [Given(0, "3", "yes")])
    before = (folder / "labels.csv").read_bytes()
    for overwrite in (False, True):
        with pytest.raises(TagspreadError):
            review_command(run, export=folder / "labels.csv", overwrite=overwrite)
    assert (folder / "labels.csv").read_bytes() == before


def test_a_run_without_answers_cannot_be_exported_or_added(tmp_path, trained):
    _, folder = trained
    with pytest.raises(TagspreadError, match="has no answers of reviewers"):
        ts.train(folder, folder / "labels.csv", tmp_path / "out", answers=tmp_path, **QUICK)
    assert not (tmp_path / "out").exists()
    with pytest.raises(TagspreadError, match=r"answers is used with a folder of images"):
        ts.train(np.zeros((4, 3, 8, 8), np.uint8), np.zeros((4, 1)), tmp_path / "out", answers=tmp_path, **QUICK)
