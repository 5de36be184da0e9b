"""Fixtures for fault tests: a small image folder, short trainings, and the predictions of two known runs."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

import tagspread as ts
from tagspread.data.datasets.digits import digit_canvases
from tests.predict.conftest import tags_of, write_csv

SHORT: dict[str, Any] = {
    "backbone": "small", "weights": "none", "image_size": 24, "batch": 16, "lr": 0.003, "flip": False,
    "warmup_epochs": 1, "epochs": 1, "preset": "paper", "device": "cpu", "quiet": True,
}  # fmt: skip
HEAD = {name: SHORT[name] for name in ("backbone", "weights", "image_size", "flip", "device", "quiet")}


@pytest.fixture(scope="session")
def drawn():
    return digit_canvases(48, 1, seed=0)[0]


@pytest.fixture(scope="session")
def folder(tmp_path_factory, drawn):
    """48 images: 16 labeled in labels.csv, 16 in test.csv, the rest unlabeled; gaps.csv has blanks to fill."""
    top = tmp_path_factory.mktemp("images")
    for i, image in enumerate(drawn.images):
        Image.fromarray(image.transpose(1, 2, 0)).save(top / f"p{i:03}.png")
    for name, rows in (("labels.csv", range(16)), ("test.csv", range(16, 32))):
        write_csv(top / name, ["image", "tags"], [[f"p{i:03}.png", tags_of(drawn.y[i])] for i in rows])
    return top


class Trainings:
    """Trains the old or the new run in any folder, and identifies a run by its predictions."""

    def __init__(self, folder, images, top):
        self.folder, self.images, self.top = folder, images, top
        self.answers: dict[str, Any] = {}

    def train(self, out, seed, **more):
        short = HEAD if more.get("mode") == "head" else SHORT
        given = {"test_labels": self.folder / "test.csv", **short, "seed": seed, **more}
        return ts.train(self.folder, self.folder / "labels.csv", out, **given)

    def answer(self, run):
        return ts.load(run, device="cpu").predict(self.images[:4]).probabilities

    def learn(self, name, run):
        self.answers[name] = self.answer(run)

    def who(self, run):
        """Return the name of the run that gives a folder's predictions; None if incomplete; fail for a mixture."""
        try:
            found = self.answer(run)
        except ts.TagspreadError:
            return None
        names = [name for name, known in self.answers.items() if np.array_equal(known, found)]
        assert names, f"{run} answers as no run does"
        return names[0]


@pytest.fixture(scope="session")
def trainings(folder, drawn, tmp_path_factory):
    """The trainings, with a finished ``old`` run (seed 1) and a finished ``new`` run (seed 2) to copy."""
    top = tmp_path_factory.mktemp("known")
    known = Trainings(folder, drawn.images, top)
    for seed, name in enumerate(("old", "new"), start=1):
        known.learn(name, known.train(top / name, seed).path)
    return known
