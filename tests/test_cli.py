import inspect
import re
import subprocess
import sys
from dataclasses import fields
from importlib.resources import files
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import tagspread as ts
from tagspread.cli import app
from tagspread.train.config import make_config

GROUP = typer.main.get_group(app)
COMMANDS = [[], *([name] for name in GROUP.commands)]
OPTIONS: list[tuple[str, Any]] = [
    (name, option) for name, command in GROUP.commands.items() for option in command.params
]


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "tagspread", *arguments], capture_output=True, text=True, check=False)


def test_version_and_help():
    assert run("--version").stdout.strip() == f"tagspread {ts.__version__}"
    said = run("--help").stdout
    assert "unlabeled" in said
    assert "Print the version and exit." in said


@pytest.mark.parametrize("command", COMMANDS)
def test_help_truncates_nothing_on_80_columns(command):
    screen = CliRunner().invoke(app, [*command, "--help"], prog_name="tagspread", env={"COLUMNS": "80"}).output
    assert "--help" in screen
    assert "…" not in screen


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_no_type_for_flags_and_no_python_types(command):
    screen = CliRunner().invoke(app, [*command, "--help"], prog_name="tagspread", env={"COLUMNS": "100"}).output
    assert not re.search(r"<\w+>|list\[|\{\w+\}", screen)
    for name, option in OPTIONS:
        if [name] == command and option.required:
            usage = screen[: screen.index("\n\n", screen.index("Usage:"))]
            assert option.opts[0] in usage


def test_help_of_train_shows_the_defaults_of_both_presets():
    shown = {option.name: option.show_default for name, option in OPTIONS if name == "train"}
    default, paper = make_config("default"), make_config("paper")
    for name in ("method", "mode", "backbone", "weights", "image_size", "warmup_epochs", "epochs", "batch", "seed"):
        words = re.findall(r"\w+", shown[name])
        assert (words[0], words[-1]) == (str(getattr(default, name)), str(getattr(paper, name))), name
    assert shown["lr"] == f"{default.lr:.0e}, last layer {default.lr_head:.0e}; preset paper: {paper.lr:.0e}"


def test_the_reference_describes_every_training_setting():
    described = re.findall(r"^    (\w+): ", inspect.getdoc(ts.TrainConfig) or "", re.M)
    assert described == [setting.name for setting in fields(ts.TrainConfig)]


def test_help_shows_a_default_in_words_without_parentheses():
    screen = CliRunner().invoke(app, ["train", "--help"], prog_name="tagspread", env={"COLUMNS": "100"}).output
    assert "[default: better]" in screen
    assert "[default: (" not in screen


def test_unknown_command_is_one_message_and_exit_code_2():
    result = run("trian")
    assert result.returncode == 2
    assert "trian" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_package_says_it_is_typed_and_documents_what_it_exports():
    assert files("tagspread").joinpath("py.typed").is_file()
    for name in ts.__all__:
        assert getattr(ts, name).__doc__, name
