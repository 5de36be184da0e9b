"""Cells that a spreadsheet would execute: formulas in the names of files and tags.

A spreadsheet takes a cell that begins with ``=``, ``+``, ``-`` or ``@`` as a formula, and a file may have any name. In
CSV files for people, such a cell gets another beginning that means the same to everything that reads label tables:
``./`` before the name of an image, the delimiter before a list of tags, a blank before any other text.
"""

from __future__ import annotations

from collections.abc import Iterable

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four: full-width


def begins_formula(text: str) -> bool:
    """Return whether a spreadsheet may execute a cell.

    >>> begins_formula("=1+1"), begins_formula(" +3"), begins_formula("1+1")
    (True, True, False)
    """
    return text.startswith(FORMULA) or text.lstrip().startswith(FORMULA)


def plain_image(name: str) -> str:
    """Return a path that names the same image and is no formula.

    >>> plain_image('=HYPERLINK("a").png'), plain_image("beach.png")
    ('./=HYPERLINK("a").png', 'beach.png')
    """
    return f"./{name}" if begins_formula(name) else name


def plain_tags(tags: Iterable[str], delimiter: str) -> str:
    """Return the cell of a list of tags; an empty tag at its beginning is ignored when the cell is read.

    >>> plain_tags(["=1+1", "sea"], "|"), plain_tags(["sea", "=1+1"], "|")
    ('|=1+1|sea', 'sea|=1+1')
    """
    cell = delimiter.join(tags)
    if not begins_formula(cell):
        return cell
    return f" {cell}" if begins_formula(delimiter) else f"{delimiter}{cell}"


def plain_text(text: str) -> str:
    """Return a text that is no formula; readers of label tables ignore a blank at the beginning.

    >>> plain_text("@home"), plain_text("home")
    (' @home', 'home')
    """
    return f" {text}" if text.startswith(FORMULA) else text
