"""Published mAP of the literature, for comparison in the tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tagspread.data.datasets import DATASETS


class Published(NamedTuple):
    """A published mAP in percent, and the mark of its source."""

    value: float
    mark: str


def published(dataset: str, method: str, share: float) -> Published | None:
    """Return the published mAP of a method, from the CAP paper or a later paper.

    >>> published("voc", "cap", 0.05)
    Published(value=76.16, mark='')
    >>> published("voc", "dicap", 0.1).mark
    '†'
    """
    for table in DATASETS[dataset].published:
        if (value := table.value(method, share)) is not None:
            return Published(value, table.paper.mark)
    return None


def source_notes(marks: Iterable[str]) -> list[str]:
    """Return a sentence for each source whose mark is given."""
    papers = dict.fromkeys(table.paper for dataset in DATASETS.values() for table in dataset.published)
    wanted = set(marks)
    return [
        f"{paper.mark or 'Published values'}: {paper.title}, {paper.reference}."
        for paper in papers
        if paper.mark in wanted
    ]
