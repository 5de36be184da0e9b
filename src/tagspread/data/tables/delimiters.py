"""Delimiters between the tags of a cell: find the one that a table uses.

A delimiter other than ``|`` is taken where there is no doubt: most cells contain a semicolon, or the parts of the cells
occur again in other cells. The parts of a name that contains a comma do not ("tench, Tinca tinca").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

USUAL = "|"
DELIMITERS = (USUAL, ";", ",", " ")


def detect_delimiter(cells: Sequence[str]) -> str | None:
    """Return the delimiter that the cells clearly use; None if there is none or more than one.

    >>> detect_delimiter(["sea;sand", "sea", "sand;gull"]), detect_delimiter(["sea|sand", "a;b"])
    (';', '|')
    >>> detect_delimiter(["tench, Tinca tinca", "goldfish, Carassius auratus", "tench, Tinca tinca"]) is None
    True
    """
    if any(USUAL in cell for cell in cells):
        return USUAL
    semicolon = _parts_recur(";", cells) or 2 * sum(";" in cell for cell in cells) > len(cells)
    comma = _parts_recur(",", cells) and _joins_tags(",", cells)
    if semicolon == comma:
        return None
    return ";" if semicolon else ","


def suspected_delimiter(cells: Sequence[str], used: str | None) -> str | None:
    """Return another delimiter that the cells may use, so that each combination would become a tag of its own."""
    for other in DELIMITERS:
        if other == used or not _joins_tags(other, cells):
            continue
        joined = {cell for cell in cells if other in cell}
        parts = {part for cell in joined for part in cell.split(other)}
        if other == " " and len(parts) >= len(joined):
            continue  # "traffic light", "teddy bear": words that occur in no other combination
        return other
    return None


def _joins_tags(other: str, cells: Sequence[str]) -> bool:
    """Return whether most cells contain a delimiter, or consist of tags that occur alone in other cells."""
    joined = [cell for cell in cells if other in cell]
    if not joined:
        return False
    alone = {cell for cell in cells if other not in cell}
    of_tags = [cell for cell in joined if all(part.strip() in alone for part in cell.split(other))]
    return 2 * len(joined) > len(cells) or (other != " " and 2 * len(of_tags) > len(joined))


def _parts_recur(other: str, cells: Sequence[str]) -> bool:
    """Return whether at least half of the parts of joined cells also occur in a cell with other tags."""
    cells_with: dict[str, int] = defaultdict(int)
    different = set(cells)
    for cell in different:
        for part in {part.strip() for part in cell.split(other)}:
            cells_with[part] += 1
    parts = [part.strip() for cell in different if other in cell for part in cell.split(other) if part.strip()]
    return bool(parts) and 2 * sum(cells_with[part] > 1 for part in parts) >= len(parts)
