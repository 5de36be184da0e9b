"""Run ``tagspread predict``, ``evaluate`` and ``thresholds`` as commands."""

import csv
import json
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tagspread.cli import app
from tagspread.errors import TagspreadError


def tagspread(*arguments):
    """Run a command in this process; return what it printed."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def rows_of(file):
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_predict_a_folder(run, tagger, folder, tmp_path):
    text = tagspread("predict", run, folder, "-o", tmp_path / "tags.csv", "--device", "cpu")
    assert "161 images; 1 of them cannot be read (see the column 'error')" in text
    rows = rows_of(tmp_path / "tags.csv")
    assert [row["image"] for row in rows] == ["broken.png", *(f"p{i:03}.png" for i in range(160))]
    assert rows[0]["error"]
    said = tagger.predict([folder / row["image"] for row in rows])
    assert [row["tags"] for row in rows] == ["|".join(tags) for tags in said.tags]
    assert float(rows[1]["3"]) == pytest.approx(said.probabilities[1, 3], abs=1e-5)


def test_predict_shows_tags_without_a_file(run, tagger, folder):
    text = tagspread("predict", run, folder / "p000.png", folder / "broken.png", "--top", 2, "--delimiter", "+")
    tags = tagger.predict(folder / "p000.png", top=2).tags[0]
    assert text.splitlines() == [
        f"{folder / 'p000.png'}: {'+'.join(tags)}",
        f"{folder / 'broken.png'}: cannot be read ({tagger.predict(folder / 'broken.png').errors[0]})",
    ]


def test_what_cannot_be_read_is_said_once(run, folder):
    result = CliRunner().invoke(app, ["predict", str(run), str(folder / "broken.png")])
    assert isinstance(result.exception, TagspreadError)
    assert result.output == ""  # all is in the error
    text = tagspread("predict", run, folder / "broken.png", folder / "p000.png")
    assert [line.partition(":")[0].split("/")[-1] for line in text.splitlines()] == ["broken.png", "p000.png"]


def test_predict_a_list_to_json_quietly(run, folder, tmp_path):
    (folder / "list.txt").write_text("p003.png\np001.png\n")
    text = tagspread("predict", run, folder / "list.txt", "-o", tmp_path / "t.jsonl", "--threshold", 0, "-q")
    assert text == ""
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [line["image"] for line in lines] == ["p003.png", "p001.png"]
    assert len(lines[0]["tags"]) == 10


def test_fill(run, folder, tmp_path):
    text = tagspread("predict", run, folder, "--fill", folder / "labels.csv", "-o", tmp_path / "all.csv")
    assert "0 gaps filled, 100 images added; known labels are unchanged" in text
    assert "note: 1 image cannot be read; the gaps of unreadable images stay" in text
    assert (tmp_path / "all.csv").read_text().startswith((folder / "labels.csv").read_text())
    (tmp_path / "wide.csv").write_text("image,0,hat\np000.png,,\n")
    text = tagspread("predict", run, folder, "--fill", tmp_path / "wide.csv", "-o", tmp_path / "wide2.csv")
    assert "1 gap filled, 159 images added" in text
    assert "the run has no tag hat" in text
    assert "no column for these tags of the run: 1, 2, 3" in text


def test_evaluate(run, folder, tmp_path):
    text = tagspread("evaluate", run, "--labels", folder / "test.csv", "--samples", 20)
    found = json.loads(tagspread("evaluate", run, "--labels", folder / "test.csv", "--samples", 20, "--json"))
    assert f"mAP {100 * found['map']:.1f} (90 % interval" in text
    assert f"OF1 {100 * found['decisions']['OF1']:.1f}" in text
    assert found["images"] == 60
    assert "used in training" not in text
    text = tagspread("evaluate", run, "--labels", folder / "labels.csv", "--samples", 2)
    assert "60 of these 60 images were used in training" in text
    rows = "".join(f"x{i}.png,1,\n" for i in range(12))
    (tmp_path / "t.csv").write_text(f"image,0,1\n{rows}p060.png,1,\np061.png,0,1\n")
    text = tagspread("evaluate", run, "--labels", tmp_path / "t.csv", "--images", folder, "--samples", 2)
    assert "and 2 more that cannot be read" in text
    assert "no image has these tags, so the mAP leaves them out: 2, 3, 4" in text
    assert "1 of 1" in text  # one label is known
    assert text.count("too few") == 2  # for an interval


def test_decide(run, folder, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    text = tagspread(
        "thresholds", tmp_path / "run", "--labels", folder / "test.csv", "--policy", "precision:1", "--min-positives", 8
    )
    assert "labels.json: stored thresholds chosen by policy precision:1 on 60 images of test.csv" in text
    assert "share one threshold, as they have too few positives" in text
    facts = json.loads((tmp_path / "run" / "labels.json").read_text())
    assert facts["decision"]["policy"] == "precision:1"
    assert "count for their thresholds, too" in text
    expected = facts["decision"]["expected"]
    for k, (cut, precision) in enumerate(zip(facts["thresholds"], expected["precision"], strict=True)):
        assert (cut is None) <= (precision is None)
        if precision is not None:
            value, low, high = (f"{100 * rate:.0f}" for rate in precision)
            assert f"│ {value} ({low} to {high}) " in next(line for line in text.splitlines() if f"│ {k}  " in line)
    assert facts["calibration"]["fitted_on"] == "60 images of test.csv"
    found = json.loads(tagspread("evaluate", tmp_path / "run", "--labels", folder / "test.csv", "--json"))
    assert found["decisions"]["OP"] == 1


def test_bad_calls_are_one_message_and_exit_code_2(run, folder, tmp_path):
    (tmp_path / "mine.csv").write_text("mine")
    (tmp_path / "list.txt").write_text("p000.png\np001.png\n")  # which are in another folder
    for arguments, words in [
        (["predict", folder, folder], "not a run folder"),
        (["predict", run, tmp_path / "none"], "there is no folder or file"),
        (["predict", run, folder / "p000.png", folder / "p00O.png"], "there is no folder or file .*p00O.png"),
        (["predict", run, folder / "broken.png"], "broken.png: .*check that the paths are images"),
        (["predict", run, tmp_path / "list.txt", "-o", tmp_path / "new.csv"], "none of the 2 images can be read"),
        (["predict", run, folder, "-o", tmp_path / "mine.csv"], "exists; choose another name"),
        (["predict", run, folder, "-o", tmp_path / "t.xls"], "has no supported suffix"),
        (["predict", run, folder, "--fill", folder / "labels.csv"], "--out is missing: .*--out .*labels-completed.csv"),
        (
            ["predict", run, folder / "p000.png", "--fill", folder / "labels.csv", "-o", tmp_path / "x.csv"],
            "needs one folder",
        ),
        (["evaluate", run, "--labels", tmp_path / "none.csv"], "there is no file"),
        (["thresholds", run, "--labels", folder / "test.csv", "--policy", "best"], "policy is 'best'"),
    ]:
        with pytest.raises(TagspreadError, match=words):
            tagspread(*arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list.txt", "mine.csv"]
    assert (tmp_path / "mine.csv").read_text() == "mine"
    done = subprocess.run(
        [sys.executable, "-m", "tagspread", "predict", str(folder), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
