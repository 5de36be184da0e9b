"""Options for reading a label table: those with defaults, and those that the user gave.

Options that were not given follow from the table, or from the run that reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tagspread.aliases import JsonObject
from tagspread.data.tables.delimiters import USUAL
from tagspread.errors import TagspreadError, check_choice, did_you_mean

LAYOUTS = ("auto", "long", "wide")
AUTO = "auto"  # the delimiter is found in the cells
BLANK = ("unlabeled", "negative")  # what a row without a tag means


@dataclass(frozen=True)
class TableOptions:
    """Options for reading a table; the fields are those of :func:`tagspread.data.tables.read.read_table`.

    >>> TableOptions(ignore="width").ignored
    ('width',)
    """

    delimiter: str | None = AUTO
    image_column: str | None = None
    tags_column: str | None = None
    layout: str = "auto"
    ignore: str | Iterable[str] = ()
    allow_outside: bool = False
    blank: str | None = None
    fallback_delimiter: str = USUAL

    def __post_init__(self) -> None:
        check_choice("layout", self.layout, LAYOUTS)
        if self.blank is not None:
            check_choice("blank", self.blank, BLANK)
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


@dataclass(frozen=True)
class GivenOptions:
    """The options of :func:`~tagspread.data.tables.read.read_table` that the user gave; the others are None.

    Attributes:
        delimiter: text between the tags of a cell; empty if each cell is one tag.
        image_column: the column with the images.
        tags_column: the column with lists of tags.
        layout: ``"long"``, ``"wide"`` or ``"auto"``.
        ignore: columns without labels, or ``"all"`` for all of them.
        allow_outside: whether images may be outside the image folder.
        blank: what a row without a tag means: ``"unlabeled"`` or ``"negative"``.
        fallback_delimiter: text between tags, if it is not clear from the cells.

    >>> GivenOptions(delimiter="", ignore=("note",)).to_dict()
    {'delimiter': None, 'ignore': ['note']}
    """

    delimiter: str | None = None
    image_column: str | None = None
    tags_column: str | None = None
    layout: str | None = None
    ignore: str | tuple[str, ...] = ()
    allow_outside: bool | None = None
    blank: str | None = None
    fallback_delimiter: str | None = None

    @classmethod
    def of(cls, values: GivenOptions | Mapping[str, Any] | None) -> GivenOptions:
        """Return options that are given as such or as keyword arguments of ``read_table``.

        >>> GivenOptions.of({"delimiter": None})
        GivenOptions(delimiter='', image_column=None, tags_column=None, layout=None, ignore=(), allow_outside=None,
        blank=None, fallback_delimiter=None)
        """
        if isinstance(values, GivenOptions):
            return values
        given = dict(values or {})
        option_names = [option.name for option in fields(cls)]
        for name in given:
            if name not in option_names:
                hint = did_you_mean(name, option_names) or f" The options are {', '.join(option_names)}."
                raise TagspreadError(f"table_options has no option {name!r}.{hint}")
        if given.get("delimiter") == "":
            raise TagspreadError(
                "delimiter is empty; give the text between tags, such as '|', or None if each cell is one tag."
            )
        if "delimiter" in given and given["delimiter"] is None:
            given["delimiter"] = ""
        if not isinstance(ignore := given.get("ignore") or (), str):
            given["ignore"] = tuple(ignore)
        return cls(**given)

    def to_dict(self) -> JsonObject:
        """Return the given options as keyword arguments of ``read_table``, which JSON can store."""
        given = {option.name: getattr(self, option.name) for option in fields(self)}
        given = {name: value for name, value in given.items() if value not in (None, ())}
        if self.delimiter == "":
            given["delimiter"] = None
        if isinstance(self.ignore, tuple) and self.ignore:
            given["ignore"] = list(self.ignore)
        return given
