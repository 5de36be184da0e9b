"""What messages about a label table name: the place of a row, and what reading the table decided or found."""

from __future__ import annotations

from typing import NamedTuple

NAMED = 3  # places that a line of text names


class Source(NamedTuple):
    """The origin of rows, for messages: a name such as ``labels.csv`` and a unit such as ``line``."""

    name: str
    unit: str

    def at(self, number: int) -> str:
        """Return the place of one row, for messages.

        >>> Source("labels.csv", "line").at(7)
        'labels.csv line 7'
        """
        return f"{self.name} {self.unit} {number}"


class Note(NamedTuple):
    """Something about a whole table that the user should know.

    Attributes:
        level: ``"warning"`` or ``"note"``.
        kind: short name, such as ``"delimiter"``.
        text: one sentence, without its final stop.
        places: the rows or names that it is about.

    >>> print(Note("note", "names", "2 names were matched", ("a is a.jpg", "b is b.jpg")))
    2 names were matched: a is a.jpg, b is b.jpg
    """

    level: str
    kind: str
    text: str
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the note as one line, with the first places."""
        if not self.places:
            return self.text
        more = len(self.places) - NAMED
        return f"{self.text}: {', '.join(self.places[:NAMED])}" + (f" and {more:,} more" if more > 0 else "")
