"""The examples are run, and show what they say they show."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_photos(capsys):
    runpy.run_path(str(EXAMPLES / "photos.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert float(re.findall(r"mAP ([\d.]+)", said)[0]) > 20  # guessing finds one tag in five or so
    assert "test-00000.png: " in said


@pytest.mark.parametrize("name", ["text.py", "table.py"])
def test_example(name, capsys):
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    alone, both = map(float, re.findall(r"mAP ([\d.]+)", capsys.readouterr().out))
    assert both > alone + 2
