"""Published figures for the tables, as the data sets hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tagspread.data.datasets import DATASETS


class Published(NamedTuple):
    """A figure from the literature, in percent, and the mark of its source."""

    value: float
    mark: str


def published(dataset: str, method: str, share: float) -> Published | None:
    """Return the published figure of a method: the CAP paper's, or that of a later paper.

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
    """Return where the published figures with these marks come from, one sentence each."""
    papers = dict.fromkeys(table.paper for dataset in DATASETS.values() for table in dataset.published)
    wanted = set(marks)
    return [
        f"{paper.mark or 'Published figures'}: {paper.title}, {paper.reference}."
        for paper in papers
        if paper.mark in wanted
    ]
