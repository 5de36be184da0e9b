"""Evaluation of a run: mAP, precision, recall, F1 and calibration on labeled images, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tagspread.aliases import JsonObject, Progress
from tagspread.core.bootstrap import MIN_POSITIVES
from tagspread.core.calibration import reliability
from tagspread.core.decision import Policy, decide
from tagspread.core.metrics import (
    average_precision,
    average_precision_interval,
    mean_average_precision,
    mean_average_precision_interval,
    multilabel_report,
)
from tagspread.data.tables.label_table import LabelTable, foreign_in_words
from tagspread.data.tables.options import GivenOptions
from tagspread.data.tables.read import options_for_run, read_table
from tagspread.errors import Blank, TagspreadError
from tagspread.predict.tagger import Tagger
from tagspread.progress import Watcher
from tagspread.run.artifact import update_artifact
from tagspread.run.config import RunConfig
from tagspread.run.record import CHOSEN_ON, RunRecord, chosen_on_digests, count_chosen_on
from tagspread.run.split import digest_files
from tagspread.train.decision import decide_on
from tagspread.wording import counted

CONFIDENCE = 0.9


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics of one class: positives, AP with its interval, precision, recall and F1; None where undefined."""

    name: str
    positives: int
    known: int
    ap: float | None
    ap_low: float | None
    ap_high: float | None
    threshold: float | None
    chosen: int
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a tagger on labeled images, all in 0..1, with 90 % confidence intervals.

    Attributes:
        images: number of images evaluated.
        unreadable: files that could not be read and are left out, with the reasons.
        map: mean average precision over the classes with positives.
        map_low: lower end of its interval.
        map_high: upper end of its interval.
        map_absent_zero: the mean with 0 for each class without a positive, as CAP's released code computes it.
        decisions: OP, OR, OF1, CP, CR, CF1 at the tagger's thresholds.
        calibration_error: expected calibration error of the probabilities.
        absent: classes without a positive.
        trained_on: number of images whose labels were used in training; None if unknown.
        thresholds_chosen_on: number of images that the thresholds were chosen on; None if unknown.
        classes: metrics per class.
        unknown_tags: tags of the label table that the tagger does not have, and that are left out.
        notes: what reading the label table decided or found.
    """

    images: int
    unreadable: list[str]
    map: float | None
    map_low: float | None
    map_high: float | None
    map_absent_zero: float
    decisions: dict[str, float]
    calibration_error: float
    absent: list[str]
    trained_on: int | None
    thresholds_chosen_on: int | None
    classes: list[ClassMetrics]
    unknown_tags: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> JsonObject:
        """Return plain values for JSON."""
        return asdict(self)


def evaluate(
    tagger: Tagger,
    labels: str | Path | LabelTable | None = None,
    images: str | Path | None = None,
    *,
    table_options: GivenOptions | Mapping[str, Any] | None = None,
    samples: int = 1000,
    watcher: Watcher | None = None,
    mirror: bool = False,
) -> Evaluation:
    """Evaluate a tagger on labeled images.

    Args:
        tagger: from ``ts.load(run)``.
        labels: a label table, as a file or a :class:`LabelTable`; by default the run's test images (``test_labels``
            or ``test_share``). Unknown entries are ignored.
        images: folder that the table's paths are relative to; by default the image folder used in training.
        table_options: options of :func:`~tagspread.data.tables.read.read_table`; the delimiter is by default that of
            the training table.
        samples: number of bootstrap samples for the intervals.
        watcher: shows the progress of each step.
        mirror: average over each image and its mirror image; takes twice as long.
    """
    if labels is None:
        labels, _ = own_test_part(tagger, images)
    table = labels if isinstance(labels, LabelTable) else read_table_for_run(tagger, labels, images, table_options)
    source = "the table" if isinstance(labels, LabelTable) else str(labels)
    y, notes = table.aligned(tagger.classes, source), notes_on_table(table, tagger.classes, source)
    unknown_tags = list(table.foreign(tagger.classes))
    has_label = np.asarray((y >= 0).any(axis=1))
    if has_label.any() and (unknown := int((~has_label).sum())):
        are = "is" if unknown == 1 else "are"
        notes.append(f"{counted(unknown, 'image')} of {source} {are} left out: no label is known")
        table, y = table.select(has_label), y[has_label]
    watcher = watcher or Watcher(quiet=True)
    logits, errors = score_table(tagger, table, watcher.begin("tagging"), mirror)
    good = np.array([not error for error in errors])
    unreadable = [f"{path}: {error}" for path, error in zip(table.paths, errors, strict=True) if error]
    seen = count_seen(tagger, table)
    evaluation = measure(tagger, logits[good], y[good], unreadable, samples, seen=seen, watcher=watcher)
    return replace(evaluation, unknown_tags=unknown_tags, notes=notes)


def notes_on_table(table: LabelTable, classes: Sequence[str], source: str) -> list[str]:
    """Return what the user should know about a label table: how it was read, and which of its tags are left out."""
    foreign = foreign_in_words(table, classes, source)
    return [*map(str, table.notes), *([] if foreign is None else [foreign])]


def decide_on_table(
    tagger: Tagger,
    labels: str | Path,
    images: str | Path | None = None,
    policy: str = "f1",
    *,
    table_options: GivenOptions | Mapping[str, Any] | None = None,
    calibrate: bool = True,
    min_positives: int = 5,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> JsonObject:
    """Choose thresholds and fit the calibration on labeled images, and store both in the run's ``labels.json``.

    Args:
        tagger: from ``ts.load(run)``.
        labels: a label table of images that were not used in training.
        images: folder that the table's paths are relative to; by default the image folder used in training.
        policy: how to choose the threshold of each tag.
        table_options: options of :func:`~tagspread.data.tables.read.read_table`.
        calibrate: whether to fit the calibration, too.
        min_positives: classes with fewer positives share one threshold.
        progress: called with (done, total).
        note: called with what reading the table decided or found.

    Returns:
        What was stored: thresholds, the images they were chosen on, calibration. ``["decision"]["trained_on"]`` is the
        number of images whose labels were used in training, on which a network is overconfident (None if unknown).
    """
    Policy.parse(policy)
    table = read_table_for_run(tagger, labels, images, table_options)
    y = table.aligned(tagger.classes, str(labels))
    if note is not None:
        for text in notes_on_table(table, tagger.classes, str(labels)):
            note(text)
    record, digests = RunRecord.find(tagger.artifact.path), digest_files(table.paths)
    trained_on = None if record is None else record.trained_on(digests)
    if trained_on == len(table):
        raise TagspreadError(
            f"the run was trained on all images of {labels} ({counted(len(table), 'image')}), on which it is "
            "overconfident; choose thresholds on other labeled images."
        )
    logits, errors = score_table(tagger, table, progress)
    good = np.array([not error for error in errors])
    source = f"{int(good.sum()):,} images of {Path(labels).name}"
    facts = decide_on(
        logits[good], y[good], tagger.classes, policy, source, calibrate=calibrate, min_positives=min_positives
    )
    facts[CHOSEN_ON] = chosen_on_digests(digests[good])
    facts["decision"] |= {"trained_on": trained_on, "images": len(table)}
    update_artifact(tagger.artifact, lambda before: before | facts)
    return facts


def read_table_for_run(
    tagger: Tagger,
    labels: str | Path,
    images: str | Path | None,
    table_options: GivenOptions | Mapping[str, Any] | None,
) -> LabelTable:
    """Read a label table; its paths are relative to ``images``, by default the image folder used in training."""
    if images is None:
        config = RunConfig.find(tagger.artifact.path)
        images = None if config is None else config.data.images
        if images is None or not Path(images).is_dir():
            raise TagspreadError(
                f"the folder that the paths in {labels} are relative to is unknown; give it with @images.",
                images=Blank("DIR"),
            )
    given = GivenOptions.of(table_options).to_dict()
    return read_table(labels, images, **options_for_run(Path(labels), own_table_options(tagger), given))


def own_table_options(tagger: Tagger) -> JsonObject:
    """Return the options that the run's own table was read with, as far as they are recorded."""
    config = RunConfig.find(tagger.artifact.path)
    return {} if config is None else config.data.table_options


def own_test_part(tagger: Tagger, images: str | Path | None = None) -> tuple[LabelTable, str]:
    """Return the run's test images with their labels, and a description of them.

    Args:
        tagger: the run's tagger.
        images: the image folder, if it was moved after training.
    """
    return RunRecord.read(tagger.artifact.path).test_table(images)


class Seen(NamedTuple):
    """Number of images that a run has used in training and for its thresholds; None if unknown."""

    trained_on: int | None = None
    thresholds_chosen_on: int | None = None


UNKNOWN = Seen()


def count_seen(tagger: Tagger, table: LabelTable) -> Seen:
    """Count the table's images whose labels the run used in training, and those its thresholds were chosen on."""
    record, digests = RunRecord.find(tagger.artifact.path), digest_files(table.paths)
    trained_on = None if record is None else record.trained_on(digests)
    return Seen(trained_on, count_chosen_on(tagger.artifact.facts, record, digests))


def score_table(
    tagger: Tagger, table: LabelTable, progress: Progress | None = None, mirror: bool = False
) -> tuple[np.ndarray, list[str]]:
    """Return the network's logits for a table's images, and an error per image (empty if it could be read)."""
    parts, errors = [], list[str]()
    for chunk, logits in tagger.logits(table.paths, mirror=mirror):
        parts.append(logits)
        errors += chunk.errors
        if progress is not None:
            progress(len(errors), len(table))
    if not any(not error for error in errors):
        raise TagspreadError(
            f"none of the {len(errors):,} images can be read (the first is {table.paths[0]}: {errors[0]}); "
            "if the table's paths are relative to another folder, give it with @images.",
            images=Blank("DIR"),
        )
    return np.concatenate(parts), errors


def measure(
    tagger: Tagger,
    logits: np.ndarray,
    y: np.ndarray,
    unreadable: Sequence[str] = (),
    samples: int = 1000,
    seen: Seen = UNKNOWN,
    watcher: Watcher | None = None,
) -> Evaluation:
    """Return the metrics of given logits and labels."""
    watcher = watcher or Watcher(quiet=True)
    if not (y >= 0).any():
        raise TagspreadError("all labels of these images are unknown (-1); give images with known labels.")
    probabilities = tagger.calibration.probabilities(logits)
    chosen = decide(probabilities, tagger.thresholds)
    value = mean_average_precision(logits, y)
    defined = not math.isnan(value)
    low, high = (
        mean_average_precision_interval(
            logits, y, confidence=CONFIDENCE, samples=samples, progress=watcher.begin("bootstrap, mAP")
        )
        if defined
        else (None,) * 2
    )
    absent = [name for name, occurs in zip(tagger.classes, (y == 1).any(axis=0), strict=True) if not occurs]
    return Evaluation(
        images=len(y),
        unreadable=list(unreadable),
        map=value if defined else None,
        map_low=low,
        map_high=high,
        map_absent_zero=mean_average_precision(logits, y, absent="zero"),
        decisions=multilabel_report(chosen, y),
        calibration_error=reliability(probabilities, y).error,
        absent=absent,
        trained_on=seen.trained_on,
        thresholds_chosen_on=seen.thresholds_chosen_on,
        classes=_per_class(tagger, logits, chosen, y, samples, watcher.begin("bootstrap, tags")),
    )


def _per_class(
    tagger: Tagger, logits: np.ndarray, chosen: np.ndarray, y: np.ndarray, samples: int, progress: Progress
) -> list[ClassMetrics]:
    ap = average_precision(logits, y)
    low, high = average_precision_interval(logits, y, confidence=CONFIDENCE, samples=samples, progress=progress)
    known, positive = y >= 0, y == 1
    predicted_known = (chosen == 1) & known
    hits, predicted, true = (mask.sum(axis=0) for mask in (predicted_known & positive, predicted_known, positive))
    return [
        ClassMetrics(
            name,
            positives=int(true[k]),
            known=int(known[:, k].sum()),
            ap=_or_none(ap[k]),
            ap_low=_or_none(low[k]) if true[k] >= MIN_POSITIVES else None,
            ap_high=_or_none(high[k]) if true[k] >= MIN_POSITIVES else None,
            threshold=_or_none(tagger.thresholds[k]),
            chosen=int(predicted[k]),
            precision=_share(hits[k], predicted[k]),
            recall=_share(hits[k], true[k]),
            f1=_share(2 * hits[k], predicted[k] + true[k]) if true[k] else None,
        )
        for k, name in enumerate(tagger.classes)
    ]


def _or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None
