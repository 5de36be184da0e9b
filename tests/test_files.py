"""Locks hold between open files, so one process can play two."""

import pytest

from tagspread import files as locks
from tagspread.files import Needed, alone


def test_one_at_a_time(tmp_path):
    file = tmp_path / "not" / "there" / ".lock"
    with alone(file) as mine, alone(file, wait=False) as other:
        assert mine
        assert not other
    with alone(file, wait=False) as free:
        assert free


def test_the_last_one_to_let_go_is_told_so(tmp_path):
    first, second, third = (Needed(tmp_path / ".needed") for _ in range(3))
    with first.let_go() as last:
        assert not last
    second.close()
    with third.let_go() as last:
        assert last


@pytest.mark.parametrize("trouble", ["no module", "no locks on this drive"])
def test_everybody_goes_on_where_there_are_no_locks(tmp_path, monkeypatch, trouble):
    def refuse(*_):
        raise OSError(37, "No locks available")

    if trouble == "no module":
        monkeypatch.setattr(locks, "fcntl", None)
    else:
        monkeypatch.setattr("fcntl.flock", refuse)
    with alone(tmp_path / ".lock") as mine, alone(tmp_path / ".lock", wait=False) as other:
        assert mine
        assert other
    with Needed(tmp_path / ".needed").let_go() as last:
        assert last
