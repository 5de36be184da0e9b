"""Which column of a label file is what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from tagspread.data.images.find import SUFFIXES
from tagspread.data.tables.label_table import TAG_COLUMNS
from tagspread.data.tables.rows import VALUES
from tagspread.errors import Blank, TagspreadError, check_choice, did_you_mean

LAYOUTS = ("auto", "long", "wide")
WHICH = {"tags_column": Blank("NAME"), "image_column": Blank("NAME")}  # for messages that ask for one


class Wanted(NamedTuple):
    """What the caller said about the columns."""

    image_column: str | None
    tags_column: str | None
    layout: str
    ignore: tuple[str, ...] | None  # None: all that are no tags


class Shape(NamedTuple):
    """Places of columns: the image, its list of tags (long) or one column per tag (wide)."""

    image: int
    tags: int | None
    columns: list[int]


def wanted(image_column: str | None, tags_column: str | None, layout: str, ignore: str | Iterable[str]) -> Wanted:
    """Return the caller's options, checked."""
    check_choice("layout", layout, LAYOUTS)
    if tags_column is not None and layout == "wide":
        raise TagspreadError(f"tags_column is {tags_column!r}, but layout is 'wide', which has none; leave one out.")
    if ignore == "all":
        return Wanted(image_column, tags_column, layout, None)
    return Wanted(image_column, tags_column, layout, (ignore,) if isinstance(ignore, str) else tuple(ignore))


def looks_like_image(cell: str) -> bool:
    """Return whether this is the name of a image file.

    >>> looks_like_image("Beach 1.JPG"), looks_like_image("tags")
    (True, False)
    """
    return PurePosixPath(cell.strip()).suffix.lower() in SUFFIXES


def find_shape(header: Sequence[str], sample: Sequence[Sequence[str]], options: Wanted, source: str) -> Shape:
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
        image = _images(len(header), sample)
    for name in options.ignore or ():
        _place(header, name, "ignore", source)
    rest = [k for k, name in enumerate(header) if k != image and name not in (options.ignore or ())]
    tags = _tags(header, sample, options, rest, source)
    if tags is not None:
        others = [header[k] for k in rest if k != tags]
        if others and options.ignore is not None:
            raise TagspreadError(
                f"{source} has {header[tags]!r} with lists of tags, and also {', '.join(map(repr, others))}; "
                "if those are no tags: @ignore.",
                ignore=others,
            )
        return Shape(image, tags, [])
    if options.ignore is None:
        rest = [k for k in rest if header[k]]
    for k in rest:
        if not header[k] or header[k] in [header[before] for before in rest if before < k]:
            found = f"is called {header[k]!r} as one before" if header[k] else "has no name"
            raise TagspreadError(f"{source}: column {k + 1} {found}; give each tag's column its own.")
    if not rest:
        raise TagspreadError(f"{source} has no column beside the image's, so it names no tag at all.")
    return Shape(image, None, rest)


def _place(header: Sequence[str], name: str, option: str, source: str) -> int:
    places = [k for k, known in enumerate(header) if known == name]
    if not places:
        listed = ", ".join(map(repr, header))
        close = did_you_mean(name, header)
        raise TagspreadError(f"@{option}: {source} has no column {name!r}, only {listed}.{close}", **{option: ...})
    if len(places) > 1 and option != "ignore":
        raise TagspreadError(
            f"@{option}: {source} has {len(places)} columns {name!r}; rename all but one.", **{option: ...}
        )
    return places[0]


def _images(width: int, sample: Sequence[Sequence[str]]) -> int:
    """Return the first column in which most cells name image files; the first of all if none does."""
    rows = [row for row in sample if len(row) == width]
    counts = [sum(looks_like_image(row[k]) for row in rows) for k in range(width)]
    return next((k for k, count in enumerate(counts) if 2 * count > len(rows)), 0)


def _tags(
    header: Sequence[str], sample: Sequence[Sequence[str]], options: Wanted, rest: list[int], source: str
) -> int | None:
    """Return the column of lists of tags, None for the wide shape."""
    if options.tags_column is not None:
        return _place(header, options.tags_column, "tags_column", source)
    if options.layout == "wide":
        return None
    named = [k for k in rest if header[k].lower() in TAG_COLUMNS]
    if options.layout == "long":
        if len(found := named or rest) != 1:
            listed = ", ".join(repr(header[k]) for k in found) or "none"
            raise TagspreadError(
                f"{source}: which column holds the tags ({listed})? Say so with @tags_column.", **WHICH
            )
        return found[0]
    if not named:
        return None
    cells = [row[named[0]].strip() for row in sample if len(row) == len(header)]
    if len(rest) > 1 and options.ignore is not None and all(cell in VALUES for cell in cells):
        return None  # one of many columns of 1 and 0, for a tag that is called "label"
    return named[0]
