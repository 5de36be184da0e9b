"""Prepare the review of a run: score its unlabeled images, and write what the server needs to know.

This takes PyTorch and much memory, so it happens in a process of its own, which ends before the server starts.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tagspread.errors import TagspreadError
from tagspread.review.index import Index, digest_sources, fresh_index, write_index

if TYPE_CHECKING:
    from tagspread.run.split import Split


def ensure_index(run: Path, images: Path | None = None, *, device: str = "auto", quiet: bool = False) -> Index:
    """Return the index of a run; if it is missing or out of date, prepare it in another process.

    Args:
        run: the run folder.
        images: the folder of images, if it was moved.
        device: device to score images on.
        quiet: show no progress.
    """
    index = fresh_index(run, images)
    if index is None:
        # not forked: PyTorch's threads would not survive it
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            try:
                pool.submit(prepare_index, run, images, device=device, quiet=quiet).result()
            except BrokenProcessPool:
                raise TagspreadError(
                    f"the process that scored the images of {run} was killed, perhaps for lack of memory; try again."
                ) from None
        index = fresh_index(run, images)
        if index is None:
            raise TagspreadError(f"{run} changed while its images were scored; start the review again.")
    return index


def prepare_index(run: Path, images: Path | None = None, *, device: str = "auto", quiet: bool = False) -> None:
    """Score the unlabeled images of a run, and write its index and its queue; see :func:`ensure_index`."""
    from tagspread.progress import Watcher
    from tagspread.review.evidence import scored_run
    from tagspread.review.suggest import queue_by_mixture
    from tagspread.run.artifact import read_artifact
    from tagspread.run.record import RunRecord
    from tagspread.run.split import Part

    sources = digest_sources(run)
    artifact, record = read_artifact(run), RunRecord.read(run)
    split = record.split
    unlabeled, examples = split.rows(Part.UNLABELED), split.rows(Part.LABELED, Part.APART, Part.HELD_OUT)
    scored = scored_run(run, images, device=device, watcher=Watcher(quiet), record=record)
    readable = np.isin(unlabeled, scored.rows)
    rows = np.concatenate([unlabeled[readable], examples])
    shown = np.arange(len(rows)) < readable.sum()
    scores = np.full((len(rows), len(split.classes)), np.nan, np.float32)
    scores[shown] = artifact.calibration.probabilities(scored.scores.astype(np.float64))
    root, recorded = record.root(images), record.root()
    write_index(
        run,
        Index(
            run_id=record.config.id,
            root="" if root is None else str(root.absolute()),
            recorded_root="" if recorded is None else str(recorded.absolute()),
            names=[split.names[row] for row in rows],
            rows=rows,
            digests=[digest.decode() for digest in split.digests[rows].tolist()],
            unlabeled=shown,
            classes=split.classes,
            thresholds=artifact.thresholds,
            y=split.y[rows],
            scores=scores,
            pseudo=_pseudo_labels(run, split, rows, shown),
            unreadable=tuple(split.names[row] for row in unlabeled[~readable]),
            sources=sources,
        ),
    )
    queue_by_mixture(run, images)


def _pseudo_labels(run: Path, split: Split, rows: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """Return the hard pseudo-labels of the rows; 0 for all tags if the run gave none."""
    from tagspread.run.pseudo_labels import FILE, read_pseudo_labels

    pseudo = np.zeros((len(rows), len(split.classes)), np.int8)
    if not (run / FILE).is_file():
        return pseudo
    column = {name: k for k, name in enumerate(split.classes)}
    entries = {image.name: image.entries for image in read_pseudo_labels(run)}
    for at in np.flatnonzero(shown).tolist():
        for entry in entries.get(split.names[rows[at]], ()):
            pseudo[at, column[entry.tag]] = -1 if entry.target == -1 else entry.given
    return pseudo
