"""Suggest what to label next in a run: the run's scores, the answers so far, and the strategies, put together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from tagspread.data.tables.spreadsheets import plain_image, plain_tags
from tagspread.errors import TagspreadError
from tagspread.files import write_csv
from tagspread.progress import Watcher
from tagspread.review.answers import AnswerStore, Queued
from tagspread.review.audit import audit_run
from tagspread.review.evidence import LABELED, scored_run
from tagspread.review.queue import random_draws
from tagspread.review.strategies import MIXTURE, Evidence, suggest
from tagspread.run.record import RunRecord
from tagspread.run.split import Split
from tagspread.wording import counted

COLUMNS = ("image", "strategy", "ask_first")


@dataclass(frozen=True)
class Suggestions:
    """Images to label next.

    Attributes:
        names: names of the images, as in ``split.csv``.
        digests: their digests.
        queue: their rows in ``split.csv``, strategies, and tags to ask about first.
        left: number of unlabeled images that are neither answered nor suggested.
        notes: what was left out, and why.
    """

    names: list[str]
    digests: list[str]
    queue: list[Queued]
    left: int
    notes: list[str]

    def in_words(self) -> str:
        """Describe how many images each strategy chose."""
        shares = Counter(queued.strategy for queued in self.queue)
        return f"{counted(len(self.queue), 'image')}: " + ", ".join(f"{n:,} {name}" for name, n in shares.items())


def suggest_images(
    run: str | PathLike[str],
    count: int,
    strategy: str = "mixture",
    *,
    images: str | Path | None = None,
    device: str = "auto",
    watcher: Watcher | None = None,
    again: bool = False,
) -> Suggestions:
    """Return the unlabeled images of a run to label next, in order.

    The random ones are the next of the run's random draws, which are kept with the answers, so that they stay an
    unbiased sample of its unlabeled images.

    Args:
        run: the run folder.
        count: number of images.
        strategy: name of a strategy, see :mod:`tagspread.review.strategies`.
        images: the folder of images, if it was moved.
        device: device to score images on, if they were not scored before.
        watcher: shows the progress.
        again: also suggest images that were answered before.
    """
    if count < 1:
        raise TagspreadError(f"the number of images is {count}; suggest at least 1.")
    record = RunRecord.read(run)
    scored = scored_run(run, images, device=device, watcher=watcher, record=record)
    split, rows = record.split, scored.rows
    digests = [digest.decode() for digest in split.digests[rows].tolist()]
    with AnswerStore.open(run, create=True) as store:
        store.set_draws(record.config.id, random_draws(digests, record.config.id))
        order, visited, answers = store.draws(record.config.id), store.visited(), store.answers()
        audited = bool(store.random_sample(record.config.id))
    y = _known_labels(split, {(answer.digest, answer.tag): answer.label for answer in answers})
    done = np.array([digest in visited for digest in digests]) | (y[rows] >= 0).all(1)
    evidence = scored.evidence(y[(y >= 0).any(1)], _frequencies(run, split) if audited else None)
    place = {digest: k for k, digest in reversed(list(enumerate(digests)))}
    draws = np.array([place[digest] for digest in order if digest in place], np.int64)
    done &= not again
    done[np.setdiff1d(np.arange(len(digests)), draws)] = True  # copies of an image: one of them is enough
    chosen = suggest(evidence, count, strategy, draws=draws, done=done)
    queue = [Queued(int(rows[one.image]), one.strategy, tuple(split.classes[k] for k in one.classes)) for one in chosen]
    picked = [rows[one.image] for one in chosen]
    return Suggestions(
        [split.names[row] for row in picked],
        [split.digests[row].decode() for row in picked],
        queue,
        int((~done).sum()) - len(chosen),
        _left_out(evidence) if strategy == "mixture" else [],
    )


def _known_labels(split: Split, answers: dict[tuple[str, str], int]) -> np.ndarray:
    """Return all known labels of a run's images: those it was trained on, and the answers, which count more."""
    y = np.full_like(split.y, -1)
    y[split.rows(*LABELED)] = split.y[split.rows(*LABELED)]
    column = {tag: k for k, tag in enumerate(split.classes)}
    of_digest = {digest.decode(): row for row, digest in enumerate(split.digests.tolist())}
    for (digest, tag), label in answers.items():
        if tag in column and digest in of_digest:
            y[of_digest[digest], column[tag]] = label
    return y


def _frequencies(run: str | PathLike[str], split: Split) -> np.ndarray:
    """Return the frequencies of the audit; where it has none, those of the labeled images."""
    audited, labeled = audit_run(run).frequencies, split.y[split.rows(*LABELED)]
    counts = (labeled == 1).sum(0) / np.maximum((labeled >= 0).sum(0), 1)
    return np.array([audited.get(tag, counts[k]) for k, tag in enumerate(split.classes)])


def _left_out(evidence: Evidence) -> list[str]:
    return [
        f"note: the mixture leaves out {name!r}, which needs {missing}"
        for name in MIXTURE
        if (missing := evidence.missing(name))
    ]


def write_suggestions(file: Path, suggestions: Suggestions, delimiter: str = "|") -> None:
    """Write suggestions as a CSV file: image, strategy (``random`` for random draws), and tags to ask about first."""
    rows = zip(suggestions.names, suggestions.queue, strict=True)
    lines = ((plain_image(name), queued.strategy, plain_tags(queued.tags, delimiter)) for name, queued in rows)
    write_csv(file, COLUMNS, lines)


def queue_images(run: str | PathLike[str], suggestions: Suggestions) -> None:
    """Make suggestions the queue of the review page."""
    record = RunRecord.read(run)
    with AnswerStore.open(run, create=True) as store:
        store.set_queue(record.config.id, zip(suggestions.digests, suggestions.queue, strict=True))


def queue_by_mixture(run: str | PathLike[str], images: str | Path | None = None) -> None:
    """Queue all unlabeled images of a run in the default order, unless they are queued already."""
    run_id = RunRecord.read(run).config.id
    with AnswerStore.open(run, create=True) as store:
        if store.queue(run_id):
            return
    queue_images(run, suggest_images(run, len(scored_run(run, images).rows), images=images, again=True))
