"""Check labels without the images: class frequencies, misspelled tags, rows without labels, tags of the test labels."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tagspread.core.binomial import clopper_pearson
from tagspread.data.check.report import LABELS, TEST, ClassFacts, Finding, Place, finding_at
from tagspread.data.tables.label_table import LabelTable
from tagspread.errors import did_you_mean
from tagspread.wording import counted

Show: TypeAlias = Callable[[Path], str]  # returns a path as messages show it

FEW = 2  # positives: too few to learn from
RARER = 10  # a name this many times rarer than a similar one counts as a typo


def class_facts(labels: LabelTable, unlabeled: int) -> tuple[ClassFacts, ...]:
    """Count the labels of each class and estimate its number of positives in an unlabeled set of that size."""
    positives, known = (labels.y == 1).sum(0), (labels.y >= 0).sum(0)
    low, high = np.zeros(len(known)), np.ones(len(known))
    if (has_label := known > 0).any():
        low[has_label], high[has_label] = clopper_pearson(positives[has_label], known[has_label])
    return tuple(
        ClassFacts(
            name,
            int(positives[k]),
            int(known[k]),
            float(positives[k] / known[k]) if known[k] else None,
            float(low[k]),
            float(high[k]),
            round(float(low[k]) * unlabeled),
            round(float(high[k]) * unlabeled),
        )
        for k, name in enumerate(labels.classes)
    )


def check_labels(
    labels: LabelTable, test: LabelTable | None, facts: tuple[ClassFacts, ...], show: Show
) -> Iterator[Finding]:
    """Yield the findings about tags and rows of the tables."""
    if not (labels.y >= 0).any():
        yield Finding("error", "no_labels", "No label is known; set at least some tags to 1 or 0.")
    else:
        yield from _check_counts(facts)
        if not any(fact.positives for fact in facts):
            message = "No labeled image has any tag, so there is nothing to learn; label images that have tags."
            yield Finding("error", "nothing_to_learn", message)
        elif all(fact.positives == fact.known for fact in facts):
            message = (
                "No label says that a tag is absent, so there is nothing to learn; label images that lack some of the "
                "tags. If blank cells mean absent, write 0 there or give --blank."
            )
            yield Finding("error", "nothing_to_learn", message)
    yield from _check_names(dict(zip(labels.classes, (labels.y == 1).sum(0).tolist(), strict=True)))
    yield from _check_rows(labels, LABELS, show)
    if test is not None:
        yield from _check_test(labels, test)
        yield from _check_rows(test, TEST, show)


def _check_counts(facts: tuple[ClassFacts, ...]) -> Iterator[Finding]:
    kinds: dict[tuple[str, str, str], Callable[[ClassFacts], bool]] = {
        ("never_seen", "Tags on no labeled image", "they cannot be learned; label images that have them."): lambda f: (
            not f.positives
        ),
        (
            "hardly_seen",
            f"Tags on only 1 or {FEW} labeled images",
            "the model will learn them poorly; label more images that have them.",
        ): lambda f: 0 < f.positives <= FEW,
        (
            "always_there",
            "Tags on every image where they are labeled",
            "they cannot be learned; label images that lack them.",
        ): lambda f: f.known > 1 and f.positives == f.known,
    }
    for (kind, what, advice), applies in kinds.items():
        places = [Place(tag=f.name, remark=f"{f.positives:,} of {f.known:,}") for f in facts if applies(f)]
        yield from finding_at("warning", kind, what, advice, places)


def _check_names(counts: Mapping[str, int]) -> Iterator[Finding]:
    places = []
    for a, b, difference in similar_names(counts):
        common, rare = (a, b) if counts[a] >= counts[b] else (b, a)
        images, others = counted(counts[rare], "image"), counted(counts[common], "image")
        remark = f"on {images}; {common!r}, on {others}, differs only by {difference}"
        places.append(Place(tag=repr(rare), remark=remark))
    advice = "if so, use one spelling."
    yield from finding_at("warning", "similar_tags", "Tags that may be the same tag in two spellings", advice, places)
    several = [Place(tag=repr(name), remark=f"on {counted(counts[name], 'image')}") for name in names_of_names(counts)]
    advice = "if so, separate them with the delimiter."
    yield from finding_at(
        "warning",
        "joined_tags",
        "Tags that may be several tags in one cell, because each word is also a tag",
        advice,
        several,
    )


def names_of_names(names: Iterable[str]) -> list[str]:
    """Return names that consist of other names, separated by blanks, commas, semicolons or slashes.

    >>> names_of_names(["dog", "cat", "dog cat", "sea, dog", "sea", "traffic light", "light"])
    ['dog cat', 'sea, dog']
    """
    all_names = set(names)
    parts = {name: re.split(r"[\s,;/]+", name.strip()) for name in all_names}
    return sorted(name for name, words in parts.items() if len(words) > 1 and all_names.issuperset(words))


def similar_names(counts: Mapping[str, int]) -> list[tuple[str, str, str]]:
    """Return pairs of names that may mean the same tag, and their difference.

    Many different words differ by one replaced letter ("cat", "car"). Such a pair is therefore returned only where one
    of the two is much rarer.

    >>> similar_names({"dog": 90, "Dog": 3, "dgo": 1, "cat": 40, "car": 50, "cats": 2, "caz": 1})
    [('dog', 'Dog', 'case or spaces'), ('dog', 'dgo', 'the order of two letters'), ('cat', 'cats', 'one letter'),
    ('cat', 'caz', 'one letter'), ('car', 'caz', 'one letter')]
    """
    plain: dict[str, list[str]] = defaultdict(list)
    for name in counts:
        plain["".join(name.split()).replace("_", "").replace("-", "").casefold()].append(name)
    similar = [(first, other, "case or spaces") for first, *others in plain.values() for other in others]
    # Words that differ by one letter or by two swapped letters become equal when one letter is deleted. No digit is:
    # "class 1" and "class 2" differ on purpose, and thousands of numbered names would be compared with each other.
    shorter: dict[str, list[str]] = defaultdict(list)
    for word in plain:
        for less in {word, *(word[:k] + word[k + 1 :] for k in range(len(word)) if not word[k].isdigit())}:
            shorter[less].append(word)
    pairs = {(a, b): None for words in shorter.values() for i, a in enumerate(words) for b in words[i + 1 :]}
    rank = {word: k for k, word in enumerate(plain)}
    for a, b in sorted(pairs, key=lambda pair: (rank[pair[0]], rank[pair[1]])):
        few, many = sorted((sum(counts[n] for n in plain[a]), sum(counts[n] for n in plain[b])))
        if difference := _difference(a, b, slip=few <= FEW and many >= RARER * max(few, 1)):
            similar.append((max(plain[a], key=counts.__getitem__), max(plain[b], key=counts.__getitem__), difference))
    return similar


def _difference(a: str, b: str, slip: bool) -> str:
    """Describe the difference of two words if one may be a typo of the other; else return an empty string."""
    if a.isdigit() or b.isdigit() or min(len(a), len(b)) < 3:
        return ""
    at = [k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
    if len(a) == len(b):
        if len(at) == 2 and at[1] == at[0] + 1 and (a[at[0]], a[at[1]]) == (b[at[1]], b[at[0]]):
            return "the order of two letters"
        digits = any((a[k] + b[k]).isdigit() for k in at)  # "class 1" and "class 2" differ on purpose
        return "one letter" if len(at) == 1 and slip and not digits else ""
    long, short = (a, b) if len(a) > len(b) else (b, a)
    extra = long[at[0]] if at else long[-1]
    plural = long == short + "s"
    return "one letter" if not extra.isdigit() and (plural or slip or len(short) >= 5) else ""


def _check_rows(table: LabelTable, name: str, show: Show) -> Iterator[Finding]:
    has_label = table.labeled
    unknown, bare = np.flatnonzero(~has_label), np.flatnonzero(has_label & ~(table.y == 1).any(axis=1))
    use = "they count as unlabeled images." if name == LABELS else "evaluation leaves them out."
    places = (_rows(table, rows, name, show) for rows in (unknown, bare))
    yield from finding_at("note", "unknown_rows", f"Rows of the {name} without any known label", use, next(places))
    fine = "correct if no tag applies to these images."
    yield from finding_at("note", "rows_without_tags", f"Rows of the {name} without a positive tag", fine, next(places))


def _check_test(labels: LabelTable, test: LabelTable) -> Iterator[Finding]:
    positives = dict(zip(test.classes, (test.y == 1).sum(0).tolist(), strict=True))
    foreign = [
        Place(
            tag=repr(name), remark=f"on {counted(positives[name], 'test image')}.{did_you_mean(name, labels.classes)}"
        )
        for name in test.classes
        if name not in labels.classes
    ]
    level, advice = "warning", "they are left out of the metrics; rename them if they are misspelled."
    if foreign and len(foreign) == len(test.classes):
        level, advice = "error", "no other tag is left to measure; give test labels of the same tags."
    what = "Tags of the test labels that the labels do not have"
    yield from finding_at(level, "unknown_tags", what, advice, foreign)
    absent = [Place(tag=name) for name in labels.classes if not positives.get(name)]
    advice = "the test cannot measure their accuracy."
    yield from finding_at("warning", "not_in_test", "Tags on no test image", advice, absent)


def _rows(table: LabelTable, rows: np.ndarray, name: str, show: Show) -> list[Place]:
    return [Place(file=show(table.paths[k]), row=k + 1, table=name) for k in rows.tolist()]
