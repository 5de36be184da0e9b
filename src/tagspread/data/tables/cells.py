"""Cells of a label table: the texts for 1, 0 and unknown, and conversion of any value to CSV text.

Besides 1, 0, true and false, the words and marks that people write are read: yes and no, ja and nein, x, ✓ and ✗.
"""

from __future__ import annotations

from typing import Any

import numpy as np

VALUES = {"1": 1, "0": 0, "": -1, "-1": -1, "1.0": 1, "0.0": 0, "-1.0": -1}
VALUES |= {"True": 1, "TRUE": 1, "true": 1, "False": 0, "FALSE": 0, "false": 0}
MARKS = frozenset(  # people who write these often leave the cells of absent tags blank
    spelled
    for word in ("x", "yes", "y", "ja", "j", "\u2713", "\u2714", "\u2714\ufe0f", "\u2611")
    for spelled in (word, word.capitalize(), word.upper())
)
NO = frozenset(
    spelled
    for word in ("no", "n", "nein", "\u2717", "\u2718", "\u2610")
    for spelled in (word, word.capitalize(), word.upper())
)
VALUES |= dict.fromkeys(MARKS, 1) | dict.fromkeys(NO, 0)


def text(cell: Any) -> str:
    """Return a value as the text of a CSV cell.

    >>> [text(cell) for cell in ("sea", True, 1.0, 0, None, float("nan"))]
    ['sea', '1', '1', '0', '', '']
    """
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool | np.bool_):
        return str(int(cell))
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):  # missing in pandas, without importing pandas
        return ""
    if isinstance(cell, float | np.floating):
        return "" if np.isnan(cell) else str(int(cell)) if cell.is_integer() else str(cell)
    try:
        return str(cell)
    except ValueError:  # a number of thousands of digits, which Python does not convert
        return "a number of too many digits"


def text_or_list(cell: Any) -> str | list[str]:
    """Return a cell of tags: a list becomes a list of strings, every other value becomes text.

    >>> text_or_list(["sea", 3]), text_or_list("sea|sand"), text_or_list(None)
    (['sea', '3'], 'sea|sand', '')
    """
    if isinstance(cell, list | tuple | set | frozenset | np.ndarray):
        return [text(tag) for tag in cell]
    return text(cell)


def json_flaw(error: ValueError | RecursionError) -> str:
    """Describe why Python refuses JSON that is valid, for messages.

    >>> json_flaw(RecursionError("maximum recursion depth exceeded"))
    'its lists or objects are nested too deeply'
    """
    if isinstance(error, RecursionError):
        return "its lists or objects are nested too deeply"
    return "a number has too many digits" if "digits" in str(error) else str(error)
