"""Run ``tagspread export``: options, formats and errors."""

import pytest
from typer.testing import CliRunner

import tagspread as ts
from tagspread.cli import app
from tagspread.errors import TagspreadError
from tagspread.export import onnx as exporting
from tagspread.export.compare import Compared


def tagspread(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_both_at_once(untrained, ready, folder, tmp_path):
    run = untrained()
    text = tagspread("export", run, "--onnx", tmp_path / "t.onnx", "--hub", tmp_path / "hub", "--images", folder)
    first, second = text.splitlines()
    assert first.startswith(
        f"{tmp_path / 't.onnx'}: predicts the same tags as PyTorch on 8 images of {folder.name}; prob"
    )
    assert second == f"{tmp_path / 'hub'}: ready to upload, or to load with ts.load"
    assert ts.load(tmp_path / "hub").classes == ts.load(run).classes
    assert tagspread("export", run, "--hub", tmp_path / "hub", "--overwrite", "-q") == ""


@pytest.mark.parametrize(("apart", "lines"), [(5e-4, 1), (0.02, 2)])
def test_a_resizing_that_matters_is_told(run, monkeypatch, apart, lines):
    monkeypatch.setattr(exporting, "export_onnx", lambda *_, **__: Compared("3 images", 1e-7, apart))
    said = tagspread("export", run, "--onnx", "t.onnx").splitlines()
    assert len(said) == lines
    assert ("by up to 0.02" in said[-1]) == (lines == 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "there is nothing to export; give --onnx FILE, --hub DIR, or both"),
        (("--hub", "h", "--images", "i"), "--images is used with --onnx only"),
        (("--onnx", "o.onnx", "--metrics", "f"), "--metrics is used with --hub only"),
    ],
)
def test_options_that_do_not_go_together(run, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TagspreadError, match=message):
        tagspread("export", run, *options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--onnx", "--hub"])
def test_what_is_no_run(tmp_path, option):
    with pytest.raises(TagspreadError, match="does not exist"):
        tagspread("export", tmp_path / "no", option, tmp_path / "t.onnx")
