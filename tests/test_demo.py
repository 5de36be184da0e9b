import subprocess
import sys

import numpy as np
import pytest

from tagspread.demo import DemoSize, run_demo
from tagspread.errors import TagspreadError
from tagspread.progress import Watcher


def test_cap_is_ahead_of_labeled_only_in_mean_over_seeds(tmp_path):
    size = DemoSize(canvases=1200, test=400, warmup_epochs=25, epochs=6)
    gains = []
    for seed in range(3):
        runs = run_demo(tmp_path / str(seed), size, seed, Watcher(quiet=True))
        asl, cap = (runs[name].metrics["test"]["mAP"] for name in ("labeled only", "CAP"))
        gains.append(cap - asl)
    assert np.mean(gains) > 0.02, gains


def test_the_command(tmp_path):
    command = [sys.executable, "-m", "tagspread", "demo", "--canvases", "100", "--epochs", "1", "--out", "here"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "with unlabeled (CAP)" in result.stdout
    assert (tmp_path / "here" / "cap" / "metrics.json").is_file()
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "holds another run" in again.stderr


@pytest.mark.parametrize("there", ['{"tagspread": "0.1.0"}', "{}"])
def test_the_runs_do_not_go_into_the_folder_of_another(there, tmp_path):
    """The demo refuses a run folder and a folder with other files, before it trains either run."""
    (tmp_path / "config.json").write_text(there)
    words = "holds another run" if "tagspread" in there else "holds files that do not belong to a run"
    with pytest.raises(TagspreadError, match=words):
        run_demo(tmp_path, DemoSize(canvases=100, test=10, epochs=1), 0, Watcher(quiet=True), overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
    (tmp_path / "config.json").unlink()
    (tmp_path / "cap").mkdir()
    (tmp_path / "cap" / "config.json").write_text('{"tagspread": "0.1.0"}')
    (tmp_path / "cap" / "log.jsonl").write_text("{}\n")  # it has begun
    with pytest.raises(TagspreadError, match="cap holds another run"):
        run_demo(tmp_path, DemoSize(canvases=100, test=10, epochs=1), 0, Watcher(quiet=True))
    assert not (tmp_path / "asl").exists()
