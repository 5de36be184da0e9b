"""``RUN/review/index.npz``: what the review server knows about a run, prepared once by a process that may use PyTorch.

The server must stay small, so that it imports no PyTorch and reads this file instead of the run. The file holds the
images of the run that may be shown, the tagger's probabilities for the unlabeled images, and their pseudo-labels.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tagspread.errors import Blank, TagspreadError
from tagspread.files import atomic_file

FOLDER, FILE = "review", "index.npz"
FORMAT = 1
SOURCES = ("labels.json", "split.csv", "pseudo_labels.csv")  # the index is prepared again if one of them changes


@dataclass(frozen=True, eq=False)
class Index:
    """The images of a run that the review page shows: unlabeled ones to review, labeled ones as examples.

    Attributes:
        run_id: identifier of the run.
        root: folder that relative names start from; empty if all are absolute.
        recorded_root: the folder that the run was trained on.
        names: name of each image.
        rows: its row in ``split.csv``.
        digests: its digest in ``split.csv``.
        unlabeled: whether it is to be reviewed.
        classes: names of the tags.
        thresholds: decision threshold of each tag; inf if the tag is never predicted.
        y: labels (images x tags) of 1, 0, -1 unknown.
        scores: the tagger's probabilities (images x tags); NaN for labeled images.
        pseudo: pseudo-labels (images x tags) of 1, 0, -1 ignored; those of training.
        unreadable: names of unlabeled images that could not be read, and are not shown.
        sources: digests of the run's files that the index was prepared from.
    """

    run_id: str
    root: str
    recorded_root: str
    names: list[str]
    rows: np.ndarray
    digests: list[str]
    unlabeled: np.ndarray
    classes: tuple[str, ...]
    thresholds: np.ndarray
    y: np.ndarray
    scores: np.ndarray
    pseudo: np.ndarray
    unreadable: tuple[str, ...]
    sources: dict[str, str]

    def __len__(self) -> int:
        return len(self.names)

    def path(self, k: int) -> Path:
        """Return the file of an image."""
        return Path(self.root) / self.names[k]  # absolute names stay unchanged


def digest_sources(run: Path) -> dict[str, str]:
    """Return the digests of the run's files that an index depends on; missing files are omitted."""
    digests = {}
    for name in SOURCES:
        if (run / name).is_file():
            with (run / name).open("rb") as opened:
                digests[name] = hashlib.file_digest(opened, "sha256").hexdigest()
    return digests


def write_index(run: Path, index: Index) -> None:
    """Write the index of a run, in one step."""
    facts = {
        "format": FORMAT,
        "run": index.run_id,
        "root": index.root,
        "recorded_root": index.recorded_root,
        "names": index.names,
        "digests": index.digests,
        "classes": index.classes,
        "unreadable": index.unreadable,
        "sources": index.sources,
    }
    (run / FOLDER).mkdir(exist_ok=True)
    with atomic_file(run / FOLDER / FILE) as opened:
        np.savez(
            opened,
            facts=np.frombuffer(json.dumps(facts).encode(), np.uint8),  # escapes keep names that are not UTF-8
            rows=index.rows,
            unlabeled=index.unlabeled,
            thresholds=index.thresholds,
            y=index.y,
            scores=index.scores,
            pseudo=index.pseudo,
        )


def read_index(run: Path) -> Index | None:
    """Read the index of a run; return None if it is missing, damaged, or of another version: it is prepared again."""
    try:
        with np.load(run / FOLDER / FILE, allow_pickle=False) as arrays:
            facts: dict[str, Any] = json.loads(arrays["facts"].tobytes())
            if facts["format"] != FORMAT:
                return None
            return Index(
                run_id=facts["run"],
                root=facts["root"],
                recorded_root=facts["recorded_root"],
                names=facts["names"],
                rows=arrays["rows"],
                digests=facts["digests"],
                unlabeled=arrays["unlabeled"],
                classes=tuple(facts["classes"]),
                thresholds=arrays["thresholds"],
                y=arrays["y"],
                scores=arrays["scores"],
                pseudo=arrays["pseudo"],
                unreadable=tuple(facts["unreadable"]),
                sources=facts["sources"],
            )
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile):
        return None


def fresh_index(run: Path, images: Path | None = None) -> Index | None:
    """Return the index of a run if it is up to date; otherwise None.

    Args:
        run: the run folder.
        images: the folder of images, if it was moved.
    """
    index = read_index(run)
    if index is None or index.sources != digest_sources(run):
        return None
    return index if index.root == (index.recorded_root if images is None else str(images.absolute())) else None


def check_images(run: Path, index: Index) -> int:
    """Return how many of the images to review are missing; raise if all are."""
    wanted = np.flatnonzero(index.unlabeled).tolist()
    missing = [k for k in wanted if not index.path(k).is_file()]
    if missing and len(missing) == len(wanted):
        raise TagspreadError(
            f"none of the {len(wanted):,} unlabeled images of {run} is there (the first is {index.path(missing[0])}); "
            "if they were moved, give the new folder with @images.",
            images=Blank("DIR"),
        )
    return len(missing)
