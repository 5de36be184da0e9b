"""Fixtures for prediction tests: an image folder with label tables, and a quickly trained run."""

import csv
from typing import Any

import pytest
from PIL import Image

import tagspread as ts
from tagspread.data.datasets.digits import CLASSES, digit_canvases

QUICK: dict[str, Any] = {
    "backbone": "small", "weights": "none", "image_size": 24, "batch": 32, "lr": 0.003, "flip": False,
    "warmup_epochs": 12, "epochs": 2, "preset": "paper", "device": "cpu", "quiet": True,
}  # fmt: skip


def tags_of(row):
    return "|".join(name for name, on in zip(CLASSES, row, strict=True) if on)


def write_csv(file, header, rows):
    with file.open("w", newline="") as opened:
        csv.writer(opened, lineterminator="\n").writerows([header, *rows])
    return file


@pytest.fixture(scope="session")
def drawn():
    return digit_canvases(160, 1, seed=0)[0]


@pytest.fixture(scope="session")
def folder(tmp_path_factory, drawn):
    """160 images and a broken one: 60 tagged in labels.csv, 60 in test.csv, the rest unlabeled."""
    top = tmp_path_factory.mktemp("images")
    for i, image in enumerate(drawn.images):
        Image.fromarray(image.transpose(1, 2, 0)).save(top / f"p{i:03}.png")
    (top / "broken.png").write_bytes((top / "p000.png").read_bytes()[:100])
    for name, rows in (("labels.csv", range(60)), ("test.csv", range(60, 120))):
        write_csv(top / name, ["image", "tags"], [[f"p{i:03}.png", tags_of(drawn.y[i])] for i in rows])
    return top


@pytest.fixture(scope="session")
def run(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return ts.train(folder, folder / "labels.csv", out, test_labels=folder / "test.csv", **QUICK).path


@pytest.fixture(scope="session")
def tagger(run):
    return ts.load(run, device="cpu")
