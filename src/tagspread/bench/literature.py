"""What was published: figures of the CAP paper and of later ones, from ``paper.json``, each with its source."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import NamedTuple

from tagspread.aliases import JsonObject


class Published(NamedTuple):
    """A figure from the literature, in percent, and the mark of its source."""

    value: float
    mark: str


@cache
def _literature() -> JsonObject:
    text = resources.files("tagspread.bench").joinpath("paper.json").read_text(encoding="utf-8")
    loaded: JsonObject = json.loads(text)
    return loaded


def published(dataset: str, method: str, share: float) -> Published | None:
    """Return the published figure of a method: the CAP paper's, or that of a later paper.

    >>> published("voc", "cap", 0.05)
    Published(value=76.16, mark='')
    >>> published("voc", "dicap", 0.1).mark
    '†'
    """
    book = _literature()
    at = next((k for k, known in enumerate(book["shares"]) if math.isclose(known, share)), None)
    for source, about in book["sources"].items():
        values = book["figures"].get(dataset, {}).get(source, {}).get(method)
        if at is not None and values is not None and values[at] is not None:
            return Published(values[at], about["mark"])
    return None


def source_notes(marks: Iterable[str]) -> list[str]:
    """Return where the published figures with these marks come from, one sentence each."""
    sources = [source for source in _literature()["sources"].values() if source["mark"] in set(marks)]
    return [f"{s['mark'] or 'Published figures'}: {s['title']}, {s['reference']}." for s in sources]
