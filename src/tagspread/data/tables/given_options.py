"""What a user says about reading a table; the rest follows from the table, or from the run that it is read for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tagspread.aliases import JsonObject
from tagspread.errors import TagspreadError, did_you_mean


@dataclass(frozen=True)
class GivenOptions:
    """The options of :func:`~tagspread.data.tables.read.read_table` that were given; None stands for the others.

    Attributes:
        delimiter: what separates tags in a cell; empty if each cell is one tag.
        image_column: the column with the images.
        tags_column: the column with lists of tags.
        layout: ``"long"``, ``"wide"`` or ``"auto"``.
        ignore: columns that are about something else, or ``"all"``.
        allow_outside: whether paths may leave the folder of images.

    >>> GivenOptions(delimiter="", ignore=("note",)).to_dict()
    {'delimiter': None, 'ignore': ['note']}
    """

    delimiter: str | None = None
    image_column: str | None = None
    tags_column: str | None = None
    layout: str | None = None
    ignore: str | tuple[str, ...] = ()
    allow_outside: bool | None = None

    @classmethod
    def of(cls, values: GivenOptions | Mapping[str, Any] | None) -> GivenOptions:
        """Return options that may also be given as keyword arguments of ``read_table``, by name.

        >>> GivenOptions.of({"delimiter": None})
        GivenOptions(delimiter='', image_column=None, tags_column=None, layout=None, ignore=(), allow_outside=None)
        """
        if isinstance(values, GivenOptions):
            return values
        given = dict(values or {})
        known = [option.name for option in fields(cls)]
        for name in given:
            if name not in known:
                hint = did_you_mean(name, known) or f" There are {', '.join(known)}."
                raise TagspreadError(f"table_options: reading a table has no option {name!r}.{hint}")
        if given.get("delimiter") == "":
            raise TagspreadError("delimiter is empty; give what separates tags, or None if each cell is one tag.")
        if "delimiter" in given and given["delimiter"] is None:
            given["delimiter"] = ""
        if not isinstance(ignore := given.get("ignore") or (), str):
            given["ignore"] = tuple(ignore)
        return cls(**given)

    def to_dict(self) -> JsonObject:
        """Return what was given as keyword arguments of ``read_table``, which are also what JSON keeps."""
        given = {option.name: getattr(self, option.name) for option in fields(self)}
        given = {name: value for name, value in given.items() if value not in (None, ())}
        if self.delimiter == "":
            given["delimiter"] = None
        if isinstance(self.ignore, tuple) and self.ignore:
            given["ignore"] = list(self.ignore)
        return given
