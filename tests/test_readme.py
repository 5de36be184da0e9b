"""Run every code block of README.md and docs/, so that outdated documentation fails the build.

A Python block whose first line names a file, such as ``# my_rule.py``, is that file as well. Formulas and texts,
such as outputs, are left to the reader; tests/methods/test_docs.py checks the texts on the method pages.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# blocks that a test cannot run: they need torchrun and several machines, or features larger than memory
NOT_RUN = {"cluster.md": {"bash"}, "features.md": {"py"}}


def blocks(page):
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def write_files(page, folder):
    for language, text in blocks(page):
        if language == "python" and (name := re.match(r"# (\w+\.py)\n", text)):
            (folder / name[1]).write_text(text, encoding="utf-8")


every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_every_block_names_a_language_that_is_run(page):
    allowed = {"python", "sh", "math", "text"} | NOT_RUN.get(page.name, set())
    assert {language for language, _ in blocks(page)} <= allowed


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
