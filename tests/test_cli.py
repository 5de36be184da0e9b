import subprocess
import sys
from importlib.resources import files

import pytest
import typer
from typer.testing import CliRunner

import tagspread as ts
from tagspread.cli import app


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "tagspread", *arguments], capture_output=True, text=True, check=False)


def test_version_and_help():
    assert run("--version").stdout.strip() == f"tagspread {ts.__version__}"
    said = run("--help").stdout
    assert "unlabeled" in said
    assert "Print the version and exit." in said


@pytest.mark.parametrize("command", [[], *([name] for name in typer.main.get_group(app).commands)])
def test_help_truncates_nothing_on_80_columns(command):
    screen = CliRunner().invoke(app, [*command, "--help"], prog_name="tagspread", env={"COLUMNS": "80"}).output
    assert "--help" in screen
    assert "…" not in screen


def test_unknown_command_is_one_message_and_exit_code_2():
    result = run("trian")
    assert result.returncode == 2
    assert "trian" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_package_says_it_is_typed_and_documents_what_it_exports():
    assert files("tagspread").joinpath("py.typed").is_file()
    for name in ts.__all__:
        assert getattr(ts, name).__doc__, name
