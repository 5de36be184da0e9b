"""Runs record their images: label tables may be deleted and the image folder moved."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tagspread as ts
from tagspread.cli import app
from tagspread.data.datasets.digits import CLASSES
from tagspread.data.tables.read import read_table
from tagspread.predict.evaluation import evaluate
from tagspread.run.config import RunConfig
from tagspread.run.split import Part, read_split
from tests.methods.helpers import stopped
from tests.predict.conftest import QUICK, tags_of, write_csv

BRIEF = QUICK | {"warmup_epochs": 1, "epochs": 2}
MODELS = ("model.safetensors", "ema.safetensors", "pseudo_labels.csv", "split.csv")
REPORTED = ("metrics.json", "labels.json")


def tagspread(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def mine(folder: Path, tmp_path: Path) -> Path:
    """A copy of the image folder and its label tables, which a test may delete or move."""
    return shutil.copytree(folder, tmp_path / "mine")


def without_tables(images: Path) -> None:
    for table in ("labels.csv", "test.csv"):
        (images / table).unlink()


def same_run(one: Path, other: Path) -> None:
    for name in MODELS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    for name in REPORTED:
        figures = [json.loads((run / name).read_text()) for run in (one, other)]
        for found in figures:
            # the times it took, its name, and the digests of files with these
            for own in ("seconds", "timings", "run", "sha256"):
                found.pop(own, None)
        assert figures[0] == figures[1], name


def test_evaluate_and_thresholds(mine, folder, tmp_path):
    run = ts.train(mine, mine / "labels.csv", tmp_path / "run", test_labels=mine / "test.csv", **BRIEF).path
    before = json.loads(tagspread("evaluate", run, "--samples", 2, "--json"))
    without_tables(mine)
    assert json.loads(tagspread("evaluate", run, "--samples", 2, "--json")) == before
    moved = mine.rename(tmp_path / "moved")
    with pytest.raises(
        ts.TagspreadError, match=r"mine, no longer exists; if it was moved, give the new one with images=DIR"
    ):
        tagspread("evaluate", run)
    assert json.loads(tagspread("evaluate", run, "--samples", 2, "--json", "--images", moved)) == before
    assert (before["trained_on"], before["images"]) == (0, 60)
    said = tagspread("evaluate", run, "--labels", folder / "labels.csv", "--images", moved, "--samples", 2)
    assert "60 of these 60 images were used in training" in said
    said = tagspread("thresholds", run, "--labels", folder / "test.csv", "--images", moved)
    assert "trained on" not in said
    after = json.loads(tagspread("evaluate", run, "--samples", 2, "--json", "--images", moved))
    assert (after["thresholds_chosen_on"], after["map"]) == (60, before["map"])


def test_corrections_are_merged_with_the_recorded_labels(mine, drawn, tmp_path):
    run = ts.train(mine, mine / "labels.csv", tmp_path / "run", test_share=0.2, selection="held_out", **BRIEF).path
    labels = read_table(mine / "labels.csv", mine)
    without_tables(mine)
    moved = mine.rename(tmp_path / "moved")
    ticked = {"type": "choices", "from_name": "tags", "value": {"choices": tags_of(drawn.y[80]).split("|")}}
    export = tmp_path / "corrected.json"
    export.write_text(json.dumps([{"data": {"file_name": "p080.png"}, "annotations": [{"result": [ticked]}]}]))
    merge = ["pseudo-labels", run, "--corrected", export, "--out", tmp_path / "both.csv"]
    with pytest.raises(ts.TagspreadError, match="no longer exists; if it was moved, give the new one with images=DIR"):
        tagspread(*merge)
    assert "60 labeled images of the run and 1 corrected image;" in tagspread(*merge, "--images", moved)
    merged = read_table(tmp_path / "both.csv", moved)
    assert [path.name for path in merged.paths] == [*(path.name for path in labels.paths), "p080.png"]
    assert np.array_equal(merged.aligned(labels.classes, "")[:60], labels.y)
    with pytest.raises(ts.TagspreadError, match="--images is used with --corrected FILE only"):
        tagspread("pseudo-labels", run, "--images", moved)


HEAD: dict[str, Any] = {
    "backbone": "small", "weights": "none", "image_size": 24, "mode": "head", "unlabeled_weight": 1.0, "device": "cpu",
    "quiet": True,
}  # fmt: skip


@pytest.fixture(params=[{"test_share": 0.2, "selection": "held_out"}, {"method": "dicap"}, HEAD])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    changes: dict[str, Any] = request.param
    return HEAD if changes is HEAD else BRIEF | changes


def resume(run: Path, *images: Path) -> str:
    return tagspread("train", *images, "--resume", run, "--device", "cpu", "--quiet")


def test_resumed_without_tables_in_a_folder_that_was_moved(mine, folder, settings, tmp_path, monkeypatch):
    """The result equals that of the uninterrupted run bit for bit, also with new images and labels in the folder."""
    whole = ts.train(folder, folder / "labels.csv", tmp_path / "whole", **settings).path
    run = tmp_path / "run"
    if settings.get("mode") == "head":
        ts.train(mine, mine / "labels.csv", run, **settings)
        (run / "labels.json").unlink()  # a head is fitted at once: only its end can be lost
    else:
        with stopped(4, monkeypatch):
            ts.train(mine, mine / "labels.csv", run, **settings)
    without_tables(mine)
    moved = mine.rename(tmp_path / "moved")
    shutil.copy(moved / "p000.png", moved / "new.png")
    with pytest.raises(
        ts.TagspreadError, match="mine, no longer exists; if it was moved, give the new one: images=DIR"
    ) as caught:
        resume(run)
    assert f"tagspread train DIR --resume {run}" in caught.value.on_command_line
    assert "done" in resume(run, moved)
    same_run(whole, run)
    assert RunConfig.read(run).data.images == str(moved)
    assert "is already finished" in resume(run)


def test_a_list_of_files_is_recorded_too(folder, drawn, tmp_path, monkeypatch):
    files, y = sorted(folder.glob("p*.png")), drawn.y.copy()
    y[60:] = -1
    given: dict[str, Any] = {"classes": CLASSES, "test_share": 0.2, **BRIEF}
    monkeypatch.chdir(folder)
    whole = ts.train([file.name for file in files], y, tmp_path / "whole", **given)
    with stopped(4, monkeypatch):
        ts.train([file.name for file in files], y, tmp_path / "run", **given)
    monkeypatch.chdir(tmp_path)
    assert set(read_split(whole.path).names) == set(map(str, files))
    resume(tmp_path / "run")
    same_run(whole.path, tmp_path / "run")
    found = evaluate(ts.load(whole.path, device="cpu"), samples=2)
    assert found.images == 12
    assert found.map == pytest.approx(whole.metrics["test"]["mAP"])
    table = write_csv(tmp_path / "t.csv", ["image", "tags"], [[f"p{k:03}.png", tags_of(drawn.y[k])] for k in range(70)])
    assert evaluate(ts.load(whole.path, device="cpu"), table, folder, samples=2).trained_on == 48


def test_arrays_are_recorded_without_their_pixels(drawn, tmp_path):
    y = drawn.y.copy()
    y[60:] = -1
    given: dict[str, Any] = {"classes": CLASSES, "test_share": 0.2, **BRIEF}
    run = ts.train(drawn.images, y, tmp_path / "run", **given)
    split = read_split(run.path)
    assert split.names == [f"number {row}" for row in range(160)]
    assert [len(split.rows(part)) for part in (Part.LABELED, Part.TEST, Part.UNLABELED)] == [48, 12, 100]
    (run.path / "labels.json").unlink()
    with pytest.raises(ts.TagspreadError, match="was started from Python with arrays of images"):
        resume(run.path)
    ts.train(drawn.images, y, run.path, resume=True, **given)
    others = drawn.images.copy()
    others[5] = 255 - others[5]
    (run.path / "labels.json").unlink()
    with pytest.raises(ts.TagspreadError, match=r"is of other data: 1 image is changed \(number 5\). Resume with the"):
        ts.train(others, y, run.path, resume=True, **given)


@pytest.fixture
def begun(mine, tmp_path, monkeypatch):
    """A run that was stopped in its first epoch."""
    with stopped(1, monkeypatch):
        ts.train(mine, mine / "labels.csv", tmp_path / "run", test_labels=mine / "test.csv", **BRIEF)
    return tmp_path / "run"


def test_other_images_are_named_when_a_run_is_resumed(begun, mine):
    new = mine / "p160.png"
    shutil.copy(mine / "p001.png", new)
    (mine / "p150.png").unlink()
    (mine / "p151.png").write_bytes((mine / "p152.png").read_bytes())
    again: dict[str, Any] = {"test_labels": mine / "test.csv", "resume": True, **BRIEF}
    with pytest.raises(ts.TagspreadError) as caught:
        ts.train(mine, mine / "labels.csv", begun, **again)
    words = "is of other data: 1 image is new (p160.png); 1 image is missing (p150.png); 1 image is changed (p151.png)."
    assert words in str(caught.value)
    with pytest.raises(ts.TagspreadError, match=r"1 image is missing \(p150.png\); 1 image is changed \(p151.png\)\."):
        resume(begun)  # which looks for no other images than those it was started with
    new.unlink()
    for name in ("p150.png", "p151.png"):
        shutil.copy(mine / "p000.png", mine / name)
    lines = (mine / "labels.csv").read_text().splitlines()
    lines[1] = lines[1].split(",")[0] + ","
    (mine / "labels.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(ts.TagspreadError, match=r"1 image is labeled differently \(p000.png\)"):
        ts.train(mine, mine / "labels.csv", begun, **again)


def test_a_lost_split_is_written_again(begun, mine, tmp_path):
    before = (begun / "split.csv").read_bytes()
    (begun / "split.csv").unlink()
    resume(begun)
    assert (begun / "split.csv").read_bytes() == before


def test_a_damaged_split_is_not_gone_on_from(begun):
    file = begun / "split.csv"
    file.write_text(file.read_text().replace(",labeled,", ",labelled,", 1))
    with pytest.raises(ts.TagspreadError, match=r"split.csv line \d+ is damaged"):
        resume(begun)


def test_resume_takes_the_recorded_labels_in_python_too(begun, mine, tmp_path):
    without_tables(mine)
    run = ts.train(None, None, begun, resume=True, **BRIEF)
    assert run.metrics["test"]["images"] == 60
    with pytest.raises(ts.TagspreadError, match="labels is None; give labels, or resume=True"):
        ts.train(mine, None, tmp_path / "new", **BRIEF)
    with pytest.raises(ts.TagspreadError, match="omit test_labels and test_share"):
        ts.train(mine, None, begun, resume=True, test_share=0.5, **BRIEF)


def test_what_is_in_the_split(mine, folder, drawn, tmp_path):
    """split.csv has the part and labels of each image, also of the broken one."""
    run = ts.train(mine, mine / "labels.csv", tmp_path / "run", test_labels=mine / "test.csv", method="dicap", **BRIEF)
    split = read_split(run.path)
    assert sorted(split.names) == sorted(path.name for path in folder.glob("*.png"))
    place = {name: row for row, name in enumerate(split.names)}
    assert split.parts[place["broken.png"]] == Part.OMITTED
    assert len(split.rows(Part.TEST)) == 60
    assert len(split.rows(Part.UNLABELED)) == 40
    apart = split.rows(Part.APART)
    assert len(apart) == 60 - len(split.rows(Part.LABELED)) > 0
    order = [split.classes.index(name) for name in CLASSES]
    for k in range(120):
        assert split.y[place[f"p{k:03}.png"], order].tolist() == drawn.y[k].tolist()
    assert (split.y[split.rows(Part.UNLABELED)] == -1).all()
