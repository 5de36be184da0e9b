"""Read a run folder for the report: settings, log, metrics, classes and pseudo-labels.

Missing information is collected with the reason, and the report lists it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from tagspread.aliases import JsonObject
from tagspread.errors import TagspreadError
from tagspread.run import schema
from tagspread.run.artifact import FILE, Artifact, read_artifact
from tagspread.run.config import DataSource, RunConfig
from tagspread.run.folder import RunFolder
from tagspread.run.record import RunRecord
from tagspread.run.split import FILE as SPLIT


class Missing(NamedTuple):
    """Something that the report cannot show, and the reason."""

    what: str
    why: str


@dataclass(frozen=True)
class Unlabeled:
    """The last pseudo-labels of the unlabeled set.

    Attributes:
        size: number of unlabeled images.
        positives: number of positive pseudo-labels per class.
        ignored: number of ignored pseudo-labels per class.
        flips: number of pseudo-label changes per class, over the whole run.
        scores: the teacher's logits from which the pseudo-labels were computed (images x classes).
    """

    size: int
    positives: np.ndarray
    ignored: np.ndarray
    flips: np.ndarray
    scores: np.ndarray


@dataclass(frozen=True)
class RunSummary:
    """The contents of a run folder, apart from the networks.

    Attributes:
        path: the run folder.
        version: version of tagspread that trained the run.
        settings: the training settings.
        data: sources of the data.
        log: one entry per epoch, or per round of fitting the head.
        metrics: the contents of ``metrics.json``; empty if training has not finished.
        artifact: classes, thresholds and calibration; None if training has not finished.
        unlabeled: the pseudo-labels; None if the run has none or they cannot be read.
        record: the part of each image; None if the run has no ``split.csv``.
        missing: what the report cannot show.
        plan: how the settings were chosen for a time budget or a quality; None for a run without either.
    """

    path: Path
    version: str
    settings: JsonObject
    data: DataSource
    log: list[JsonObject]
    metrics: JsonObject
    artifact: Artifact | None
    unlabeled: Unlabeled | None
    record: RunRecord | None = None
    missing: list[Missing] = field(default_factory=list)
    plan: JsonObject | None = None

    @property
    def step(self) -> str:
        """Unit of the log: ``"epoch"``, or ``"round"`` if only the head was fitted."""
        return "round" if self.settings.get("mode") == "head" else "epoch"

    @property
    def learned_from_unlabeled(self) -> bool:
        """Whether the run's model was trained on the unlabeled images."""
        return self.unlabeled is not None and self.metrics.get("network") != "labeled_only"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the tags; empty if training has not finished."""
        return () if self.artifact is None else self.artifact.classes


def summarize_run(run: str | Path) -> RunSummary:
    """Read a run folder, apart from the networks."""
    folder = RunFolder(run)
    if not folder.path.is_dir():
        raise TagspreadError(f"the run folder {folder.path} does not exist; check the path.")
    config, missing = RunConfig.read(folder.path), list[Missing]()
    finished = any((folder.path / name).exists() for name in (FILE, "metrics.json"))
    if not finished:
        why = f"the run has no {FILE}: training has not finished.{folder.where_previous}".removesuffix(".")
        missing.append(Missing("Metrics per tag, calibration and examples", why))
    artifact = read_artifact(folder.path) if finished else None
    unlabeled = None
    if artifact is not None:
        try:
            unlabeled = _read_unlabeled(folder.checkpoint, len(artifact.classes))
        except TagspreadError as error:
            missing.append(Missing("Pseudo-labels of the unlabeled images", str(error)))
    record = RunRecord.find(folder.path)
    if artifact is not None and record is not None and record.split.classes != artifact.classes:
        raise TagspreadError(
            f"{folder.path / SPLIT} and {FILE} have different classes, so one of them was changed; restore it."
        )
    metrics = folder.read_json("metrics.json", schema.METRICS) if (folder.path / "metrics.json").exists() else {}
    log = _read_log(folder.path / "log.jsonl")
    return RunSummary(
        folder.path,
        config.version,
        config.settings,
        config.data,
        log,
        metrics,
        artifact,
        unlabeled,
        record,
        missing,
        config.plan,
    )


def _read_log(file: Path) -> list[JsonObject]:
    try:
        return schema.read_log(file)
    except FileNotFoundError:
        return []


def _read_unlabeled(checkpoint: Path, classes: int) -> Unlabeled | None:
    """Read the pseudo-labels from the checkpoint; return None for a run that did not use an unlabeled set.

    The networks in the checkpoint are not read, because they may be large.
    """
    if not checkpoint.exists():
        raise TagspreadError("the run's checkpoint, which holds the pseudo-labels, was removed")
    try:
        with safe_open(checkpoint, framework="np") as opened:
            if "targets.labels" not in set(opened.keys()):
                return None
            labels, flips, scores = (
                opened.get_tensor(name) for name in ("targets.labels", "unlabeled.flips", "unlabeled.scores")
            )
    except (OSError, SafetensorError) as error:
        raise TagspreadError(f"the run's checkpoint cannot be read ({error})") from None
    if labels.ndim != 2 or labels.shape[1] != classes:
        raise TagspreadError(f"the run's checkpoint has labels of shape {labels.shape} for {classes} tags")
    if flips.shape != labels.shape or scores.shape != labels.shape:
        raise TagspreadError(
            f"the run's checkpoint has labels of shape {labels.shape} but flips of shape {flips.shape} and scores of "
            f"shape {scores.shape}"
        )
    positives, ignored = (labels >= 0.5).sum(axis=0), (labels == -1).sum(axis=0)
    return Unlabeled(len(labels), positives, ignored, flips.sum(axis=0, dtype=np.int64), scores.astype(np.float64))
