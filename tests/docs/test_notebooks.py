"""The notebooks run from top to bottom: without a download, and without a kernel."""

import json
import tempfile
from pathlib import Path

import matplotlib as mpl
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def cells(notebook):
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def test_there_are_two():
    assert [file.stem for file in NOTEBOOKS] == ["features", "photos"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_cells_run_in_order(notebook, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    namespace: dict[str, object] = {"__name__": "notebook"}
    for number, cell in enumerate(cells(notebook)):
        if cell["cell_type"] == "code":
            exec(
                compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec", dont_inherit=True),
                namespace,
            )
    plt.close("all")
    assert "mAP" in capsys.readouterr().out


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_stored_outputs_are_small_and_without_errors(notebook):
    assert notebook.stat().st_size < 200_000
    outputs = [output for cell in cells(notebook) for output in cell.get("outputs", [])]
    assert len(outputs) > 4
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
