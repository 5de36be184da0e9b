"""Which column of a table is what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tagspread.data.tables.cells import VALUES
from tagspread.data.tables.image_names import looks_like_image
from tagspread.data.tables.options import TableOptions
from tagspread.errors import Blank, TagspreadError, did_you_mean

SAMPLE = 200  # rows that are read before it is decided which column is what
TAG_COLUMNS = ("tags", "labels", "tag", "label")  # names under which a column holds lists of tags
WHICH = {"tags_column": Blank("NAME"), "image_column": Blank("NAME")}  # for messages that ask for one


class Columns(NamedTuple):
    """Places of columns: the image, its list of tags (long) or one column per tag (wide)."""

    image: int
    tags: int | None
    classes: list[int]


def find_columns(header: Sequence[str], sample: Sequence[Sequence[str]], options: TableOptions, source: str) -> Columns:
    """Say which column is what, from the header, the first rows and the options.

    Args:
        header: names of the columns.
        sample: cells of the first rows.
        options: what the caller said.
        source: the file, for messages.
    """
    if options.image_column is not None:
        image = _place(header, options.image_column, "image_column", source)
    else:
        image = _image_column(header, sample)
    for name in options.ignored:
        _place(header, name, "ignore", source)
    rest = [k for k, name in enumerate(header) if k != image and name not in options.ignored]
    tags = _tags(header, sample, options, rest, source)
    if tags is not None:
        others = [header[k] for k in rest if k != tags]
        if others and not options.ignores_others:
            raise TagspreadError(
                f"{source} has {header[tags]!r} with lists of tags, and also {', '.join(map(repr, others))}; "
                "if those are no tags: @ignore.",
                ignore=others,
            )
        return Columns(image, tags, [])
    if options.ignores_others:
        rest = [k for k in rest if header[k]]
    for k in rest:
        if not header[k] or header[k] in [header[before] for before in rest if before < k]:
            flaw = f"is called {header[k]!r} as one before" if header[k] else "has no name"
            raise TagspreadError(f"{source}: column {k + 1} {flaw}; give each tag's column its own.")
    if not rest:
        raise TagspreadError(f"{source} has no column beside the image's, so it names no tag at all.")
    return Columns(image, None, rest)


def _place(header: Sequence[str], name: str, option: str, source: str) -> int:
    places = [k for k, column in enumerate(header) if column == name]
    if not places:
        listed = ", ".join(map(repr, header))
        close = did_you_mean(name, header)
        raise TagspreadError(f"@{option}: {source} has no column {name!r}, only {listed}.{close}", **{option: ...})
    if len(places) > 1 and option != "ignore":
        raise TagspreadError(
            f"@{option}: {source} has {len(places)} columns {name!r}; rename all but one.", **{option: ...}
        )
    return places[0]


def _image_column(header: Sequence[str], sample: Sequence[Sequence[str]]) -> int:
    """Return the first column in which most cells name image files, ``file_name`` before others."""
    rows = [row for row in sample if len(row) == len(header)]
    counts = [sum(looks_like_image(row[k]) for row in rows) for k in range(len(header))]
    of_images = [k for k, count in enumerate(counts) if 2 * count > len(rows)]
    usual = [k for k, name in enumerate(header) if name == "file_name" and (k in of_images or not of_images)]
    return (*usual, *of_images, 0)[0]


def _tags(
    header: Sequence[str], sample: Sequence[Sequence[str]], options: TableOptions, rest: list[int], source: str
) -> int | None:
    """Return the column of lists of tags, None for the wide shape."""
    if options.tags_column is not None:
        return _place(header, options.tags_column, "tags_column", source)
    if options.layout == "wide":
        return None
    named = [k for k in rest if header[k].lower() in TAG_COLUMNS]
    if options.layout == "long":
        if len(candidates := named or rest) != 1:
            listed = ", ".join(repr(header[k]) for k in candidates) or "none"
            raise TagspreadError(
                f"{source}: which column holds the tags ({listed})? Say so with @tags_column.", **WHICH
            )
        return candidates[0]
    if not named:
        return None
    cells = [row[named[0]].strip() for row in sample if len(row) == len(header)]
    if len(rest) > 1 and not options.ignores_others and all(cell in VALUES for cell in cells):
        return None  # one of many columns of 1 and 0, for a tag that is called "label"
    return named[0]
