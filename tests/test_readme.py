"""Every code block of the README is run: a page that lies fails the build."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
PYTHON = [text for language, text in BLOCKS if language == "python"]
SHELL = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines() if line.strip()]


def test_every_block_names_a_language_that_is_run():
    assert BLOCKS
    assert {language for language, _ in BLOCKS} <= {"python", "sh"}


def test_python_blocks(capsys):
    """One after the other, in one namespace, as a reader would paste them."""
    namespace: dict[str, object] = {"__name__": "readme"}
    for text in PYTHON:
        exec(compile(text, "README.md", "exec"), namespace)


@pytest.mark.parametrize("line", SHELL)
def test_shell_lines(line, tmp_path):
    words = shlex.split(line, comments=True)
    if words[0] == "make":  # we are inside `make test`: see that the target is there and what it would call exists
        subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
        return
    assert words[0] == "tagspread", f"the README shows a command that nothing here tries: {line}"
    subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, check=True, capture_output=True)
