"""Score the labeled images of the report: probabilities, metrics, and example images (thumbnails) per tag."""

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

from tagspread.core.calibration import Reliability, reliability
from tagspread.data.images.decode import decode
from tagspread.predict.evaluation import Evaluation, count_seen, measure, score_table
from tagspread.predict.tagger import Tagger
from tagspread.progress import Watcher
from tagspread.report.labeled import Part
from tagspread.run.split import NONE, digest_files

# of thumbnails: sharp on phones, which show them at half the size; some kilobytes each
SIDE, QUALITY = 224, 60
MAX_EXAMPLES = 6  # per group
MAX_BYTES = 3_000_000  # of all thumbnails together, so that the page can be sent by mail
NEAR = 0.2  # largest distance from the threshold of the images nearest to it
SIDEWAYS = 5  # from this EXIF orientation on, height and width are swapped

GROUPS = {
    "confident": ("Most confident", "Highest probabilities, right or wrong."),
    "near_threshold": ("Nearest to the threshold", "The least certain decisions."),
    "false_positives": ("False positives", "Predicted but not labeled: errors of the model, or missing labels."),
    "false_negatives": ("False negatives", "Labeled but not predicted: errors of the model, or wrong labels."),
}
HIGHEST = ("Highest probabilities", "Not all of them reach the threshold.")  # replaces "confident" in that case


@dataclass(frozen=True)
class ScoredPart:
    """Labeled images with the tagger's probabilities and metrics.

    Attributes:
        part: the readable images.
        unreadable: the unreadable images, each with the reason.
        probabilities: calibrated probabilities (images x classes).
        evaluation: metrics of the probabilities and decisions.
        reliability: data of the reliability diagram.
        may_be_shown: whether each image has the digest that the run recorded, so that a run from another person cannot
            put other images of this machine on the page.
    """

    part: Part
    unreadable: list[str]
    probabilities: np.ndarray
    evaluation: Evaluation
    reliability: Reliability
    may_be_shown: np.ndarray


class Example(NamedTuple):
    """An example image of a tag, with its probability and label for that tag."""

    name: str
    probability: float
    label: int  # 1, 0, -1 unknown
    predicted: bool
    image: str  # thumbnail as a data URI


def score_part(tagger: Tagger, part: Part, watcher: Watcher | None = None) -> ScoredPart:
    """Score and evaluate the labeled images."""
    watcher = watcher or Watcher(quiet=True)
    logits, errors = score_table(tagger, part.table, watcher.begin("tagging"))
    good = np.array([not error for error in errors])
    unreadable = [f"{path}: {error}" for path, error in zip(part.table.paths, errors, strict=True) if error]
    part = replace(part, table=part.table.select(good), digests=None if part.digests is None else part.digests[good])
    probabilities = tagger.calibration.probabilities(logits[good])
    seen = count_seen(tagger, part.table)
    evaluation = measure(tagger, logits[good], part.table.y, unreadable, seen=seen, watcher=watcher)
    watcher.begin("writing the report")
    may_be_shown = np.ones(len(part.table), bool)
    if part.digests is not None:
        may_be_shown = (digest_files(part.table.paths) == part.digests) & (part.digests != NONE)
    diagram = reliability(probabilities, part.table.y)
    return ScoredPart(part, unreadable, probabilities, evaluation, diagram, may_be_shown)


def pick(probabilities: np.ndarray, y: np.ndarray, threshold: float, most: int) -> dict[str, list[int]]:
    """Select the rows of one class to show as examples: up to ``most`` per group.

    >>> pick(np.array([0.9, 0.8, 0.6, 0.4, 0.1]), np.array([1, 0, 1, 0, 1]), threshold=0.5, most=1)
    {'confident': [0], 'near_threshold': [2], 'false_positives': [1], 'false_negatives': [4]}
    """
    descending, predicted = np.argsort(-probabilities, kind="stable"), probabilities >= threshold
    distance = np.abs(probabilities - threshold)
    near = np.argsort(distance, kind="stable")[: int((distance <= NEAR).sum())]
    groups = {
        "confident": descending,
        "near_threshold": near,
        "false_positives": descending[(predicted & (y == 0))[descending]],
        "false_negatives": descending[::-1][(~predicted & (y == 1))[descending[::-1]]],
    }
    return {name: rows[:most].tolist() for name, rows in groups.items()}


def examples(scored: ScoredPart, thresholds: np.ndarray, classes: Sequence[int]) -> dict[int, dict[str, list[Example]]]:
    """Return the example images of some classes, by group; fewer per group if they would exceed ``MAX_BYTES``."""
    y, allowed = scored.part.table.y, np.flatnonzero(scored.may_be_shown)

    @cache
    def image(row: int) -> str:
        return thumbnail(scored.part.table.paths[row])

    for most in range(MAX_EXAMPLES, 0, -1):
        selected = {k: pick(scored.probabilities[allowed, k], y[allowed, k], thresholds[k], most) for k in classes}
        picked = {
            k: {name: allowed[np.array(rows, np.int64)].tolist() for name, rows in groups.items()}
            for k, groups in selected.items()
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
    """Return whether the thumbnails fit into ``MAX_BYTES``; stop creating them as soon as they do not."""
    total = 0
    return all((total := total + len(image)) <= MAX_BYTES for image in images)


def thumbnail(path: Path) -> str:
    """Return a thumbnail as a data URI, upright and with the aspect ratio of the image."""
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
        warnings.simplefilter("ignore")  # the warning about large images: nothing is decoded here
        with Image.open(path) as opened:
            width, height = opened.size
            try:
                sideways = opened.getexif().get(ExifTags.Base.Orientation, 1) >= SIDEWAYS
            except Exception:  # damaged metadata: decode() also treats the image as upright
                sideways = False
    return (height, width) if sideways else (width, height)


def _name(path: Path, root: Path) -> str:
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return path.name
