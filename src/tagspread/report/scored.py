"""Score the labeled images: probabilities, metrics, and the images worth showing."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image

from tagspread.aliases import Progress
from tagspread.core.calibration import Reliability, reliability
from tagspread.data.images.decode import decode
from tagspread.predict.evaluation import Evaluation, count_seen, measure, score_table
from tagspread.predict.tagger import Tagger
from tagspread.report.labeled import Part
from tagspread.run.split import NONE, digest_files

SIDE, QUALITY = 176, 62  # of thumbnails, shown at about half that size: crisp on a phone, and a few kilobytes each
MOST_SHOWN = 6  # per group
MOST_BYTES = 3_000_000  # of all thumbnails together, so that the page can be sent by mail
NEAR = 0.2  # further from the threshold than this, nothing is close
SIDEWAYS = 5  # from this EXIF orientation on, height and width change places

GROUPS = {
    "sure": ("Most confident", "What it is surest of, right or wrong."),
    "close": ("Nearest the threshold", "Where it could as well have decided otherwise."),
    "extra": ("Chosen, but not labeled", "Its mistakes, or tags that were forgotten."),
    "missed": ("Labeled, but not chosen", "What it overlooks, or labels that are wrong."),
}
UNSURE = ("Highest scores", "Not all of them reach the threshold.")  # in place of "sure", where there are too few


@dataclass(frozen=True)
class ScoredPart:
    """A part of the labeled images, as the tagger sees it.

    Attributes:
        part: the images that can be read.
        unreadable: those that cannot, with the reason.
        probabilities: images x classes.
        evaluation: how good that is.
        reliability: how far the probabilities can be believed.
        may_be_shown: whether each image is the one that the run recorded, so that a run from somebody else cannot put
            other images of this machine on the page.
    """

    part: Part
    unreadable: list[str]
    probabilities: np.ndarray
    evaluation: Evaluation
    reliability: Reliability
    may_be_shown: np.ndarray


class Example(NamedTuple):
    """A image of a class."""

    name: str
    probability: float
    label: int  # 1, 0, -1 unknown
    chosen: bool
    image: str  # a data URI


def score_part(tagger: Tagger, part: Part, progress: Progress | None = None) -> ScoredPart:
    """Let the tagger score the images of a part."""
    logits, errors = score_table(tagger, part.table, progress)
    good = np.array([not error for error in errors])
    unreadable = [f"{path}: {error}" for path, error in zip(part.table.paths, errors, strict=True) if error]
    part = replace(part, table=part.table.select(good), digests=None if part.digests is None else part.digests[good])
    probabilities = tagger.calibration.probabilities(logits[good])
    measured = measure(tagger, logits[good], part.table.y, unreadable, seen=count_seen(tagger, part.table))
    shown = np.ones(len(part.table), bool)
    if part.digests is not None:
        shown = (digest_files(part.table.paths) == part.digests) & (part.digests != NONE)
    return ScoredPart(part, unreadable, probabilities, measured, reliability(probabilities, part.table.y), shown)


def pick(probabilities: np.ndarray, y: np.ndarray, threshold: float, most: int) -> dict[str, list[int]]:
    """Return the rows of one class that are worth a look, by group.

    >>> pick(np.array([0.9, 0.8, 0.6, 0.4, 0.1]), np.array([1, 0, 1, 0, 1]), threshold=0.5, most=1)
    {'sure': [0], 'close': [2], 'extra': [1], 'missed': [4]}
    """
    falling, chosen = np.argsort(-probabilities, kind="stable"), probabilities >= threshold
    distance = np.abs(probabilities - threshold)
    near = np.argsort(distance, kind="stable")[: int((distance <= NEAR).sum())]
    groups = {
        "sure": falling,
        "close": near,
        "extra": falling[(chosen & (y == 0))[falling]],
        "missed": falling[::-1][(~chosen & (y == 1))[falling[::-1]]],
    }
    return {name: rows[:most].tolist() for name, rows in groups.items()}


def examples(scored: ScoredPart, thresholds: np.ndarray, classes: Sequence[int]) -> dict[int, dict[str, list[Example]]]:
    """Return the images of some classes, by group: as many as the page has room for."""
    y, allowed = scored.part.table.y, np.flatnonzero(scored.may_be_shown)

    @cache
    def image(row: int) -> str:
        return thumbnail(scored.part.table.paths[row])

    for most in range(MOST_SHOWN, 0, -1):
        among = {k: pick(scored.probabilities[allowed, k], y[allowed, k], thresholds[k], most) for k in classes}
        picked = {
            k: {name: allowed[np.array(rows, np.int64)].tolist() for name, rows in groups.items()}
            for k, groups in among.items()
        }
        rows = [row for groups in picked.values() for group in groups.values() for row in group]
        if _fits(map(image, rows)) or most == 1:
            break

    def example(row: int, k: int) -> Example:
        path, p = scored.part.table.paths[row], float(scored.probabilities[row, k])
        return Example(_name(path, scored.part.root), p, int(y[row, k]), p >= thresholds[k], image(row))

    return {
        k: {name: [example(row, k) for row in group] for name, group in groups.items()} for k, groups in picked.items()
    }


def _fits(images: Iterator[str]) -> bool:
    """Say whether they fit on the page; stops counting, and making them, once they do not."""
    total = 0
    return all((total := total + len(one)) <= MOST_BYTES for one in images)


def thumbnail(path: Path) -> str:
    """Return a small image as a data URI, upright and in its own proportions."""
    width, height = _upright_size(path)
    longest = max(width, height)
    side = min(SIDE, longest)
    size = (max(1, round(side * width / longest)), max(1, round(side * height / longest)))
    small = Image.fromarray(decode(path, side).transpose(1, 2, 0)).resize(size, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "WEBP", quality=QUALITY)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _upright_size(path: Path) -> tuple[int, int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about many pixels: none of them is decoded here
        with Image.open(path) as opened:
            width, height = opened.size
            try:
                sideways = opened.getexif().get(ExifTags.Base.Orientation, 1) >= SIDEWAYS
            except Exception:  # damaged metadata: data/decode.py takes such a image for upright, too
                sideways = False
    return (height, width) if sideways else (width, height)


def _name(path: Path, root: Path) -> str:
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return path.name
