"""Which images thresholds and calibration were chosen on: on those very images the figures flatter.

A run remembers them by fingerprints of the files, so that they are known again wherever they lie and whatever they are
called. Of many images the smallest fingerprints are kept, which are as good as drawn at random: below the largest of
them nothing is missing, so the share that other images have in common with them can be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tagspread.run.artefact import file_digest

KEY = "chosen_on_images"  # in labels.json
TRAINED_KEY = "trained_on_images"  # the same of those that were trained on with their labels
MOST = 1000
DIGITS = 16
TRAINING, DECIDING = "train", "thresholds"


def remember(files: Iterable[str | Path], by: str) -> dict[str, Any] | None:
    """Return what ``labels.json`` keeps of the images that thresholds were chosen on; None if they are no files.

    Args:
        files: the images.
        by: the command that chose: ``train`` knows that their labels were not trained on, ``thresholds`` does not.
    """
    prints = [fingerprint(file) for file in files]
    known = sorted({one for one in prints if one is not None})
    if not known:
        return None
    return {"by": by, "complete": len(known) <= MOST, "fingerprints": known[:MOST]}


def in_common(kept: dict[str, Any] | None, files: Sequence[str | Path]) -> int | None:
    """Return how many of some images thresholds were chosen on; None if the run does not say.

    Args:
        kept: what :func:`remember` returned.
        files: the images in question.
    """
    prints = kept.get("fingerprints") if isinstance(kept, dict) else None
    if kept is None or not isinstance(prints, list) or not prints or not all(isinstance(one, str) for one in prints):
        return None  # nothing, or not what remember() wrote
    known, complete = set(prints), bool(kept.get("complete"))
    within = [one for one in map(fingerprint, files) if one is not None and (complete or one <= max(known))]
    if not within:
        return 0
    share = sum(one in known for one in within) / len(within)
    return round(share * (len(within) if complete else len(files)))


def fingerprint(file: str | Path) -> str | None:
    """Return the beginning of the SHA-256 of a file; None if it cannot be read."""
    try:
        return file_digest(Path(file))[:DIGITS]
    except OSError:
        return None
