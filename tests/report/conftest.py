"""Fixtures for report tests: a quickly trained run whose tags and file names look like markup, and its report."""

import csv
import shutil
from typing import Any

import pytest
from PIL import Image

import tagspread as ts
from tagspread.data.datasets.digits import digit_canvases
from tagspread.report.page import write_report

EVIL = '<script>window.hit = 1</script>"&'
TAGS = ("zero & one", EVIL, "two", "three", "four", "five", "six", "seven", "eight", "nine")
QUICK: dict[str, Any] = {
    "backbone": "small", "weights": "none", "image_size": 24, "batch": 32, "lr": 0.003, "flip": False,
    "warmup_epochs": 4, "epochs": 3, "preset": "paper", "device": "cpu", "quiet": True,
}  # fmt: skip


def file_name(i):
    return f"p{i:03}<img src=x onerror=hit()>.png"


def write_csv(file, rows, y):
    lines = [(file_name(i), "|".join(name for name, on in zip(TAGS, y[i], strict=True) if on)) for i in rows]
    with file.open("w", newline="") as opened:
        csv.writer(opened, lineterminator="\n").writerows([("image", "tags"), *lines])
    return file


@pytest.fixture(scope="session")
def drawn():
    return digit_canvases(140, 1, seed=0)[0]


@pytest.fixture(scope="session")
def drawn_y(drawn):
    return drawn.y


@pytest.fixture(scope="session")
def folder(tmp_path_factory, drawn):
    """140 images: 60 tagged in labels.csv, one of them broken; 40 in test.csv; the rest unlabeled."""
    top = tmp_path_factory.mktemp("images")
    for i, image in enumerate(drawn.images):
        Image.fromarray(image.transpose(1, 2, 0)).save(top / file_name(i))
    (top / file_name(7)).write_bytes((top / file_name(8)).read_bytes()[:100])
    write_csv(top / "labels.csv", range(60), drawn.y)
    write_csv(top / "test.csv", range(60, 100), drawn.y)
    return top


@pytest.fixture(scope="session")
def run(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "my <b>run"
    return ts.train(folder, folder / "labels.csv", out, test_labels=folder / "test.csv", **QUICK).path


@pytest.fixture(scope="session")
def page(run, tmp_path_factory):
    """The complete report, with images."""
    return write_report(run, tmp_path_factory.mktemp("pages") / "page.html", device="cpu").path


@pytest.fixture
def copied(run, tmp_path):
    """A copy of the run that a test may change."""
    return shutil.copytree(run, tmp_path / "copied")
