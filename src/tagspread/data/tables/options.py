"""Options of reading a table: which column holds what, what separates tags, which paths are allowed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tagspread.errors import TagspreadError, check_choice

LAYOUTS = ("auto", "long", "wide")


@dataclass(frozen=True)
class TableOptions:
    """How a table is read; the fields are the options of :func:`tagspread.data.tables.read.read_table`.

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
                f"tags_column is {self.tags_column!r}, but layout is 'wide', which has none; leave one out."
            )
        if self.delimiter == "":
            raise TagspreadError("delimiter is empty; give what separates tags, or None if each cell is one tag.")
        if not isinstance(self.ignore, str):
            object.__setattr__(self, "ignore", tuple(self.ignore))

    @property
    def ignores_others(self) -> bool:
        """Whether every column that holds no tags is ignored."""
        return self.ignore == "all"

    @property
    def ignored(self) -> tuple[str, ...]:
        """The columns that are ignored by name."""
        if isinstance(self.ignore, str):
            return () if self.ignores_others else (self.ignore,)
        return tuple(self.ignore)
