"""``import tagspread`` and ``tagspread --help`` import nothing heavy; lazily imported names are the right objects."""

import os
import subprocess
import sys

import pytest

import tagspread as ts

HEAVY = ("torch", "torchvision", "timm", "sklearn", "scipy", "pandas", "numpy", "matplotlib", "PIL")


def _imported_by(code: str) -> set[str]:
    """Run code in a new process; return the heavy packages that it imported."""
    listed = f"{code}\nimport sys\nsys.stderr.write(' '.join(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_the_package_imports_nothing_heavy():
    assert _imported_by("import tagspread; dir(tagspread)") == set()
    assert "torch" in _imported_by("import tagspread; tagspread.METHODS")  # so the empty set above means something


@pytest.mark.parametrize("arguments", [[], ["train"], ["predict"]])
def test_help_imports_nothing_heavy(arguments):
    help_of = [*arguments, "--help"]
    code = (
        f"import sys; sys.argv = ['tagspread', *{help_of}]\nfrom tagspread.cli import app\napp(standalone_mode=False)"
    )
    assert _imported_by(code) == set()


def test_check_imports_no_torch(tmp_path):
    from PIL import Image

    Image.new("RGB", (90, 60)).save(tmp_path / "a.jpg")
    (tmp_path / "labels.csv").write_text("image,tags\na.jpg,cat\n")
    code = f"""
import sys
sys.argv = ["tagspread", "check", {str(tmp_path)!r}, "--labels", {str(tmp_path / "labels.csv")!r}]
from tagspread.cli import app
try:
    app(standalone_mode=False)
except SystemExit:
    pass"""
    imported = _imported_by(code)
    assert "PIL" in imported
    assert not imported & {"torch", "torchvision", "timm"}


def test_every_public_name_is_found_and_typed():
    for name in ts.__all__:
        assert getattr(ts, name) is not None
    assert set(dir(ts)) == set(ts.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        ts.trian  # noqa: B018


def test_the_function_train_is_not_hidden_by_the_package_of_that_name():
    code = "import tagspread as ts, tagspread.train.config\nassert callable(ts.train), ts.train"
    subprocess.run([sys.executable, "-c", code], check=True)
    subprocess.run([sys.executable, "-c", "from tagspread import train; assert callable(train)"], check=True)


def test_waiting_threads_sleep():
    code = "import os, tagspread; print(os.environ['OMP_WAIT_POLICY'])"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for policy, given in (("PASSIVE", {}), ("ACTIVE", {"OMP_WAIT_POLICY": "ACTIVE"})):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment | given, check=True, capture_output=True, text=True
        )
        assert done.stdout.strip() == policy
