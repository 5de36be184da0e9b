"""Advice of messages about a full disk: it depends on what was being written."""

import errno
import os

import pytest

from tagspread import files
from tagspread.errors import TagspreadError
from tagspread.run.folder import CHOSEN, RunFolder


@pytest.mark.parametrize(("doing", "words"), [((), "then resume with --resume"), ((CHOSEN,), "run the command again")])
def test_only_a_training_is_resumed(tmp_path, monkeypatch, doing, words):
    """Choosing thresholds is repeated, not resumed."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = RunFolder(tmp_path)
    monkeypatch.setattr(files, "_finish", full)
    with pytest.raises(TagspreadError) as caught, folder.locked(*doing):
        folder.write_json("labels.json", {})
    assert words in caught.value.on_command_line
    assert ("--resume" in caught.value.on_command_line) == (not doing)
    assert not (tmp_path / "labels.json").exists()
