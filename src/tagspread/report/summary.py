"""What a run folder tells about itself: settings, log, figures, tags, and how the unlabeled set was labeled.

Whatever is missing is written down with the reason, so that the page can say it instead of leaving a hole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from tagspread.aliases import JsonObject
from tagspread.errors import TagspreadError
from tagspread.run.artifact import FILE, Artifact, read_artifact
from tagspread.run.config import DataSource, RunConfig
from tagspread.run.folder import RunFolder
from tagspread.run.record import RunRecord
from tagspread.run.split import FILE as SPLIT


class Missing(NamedTuple):
    """Something that the page cannot show, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Unlabeled:
    """What the unlabeled images were last taken for.

    Attributes:
        size: how many there are.
        positives: per class, how many were taken to carry the tag.
        ignored: per class, how many were left open.
        flips: per class, how often a pseudo-label changed from one epoch to the next, over the whole run.
        scores: images x classes, the teacher's logits in the last epoch.
    """

    size: int
    positives: np.ndarray
    ignored: np.ndarray
    flips: np.ndarray
    scores: np.ndarray


@dataclass(frozen=True)
class RunSummary:
    """A run folder, read.

    Attributes:
        path: the folder.
        version: the tagspread that trained.
        settings: how it was trained.
        data: where the data came from.
        record: which image was used for what; None if the run does not say.
        log: a line of figures per epoch, or per round of fitting the head.
        metrics: the figures at the end; empty if training has not finished.
        artifact: tags, thresholds and calibration; None if training has not finished.
        unlabeled: what the unlabeled set was labeled with; None if that is not known.
        missing: what is not known, and why.
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

    @property
    def step(self) -> str:
        """What a line of the log is of: an epoch or, where only the head was fitted, a round."""
        return "round" if self.settings.get("mode") == "head" else "epoch"

    @property
    def learned_from_unlabeled(self) -> bool:
        """Whether the unlabeled images had a part in the model that is kept."""
        return self.unlabeled is not None and self.metrics.get("network") != "labeled_only"

    @property
    def classes(self) -> tuple[str, ...]:
        """The tags; none while it is not known what was trained."""
        return () if self.artifact is None else self.artifact.classes


def summarize_run(run: str | Path) -> RunSummary:
    """Read everything a run folder holds except the networks."""
    folder = RunFolder(run)
    if not folder.path.is_dir():
        raise TagspreadError(f"there is no folder {folder.path}; give a run folder.")
    config, missing = RunConfig.read(folder.path), list[Missing]()
    finished = any((folder.path / name).exists() for name in (FILE, "metrics.json"))
    if not finished:
        why = f"the run has no {FILE}: training has not finished.{folder.where_previous}".removesuffix(".")
        missing.append(Missing("Everything about single tags", why))
    artifact = read_artifact(folder.path) if finished else None
    unlabeled = None
    if artifact is not None:
        try:
            unlabeled = _read_unlabeled(folder.checkpoint, len(artifact.classes))
        except TagspreadError as error:
            missing.append(Missing("What the unlabeled images were taken for", str(error)))
    record = RunRecord.find(folder.path)
    if artifact is not None and record is not None and record.split.classes != artifact.classes:
        raise TagspreadError(
            f"{folder.path / SPLIT} has other classes than {FILE}; one of them was changed: put it back."
        )
    metrics = folder.read_json("metrics.json") if (folder.path / "metrics.json").exists() else {}
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
    )


def _read_log(file: Path) -> list[JsonObject]:
    if not file.exists():
        return []
    lines = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            lines.append({"epoch": int(json.loads(line)["epoch"])} | json.loads(line))
        except (ValueError, TypeError, KeyError):
            raise TagspreadError(f"{file} is damaged: line {number} is not the line of an epoch.") from None
    return lines


def _read_unlabeled(checkpoint: Path, classes: int) -> Unlabeled | None:
    """Read what the unlabeled set was labeled with; None for a run that made no use of an unlabeled set.

    Only these tensors are read: the file also holds every network, and may be large.
    """
    if not checkpoint.exists():
        raise TagspreadError("the run's checkpoint folder, which holds the pseudo-labels, is gone")
    try:
        with safe_open(checkpoint, framework="np") as opened:
            there = set(opened.keys())
            if "targets.labels" not in there:
                return None
            labels, flips, scores = (
                opened.get_tensor(name) for name in ("targets.labels", "unlabeled.flips", "unlabeled.scores")
            )
    except (OSError, SafetensorError) as error:
        raise TagspreadError(f"the run's checkpoint cannot be read ({error})") from None
    if labels.ndim != 2 or labels.shape[1] != classes:
        raise TagspreadError(f"the run's checkpoint has labels of shape {labels.shape} for {classes} tags")
    positives, ignored = (labels >= 0.5).sum(axis=0), (labels == -1).sum(axis=0)
    return Unlabeled(len(labels), positives, ignored, flips.sum(axis=0, dtype=np.int64), scores.astype(np.float64))
