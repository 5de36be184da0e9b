"""What a run knows about its unlabeled images: scores of its models and features, the evidence to suggest images by.

The images pass through the run's network once; features that training has cached are not computed again. The result is
kept in ``RUN/review/evidence.npz`` until the run changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tagspread.core.thresholds import class_counts
from tagspread.errors import Blank, TagspreadError
from tagspread.predict.images import read_chunks
from tagspread.predict.tagger import Tagger, load
from tagspread.progress import Watcher
from tagspread.review.answers import FOLDER
from tagspread.review.arrays import fits, read_arrays, write_arrays
from tagspread.review.strategies import Evidence
from tagspread.run.record import RunRecord
from tagspread.run.schema import COUNT, TEXT, Record
from tagspread.run.split import FILE as SPLIT
from tagspread.run.split import Part
from tagspread.train.finalize import LABELED_ONLY

FILE = "evidence.npz"
FORMAT = 1
SOURCES = ("labels.json", SPLIT)  # the evidence is computed again if one of them changes
LABELED = (Part.LABELED, Part.APART, Part.HELD_OUT)
FEATURES = 64  # numbers kept of each image's features, a random projection: enough to compare distances
FACTS = Record(required={"format": COUNT, "sources": TEXT, "unreadable": COUNT})
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores and features of the images of a run.

    Attributes:
        rows: rows of the unlabeled images in ``split.csv``; images that cannot be read are omitted.
        scores: logits of the run's model, images x tags.
        baseline: logits of the labeled-only model, if it shares its network with the run's model.
        mirror: logits of the run's model for the mirror images, if their features are at hand.
        features: features of the images, projected.
        labeled_features: features of the labeled images.
        unreadable: number of unlabeled images that could not be read.
    """

    rows: npt.NDArray[np.int64]
    scores: Floats
    baseline: Floats | None
    mirror: Floats | None
    features: Floats | None
    labeled_features: Floats | None
    unreadable: int

    def evidence(self, y: np.ndarray, frequencies: np.ndarray | None = None) -> Evidence:
        """Return the evidence to suggest images by.

        Args:
            y: all known labels: those of the run and the answers of reviewers.
            frequencies: frequency of each tag in the unlabeled images, if they were audited.
        """
        positives, known = class_counts(y) if len(y) else (np.zeros(self.scores.shape[1], np.int64),) * 2
        return Evidence(
            _single(self.scores),
            positives,
            known,
            frequencies,
            baseline=None if self.baseline is None else _single(self.baseline),
            mirror=None if self.mirror is None else _single(self.mirror),
            features=self.features,
            labeled_features=self.labeled_features,
        )


def _single(values: Floats) -> Floats:
    return values.astype(np.float32)


def scored_run(
    run: str | PathLike[str],
    images: str | Path | None = None,
    *,
    device: str = "auto",
    watcher: Watcher | None = None,
    record: RunRecord | None = None,
) -> Scored:
    """Return scores and features of a run's images; compute them if the run has changed since they were kept.

    Args:
        run: the run folder.
        images: the folder of images, if it was moved.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        watcher: shows the progress.
        record: the record of the run, if it was read before.
    """
    record = RunRecord.read(run) if record is None else record
    sources = _digest_sources(record.path)
    if (kept := _read(record, sources)) is not None:
        return kept
    scored = _score(record, images, device, watcher or Watcher(quiet=True))
    _write(record.path, scored, sources)
    return scored


def _score(record: RunRecord, images: str | Path | None, device: str, watcher: Watcher) -> Scored:
    run = record.path
    tagger = load(run, device)
    unlabeled, labeled = record.split.rows(Part.UNLABELED), record.split.rows(*LABELED)
    if not len(unlabeled):
        raise TagspreadError(f"{run} has no unlabeled images, so there is nothing to suggest.")
    rows = np.concatenate([unlabeled, labeled])
    files = record.files(rows, images)
    watcher.note(f"scoring {len(unlabeled):,} unlabeled images; the scores are kept in {run / FOLDER}")
    parts: dict[str, list[np.ndarray]] = {}
    errors: list[str] = []
    try:
        for chunk_errors, views in _views(tagger, run, files):
            errors += chunk_errors
            for name, values in views.items():
                parts.setdefault(name, []).append(values)
            watcher.tagging(len(errors), len(files))
    finally:
        watcher.close()
    whole = {name: np.concatenate(values) for name, values in parts.items()}
    readable = np.array([not error for error in errors])
    is_unlabeled = np.arange(len(rows)) < len(unlabeled)
    shown, examples = readable & is_unlabeled, readable & ~is_unlabeled
    if not shown.any():
        raise TagspreadError(
            f"none of the {len(unlabeled):,} unlabeled images of {run} can be read (the first is {files[0]}: "
            f"{errors[0]}); if they were moved, give the new folder with @images.",
            images=Blank("DIR"),
        )
    if missing := int((is_unlabeled & ~readable).sum()):
        watcher.note(f"note: {missing:,} unlabeled images cannot be read and are left out")
    features = whole.get("features")
    return Scored(
        rows[shown],
        whole["scores"][shown],
        whole["baseline"][shown] if "baseline" in whole else None,
        whole["mirror"][shown] if "mirror" in whole else None,
        None if features is None else features[shown],
        None if features is None else features[examples],
        missing,
    )


def _views(tagger: Tagger, run: Path, files: list[Path]) -> Iterator[tuple[list[str], dict[str, np.ndarray]]]:
    """Yield, chunk by chunk, the errors of images that cannot be read, and scores and features of all images."""
    network, baseline = tagger.network, _labeled_only_head(tagger, run)
    # without cached features, each view is a pass through the network, which takes long without a GPU
    mirrored = tagger.has_cached_features(mirror=True) or tagger.device.type == "cuda"
    projection: Tensor | None = None
    for chunk in read_chunks(files, tagger.artifact.shape, 64):
        if network.head.wants_map:  # its head does not take pooled features
            ((_, logits),) = tagger.logits(chunk.images)
            yield chunk.errors, {"scores": logits.astype(np.float16)}
            continue
        with torch.inference_mode():
            features = tagger.features(chunk.images)
            if projection is None:
                projection = _projection(features.shape[1])
            found = {"scores": _half(network.head(features)), "features": _half(features.cpu() @ projection)}
            if baseline is not None:
                found["baseline"] = _half(features @ baseline[0].T + baseline[1])
            if mirrored:
                found["mirror"] = _half(network.head(tagger.features(chunk.images, mirror=True)))
        yield chunk.errors, found


def _half(values: Tensor) -> np.ndarray:
    return values.detach().clamp(-6e4, 6e4).to(torch.float16).cpu().numpy()


def _projection(width: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if width <= FEATURES:
        return torch.eye(width)
    projection: Tensor = torch.randn(width, FEATURES, generator=generator) / FEATURES**0.5
    return projection


def _labeled_only_head(tagger: Tagger, run: Path) -> tuple[Tensor, Tensor] | None:
    """Return weight and bias of the labeled-only model's head; None if its network is another one."""
    file = run / LABELED_ONLY
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError):
        return None
    own = tagger.network.state_dict()
    below = [name for name in own if name.startswith("backbone.")]
    same = all(name in tensors and torch.equal(tensors[name], own[name].cpu()) for name in below)
    if not same or not {"head.weight", "head.bias"} <= tensors.keys():
        return None
    weight, bias = tensors["head.weight"].to(tagger.device), tensors["head.bias"].to(tagger.device)
    return (weight, bias) if weight.ndim == 2 and len(weight) == len(tagger.classes) else None


def _digest_sources(run: Path) -> str:
    digest = hashlib.sha256()
    for name in SOURCES:
        if (run / name).is_file():
            digest.update((run / name).read_bytes())
    return digest.hexdigest()


def _write(run: Path, scored: Scored, sources: str) -> None:
    facts = {"format": FORMAT, "sources": sources, "unreadable": scored.unreadable}
    arrays = {name: value for name, value in vars(scored).items() if isinstance(value, np.ndarray)}
    write_arrays(run / FOLDER / FILE, facts, arrays)


def _read(record: RunRecord, sources: str) -> Scored | None:
    """Read what was kept; return None if it is missing, damaged or out of date: it is computed again."""
    found = read_arrays(record.path / FOLDER / FILE, FACTS, FORMAT)
    if found is None or found[0]["sources"] != sources:
        return None
    facts, arrays = found
    rows, scores, features = arrays.get("rows"), arrays.get("scores"), arrays.get("features")
    if rows is None or scores is None or not fits(rows, "iu", (None,)):
        return None
    both = (len(rows), len(record.split.classes))
    width = None if features is None or features.ndim != 2 else features.shape[1]
    shapes = {"baseline": both, "mirror": both, "features": (len(rows), width), "labeled_features": (None, width)}
    more = {name: arrays.get(name) for name in shapes}
    if (
        not len(rows)
        or not np.isin(rows, record.split.rows(Part.UNLABELED)).all()
        or len(np.unique(rows)) != len(rows)
        or not fits(scores, "f", both)
        or any(values is not None and not fits(values, "f", shapes[name]) for name, values in more.items())
        or (more["features"] is None) != (more["labeled_features"] is None)
        or not all(np.isfinite(values).all() for values in (scores, *more.values()) if values is not None)
    ):
        return None
    return Scored(
        rows, scores, more["baseline"], more["mirror"], more["features"], more["labeled_features"], facts["unreadable"]
    )
