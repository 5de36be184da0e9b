"""Damaged or changed runs: every command refuses them with one message and changes nothing."""

import json
import re
import shutil

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import tagspread.cli
from tagspread.cli import app
from tagspread.errors import TagspreadError
from tagspread.run.artifact import FORMAT, file_digest


def change_facts(**changes):
    def change(run):
        facts = json.loads((run / "labels.json").read_text())
        facts |= {name: make(facts) for name, make in changes.items()}
        (run / "labels.json").write_text(json.dumps(facts))

    return change


def other_weights(run):
    tensors = load_file(run / "ema.safetensors")
    save_file({name: value + (value.is_floating_point()) for name, value in tensors.items()}, run / "ema.safetensors")


WRONG = {
    "no weights": (lambda run: (run / "ema.safetensors").unlink(), "has no ema.safetensors, the weights listed"),
    "no labels.json": (
        lambda run: (run / "labels.json").unlink(),
        "has no labels.json, though its training",
    ),
    "changed weights": (other_weights, "is not the file that training wrote"),
    "a class more": (change_facts(classes=lambda facts: [*facts["classes"], "hat"]), "11 classes but 10 thresholds"),
    "a class less": (change_facts(classes=lambda facts: facts["classes"][1:]), "9 classes but 10 thresholds"),
    "a class renamed": (
        change_facts(classes=lambda facts: [*facts["classes"][1:], facts["classes"][0]]),
        "are not those that training wrote",
    ),
    "a newer format": (
        change_facts(format=lambda _: FORMAT + 1),
        f"has format {FORMAT + 1}, but tagspread .* reads formats up to",
    ),
    "a damaged labels.json": (lambda run: (run / "labels.json").write_text("{"), "labels.json is damaged .line 1"),
}


def calls(run, folder, tmp_path):
    labels = ["--labels", folder / "test.csv"]
    return {
        "predict": ["predict", run, folder, "-o", tmp_path / "tags.csv"],
        "fill": ["predict", run, folder, "--fill", folder / "labels.csv", "-o", tmp_path / "tags.csv"],
        "evaluate": ["evaluate", run, *labels],
        "thresholds": ["thresholds", run, *labels],
        "report": ["report", run],
        "report without images": ["report", run, "--no-images"],
        "onnx": ["export", run, "--onnx", tmp_path / "t.onnx"],
        "hub": ["export", run, "--hub", tmp_path / "hub"],
        "pseudo-labels": ["pseudo-labels", run],
        "label studio": ["pseudo-labels", run, "--label-studio", tmp_path / "tasks.json"],
    }


def contents(folder):
    return {str(path): file_digest(path) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("wrong", WRONG)
def test_every_command_refuses_it(wrong, run, folder, tmp_path):
    spoil, words = WRONG[wrong]
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "report.html").write_text("a good page")
    spoil(copy)
    before = contents(tmp_path)
    for name, call in calls(copy, folder, tmp_path).items():
        result = CliRunner().invoke(app, [*map(str, call)])
        assert isinstance(result.exception, TagspreadError), (name, result.output)
        assert re.search(words, str(result.exception)), name
        assert str(result.exception).count("\n") == 0
        assert contents(tmp_path) == before, name


def test_a_refusal_is_one_line_and_exit_code_2(run, tmp_path, monkeypatch, capsys):
    shutil.copytree(run, tmp_path / "run")
    other_weights(tmp_path / "run")
    monkeypatch.setattr("sys.argv", ["tagspread", "report", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as stopped:
        tagspread.cli.main()
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1


def test_a_newer_run_is_not_gone_on_with(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    change_facts(format=lambda _: FORMAT + 1)(tmp_path / "run")
    before = contents(tmp_path)
    result = CliRunner().invoke(app, ["train", "--resume", str(tmp_path / "run"), "--device", "cpu", "-q"])
    assert isinstance(result.exception, TagspreadError)
    assert re.search(f"has format {FORMAT + 1}, but tagspread .* install a newer", str(result.exception))
    assert contents(tmp_path) == before
    (tmp_path / "run" / "labels.json").write_text("{")  # going on fixes that
    assert CliRunner().invoke(app, ["train", "--resume", str(tmp_path / "run"), "--device", "cpu", "-q"]).exit_code == 0
    assert json.loads((tmp_path / "run" / "labels.json").read_text())["format"] == FORMAT


def test_a_finished_run_is_left_as_it_is_and_a_lost_labels_json_made_anew(run, folder, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    first = json.loads((copy / "labels.json").read_text())
    call = CliRunner().invoke
    call(app, ["thresholds", str(copy), "--labels", str(folder / "test.csv"), "--policy", "precision:0.9"])
    decided, before = (copy / "labels.json").read_text(), contents(copy)
    assert json.loads(decided)["decision"]["policy"] == "precision:0.9"
    result = call(app, ["train", "--resume", str(copy), "--device", "cpu"])
    assert result.exit_code == 0
    assert f"{copy} is already finished; nothing was changed" in result.output
    assert contents(copy) == before
    (copy / "ema.safetensors").write_bytes(b"lost")  # is made anew from the checkpoint, for which the decision holds
    assert call(app, ["train", "--resume", str(copy), "--device", "cpu"]).exit_code == 0
    assert contents(copy) == before
    for spoil in (lambda file: file.unlink(), lambda file: file.write_text("{")):
        spoil(copy / "labels.json")
        assert call(app, ["train", "--resume", str(copy), "--device", "cpu"]).exit_code == 0
        assert json.loads((copy / "labels.json").read_text()) == first
