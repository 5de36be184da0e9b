"""Kill commands at every file operation: the old or the new result is complete, and the command works again.

By default, a few points of each command are tested; with TAGSPREAD_SOAK=1, all of them.
"""

import csv
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import tagspread as ts
from tagspread.cli import app
from tagspread.export import onnx as exporting
from tagspread.export.compare import Compared
from tagspread.files import LOCK, is_temporary
from tagspread.run.artifact import is_whole
from tests.faults.killing import count_operations, kill

SOAK = os.environ.get("TAGSPREAD_SOAK") == "1"
SAMPLE = 2
FEW = 10  # operations of a command that writes one file


def points(total, name):
    return (
        range(total)
        if SOAK
        else sorted(random.Random(name).sample(range(total), SAMPLE if total < FEW else 2 * SAMPLE))
    )


def litter(top):
    return [path for path in top.rglob("*") if is_temporary(path.name) or path.name.endswith(LOCK)]


def remove(paths):
    for path in paths:
        path.unlink() if path.is_file() else shutil.rmtree(path)


def tell(record_property, name, total, tried):
    record_property(name, f"{tried} of {total} points")
    sys.stdout.write(f"{name}: {tried} of {total} points\n")


@pytest.fixture
def killed(tmp_path, record_property):
    """Return a function that kills a job at each tested point, starting from the folder that ``start`` creates."""

    def run(name, start, job, check):
        top = tmp_path / "work"

        def renew():
            shutil.rmtree(top, ignore_errors=True)
            top.mkdir()
            start(top)

        renew()
        total = count_operations(lambda: job(top), top)
        assert total > 3
        chosen = points(total, name)
        for at in chosen:
            renew()
            assert kill(lambda: job(top), top, at), f"{name} ended before operation {at} of {total}"
            try:
                check(top)
                assert not litter(top)
            except BaseException as error:
                error.add_note(f"{name}, killed at operation {at} of {total}")
                raise
        tell(record_property, name, total, len(chosen))

    return run


def train_again(trainings, out, **more):
    """Run the same command again; if a started run refuses it and recommends resuming, resume the run."""
    try:
        return trainings.train(out, 2, **more)
    except ts.TagspreadError as error:
        assert "resume" in str(error)  # noqa: PT017
        return trainings.train(out, 2, resume=True)


def test_train(killed, trainings):
    def check(top):
        assert trainings.who(top / "run") in (None, "new")
        train_again(trainings, top / "run")
        assert trainings.who(top / "run") == "new"
        assert is_whole(top / "run")

    killed("train", lambda top: None, lambda top: trainings.train(top / "run", 2), check)


def check_overwritten(trainings, run):
    """Check that one of the two runs is complete; an incomplete run must name the folder of the old one."""
    found = trainings.who(run)
    if found is None:
        assert trainings.who(run / "previous") == "old"
        with pytest.raises(ts.TagspreadError, match=rf"The run that it replaces is in {run / 'previous'}\."):
            ts.load(run, device="cpu")
    return found


def test_overwrite(killed, trainings):
    def check(top):
        run = top / "run"
        check_overwritten(trainings, run)
        trainings.train(run, 2, overwrite=True)
        assert trainings.who(run) == "new"
        assert is_whole(run)
        assert not (run / "previous").exists()

    def start(top):
        shutil.copytree(trainings.top / "old", top / "run")

    killed("overwrite", start, lambda top: trainings.train(top / "run", 2, overwrite=True), check)


def test_overwrite_with_a_head(killed, trainings):
    """The head is fitted and the labeled-only model is saved before the first checkpoint."""
    how = {"mode": "head"}

    def check(top):
        run = top / "run"
        if check_overwritten(trainings, run) == "old":
            assert json.loads((run / "config.json").read_text())["settings"]["mode"] == "full"
        trainings.train(run, 3, overwrite=True, **how)
        assert trainings.who(run) == "head"
        assert is_whole(run)
        assert not (run / "previous").exists()

    def start(top):
        shutil.copytree(trainings.top / "old", top / "run")

    if "head" not in trainings.answers:
        trainings.learn("head", trainings.train(trainings.top / "head", 3, **how).path)
    killed("overwrite, head", start, lambda top: trainings.train(top / "run", 3, overwrite=True, **how), check)


def test_an_overwrite_that_was_killed_is_resumed(killed, trainings):
    """Resuming continues the new run if it has started, and never mistakes the remains of the old run for it."""

    def check(top):
        run = top / "run"
        before = check_overwritten(trainings, run)
        seed = json.loads((run / "config.json").read_text())["settings"]["seed"]
        try:
            trainings.train(run, seed, resume=True)
        except ts.TagspreadError as error:
            assert "was being replaced" in str(error)  # noqa: PT017
            assert trainings.who(run / "previous") == "old"
            return
        assert trainings.who(run) == (before or "new")

    def start(top):
        shutil.copytree(trainings.top / "old", top / "run")

    killed("overwrite, then resume", start, lambda top: trainings.train(top / "run", 2, overwrite=True), check)


def test_resume(killed, trainings, tmp_path):
    begun = tmp_path / "begun"
    begun.mkdir()
    total = count_operations(lambda: trainings.train(begun / "run", 2), begun)
    shutil.rmtree(begun / "run")
    next(at for at in range(total // 3, total) if _has_an_epoch(trainings, begun, at))

    def check(top):
        run = top / "run"
        assert trainings.who(run) in (None, "new")
        trainings.train(run, 2, resume=True)
        assert trainings.who(run) == "new"

    def start(top):
        shutil.copytree(begun / "run", top / "run")

    killed("resume", start, lambda top: trainings.train(top / "run", 2, resume=True), check)


def _has_an_epoch(trainings, top, at):
    shutil.rmtree(top / "run", ignore_errors=True)
    assert kill(lambda: trainings.train(top / "run", 2), top, at)
    return (top / "run" / "log.jsonl").exists()


@dataclass
class Writing:
    """A command that writes files, with its arguments and the names of the files."""

    words: Callable[[Path, Path], list[object]]  # arguments, given the image folder and the working folder
    files: tuple[str, ...]
    asks: bool = True  # whether it needs --overwrite to replace a file


WRITING = {
    "predict": Writing(lambda images, top: ["predict", top / "run", images, "-o", top / "tags.csv"], ("tags.csv",)),
    "predict, parquet": Writing(
        lambda images, top: ["predict", top / "run", images, "-o", top / "tags.parquet"], ("tags.parquet",)
    ),
    "fill": Writing(
        lambda images, top: ["predict", top / "run", images, "--fill", top / "gaps.csv", "-o", top / "full.csv"],
        ("full.csv",),
    ),
    "thresholds": Writing(
        lambda images, top: ["thresholds", top / "run", "--labels", images / "test.csv", "--policy", "match"],
        ("run/labels.json",),
        asks=False,
    ),
    "report": Writing(lambda images, top: ["report", top / "run"], ("run/report.html",), asks=False),
    "report elsewhere": Writing(lambda images, top: ["report", top / "run", "-o", top / "page.html"], ("page.html",)),
    "onnx": Writing(lambda images, top: ["export", top / "run", "--onnx", top / "t.onnx"], ("t.onnx",)),
    "label studio": Writing(
        lambda images, top: ["pseudo-labels", top / "run", "--label-studio", top / "tasks.json"],
        ("tasks.xml", "tasks.json"),
    ),
    "fiftyone": Writing(
        lambda images, top: ["pseudo-labels", top / "run", "--fiftyone", top / "labels.json"], ("labels.json",)
    ),
    "corrected": Writing(
        lambda images, top: ["pseudo-labels", top / "run", "--corrected", images / "test.csv", "-o", top / "all.csv"],
        ("all.csv",),
    ),
    "embed": Writing(
        lambda images, top: ["embed", images / "p000.png", "-o", top / "f.npz", "--backbone", "small", "--weights",
                             "none", "--image-size", "24"],
        ("f.npz",),
    ),
}  # fmt: skip


def call(words):
    torch.manual_seed(0)
    result = CliRunner().invoke(app, [*map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output


@pytest.fixture
def quick_onnx(monkeypatch):
    """Skip exporting and comparing the graph, which take seconds and are tested elsewhere."""
    monkeypatch.setattr(exporting, "_graph", lambda tagger: b"graph" * 1000)
    monkeypatch.setattr(exporting, "compare", lambda *_: Compared("no images", 0.0, 0.0))


@pytest.mark.parametrize(
    ("name", "replacing"),
    [(name, way) for name in WRITING for way in ((True, False) if WRITING[name].asks else (True,))],
)
def test_what_is_written(name, replacing, killed, trainings, folder, quick_onnx, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    writing = WRITING[name]
    before = {file: b"an old one" for file in writing.files if replacing and writing.asks}
    after: dict[str, bytes] = {}

    def start(top):
        shutil.copytree(trainings.top / "old", top / "run")
        with (top / "gaps.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("image", "0", "1"), ("p000.png", "", "1"), ("p001.png", "0", "")])
        for file, content in before.items():
            (top / file).write_bytes(content)

    def words(top):
        return [*writing.words(folder, top), *(["--overwrite"] if replacing and writing.asks else [])]

    def contents(top):
        return {file: (top / file).read_bytes() for file in writing.files if (top / file).exists()}

    def job(top):
        call(words(top))

    def check(top):
        found = contents(top)
        if not after:  # the whole result
            fresh = top.with_name("after")
            shutil.rmtree(fresh, ignore_errors=True)
            top.rename(fresh)
            top.mkdir()
            start(top)
            before.update({file: (top / file).read_bytes() for file in writing.files if (top / file).exists()})
            job(top)
            after.update(contents(top))
            shutil.rmtree(top)
            fresh.rename(top)
        for file in writing.files:
            assert found.get(file) in (before.get(file), after[file]), f"{file} is neither the old nor the new one"
        assert trainings.answer(top / "run") is not None
        if not replacing and writing.asks and found == after:
            with pytest.raises(ts.TagspreadError, match="exists"):
                job(top)
        else:
            job(top)
            assert contents(top) == after
        if found == after and not replacing:  # of a command that is refused as its file is there
            remove(litter(top))

    killed(f"{name}{', replacing' if replacing else ''}", start, job, check)


@pytest.mark.parametrize("replacing", [True, False])
def test_a_folder_for_others(replacing, killed, trainings):
    def start(top):
        shutil.copytree(trainings.top / "new", top / "run")
        (top / "hub").mkdir()
        (top / "hub" / "mine.txt").write_text("mine")
        if replacing:
            call(["export", trainings.top / "old", "--hub", top / "hub"])

    def job(top):
        call(["export", top / "run", "--hub", top / "hub", *(["--overwrite"] if replacing else [])])

    def check(top):
        hub = top / "hub"
        found = trainings.who(hub)
        if found is None and replacing:
            assert trainings.who(hub / "previous") == "old"
        if found == "new" and not replacing:
            with pytest.raises(ts.TagspreadError, match="already holds"):
                job(top)
            remove(litter(top))
        else:
            job(top)
        assert trainings.who(hub) == "new"
        assert not (hub / "previous").exists()
        assert (hub / "mine.txt").read_text() == "mine"

    killed(f"hub{', replacing' if replacing else ''}", start, job, check)
