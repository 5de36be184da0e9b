import shutil
from typing import Any

import numpy as np
import pytest

import tagspread as ts
from tagspread.data.tables.read import read_table
from tagspread.report.labeled import find_labeled
from tagspread.report.page import write_report
from tagspread.report.summary import summarize_run
from tests.report.conftest import QUICK, write_csv


def reasons(summary):
    return " / ".join(f"{one.what}: {one.why}" for one in summary.missing)


def test_test_images_come_first(run, folder):
    summary: Any = summarize_run(run)
    labeled: Any = find_labeled(summary)
    assert labeled.part.words == "test images"
    assert labeled.part.fair
    assert len(labeled.part.table) == 40
    assert np.array_equal(labeled.trained.y, read_table(folder / "labels.csv", folder).aligned(summary.classes, ""))
    assert summary.missing == []


@pytest.mark.parametrize(("settings", "part"), [({"test_share": 0.3}, "test"), ({"selection": "held_out"}, "held_out")])
def test_parts_are_those_of_training(folder, tmp_path, settings, part):
    """Were a single image in another part, the figures would differ; one labeled image is broken."""
    quick = QUICK | {"warmup_epochs": 2, "epochs": 1}
    run = ts.train(folder, folder / "labels.csv", tmp_path / "run", **quick, **settings)
    summary: Any = summarize_run(run.path)
    labeled: Any = find_labeled(summary)
    assert len(labeled.part.table) == run.metrics[part]["images"]
    assert labeled.part.fair
    assert len(labeled.part.table) + len(labeled.trained) == 59
    assert not set(labeled.part.table.paths) & set(labeled.trained.paths)
    tagger = ts.load(run.path, device="cpu")
    probabilities = tagger.predict(labeled.part.table.paths).probabilities
    assert np.isclose(ts.mean_average_precision(probabilities, labeled.part.table.y), run.metrics[part]["mAP"])


def test_without_a_part_to_test_on_it_says_so(folder, tmp_path):
    quick = QUICK | {"warmup_epochs": 1, "epochs": 1}
    run = ts.train(folder, folder / "labels.csv", tmp_path / "run", **quick).path
    summary: Any = summarize_run(run)
    part: Any = find_labeled(summary).part
    assert not part.fair
    assert "--test-share" in reasons(summary)
    text = write_report(run, device="cpu").path.read_text()
    assert "it looks better there" in text
    assert "average precision <b>" not in text


def test_data_from_python_cannot_be_found(tmp_path):
    images, y = np.zeros((20, 24, 24, 3), np.uint8), np.tile([[1, 0], [0, 1]], (10, 1))
    y[10:] = -1
    quick = QUICK | {"warmup_epochs": 1, "epochs": 1, "batch": 8}
    run = ts.train(images, y, tmp_path / "run", **quick).path
    summary: Any = summarize_run(run)
    labeled: Any = find_labeled(summary)
    assert (labeled.trained, labeled.part) == (None, None)
    assert "started from Python" in reasons(summary)
    assert "--labels FILE" in reasons(summary)
    assert write_report(run).path.exists()
    with pytest.raises(ts.TagspreadError, match="images=DIR"):
        write_report(run, labels="some.csv")


def moved(copied, **data):
    import json

    config = json.loads((copied / "config.json").read_text())
    config["data"] |= data
    (copied / "config.json").write_text(json.dumps(config))
    return summarize_run(copied)


def test_what_was_moved_is_named(copied, tmp_path):
    summary = moved(copied, labels=str(tmp_path / "gone.csv"))
    assert find_labeled(summary).part is None
    assert "gone.csv, is no longer there" in reasons(summary)
    summary = moved(copied, images=str(tmp_path / "nowhere"))
    assert find_labeled(summary).trained is None
    assert "nowhere, is no longer there" in reasons(summary)


def test_a_lost_test_table_leaves_the_rest(copied, tmp_path):
    summary = moved(copied, test_labels=str(tmp_path / "gone.csv"))
    labeled: Any = find_labeled(summary)
    assert labeled.part is None
    assert len(labeled.trained) == 60
    assert "gone.csv" in reasons(summary)


def test_given_images_that_were_trained_on_are_counted(run, folder, tmp_path, drawn_y):
    own = write_csv(tmp_path / "own.csv", range(50, 70), drawn_y)
    part: Any = find_labeled(summarize_run(run), own, folder).part
    assert part.trained_on == 10
    assert len(part.table) == 20
    text = write_report(run, tmp_path / "page.html", labels=own, device="cpu").path.read_text()
    assert "10 of these images were trained on" in text
    moved = shutil.copytree(folder, tmp_path / "moved")  # other files of the same content
    part = find_labeled(summarize_run(run), own, moved).part
    assert part.trained_on == 10
    with pytest.raises(ts.TagspreadError, match=r"none\.csv"):
        find_labeled(summarize_run(run), tmp_path / "none.csv", folder)
