r"""``pseudo_labels.csv``: the last pseudo-labels of the unlabeled images, one line per image and tag.

========  ==============================================================================================
image     the image, relative to the folder of images if the run had one
tag       the tag; blank on the only line of an image without other lines
target    last training target: 1, 0, ``ignored``, or a number between 0 and 1 for methods with soft targets
score     :math:`\sigma(z)` of the teacher's logit from which the target was computed; not calibrated
rank      rank of the image in its class by that score, 1 for the highest; a quota of K takes ranks 1 to K
flips     number of times that the target changed during the run
========  ==============================================================================================

Lines with target 0 that never changed are omitted, because most images lack most tags.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tagspread.data.tables.read import PSEUDO_LABEL_COLUMNS
from tagspread.errors import TagspreadError
from tagspread.files import refuse_special
from tagspread.run import schema
from tagspread.run.artifact import check_belongs
from tagspread.run.folder import MANIFEST, RunFolder

FILE = "pseudo_labels.csv"
IGNORED = -1.0


class Entry(NamedTuple):
    """The pseudo-label of one image for one tag: one line of the file."""

    tag: str
    target: float  # -1: ignored
    score: float
    rank: int
    flips: int

    @property
    def given(self) -> bool:
        """Whether the pseudo-label is positive."""
        return self.target >= 0.5

    @property
    def certainty(self) -> float:
        """The teacher's probability of the pseudo-label."""
        return self.score if self.given else 1 - self.score


class PseudoLabeledImage(NamedTuple):
    """An unlabeled image with its pseudo-labels."""

    name: str
    entries: list[Entry]

    @property
    def given(self) -> list[Entry]:
        """The entries with positive pseudo-labels."""
        return [entry for entry in self.entries if entry.given]

    @property
    def certainty(self) -> float:
        """The lowest certainty of its entries; 1 if it has none."""
        return min((entry.certainty for entry in self.entries), default=1.0)


def ranks_in_class(scores: np.ndarray) -> np.ndarray:
    """Return the rank of each row within its column, 1 for the highest score; ties are ranked in the order of rows.

    >>> ranks_in_class(np.array([[0.2, 1.0], [0.9, 1.0], [0.5, 2.0]])).tolist()
    [[3, 2], [1, 3], [2, 1]]
    """
    ranks = np.empty(scores.shape, np.int32)
    for k, column in enumerate(scores.T):
        ranks[np.argsort(-column, kind="stable"), k] = np.arange(1, len(scores) + 1)
    return ranks


def pseudo_label_rows(
    names: Sequence[str], classes: Sequence[str], targets: np.ndarray, logits: np.ndarray, flips: np.ndarray
) -> Iterator[tuple[object, ...]]:
    """Yield the lines of ``pseudo_labels.csv`` after its header.

    Args:
        names: names of the unlabeled images.
        classes: names of the tags.
        targets: images x classes: 1, 0, -1 ignored, or soft.
        logits: the teacher's logits, from which the targets were computed.
        flips: number of changes of each target.
    """
    from scipy.special import expit

    ranks, scores = ranks_in_class(logits), expit(logits.astype(np.float64))
    listed = (targets >= 0.5) | (targets == IGNORED) | (flips > 0)
    for row, name in enumerate(names):
        columns = np.flatnonzero(listed[row]).tolist()
        for k in columns:
            target = float(targets[row, k])
            cell = "ignored" if target == IGNORED else f"{target:.6g}"
            yield name, classes[k], cell, f"{scores[row, k]:.6g}", int(ranks[row, k]), int(flips[row, k])
        if not columns:
            yield name, "", "", "", "", ""


def read_pseudo_labels(run: str | Path) -> list[PseudoLabeledImage]:
    """Read the pseudo-labels of a finished run: all images of its unlabeled set, in order."""
    folder = RunFolder(run)
    if not folder.is_run:
        raise TagspreadError(f"{folder.path} is not a run folder: it has no config.json written by tagspread.")
    file = folder.path / FILE
    refuse_special(file)
    if (folder.path / MANIFEST).exists():
        check_belongs(folder.path, schema.read_object(folder.path / MANIFEST), FILE)
    try:
        with file.open(newline="", encoding="utf-8", errors="surrogateescape") as opened:
            return _read(file, csv.reader(opened))
    except FileNotFoundError:
        raise TagspreadError(f"{folder.path} has no {FILE}: {_why_none(folder)}.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TagspreadError(f"{file} cannot be read ({error}); copy it again.") from None


def _why_none(run: RunFolder) -> str:
    if not (run.path / "metrics.json").exists():
        return f"training has not finished.{run.where_previous}".removesuffix(".")
    gain = run.read_json("metrics.json", schema.METRICS).get("gain")
    if gain is not None and "left_out" not in gain:
        return "the file was removed after training; copy it there"
    reason = f", because {gain['left_out']}" if gain else ""
    return f"this run did not use the unlabeled images{reason}"


def _read(file: Path, lines: Iterator[list[str]]) -> list[PseudoLabeledImage]:
    if (header := tuple(next(lines, ()))) != PSEUDO_LABEL_COLUMNS:
        raise TagspreadError(
            f"{file} has the columns {', '.join(header)} instead of {', '.join(PSEUDO_LABEL_COLUMNS)}: it was changed "
            "or written by another version; train again."
        )
    images: list[PseudoLabeledImage] = []
    for number, line in enumerate(lines, start=2):
        try:
            name, tag, target, score, rank, flips = line
            if not images or images[-1].name != name:
                images.append(PseudoLabeledImage(name, []))
            if tag:
                value = IGNORED if target == "ignored" else _share(target)
                images[-1].entries.append(Entry(tag, value, _share(score), int(rank), int(flips)))
        except ValueError:
            raise TagspreadError(f"{file} line {number} is damaged; train again.") from None
    return images


def _share(cell: str) -> float:
    """Return a number from 0 to 1; raise ``ValueError`` for anything else, such as NaN."""
    value = float(cell)
    if not 0 <= value <= 1:
        raise ValueError
    return value
