"""File names that are not UTF-8, as in old archives: such images are read, trained on and predicted like any other."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tagspread as ts
from tagspread.data.datasets.digits import CLASSES, digit_canvases
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError
from tagspread.predict.fill import fill_table
from tagspread.run.pseudo_labels import read_pseudo_labels

ODD = os.fsdecode(b"caf\xe9.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    top = tmp_path_factory.mktemp("images")
    drawn = digit_canvases(40, 1, seed=0)[0]
    names = [f"{i:02}.png" for i in range(39)] + [ODD]
    try:
        for name, image in zip(names, drawn.images, strict=True):
            Image.fromarray(image.transpose(1, 2, 0)).save(top / name)
    except (OSError, UnicodeError):
        pytest.skip("this file system has no such names")
    (top / os.fsdecode(b"br\xf6ken.png")).write_bytes(b"no image")
    with (top / "labels.csv").open("w", newline="") as file:
        tags = ["|".join(name for name, on in zip(CLASSES, row, strict=True) if on) for row in drawn.y]
        csv.writer(file).writerows([("image", "tags"), *zip(names[:20], tags[:20], strict=True)])
    return top


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return ts.train(
        folder, folder / "labels.csv", tmp_path_factory.mktemp("runs") / "run", backbone="small", weights="none",
        image_size=24, batch=16, flip=False, warmup_epochs=1, epochs=1, preset="paper", device="cpu", quiet=True,
    ).path  # fmt: skip


def tagspread(*arguments):
    done = subprocess.run([sys.executable, "-m", "tagspread", *map(str, arguments)], check=False, capture_output=True)
    return done.returncode, (done.stdout + done.stderr).decode()


def test_they_are_learnt_from_and_stay_themselves(run):
    assert ODD in [image.name for image in read_pseudo_labels(run)]
    assert b"caf\xe9.png" in (run / "pseudo_labels.csv").read_bytes()


def test_they_are_handed_out_and_come_back(run, folder, tmp_path):
    assert tagspread("pseudo-labels", run, "--label-studio", tmp_path / "tasks.json")[0] == 0
    tasks = json.loads((tmp_path / "tasks.json").read_text(encoding="utf-8"))
    (task,) = [task for task in tasks if task["data"]["file_name"] == ODD]
    assert task["data"]["image"].endswith("caf%E9.png")
    (tmp_path / "done.json").write_text(json.dumps([task | {"annotations": task["predictions"]}]))
    assert read_table(tmp_path / "done.json", folder).paths[0] == folder / ODD


def test_the_console_shows_what_it_can(folder):
    code, said = tagspread("check", folder, "--labels", folder / "labels.csv")
    assert code == 0
    assert "br\\udcf6ken.png" in said


def test_parquet_has_the_rest_of_the_name(run, folder, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert tagspread("predict", run, folder, "-o", tmp_path / "t.parquet")[0] == 0
    images = parquet.read_table(tmp_path / "t.parquet")["image"].to_pylist()
    assert [Path(name).name for name in images if "caf" in name] == ["caf?.png"]


def test_tables_that_could_not_be_read_again_are_not_written(run, folder, tmp_path):
    with pytest.raises(TagspreadError, match="is not valid UTF-8, which CSV files require; rename the file"):
        fill_table(ts.load(run, device="cpu"), folder / "labels.csv", folder, tmp_path / "filled.csv")
    with pytest.raises(TagspreadError, match="rename the file"):
        LabelTable([folder / ODD], ("cat",), np.array([[1]])).write(tmp_path / "written.csv", folder)
    assert not list(tmp_path.iterdir())
