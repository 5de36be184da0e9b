"""What reading a label table decided or found, to be told to the user; and errors of rows, raised or collected."""

from __future__ import annotations

from typing import NamedTuple

from tagspread.errors import TagspreadError

NAMED = 3  # places that a line of text names
MOST_ERRORS = 1000  # that are kept, of a table that is wrong throughout


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


class RowErrors:
    """Receives the errors of rows: raises the first one, or collects all so that the other rows are still read.

    >>> errors = RowErrors(collect=True)
    >>> for line in (2, 3, 4):
    ...     errors.add(TagspreadError(f"line {line}, column 'width' holds 640."), kind="width")
    >>> [str(error) for error in errors.found]
    ["line 2, column 'width' holds 640. (And 2 more rows like this.)"]
    """

    def __init__(self, collect: bool = False) -> None:
        self.collect = collect
        self._first: dict[str, TagspreadError] = {}
        self._counts: dict[str, int] = {}
        self._omitted = 0

    def add(self, error: TagspreadError, kind: str | None = None) -> None:
        """Raise an error, or collect it.

        Args:
            error: the error of a row.
            kind: errors of the same kind are counted, and only the first one is kept; None if each is to be shown.
        """
        if not self.collect:
            raise error
        key = str(error) if kind is None else kind
        if key not in self._first and len(self._first) >= MOST_ERRORS:
            self._omitted += 1
            return
        self._first.setdefault(key, error)
        self._counts[key] = self._counts.get(key, 0) + 1

    @property
    def found(self) -> list[TagspreadError]:
        """The collected errors, in the order of the rows."""
        errors = []
        for key, error in self._first.items():
            more = self._counts[key] - 1
            rows = "row" if more == 1 else "rows"
            errors.append(error.extended(f" (And {more:,} more {rows} like this.)") if more else error)
        if self._omitted:
            errors.append(TagspreadError(f"{self._omitted:,} more rows have errors; correct the ones above first."))
        return errors
