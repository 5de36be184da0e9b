"""Two processes use the same run or file: one gets an error that names the other process, and nothing is lost."""

import shutil
from typing import Any

import pytest
from typer.testing import CliRunner

import tagspread as ts
from tagspread import api
from tagspread.cli import app
from tagspread.predict import tagger
from tagspread.predict.tagger import Tagger
from tagspread.run.artifact import is_whole
from tagspread.run.folder import RunFolder
from tests.faults.killing import count_operations, kill, paused_child
from tests.faults.test_killed import call, litter

WAYS: dict[str, dict[str, Any]] = {"train": {}, "overwrite": {"overwrite": True}, "resume": {"resume": True}}


@pytest.fixture
def begin(trainings, tmp_path):
    """Return a function that creates the folder of a training: empty, with a run, or with an interrupted run."""

    def make(way):
        run = tmp_path / "work" / "run"
        run.parent.mkdir()
        if way == "overwrite":
            shutil.copytree(trainings.top / "old", run)
        if way == "resume":
            total = count_operations(lambda: trainings.train(run, 2), run.parent)
            shutil.rmtree(run)
            assert kill(lambda: trainings.train(run, 2), run.parent, total // 2)
        return run

    return make


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", WAYS)
def test_one_trains(first, second, begin, trainings):
    run = begin(first)
    with paused_child(lambda: trainings.train(run, 2, **WAYS[first]), RunFolder, "write_log") as pid:
        words = (
            rf"run is being trained by process {pid} on host .* \(since .*\); wait for it, or choose another folder\."
        )
        with pytest.raises(ts.TagspreadError, match=words):
            trainings.train(run, 3, **WAYS[second])
    assert trainings.who(run) == "new"
    assert is_whole(run)
    assert not (run / "previous").exists()
    assert not litter(run)


@pytest.mark.parametrize("second", WAYS)
def test_one_reads_its_images(second, begin, trainings):
    """The folder is locked before any long computation."""
    run = begin("overwrite")
    with paused_child(lambda: trainings.train(run, 2, overwrite=True), api, "dataset_from_folder") as pid:
        assert trainings.who(run) == "old"
        with pytest.raises(ts.TagspreadError, match=f"is being trained by process {pid}"):
            trainings.train(run, 3, **WAYS[second])
    assert trainings.who(run) == "new"


def test_the_command_line_changes_nothing_of_a_run_that_is_being_replaced(begin, trainings):
    run = begin("overwrite")
    with paused_child(lambda: trainings.train(run, 2, overwrite=True), api, "dataset_from_folder") as pid:
        for words in (["train", "--resume", run], ["thresholds", run, "--labels", trainings.folder / "test.csv"]):
            result = CliRunner().invoke(app, [*map(str, words)])
            assert f"is being trained by process {pid}" in str(result.exception)


def predict(images, top):
    return ["predict", top / "run", images, "-o", top / "tags.csv", "--overwrite"]


def fill(images, top):
    return ["predict", top / "run", images, "--fill", images / "labels.csv", "-o", top / "tags.csv", "--overwrite"]


@pytest.mark.parametrize("first", [predict, fill])
@pytest.mark.parametrize("second", [predict, fill])
def test_one_file(first, second, trainings, folder, tmp_path):
    shutil.copytree(trainings.top / "old", tmp_path / "run")
    call(first(folder, tmp_path))
    alone = (tmp_path / "tags.csv").read_bytes()
    (tmp_path / "tags.csv").write_bytes(b"an old one")
    with paused_child(lambda: call(first(folder, tmp_path)), Tagger, "stream") as pid:
        with pytest.raises(ts.TagspreadError, match=rf"tags.csv is being written by process {pid} on host"):
            call(second(folder, tmp_path))
        assert (tmp_path / "tags.csv").read_bytes() == b"an old one"
    assert (tmp_path / "tags.csv").read_bytes() == alone
    assert not litter(tmp_path)


def test_a_file_that_another_process_has_just_written_is_kept(trainings, folder, tmp_path, monkeypatch):
    """Both started before the file existed; the second one must not replace it."""
    shutil.copytree(trainings.top / "old", tmp_path / "run")
    usual = tagger.load

    def slow(*args):
        (tmp_path / "tags.csv").write_bytes(b"the other's")
        return usual(*args)

    monkeypatch.setattr(tagger, "load", slow)
    with pytest.raises(ts.TagspreadError, match="exists"):
        call(predict(folder, tmp_path)[:-1])
    assert (tmp_path / "tags.csv").read_bytes() == b"the other's"
