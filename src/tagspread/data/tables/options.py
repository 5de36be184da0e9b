"""Options for reading a label table: columns, layout, delimiter, ignored columns, paths outside the image folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tagspread.errors import TagspreadError, check_choice

LAYOUTS = ("auto", "long", "wide")


@dataclass(frozen=True)
class TableOptions:
    """Options for reading a table; the fields are those of :func:`tagspread.data.tables.read.read_table`.

    >>> TableOptions(ignore="width").ignored
    ('width',)
    """

    delimiter: str | None = "|"
    image_column: str | None = None
    tags_column: str | None = None
    layout: str = "auto"
    ignore: str | Iterable[str] = ()
    allow_outside: bool = False

    def __post_init__(self) -> None:
        check_choice("layout", self.layout, LAYOUTS)
        if self.tags_column is not None and self.layout == "wide":
            raise TagspreadError(
                f"tags_column is {self.tags_column!r}, but layout is 'wide', which has no such column; omit one of "
                "the two."
            )
        if self.delimiter == "":
            raise TagspreadError(
                "delimiter is empty; give the text between tags, such as '|', or None if each cell is one tag."
            )
        if not isinstance(self.ignore, str):
            object.__setattr__(self, "ignore", tuple(self.ignore))

    @property
    def ignores_others(self) -> bool:
        """Whether all columns without labels are ignored."""
        return self.ignore == "all"

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names of ignored columns."""
        if isinstance(self.ignore, str):
            return () if self.ignores_others else (self.ignore,)
        return tuple(self.ignore)
