"""Run the scripts in examples/ and check their output."""

import re
import runpy
import subprocess
import sys
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


@pytest.mark.parametrize("arguments", [[], ["tags.onnx"]])
def test_run_onnx_says_how_it_is_used(arguments):
    pytest.importorskip("onnxruntime")
    call = [sys.executable, str(EXAMPLES / "run_onnx.py"), *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "usage: python run_onnx.py tags.onnx photo.jpg ...\n"
