"""The images and runs that the cases damage: made once, then copied or linked into the folder of a case."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image

from tagspread.data.datasets.digits import CLASSES, digit_canvases
from tests.faults.campaigns.harness import Harness, command

SMALL = (
    "--preset",
    "paper",
    "--backbone",
    "small",
    "--weights",
    "none",
    "--image-size",
    "24",
    "--batch",
    "16",
    "--lr",
    "0.003",
    "--set",
    "flip=false",
    "--warmup-epochs",
    "1",
    "--epochs",
    "1",
    "--device",
    "cpu",
    "--quiet",
)
LABELED, TEST, IMAGES = 12, 8, 28


@dataclass
class World:
    """Images, label tables and runs below a folder, which no case changes.

    Attributes:
        top: the folder.
        harness: runs the trainings, in processes of their own.
    """

    top: Path
    harness: Harness
    _kept: dict[str, Path] = field(default_factory=dict, init=False, repr=False)

    def once(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the folder of this name; the first of the campaigns of this world that asks for it makes it."""
        if name not in self._kept:
            make(self.top / name)
            self._kept[name] = self.top / name
        return self._kept[name]

    @cached_property
    def images(self) -> Path:
        """28 images: 12 labeled in labels.csv, 8 in test.csv, the rest unlabeled."""
        folder = self.top / "images"
        folder.mkdir(parents=True)
        drawn = digit_canvases(IMAGES, 1, seed=0)[0]
        for i, image in enumerate(drawn.images):
            Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"p{i:02}.png")
        tags = ["|".join(name for name, on in zip(CLASSES, row, strict=True) if on) for row in drawn.y]
        for name, rows in (("labels.csv", range(LABELED)), ("test.csv", range(LABELED, LABELED + TEST))):
            with (folder / name).open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(
                    [("image", "tags"), *((f"p{i:02}.png", tags[i]) for i in rows)]
                )
        with (folder / "gaps.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [("image", "0", "1"), *((f"p{i:02}.png", "", str(i % 2)) for i in range(LABELED))]
            )
        return folder

    def training(self, out: Path, *more: object) -> tuple[object, ...]:
        """Return the command that trains a run."""
        tables = ("--labels", self.images / "labels.csv", "--test-labels", self.images / "test.csv")
        return ("train", self.images, *tables, "--out", out, *SMALL, *more)

    def _made(self, name: str, job: Callable[[Path], Callable[[], object]]) -> Path:
        folder = self.top / name
        result = self.harness.process(job(folder), 300)
        if result.code or not folder.exists():
            raise RuntimeError(f"{name} was not made: {result.said}")
        return folder

    @cached_property
    def run(self) -> Path:
        """A finished run."""
        return self._made("run", lambda out: command(*self.training(out)))

    @cached_property
    def other(self) -> Path:
        """A finished run with other weights."""
        return self._made("other", lambda out: command(*self.training(out, "--seed", 7)))

    @cached_property
    def head(self) -> Path:
        """A finished run with a frozen network."""
        mode = (
            "--mode",
            "head",
            "--backbone",
            "small",
            "--weights",
            "none",
            "--image-size",
            "24",
            "--device",
            "cpu",
            "-q",
        )
        tables = ("--labels", self.images / "labels.csv", "--test-labels", self.images / "test.csv")
        return self._made("head", lambda out: command("train", self.images, *tables, "--out", out, *mode))

    @cached_property
    def interrupted(self) -> Path:
        """A run that was stopped after its last epoch, before its results were written."""

        def job(out: Path) -> Callable[[], object]:
            def stop() -> None:
                from tagspread.train import trainer

                def leave(*_: Any, **__: Any) -> None:
                    os._exit(0)

                setattr(trainer, "finalize", leave)  # noqa: B010  # not one of its exports
                command(*self.training(out))()

            return stop

        return self._made("interrupted", job)

    @cached_property
    def hub(self) -> Path:
        """An exported folder."""
        return self._made("hub", lambda out: command("export", self.run, "--hub", out, "-q"))


def copy_of(run: Path, to: Path) -> Path:
    """Copy a run."""
    return Path(shutil.copytree(run, to))
