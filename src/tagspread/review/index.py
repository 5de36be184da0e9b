"""``RUN/review/index.npz``: what the review server knows about a run, prepared once by a process that may use PyTorch.

The server must stay small, so that it imports no PyTorch and reads this file instead of the run. The file holds the
images of the run that may be shown, the tagger's probabilities for the unlabeled images, and their pseudo-labels.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tagspread.aliases import JsonObject
from tagspread.errors import Blank, TagspreadError
from tagspread.review.arrays import Arrays, fits, read_arrays, write_arrays
from tagspread.run.schema import COUNT, NAME, NAMES, TEXT, Kind, ListOf, MapOf, Record

FOLDER, FILE = "review", "index.npz"
FORMAT = 1
SOURCES = ("labels.json", "split.csv", "pseudo_labels.csv")  # the index is prepared again if one of them changes

ARRAYS = {  # kinds of numbers, and what there is one of
    "rows": ("iu", "image"),
    "unlabeled": ("b", "image"),
    "thresholds": ("f", "class"),
    "y": ("i", "both"),
    "scores": ("f", "both"),
    "pseudo": ("i", "both"),
}
DIGEST = Kind("a digest", lambda value: isinstance(value, str) and value.isascii() and value.isalnum())
PATH = Kind("a path", lambda value: isinstance(value, str) and "\0" not in value)
FACTS = Record(
    required={
        "format": COUNT, "run": TEXT, "root": PATH, "recorded_root": PATH, "names": ListOf(PATH, least=1),
        "digests": ListOf(DIGEST), "classes": ListOf(NAME, least=1), "unreadable": NAMES, "sources": MapOf(TEXT),
    }
)  # fmt: skip


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
    write_arrays(run / FOLDER / FILE, facts, {name: getattr(index, name) for name in ARRAYS})


def read_index(run: Path) -> Index | None:
    """Read the index of a run; return None if it is missing, damaged, or of another version: it is prepared again."""
    if (found := read_arrays(run / FOLDER / FILE, FACTS, FORMAT)) is None:
        return None
    facts, arrays = found
    if not _is_consistent(facts, arrays):
        return None
    return Index(
        run_id=facts["run"],
        root=facts["root"],
        recorded_root=facts["recorded_root"],
        names=facts["names"],
        digests=facts["digests"],
        classes=tuple(facts["classes"]),
        unreadable=tuple(facts["unreadable"]),
        sources=facts["sources"],
        **{name: arrays[name] for name in ARRAYS},
    )


def _is_consistent(facts: JsonObject, arrays: Arrays) -> bool:
    """Return whether all arrays are there and fit each other, so that no request fails later."""
    images, classes = len(facts["names"]), len(facts["classes"])
    shapes = {"image": (images,), "class": (classes,), "both": (images, classes)}
    if any(not fits(arrays.get(name), kinds, shapes[shape]) for name, (kinds, shape) in ARRAYS.items()):
        return False
    if len(facts["digests"]) != images or len(set(facts["classes"])) != classes or (arrays["rows"] < 0).any():
        return False
    scores, unlabeled = arrays["scores"], arrays["unlabeled"]
    return bool(
        ((scores[unlabeled] >= 0) & (scores[unlabeled] <= 1)).all()
        and np.isnan(scores[~unlabeled]).all()
        and not np.isnan(arrays["thresholds"]).any()
        and all(np.isin(arrays[name], (-1, 0, 1)).all() for name in ("y", "pseudo"))
    )


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
