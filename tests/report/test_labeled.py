import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tagspread as ts
from tagspread.data.tables.read import read_table
from tagspread.predict.evaluation import count_seen
from tagspread.report.doubtful import doubtful_images
from tagspread.report.labeled import find_labeled
from tagspread.report.page import write_report
from tagspread.report.scored import thumbnail
from tagspread.report.summary import summarize_run
from tagspread.run.artifact import file_digest
from tagspread.run.record import RunRecord
from tagspread.run.split import Part
from tests.report.conftest import QUICK, file_name, write_csv


def reasons(summary):
    return " / ".join(f"{one.what}: {one.why}" for one in summary.missing)


def test_test_images_come_first(run, folder):
    summary: Any = summarize_run(run)
    labeled: Any = find_labeled(summary)
    assert labeled.part.description == "test images"
    assert labeled.part.unseen
    assert len(labeled.part.table) == 40
    labels = read_table(folder / "labels.csv", folder).aligned(summary.classes, "")
    assert np.array_equal(labeled.trained_y, np.delete(labels, 7, axis=0))  # that image is broken
    assert summary.missing == []


@pytest.mark.parametrize(("settings", "part"), [({"test_share": 0.3}, "test"), ({"selection": "held_out"}, "held_out")])
def test_parts_are_those_of_training(folder, tmp_path, settings, part):
    """The metrics equal those of training, so each image is in the same part; one labeled image is broken."""
    quick = QUICK | {"warmup_epochs": 2, "epochs": 1}
    run = ts.train(folder, folder / "labels.csv", tmp_path / "run", **quick, **settings)
    summary: Any = summarize_run(run.path)
    labeled: Any = find_labeled(summary)
    assert len(labeled.part.table) == run.metrics[part]["images"]
    assert labeled.part.unseen
    assert len(labeled.part.table) + len(labeled.trained_y) == 59
    trained = summary.record.table(summary.record.split.rows(Part.LABELED))
    assert not set(labeled.part.table.paths) & set(trained.paths)
    tagger = ts.load(run.path, device="cpu")
    probabilities = tagger.predict(labeled.part.table.paths).probabilities
    assert np.isclose(ts.mean_average_precision(probabilities, labeled.part.table.y), run.metrics[part]["mAP"])


def test_without_a_part_to_test_on_it_says_so(folder, tmp_path):
    quick = QUICK | {"warmup_epochs": 1, "epochs": 1}
    run = ts.train(folder, folder / "labels.csv", tmp_path / "run", **quick).path
    summary: Any = summarize_run(run)
    part: Any = find_labeled(summary).part
    assert not part.unseen
    assert "--test-share" in reasons(summary)
    text = write_report(run, device="cpu").path.read_text()
    assert "images that the model was trained on, so they are optimistic" in text
    assert "average precision <b>" not in text


def test_data_from_python_cannot_be_found(tmp_path):
    images, y = np.zeros((20, 24, 24, 3), np.uint8), np.tile([[1, 0], [0, 1]], (10, 1))
    y[10:] = -1
    quick = QUICK | {"warmup_epochs": 1, "epochs": 1, "batch": 8}
    run = ts.train(images, y, tmp_path / "run", **quick).path
    summary: Any = summarize_run(run)
    labeled: Any = find_labeled(summary)
    assert labeled.part is None
    assert np.array_equal(labeled.trained_y, y[:10])  # which needs no pixels
    assert "started from Python" in reasons(summary)
    assert "--labels FILE" in reasons(summary)
    assert write_report(run).path.exists()
    with pytest.raises(ts.TagspreadError, match="images=DIR"):
        write_report(run, labels="some.csv")


def test_lost_tables_and_moved_images(folder, tmp_path):
    """The label tables are not needed; moved images are reported, and found again with images=DIR."""
    mine = shutil.copytree(folder, tmp_path / "mine")
    quick = QUICK | {"warmup_epochs": 1, "epochs": 1}
    run = ts.train(mine, mine / "labels.csv", tmp_path / "run", test_labels=mine / "test.csv", **quick).path
    for table in ("labels.csv", "test.csv"):
        (mine / table).unlink()
    summary: Any = summarize_run(run)
    labeled: Any = find_labeled(summary)
    assert (len(labeled.part.table), len(labeled.trained_y)) == (40, 59)
    assert summary.missing == []
    before = write_report(run, tmp_path / "before.html", device="cpu")
    assert before.missing == []
    mine.rename(tmp_path / "elsewhere")
    summary = summarize_run(run)
    labeled = find_labeled(summary)
    assert labeled.part is None
    assert len(labeled.trained_y) == 59
    assert "mine, no longer exists; if it was moved, give the new one with --images DIR" in reasons(summary)
    written = write_report(run, tmp_path / "without.html", device="cpu")
    assert [one.what for one in written.missing] == ["Metrics per tag and examples"]
    assert "labeled images, with 90" in written.path.read_text()
    after = write_report(run, tmp_path / "after.html", images=tmp_path / "elsewhere", device="cpu")
    assert after.missing == []
    assert after.path.read_text() == before.path.read_text()


def test_a_run_without_its_split_says_so(copied):
    (copied / "split.csv").unlink()
    summary: Any = summarize_run(copied)
    labeled: Any = find_labeled(summary)
    assert (labeled.trained_y, labeled.part) == (None, None)
    assert "the run has no split.csv" in reasons(summary)


def test_given_images_that_were_trained_on_are_counted(run, folder, tmp_path, drawn_y):
    own = write_csv(tmp_path / "own.csv", range(50, 70), drawn_y)
    part: Any = find_labeled(summarize_run(run), own, folder).part
    tagger = ts.load(run, device="cpu")
    assert count_seen(tagger, part.table).trained_on == 10
    assert len(part.table) == 20
    text = write_report(run, tmp_path / "page.html", labels=own, device="cpu").path.read_text()
    assert "10 of these images were used for training" in text
    moved = shutil.copytree(folder, tmp_path / "moved")  # other files of the same content
    part = find_labeled(summarize_run(run), own, moved).part
    assert count_seen(tagger, part.table).trained_on == 10
    with pytest.raises(ts.TagspreadError, match=r"none\.csv"):
        find_labeled(summarize_run(run), tmp_path / "none.csv", folder)


def test_a_run_from_somebody_else_puts_no_other_images_on_the_page(copied, drawn, tmp_path):
    """An edited config.json names another folder, and an edited split.csv other files: none of them is shown."""
    secret = tmp_path / "secret"
    secret.mkdir()
    for i in range(140):
        Image.new("RGB", (24, 24), (255, 0, i)).save(secret / file_name(i))
    config = json.loads((copied / "config.json").read_text())
    own = Path(config["data"]["images"])
    shown = write_report(copied, tmp_path / "own.html", device="cpu").path.read_text()
    assert "data:image/webp" in shown
    config["data"]["images"] = str(secret)
    (copied / "config.json").write_text(json.dumps(config))
    page = write_report(copied, tmp_path / "page.html", device="cpu")
    assert "data:image" not in page.path.read_text()
    assert (
        "Examples from 40 images",
        "the content differs from the digest that the run recorded in split.csv",
    ) in page.missing
    (secret / file_name(60)).write_bytes((own / file_name(60)).read_bytes())  # what the run knows is shown
    assert "data:image/webp" in write_report(copied, tmp_path / "one.html", device="cpu").path.read_text()


def embedded(report):
    """Return all images in a page, as data URIs."""
    return set(re.findall(r"data:image[^\"'()\s]*", report.path.read_text()))


def rename(run, old, new, tables):
    """Change the name of an image in tables of a run, with their digests, as who made the run could."""
    facts = json.loads((run / "labels.json").read_text())
    for name in tables:
        with (run / name).open(newline="") as file:
            rows = list(csv.reader(file))
        assert any(row[0] == old for row in rows), name
        with (run / name).open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [new if row[0] == old else row[0], *row[1:]] for row in rows
            )
        facts["sha256"][name] = file_digest(run / name)
    (run / "labels.json").write_text(json.dumps(facts))


@pytest.fixture
def outside(folder, tmp_path):
    """Copy an image of the run out of its folder, so that only its place can keep it off a page."""
    beside = tmp_path / "beside"
    shutil.copytree(folder, beside / "images")

    def copy(name):
        return Path(shutil.copy(folder / name, beside / "p.png"))

    return copy


@pytest.mark.parametrize("name", ["{outside}", "../p.png"])
def test_a_name_that_leaves_the_folder_of_images_is_refused(name, copied, outside, tmp_path):
    images = tmp_path / "beside" / "images"
    before = embedded(write_report(copied, tmp_path / "before.html", images=images, device="cpu"))
    old = next(file_name(i) for i in range(60, 100) if thumbnail(images / file_name(i)) in before)  # a test image
    file = outside(old)
    rename(copied, old, name.format(outside=file), ["split.csv"])
    with pytest.raises(ts.TagspreadError, match=r"split\.csv names .* outside the folder of images"):
        RunRecord.read(copied).test_table(images)
    page = write_report(copied, tmp_path / "page.html", images=images, device="cpu")
    assert thumbnail(file) not in embedded(page)
    unlabeled = {one.image for one in doubtful_images(summarize_run(copied), images)}
    assert embedded(page) == unlabeled <= before  # and no other test image: who changes one may have changed all
    assert any("outside the folder of images" in why for _, why in page.missing)


@pytest.mark.parametrize("name", ["{outside}", "../p.png"])
def test_an_unlabeled_image_outside_the_folder_of_images_is_not_shown(name, copied, outside, tmp_path):
    images = tmp_path / "beside" / "images"
    doubtful = doubtful_images(summarize_run(copied), images)
    before = embedded(write_report(copied, tmp_path / "before.html", images=images, device="cpu"))
    assert doubtful[0].image in before
    file = outside(doubtful[0].name)
    inside = images / "again.png"
    shutil.copy(file, inside)
    renamed = shutil.copytree(copied, tmp_path / "renamed")
    rename(renamed, doubtful[0].name, inside.name, ["split.csv", "pseudo_labels.csv"])
    assert doubtful_images(summarize_run(renamed), images)[0].name == inside.name  # a name inside is followed
    rename(copied, doubtful[0].name, name.format(outside=file), ["split.csv", "pseudo_labels.csv"])
    assert doubtful_images(summarize_run(copied), images) == []
    page = write_report(copied, tmp_path / "page.html", images=images, device="cpu")
    assert embedded(page) == before - {one.image for one in doubtful}
