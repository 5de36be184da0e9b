"""User-defined methods from a Python file: loaded or refused, trained from Python and from the command line."""

import csv
import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import tagspread as ts
from tagspread.cli import app
from tagspread.data.datasets.digits import CLASSES, digit_canvases
from tagspread.errors import TagspreadError
from tagspread.methods import Labeled, find_method, get_method
from tagspread.methods.from_file import absolute_name
from tagspread.run.split import write_split
from tagspread.train import trainer
from tagspread.train.config import make_config
from tests.methods.helpers import assert_same, saved, stopped

RULE = '''
from dataclasses import dataclass

import torch

import tagspread as ts


@dataclass(frozen=True)
class MyRule(ts.Method):
    """Label a class as present above the median of its scores."""

    summary = "the upper half"
    share: float = 0.5

    def start(self, labeled):
        return {"epochs": torch.zeros(1)}

    def targets(self, scores, labeled, state):
        state["epochs"] += 1
        return ts.Targets((scores > scores.quantile(self.share, dim=0)).to(torch.int8))
'''


@pytest.fixture
def written(tmp_path):
    """Write a method file and return its path."""

    def write(text=RULE, name="rules.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


# --- found ---


def test_a_class_from_a_file_with_its_options(written):
    path = written()
    method = get_method(f"{path}:MyRule", share=0.25)
    assert repr(method) == "MyRule(share=0.25)"
    assert isinstance(method, ts.Method)
    scores = torch.arange(8.0)[:, None]
    labeled = Labeled(torch.tensor([[1]]), ("a",))
    found = method.targets(scores, labeled, method.start(labeled))
    assert found.labels.flatten().tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_the_class_may_be_left_out_where_there_is_only_one(written):
    path = written(RULE + "\nfrom tagspread.methods.cap import CAP  # imported, not defined here\n")
    assert find_method(str(path)).__name__ == "MyRule"
    assert find_method(f"{path}:MyRule") is find_method(str(path))  # the file is run once
    assert ts.METHODS.keys().isdisjoint({"MyRule", str(path)})


def test_a_plain_subclass_needs_no_decorator(written):
    path = written("import tagspread as ts\nclass Plain(ts.Method):\n    pass\n")
    assert get_method(str(path)) == get_method(str(path))


def test_a_file_that_was_changed_is_read_again(written):
    assert get_method(str(written())).share == 0.5  # type: ignore[attr-defined]
    assert get_method(str(written(RULE.replace("0.5", "0.75")))).share == 0.75  # type: ignore[attr-defined]


def test_two_files_of_one_name_are_two_methods(written):
    one, two = written(name="a/rules.py"), written(RULE.replace("0.5", "0.75"), "b/rules.py")
    assert [get_method(f"{path}:MyRule").share for path in (one, two)] == [0.5, 0.75]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["my.python/rules.py", "a.py:b/rules.py", "with space/my rules.py"])
def test_odd_folders(name, written):
    path = written(name=name)
    assert find_method(f"{path}:MyRule").__name__ == "MyRule"
    assert absolute_name(f"{path}:MyRule") == f"{path}:MyRule"


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("labels", "MyRule returned Tensor for targets; return ts.Targets"),
        ("None", "MyRule returned NoneType for targets"),
        ("ts.Targets(labels.numpy())", "whose labels is ndarray; give a tensor of the scores' shape, \\(60, 3\\)"),
        ("ts.Targets(labels[:5])", r"whose labels is a tensor of shape \(5, 3\)"),
        ("ts.Targets(2 * labels)", "MyRule returned targets that hold 2; give 1"),
        ("ts.Targets(labels / 0)", "MyRule returned targets that hold (nan|inf); give 1"),
        ("ts.Targets(labels - 2)", "MyRule returned targets that hold -2; give 1"),
        ("ts.Targets(labels, torch.ones(len(labels)))", r"whose weight is a tensor of shape \(60,\)"),
        ("ts.Targets(labels, -torch.ones(labels.shape))", "a weight that is negative or not finite"),
        ("ts.Targets(labels, labels / 0)", "a weight that is negative or not finite"),
    ],
)
def test_what_is_wrong_with_a_rule_shows_before_the_warm_up(returned, words, written, tmp_path):
    made = "ts.Targets((scores > scores.quantile(self.share, dim=0)).to(torch.int8))"
    labels = made.removeprefix("ts.Targets(").removesuffix(")")
    rule = written(RULE.replace(f"return {made}", f"labels = {labels}\n        return {returned}"))
    images, y = np.zeros((80, 24, 24, 3), np.uint8), np.full((80, 3), -1)
    y[:20] = [[1, 0, 1], [0, 1, 0]] * 10
    with pytest.raises(TagspreadError, match=words):
        ts.train(images, y, tmp_path / "run", method=str(rule), backbone="small", weights="none", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_relative_file_is_remembered_by_its_whole_path(written, monkeypatch):
    path = written()
    monkeypatch.chdir(path.parent)
    assert make_config("paper", method="rules.py").method == str(path)
    assert make_config("paper", method="rules.py:MyRule").method == f"{path}:MyRule"
    assert make_config("paper", method="iat").method == "iat"


def test_its_recipe_is_used_unless_the_user_says_otherwise(written):
    path = written(RULE.replace('    summary = "the upper half"\n', '    recipe = {"epochs": 3, "loss": "bce"}\n'))
    config = make_config("default", method=str(path), loss="asl")
    assert (config.epochs, config.loss, config.method_options) == (3, "asl", {})


# --- refused ---

TWO = RULE + "\n\nclass Second(MyRule):\n    pass\n"


@pytest.mark.parametrize(
    ("text", "suffix", "words"),
    [
        (None, "", "there is no file {path} to load a method from; check the path."),
        (None, ":MyRule", "there is no file {path} to load a method from; check the path."),
        ("def broken(:\n", "", "{path} raises SyntaxError: invalid syntax (rules.py, line 1). Fix it"),
        ("import not_there_at_all", "", "{path} raises ModuleNotFoundError: No module named 'not_there_at_all'."),
        ("1 / 0", ":MyRule", "{path} raises ZeroDivisionError: division by zero. Fix it, then try again."),
        ("raise SystemExit('bye')", "", "{path} raises SystemExit: bye. Fix it, then try again."),
        ("", "", "{path} defines no method; write a subclass of ts.Method in it"),
        ("from tagspread.methods.cap import CAP", ":CAP", "{path} defines no method; write a subclass of ts.Method"),
        ("class MyRule:\n    pass", ":MyRule", "{path} defines no method; write a subclass of ts.Method"),
        (RULE, ":MyRul", "{path} defines MyRule, but no method 'MyRul'. Did you mean 'MyRule'?"),
        (RULE, ":myrule", "but no method 'myrule'. Did you mean 'MyRule'?"),
        (RULE, ":Zebra", "{path} defines MyRule, but no method 'Zebra'."),
        (TWO, "", "{path} defines MyRule, Second; choose one, as {path}:CLASS."),
        (TWO, ":", "{path} defines MyRule, Second; choose one, as {path}:CLASS."),
        (RULE.replace("frozen=True", "order=True"), "", "{path} raises TypeError: cannot inherit non-frozen"),
    ],
)
def test_refused_with_a_reason(text, suffix, words, written, tmp_path):
    path = tmp_path / "rules.py" if text is None else written(text)
    with pytest.raises(TagspreadError, match=re.escape(words.format(path=path))) as caught:
        find_method(f"{path}{suffix}")
    assert "Zebra" not in suffix or "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shore": 0.1}, "has no option 'shore'; its options are share. Did you mean 'share'?"),
        ({"summary": "x"}, "has no option 'summary'; its options are share."),
    ],
)
def test_unknown_options(options, words, written):
    with pytest.raises(TagspreadError, match=re.escape(words)):
        get_method(f"{written()}:MyRule", **options)


def test_a_file_that_stopped_may_be_mended(written):
    with pytest.raises(TagspreadError, match="ZeroDivisionError"):
        find_method(str(written("1 / 0")))
    with pytest.raises(TagspreadError, match="ZeroDivisionError"):  # not the half-executed module of the first attempt
        find_method(str(written("1 / 0")))
    assert find_method(str(written())).__name__ == "MyRule"


def test_a_method_that_does_not_label_says_so(written):
    path = written("import tagspread as ts\nclass Lazy(ts.Method):\n    pass\n")
    with pytest.raises(
        TagspreadError, match=re.escape("Lazy does not define how to label the unlabeled set; write its targets()")
    ):
        get_method(str(path)).targets(torch.zeros(1, 1), Labeled(torch.tensor([[1]]), ("a",)), {})


# --- trained ---

QUICK: dict[str, Any] = {"backbone": "small", "weights": "none", "image_size": 24, "batch": 16, "lr": 0.003}
QUICK |= {"preset": "paper", "warmup_epochs": 1, "epochs": 2, "device": "cpu", "quiet": True}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Write 48 images, 16 of them labeled, and a method file into the current folder."""
    top = tmp_path / "home"
    (top / "images").mkdir(parents=True)
    drawn, _ = digit_canvases(48, 1, seed=0)
    for i, image in enumerate(drawn.images):
        Image.fromarray(image.transpose(1, 2, 0)).save(top / "images" / f"{i:02}.png")
    with (top / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("image", "tags")]
            + [(f"{i:02}.png", "|".join(c for c, on in zip(CLASSES, drawn.y[i], strict=True) if on)) for i in range(16)]
        )
    (top / "rules.py").write_text(RULE)
    monkeypatch.chdir(top)
    return top


def tagspread(*arguments, cwd):
    command = [sys.executable, "-m", "tagspread", "train", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_from_the_command_line_from_python_and_resumed_from_another_folder(home, tmp_path, monkeypatch):
    options = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items() if name != "quiet"]
    rule = ["--method", "rules.py:MyRule", "--set", 'method_options={"share": 0.7}']
    done = tagspread("images", "--labels", "labels.csv", "--out", "whole", *rule, *options, cwd=home)
    assert done.returncode == 0, done.stderr
    settings = json.loads((home / "whole" / "config.json").read_text())["settings"]
    assert settings["method"] == f"{home / 'rules.py'}:MyRule"

    with stopped(3, monkeypatch):
        ts.train("images", "labels.csv", "parts", method="rules.py:MyRule", method_options={"share": 0.7}, **QUICK)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    rules = home / "rules.py"
    done = tagspread("--resume", home / "parts", "--device=cpu", cwd=elsewhere)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: resuming {home / 'parts'} would execute the Python file of its method, {rules}:MyRule. If you trust "
        f"that file, name it: tagspread train --resume {home / 'parts'} --method {rules}:MyRule\n"
    )
    done = tagspread("--resume", home / "parts", "--device=cpu", "--method", "../home/rules.py", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert_same(saved(home / "whole"), saved(home / "parts"))
    assert saved(home / "whole")["method.epochs"].item() == 2
    labels = saved(home / "whole")["targets.labels"]
    assert labels.sum(0).tolist() == [10] * 10  # of 32 rows, those above place 0.7 * 31


def test_a_file_that_a_run_names_is_not_executed_unless_the_command_line_names_it(home, tmp_path, monkeypatch):
    """A run from somebody else may name any file, also one inside the run."""
    with stopped(3, monkeypatch):
        ts.train("images", "labels.csv", "run", method="rules.py", **QUICK)
    trap = home / "run" / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n" + RULE)
    config = json.loads((home / "run" / "config.json").read_text())
    config["settings"]["method"] = f"{trap}:MyRule"
    (home / "run" / "config.json").write_text(json.dumps(config))
    for given, words in [
        ((), rf"would execute the Python file of its method, {trap}:MyRule\. If you trust that file, name it"),
        (("--method", "rules.py"), f"--method names rules.py, but the method of run is in {trap}:MyRule; nothing was"),
        (("--method", "cap"), f"--method names cap, but the method of run is in {trap}:MyRule; nothing was"),
    ]:
        result = CliRunner().invoke(app, ["train", "--resume", "run", "--device", "cpu", *given])
        assert re.search(words, str(result.exception))
    config["settings"] = config["settings"] | {"method": "cap", "labels": "/etc/passwd"}
    (home / "run" / "config.json").write_text(json.dumps(config))
    result = CliRunner().invoke(app, ["train", "--resume", "run", "--device", "cpu"])
    assert "there is no setting 'labels'" in str(result.exception)
    del config["settings"]["labels"]
    (home / "run" / "config.json").write_text(json.dumps(config))
    result = CliRunner().invoke(app, ["train", "--resume", "run", "--device", "cpu", "--method", str(trap)])
    assert "the method of run is 'cap'; a run is resumed with its own method" in str(result.exception)
    assert not (tmp_path / "executed").exists()


def test_a_run_does_not_go_on_with_a_file_that_was_changed(home, monkeypatch):
    with stopped(3, monkeypatch):
        ts.train("images", "labels.csv", "run", method="rules.py", **QUICK)
    (home / "rules.py").write_text(RULE.replace("upper half", "lower half"))
    with pytest.raises(TagspreadError, match=r"rules\.py was changed after the checkpoint in .* was saved"):
        ts.train("images", "labels.csv", "run", method="rules.py", resume=True, **QUICK)
    (home / "rules.py").write_text(RULE)
    ts.train("images", "labels.csv", "run", method="rules.py", resume=True, **QUICK)


def test_a_file_that_is_changed_during_training_is_a_change(home, monkeypatch):
    """The checkpoint belongs to the code that was loaded, not to what the file holds when it is saved."""
    usual = write_split

    def edit(*args):
        (home / "rules.py").write_text(RULE.replace("upper half", "lower half"))
        usual(*args)

    with stopped(3, monkeypatch), monkeypatch.context() as patch:
        patch.setattr(trainer, "write_split", edit)
        ts.train("images", "labels.csv", "run", method="rules.py", **QUICK)
    with pytest.raises(TagspreadError, match=r"rules\.py was changed after the checkpoint in .* was saved"):
        ts.train("images", "labels.csv", "run", method="rules.py", resume=True, **QUICK)
    (home / "rules.py").write_text(RULE)
    ts.train("images", "labels.csv", "run", method="rules.py", resume=True, **QUICK)


def test_bad_names_stop_before_anything_is_written(home):
    for method, words in [
        ("rules.py:MyRul", "Did you mean 'MyRule'?"),
        ("rule.py:MyRule", "there is no file rule.py"),
    ]:
        with pytest.raises(TagspreadError, match=re.escape(words)):
            ts.train("images", "labels.csv", "run", method=method, **QUICK)
    with pytest.raises(TagspreadError, match="has no option 'shore'"):
        ts.train("images", "labels.csv", "run", method="rules.py", method_options={"shore": 1}, **QUICK)
    assert not (home / "run").exists()
