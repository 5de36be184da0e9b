import csv
import json

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from tagspread.predict.predictions import Predictions
from tagspread.predict.tables import open_table


def some(names, classes=("cat", "dog, small", "error"), error=""):
    p = np.tile([0.25, 0.75, 1e-9], (len(names), 1))
    chosen = p > 0.2
    errors = [""] * len(names)
    if error:
        p[-1], chosen[-1], errors[-1] = np.nan, False, error
    return Predictions(list(names), tuple(classes), p, chosen, errors)


def written(file, **options):
    parts = [some(["a.jpg", "b/ü.jpg"]), some(["c.jpg", "d.jpg"], error="no such file")]
    with open_table(file, parts[0].classes, **options) as table:
        for part in parts:
            table.add(part)


def test_csv(tmp_path):
    written(tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["image", "tags", "error", "cat", "dog, small", "error (class)"]
    assert rows[1] == ["a.jpg", "dog, small|cat", "", "0.25", "0.75", "1e-09"]
    assert rows[2][0] == "b/ü.jpg"
    assert rows[4] == ["d.jpg", "", "no such file", "", "", ""]
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_json_lines(tmp_path):
    written(tmp_path / "t.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert lines[1] == {
        "image": "b/ü.jpg",
        "tags": ["dog, small", "cat"],
        "error": None,
        "probabilities": {"cat": 0.25, "dog, small": 0.75, "error": 0.0},
    }
    assert lines[3] == {"image": "d.jpg", "tags": [], "error": "no such file", "probabilities": None}


def test_parquet_in_row_groups(tmp_path):
    written(tmp_path / "t.parquet")
    assert parquet.ParquetFile(tmp_path / "t.parquet").num_row_groups == 2
    frame = pd.read_parquet(tmp_path / "t.parquet")
    assert frame.columns.tolist() == ["image", "tags", "error", "cat", "dog, small", "error (class)"]
    assert frame["tags"].tolist() == ["dog, small|cat"] * 3 + [""]
    assert frame["error"].isna().tolist() == [True, True, True, False]
    assert frame["cat"].isna().tolist() == [False, False, False, True]
    assert frame["cat"][0] == 0.25


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_no_file_is_lost_and_no_half_file_left(tmp_path, kind):
    file = tmp_path / f"t.{kind}"

    def stopped():
        with open_table(file, ("cat", "dog, small", "error")) as table:
            table.add(some(["a.jpg"]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert not list(tmp_path.iterdir())
    file.write_text("mine")
    with pytest.raises(ValueError, match="exists; choose another name, or replace it with overwrite=True"):
        written(file)
    assert file.read_text() == "mine"
    with pytest.raises(RuntimeError), open_table(file, ("cat",), overwrite=True):
        raise RuntimeError
    assert file.read_text() == "mine"
    written(file, overwrite=True)
    assert file.read_bytes() != b"mine"


def test_bad_outputs_are_refused(tmp_path):
    for name, words in [
        ("t.xlsx", r"t.xlsx has no supported suffix; use one of .csv, .jsonl, .parquet"),
        ("t", "/t has no supported suffix"),
        ("nowhere/t.csv", "nowhere is missing; create it"),
    ]:
        with pytest.raises(ValueError, match=words):
            written(tmp_path / name)
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        written(tmp_path / "d.csv")
    with pytest.raises(ValueError, match="the tag 'dog, small' contains the delimiter ','"):
        written(tmp_path / "t.csv", delimiter=",")


def test_names_that_are_no_text(tmp_path):
    odd = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    for kind in ("csv", "jsonl"):
        with open_table(tmp_path / f"t.{kind}", ("cat", "dog, small", "error")) as table:
            table.add(some([odd]))
    assert b"caf\xe9.jpg" in (tmp_path / "t.csv").read_bytes()
    assert json.loads((tmp_path / "t.jsonl").read_text())["image"] == odd
