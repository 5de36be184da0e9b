"""Runs record which images they were trained on and which they held out for testing."""

import json
import shutil

import pytest
from typer.testing import CliRunner

import tagspread as ts
from tagspread.cli import app
from tagspread.predict.evaluation import decide_on_table, evaluate
from tests.predict.conftest import QUICK, tags_of, write_csv

BRIEF = QUICK | {"warmup_epochs": 1, "epochs": 1}


@pytest.fixture(scope="module")
def shared(folder, tmp_path_factory):
    """A run that set 12 of its 60 labeled images aside for testing."""
    out = tmp_path_factory.mktemp("runs") / "shared"
    return ts.train(folder, folder / "labels.csv", out, test_share=0.2, **BRIEF)


def say(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_a_share_put_aside_does_not_hide_what_was_trained_on(shared, folder):
    found = evaluate(ts.load(shared.path, device="cpu"), folder / "labels.csv", samples=2)
    assert (found.trained_on, found.images) == (48, 60)
    assert (
        "48 of these 60 images were used in training"
        in say("evaluate", shared.path, "--labels", folder / "labels.csv").output
    )


def test_without_labels_the_run_is_measured_on_what_it_put_aside(shared, folder, tmp_path):
    result = say("evaluate", shared.path, "--samples", 2)
    assert result.exit_code == 0
    assert "evaluating on the run's 12 labeled images that were set aside for testing" in result.output
    assert "trained on" not in result.output
    found = json.loads(say("evaluate", shared.path, "--samples", 2, "--json").stdout)
    assert found["map"] == pytest.approx(shared.metrics["test"]["mAP"])
    assert (found["images"], found["trained_on"]) == (12, 0)
    shutil.copytree(shared.path, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["data"]["images"] = str(tmp_path / "gone")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    moved = ts.load(tmp_path / "run", device="cpu")
    with pytest.raises(ts.TagspreadError, match="no longer exists"):
        evaluate(moved)
    assert evaluate(moved, images=folder, samples=2).map == found["map"]


def test_or_on_its_table_of_test_labels(run, tagger):
    result = say("evaluate", run, "--samples", 2)
    assert "no --labels given: evaluating on the run's 60 test images" in result.output
    assert evaluate(tagger, samples=2).map == pytest.approx(
        json.loads((run / "metrics.json").read_text())["test"]["mAP"]
    )


def test_a_run_that_kept_none_says_so(folder, tmp_path):
    run = ts.train(folder, folder / "labels.csv", tmp_path / "run", **BRIEF).path
    result = say("evaluate", run)
    assert isinstance(result.exception, ts.TagspreadError)  # main() makes it exit code 2
    assert "has no test images" in str(result.exception)
    assert "--labels" in result.exception.on_command_line


def test_thresholds_are_not_chosen_on_what_was_trained_on(run, folder, drawn, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    before = (tmp_path / "run" / "labels.json").read_bytes()
    tagger = ts.load(tmp_path / "run", device="cpu")
    with pytest.raises(ts.TagspreadError, match=r"was trained on all images of .*labels.csv \(60 images\)"):
        decide_on_table(tagger, folder / "labels.csv")
    assert (tmp_path / "run" / "labels.json").read_bytes() == before
    mixed = write_csv(
        tmp_path / "mixed.csv", ["image", "tags"], [[f"p{i:03}.png", tags_of(drawn.y[i])] for i in range(50, 70)]
    )
    said = say("thresholds", tmp_path / "run", "--labels", mixed).output
    assert "note: 10 of these 20 images were used in training" in said
    said = say("thresholds", tmp_path / "run", "--labels", folder / "test.csv").output
    assert "trained on" not in said
