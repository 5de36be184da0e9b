"""Audit of a run: what its random sample of answers says about class frequencies and pseudo-labels.

The sample is the longest finished beginning of the run's random draws (:meth:`AnswerStore.random_sample`), whatever
strategy queued its images. It is an unbiased sample of the run's unlabeled images.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from tagspread.aliases import JsonObject
from tagspread.core.audit import (
    ClassAudit,
    PseudoLabelAudit,
    Share,
    audit_frequencies,
    audit_pseudo_labels,
    remaining_frequencies,
    shrunk_frequencies,
)
from tagspread.core.thresholds import class_counts
from tagspread.errors import TagspreadError
from tagspread.review.answers import AnswerStore
from tagspread.run.pseudo_labels import FILE as PSEUDO_LABELS
from tagspread.run.pseudo_labels import read_pseudo_labels
from tagspread.run.record import RunRecord
from tagspread.run.split import Part, Split
from tagspread.wording import counted

LABELED = (Part.LABELED, Part.APART, Part.HELD_OUT)
MANY_UNKNOWN = 0.1  # share of unknown answers of a tag, from which its frequency may be biased


@dataclass(frozen=True)
class TagAudit:
    """What the audit says about one tag.

    Attributes:
        tag: its name.
        frequency: its frequency in the unlabeled and in the labeled images.
        pseudo_labels: precision and recall of its pseudo-labels; None if the run has none.
        unknown: sampled images without a known answer for the tag.
    """

    tag: str
    frequency: ClassAudit
    pseudo_labels: PseudoLabelAudit | None
    unknown: int

    def contradiction(self) -> str | None:
        """Return a warning if the labeled images contradict the audit; otherwise None."""
        if not self.frequency.contradicts:
            return None
        return (
            f"{self.tag}: {percent(self.frequency.labeled.value)} % among your labels, "
            f"{_range(self.frequency.unlabeled)} % in the unlabeled images"
        )


@dataclass(frozen=True)
class RunAudit:
    """What the audit of a run says.

    Attributes:
        tags: one entry per tag of the run.
        sample: number of images in the random sample.
        unlabeled: number of unlabeled images of the run.
        frequencies: estimated frequency of each tag in the unlabeled images of the run; tags without a known answer in
            the sample are omitted.
        priors: the same in those unlabeled images that nobody has answered: the unlabeled set of the next run.
    """

    tags: tuple[TagAudit, ...]
    sample: int
    unlabeled: int
    frequencies: dict[str, float]
    priors: dict[str, float]

    def warnings(self) -> list[str]:
        """Return the warnings, most surprising first."""
        by_surprise = sorted(self.tags, key=lambda tag: tag.frequency.p_value)
        found = [text for tag in by_surprise if (text := tag.contradiction()) is not None]
        unsure = [tag.tag for tag in self.tags if tag.unknown > MANY_UNKNOWN * self.sample]
        if unsure:
            found.append(
                f"more than {100 * MANY_UNKNOWN:.0f} % of the sample has no known answer for {', '.join(unsure)}: if "
                "these images are not like the others, the frequency is biased"
            )
        return found

    def to_dict(self) -> JsonObject:
        """Return the audit as plain values for JSON."""
        return {
            "sample": self.sample,
            "unlabeled": self.unlabeled,
            "tags": [
                {
                    "tag": tag.tag,
                    "unlabeled": _as_dict(tag.frequency.unlabeled),
                    "labeled": _as_dict(tag.frequency.labeled),
                    "p_value": tag.frequency.p_value,
                    "contradicts": tag.frequency.contradicts,
                    "unknown": tag.unknown,
                    "frequency": self.frequencies.get(tag.tag),
                    "prior": self.priors.get(tag.tag),
                }
                | (
                    {}
                    if tag.pseudo_labels is None
                    else {name: _as_dict(share) for name, share in tag.pseudo_labels._asdict().items()}
                )
                for tag in self.tags
            ],
            "warnings": self.warnings(),
        }


def audit_run(run: str | PathLike[str], confidence: float = 0.9) -> RunAudit:
    """Audit a run by the answers of its reviewers.

    Args:
        run: the run folder.
        confidence: confidence level of the intervals, for each tag.
    """
    record = RunRecord.read(run)
    split = record.split
    with AnswerStore.open(run) as store:
        sample, answers = store.random_sample(record.config.id), store.answers()
    if not sample:
        raise TagspreadError(
            f"{Path(run)} has no reviewed image that was drawn at random, so there is nothing to audit; review "
            f"some: tagspread review {run}"
        )
    given = _labels(split, {(answer.digest, answer.tag): answer.label for answer in answers})
    unlabeled = split.rows(Part.UNLABELED)
    first = {digest.decode(): row for row, digest in reversed(list(enumerate(split.digests)))}
    drawn = np.array([first[digest] for digest in sample if digest in first], np.int64)
    positives, known = class_counts(given[drawn])
    labeled_y = split.y[split.rows(*LABELED)]
    counts = (positives, known, (labeled_y == 1).sum(0), (labeled_y >= 0).sum(0))
    frequencies = audit_frequencies(*counts, confidence)
    targets = _pseudo_labels(Path(run), split, drawn)
    quality = None if targets is None else audit_pseudo_labels(targets, given[drawn], confidence)
    answered = given[unlabeled]
    whole = shrunk_frequencies(*counts)
    left = remaining_frequencies(whole, len(unlabeled), (answered == 1).sum(0), (answered >= 0).sum(0))
    return RunAudit(
        tuple(
            TagAudit(tag, frequencies[k], None if quality is None else quality[k], len(drawn) - int(known[k]))
            for k, tag in enumerate(split.classes)
        ),
        len(drawn),
        len(unlabeled),
        _by_tag(split, whole),
        _by_tag(split, left),
    )


def _by_tag(split: Split, values: np.ndarray) -> dict[str, float]:
    return {tag: round(float(values[k]), 6) for k, tag in enumerate(split.classes) if not np.isnan(values[k])}


def _labels(split: Split, answers: dict[tuple[str, str], int]) -> np.ndarray:
    """Return the answers to the images of a split: rows x tags of 1, 0, -1; copies of an image share their answers."""
    given = np.full((len(split), len(split.classes)), -1, np.int8)
    column = {tag: k for k, tag in enumerate(split.classes)}
    by_digest: dict[str, list[tuple[int, int]]] = {}
    for (digest, tag), label in answers.items():
        if tag in column:  # a tag that a reviewer added has no labels in this run
            by_digest.setdefault(digest, []).append((column[tag], label))
    for row, digest in enumerate(split.digests.tolist()):
        for k, label in by_digest.get(digest.decode(), ()):
            given[row, k] = label
    return given


def _pseudo_labels(run: Path, split: Split, rows: np.ndarray) -> np.ndarray | None:
    """Return the pseudo-labels of some rows (1, 0, -1 ignored); None if the run has none."""
    if not (run / PSEUDO_LABELS).is_file():
        return None
    column = {tag: k for k, tag in enumerate(split.classes)}
    entries = {image.name: image.entries for image in read_pseudo_labels(run)}
    targets = np.zeros((len(rows), len(split.classes)), np.int8)  # only positives and ignored ones are listed
    for place, row in enumerate(rows.tolist()):
        for entry in entries.get(split.names[row], ()):
            targets[place, column[entry.tag]] = -1 if entry.target == -1 else int(entry.given)
    return targets


def audit_in_words(audit: RunAudit) -> list[str]:
    """Describe the audit in sentences: its sample, and what contradicts the labels."""
    lines = [
        f"audit of {counted(audit.sample, 'image')} drawn at random from {audit.unlabeled:,} unlabeled images "
        "(90 % intervals)"
    ]
    return [*lines, *(f"warning: {text}" for text in audit.warnings())]


def percent(share: float) -> str:
    """Return a share in percent, with a decimal below 10; a question mark if it is unknown.

    >>> percent(0.1088), percent(0.0312), percent(0.6), percent(float("nan"))
    ('11', '3.1', '60', '?')
    """
    if np.isnan(share):
        return "?"
    text = f"{100 * share:.1f}" if share < 0.0995 else f"{100 * share:.0f}"
    return text.removesuffix(".0")


def _range(share: Share) -> str:
    return f"{percent(share.low)} to {percent(share.high)}"


def interval(share: Share) -> str:
    """Return a share with its interval in percent.

    >>> interval(Share(6, 285, 0.0092, 0.0412)), interval(Share(0, 0, float("nan"), float("nan")))
    ('2.1 (0.9 to 4.1)', '?')
    """
    return percent(share.value) if np.isnan(share.value) else f"{percent(share.value)} ({_range(share)})"


def _as_dict(share: Share) -> JsonObject | None:
    return None if not share.of else share._asdict()
