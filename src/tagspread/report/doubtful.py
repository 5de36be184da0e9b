"""Doubtful unlabeled images: those with a tag whose score is nearest to its decision threshold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import logit

from tagspread.errors import TagspreadError
from tagspread.report.scored import thumbnail
from tagspread.report.summary import RunSummary
from tagspread.run.pseudo_labels import read_pseudo_labels
from tagspread.run.split import NONE, Part, digest_files

SHOWN = 12  # images
MOST_PER_TAG = 2  # of them, so that one difficult tag does not fill the section
MOST_READ = 50_000  # images; a larger file of pseudo-labels would take minutes to read


class DoubtfulImage(NamedTuple):
    """An unlabeled image, the tag in doubt, its probability and threshold, and a thumbnail as a data URI."""

    name: str
    tag: str
    probability: float
    threshold: float
    image: str


def doubtful_images(summary: RunSummary, images: str | Path | None = None) -> list[DoubtfulImage]:
    """Return unlabeled images with a tag near its threshold, by the last scores of the training.

    Nothing is scored anew. Images whose content has changed since training are not shown.

    Args:
        summary: the run.
        images: the folder of images, if it was moved.
    """
    unlabeled, record, artifact = summary.unlabeled, summary.record, summary.artifact
    if unlabeled is None or record is None or artifact is None or not record.has_files or unlabeled.size > MOST_READ:
        return []
    try:
        names = [image.name for image in read_pseudo_labels(summary.path)]
        rows_by_name = {record.split.names[row]: row for row in record.split.rows(Part.UNLABELED)}
        rows = np.array([rows_by_name[name] for name in names], np.int64)
        files = record.files(rows, images)
    except (TagspreadError, KeyError):  # the examples of the other sections say what is missing
        return []
    probabilities = np.asarray(artifact.calibration.probabilities(unlabeled.scores[: len(rows)]))
    # of the log-odds: where the threshold is 0.01, all images without the tag are within 0.01 of it
    distance = np.abs(logit(probabilities) - logit(artifact.thresholds))
    nearest = distance.argmin(1)
    shown: list[DoubtfulImage] = []
    tags: Counter[int] = Counter()
    for at in np.argsort(distance.min(1), kind="stable"):
        k = int(nearest[at])
        if len(shown) == SHOWN or not np.isfinite(artifact.thresholds[k]):
            break
        if tags[k] == MOST_PER_TAG:
            continue
        digest = record.split.digests[rows[at]]
        if digest == NONE or digest_files([files[at]])[0] != digest:
            continue
        tags[k] += 1
        shown.append(DoubtfulImage(
            names[at], summary.classes[k], float(probabilities[at, k]), float(artifact.thresholds[k]),
            thumbnail(files[at]),
        ))  # fmt: skip
    return shown
