"""``--overwrite`` on a full disk: the old run and its folder stay unchanged."""

import errno
import os
import shutil
from contextlib import nullcontext
from typing import NamedTuple

import pytest

import tagspread as ts
from tagspread import files
from tagspread.run.folder import RunFolder
from tagspread.train import trainer


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def run(trainings, tmp_path):
    return shutil.copytree(trainings.top / "old", tmp_path / "run")


@pytest.fixture
def no_links(monkeypatch):
    """Simulate a file system without hard links."""

    def refuse(*_, **__):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    return lambda: monkeypatch.setattr(os, "link", refuse)


def contents(run):
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_too_little_is_free(run, trainings, monkeypatch):
    before = contents(run)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 10**4))
    with pytest.raises(ts.TagspreadError, match=r"has 0.0 GB free but the run needs"):
        trainings.train(run, 2, overwrite=True)
    assert contents(run) == before
    assert trainings.who(run) == "old"


@pytest.mark.parametrize("links", [True, False])
def test_room_for_copies_is_asked_for_where_there_are_no_links(links, run, monkeypatch, no_links):
    if not links:
        no_links()
    there = sum(map(len, contents(run).values()))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(there, 0, there))
    folder = RunFolder(run)
    with nullcontext() if links else pytest.raises(ts.TagspreadError, match="free disk space"), folder.locked():
        folder.create(overwrite=True, bytes_needed=1)


def test_where_there_are_no_links_the_old_run_is_copied(run, trainings, no_links):
    no_links()
    trainings.train(run, 2, overwrite=True)
    assert trainings.who(run) == "new"
    assert not (run / "previous").exists()


@pytest.mark.parametrize("links", [True, False])
def test_the_disk_is_full_at_any_write_before_the_first_checkpoint(links, run, trainings, monkeypatch, no_links):
    """Each write in turn fails as on a full disk, until the new run has started."""
    before = contents(run)
    if not links:
        no_links()
    usual = files._finish
    for full_at in range(100):
        writes = iter(range(10**4))

        def finish(descriptor, mode, full_at=full_at, writes=writes):
            if next(writes) >= full_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            usual(descriptor, mode)

        with monkeypatch.context() as patch:
            patch.setattr(files, "_finish", finish)
            with pytest.raises(ts.TagspreadError, match="No space left on device"):
                trainings.train(run, 2, overwrite=True)
        if trainings.who(run) != "old":
            break
        assert contents(run) == before
    assert full_at >= 2  # settings and the first checkpoint
    assert trainings.who(run / "previous") == "old"
    with pytest.raises(ts.TagspreadError, match=r"The run that it replaces is in .*previous"):
        ts.load(run, device="cpu")
    trainings.train(run, 2, resume=True)
    assert trainings.who(run) == "new"


def test_a_run_that_cannot_start_leaves_the_old_one(run, trainings, monkeypatch):
    before = contents(run)

    def fail(*_, **__):
        raise ValueError("no start")

    monkeypatch.setattr(trainer, "Training", fail)  # settings and split are written by then
    with pytest.raises(ValueError, match="no start"):
        trainings.train(run, 2, overwrite=True)
    assert contents(run) == before
