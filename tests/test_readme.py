"""Run every code block of README.md and docs/, so that outdated documentation fails the build.

A Python block whose first line names a file, such as ``# my_rule.py``, is that file as well. Formulas are left to the
reader; tests/methods/test_docs.py looks at the blocks of text on the method pages. On other pages, a block of text is
output, whose words must be those of the source. A bash block starts several processes; its syntax is checked, and the
options of torchrun and tagspread.
"""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from torch.distributed.run import parse_args
from typer.main import get_command

from tagspread.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page):
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def write_files(page, folder):
    for language, text in blocks(page):
        if language == "python" and (name := re.match(r"# (\w+\.py)\n", text)):
            (folder / name[1]).write_text(text, encoding="utf-8")


every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_every_block_names_a_language_that_is_run(page):
    assert {language for language, _ in blocks(page)} <= {"python", "sh", "bash", "math", "text"}


@every_page
def test_python_blocks(page, tmp_path, monkeypatch, capsys):
    """Run the Python blocks of a page in order, in one namespace."""
    import tagspread

    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    with mock.patch.dict(tagspread.METHODS):  # a page may add one of its own
        for language, text in blocks(page):
            if language == "python":
                exec(compile(text, page.name, "exec", dont_inherit=True), namespace)


@every_page
def test_shell_lines(page, tmp_path):
    """Run the shell blocks of a page in order, in a folder that holds only the files of the page."""
    write_files(page, tmp_path)
    for language, text in blocks(page):
        for line in text.splitlines() if language == "sh" else []:
            words = shlex.split(line, comments=True)
            if not words:
                continue
            if words[0] == "make":  # we are inside `make test`: see that the target is there
                subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
                continue
            assert words[0] == "tagspread", f"{page.name} shows a command that nothing here tries: {line}"
            done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, check=False, capture_output=True)
            assert done.returncode == 0, done.stderr.decode()


def source_words():
    """Return the pieces of the messages in the source, without the names of options and the markup of rich."""
    texts = {
        node.value
        for file in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    pieces = {piece for text in texts for piece in re.split(r"@\w+|\[/?[a-z ]*\]", text)}
    return sorted((piece for piece in pieces if len(piece) >= 8), key=len, reverse=True)


def unknown_words(message, pieces):
    """Return the first four successive words of a message that no piece contains, if there are any."""
    known = bytearray(len(message))
    for piece in pieces:
        for found in re.finditer(re.escape(piece), message):
            known[found.start() : found.end()] = b"1" * len(piece)
    unknown = "".join("|" if flag else letter for flag, letter in zip(known, message, strict=True))
    return re.search(r"\b(?:[A-Za-z]+[,;:]? ){3}[A-Za-z]+(?![\w/\\]|\.\w)", unknown)


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "methods"], ids=lambda page: page.name)
def test_output_has_the_words_of_the_source(page):
    """Numbers, names and the words of libraries may be anything; an indented line continues a message."""
    texts = [text for language, text in blocks(page) if language == "text"]
    pieces = source_words() if texts else []
    for text in texts:
        for message in re.split(r"\n(?! )", text.strip()):
            line = " ".join(message.split())
            assert unknown_words(line, pieces) is None, line


def test_other_words_than_those_of_the_source_are_found():
    pieces = source_words()
    line = "error Unreadable images named in a table (1): replace the files or remove their rows."
    assert unknown_words(line, pieces) is None
    assert unknown_words(line.replace("remove their", "delete their"), pieces) is not None


@every_page
def test_commands_of_several_processes(page):
    for language, text in blocks(page):
        if language != "bash":
            continue
        subprocess.run(["bash", "-n"], input=text.encode(), check=True)
        lines = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
        started = [words[words.index("torchrun") + 1 :] for words in lines if "torchrun" in words]
        assert started, f"{page.name} shows commands that nothing here tries: {text}"
        for words in started:
            options = parse_args(words)
            assert (options.training_script, options.module) == ("tagspread", True)
            name, *more = options.training_script_args
            commands: dict[str, Any] = vars(get_command(app))["commands"]
            commands[name].make_context(name, more)
