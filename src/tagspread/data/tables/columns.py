"""Find the image column, the tags column or the class columns of a label table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tagspread.data.tables.cells import VALUES
from tagspread.data.tables.image_names import looks_like_image
from tagspread.data.tables.options import TableOptions
from tagspread.errors import Blank, TagspreadError, did_you_mean

SAMPLE = 200  # rows from which the columns are recognized
TAG_COLUMNS = ("tags", "labels", "tag", "label")  # names of columns that hold lists of tags
COLUMN_OPTIONS = {"tags_column": Blank("NAME"), "image_column": Blank("NAME")}  # for messages that name them


class Columns(NamedTuple):
    """Column indices: the image, and its list of tags (long layout) or one column per tag (wide layout)."""

    image: int
    tags: int | None
    classes: list[int]


def find_columns(header: Sequence[str], sample: Sequence[Sequence[str]], options: TableOptions, source: str) -> Columns:
    """Find the columns of a table from its header, its first rows and the options.

    Args:
        header: names of the columns.
        sample: cells of the first rows.
        options: options of the caller.
        source: the file, for messages.
    """
    if options.image_column is not None:
        image = _find_column(header, options.image_column, "image_column", source)
    else:
        image = _image_column(header, sample)
    for name in options.ignored:
        _find_column(header, name, "ignore", source)
    rest = [k for k, name in enumerate(header) if k != image and name not in options.ignored]
    tags = _tags_column(header, sample, options, rest, source)
    if tags is not None:
        others = [header[k] for k in rest if k != tags]
        if others and not options.ignores_others:
            raise TagspreadError(
                f"{source} has lists of tags in column {header[tags]!r} and other columns: "
                f"{', '.join(map(repr, others))}; omit these with @ignore.",
                ignore=others,
            )
        return Columns(image, tags, [])
    if options.ignores_others:
        rest = [k for k in rest if header[k]]
    for k in rest:
        if not header[k] or header[k] in [header[before] for before in rest if before < k]:
            flaw = f"repeats the name {header[k]!r} of an earlier column" if header[k] else "has no name"
            raise TagspreadError(f"{source}: column {k + 1} {flaw}; give each tag column a name of its own.")
    if not rest:
        raise TagspreadError(
            f"{source} has no column besides the image column {header[image]!r}; add a column with lists of tags, or "
            "one column per tag."
        )
    return Columns(image, None, rest)


def _find_column(header: Sequence[str], name: str, option: str, source: str) -> int:
    places = [k for k, column in enumerate(header) if column == name]
    if not places:
        listed = ", ".join(map(repr, header))
        close = did_you_mean(name, header)
        raise TagspreadError(
            f"@{option}: {source} has no column {name!r}; its columns are {listed}.{close}", **{option: ...}
        )
    if len(places) > 1 and option != "ignore":
        raise TagspreadError(
            f"@{option}: {source} has {len(places)} columns {name!r}; rename all but one.", **{option: ...}
        )
    return places[0]


def _image_column(header: Sequence[str], sample: Sequence[Sequence[str]]) -> int:
    """Return ``file_name`` or the first column in which most cells are names of image files."""
    rows = [row for row in sample if len(row) == len(header)]
    counts = [sum(looks_like_image(row[k]) for row in rows) for k in range(len(header))]
    of_images = [k for k, count in enumerate(counts) if 2 * count > len(rows)]
    usual = [k for k, name in enumerate(header) if name == "file_name" and (k in of_images or not of_images)]
    return (*usual, *of_images, 0)[0]


def _tags_column(
    header: Sequence[str], sample: Sequence[Sequence[str]], options: TableOptions, rest: list[int], source: str
) -> int | None:
    """Return the column with lists of tags, or None for the wide layout."""
    if options.tags_column is not None:
        return _find_column(header, options.tags_column, "tags_column", source)
    if options.layout == "wide":
        return None
    named = [k for k in rest if header[k].lower() in TAG_COLUMNS]
    if options.layout == "long":
        if len(candidates := named or rest) != 1:
            listed = ", ".join(repr(header[k]) for k in candidates) or "there is none"
            raise TagspreadError(
                f"{source}: cannot tell which column holds the tags ({listed}); name it with @tags_column.",
                **COLUMN_OPTIONS,
            )
        return candidates[0]
    if not named:
        return None
    cells = [row[named[0]].strip() for row in sample if len(row) == len(header)]
    if len(rest) > 1 and not options.ignores_others and all(cell in VALUES for cell in cells):
        return None  # a wide table with a tag that is called "label"
    return named[0]
