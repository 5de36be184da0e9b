"""Read a table of labels: the file's name says which kind it is, its columns say the rest."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tagspread.aliases import SettingValues
from tagspread.data.tables import label_studio
from tagspread.data.tables.columns import SAMPLE, find_columns
from tagspread.data.tables.delimited import cells_of, check_kind, header_of, lines_of, separator_of
from tagspread.data.tables.frame import labels_of_frame, read_parquet
from tagspread.data.tables.image_names import Source
from tagspread.data.tables.json_lines import keys_of, read_json_lines
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.layouts import collect_labels
from tagspread.data.tables.options import TableOptions
from tagspread.errors import TagspreadError

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".json", ".jsonl")
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")  # beside images, for Hugging Face datasets
PSEUDO_LABEL_COLUMNS = ("image", "tag", "target", "score", "rank", "flips")  # of what a run writes


def read_table(
    file: str | Path,
    images: str | Path,
    delimiter: str | None = "|",
    *,
    image_column: str | None = None,
    tags_column: str | None = None,
    layout: str = "auto",
    ignore: str | Iterable[str] = (),
    allow_outside: bool = False,
) -> LabelTable:
    """Read a table of labels; paths in it are relative to ``images``.

    Two layouts are read. Long: one column with the image, one with its tags (``beach.jpg,sea|sand``); a tag that is
    not listed is absent, and an image on several lines carries the tags of all of them. Wide: one column with the
    image, one per tag, 1, 0 or blank for unknown; an image has one line.

    Args:
        file: the table, with a header line: ``.csv`` (commas, semicolons or tabs), ``.tsv`` or ``.txt`` (tabs),
            ``.parquet``; ``.jsonl`` with an object per image; what Label Studio exports, as ``.json`` or ``.csv``; or
            a folder with ``metadata.csv``, ``metadata.jsonl`` or ``metadata.parquet``.
        images: the folder the paths start from. The paths of a metadata file below it start from its own folder.
        delimiter: what separates tags in the long layout; None if each cell is one tag.
        image_column: the column with the images; else the first that holds names of image files, or the first.
        tags_column: the column with lists of tags; else one called tags, labels, tag or label.
        layout: ``"long"``, ``"wide"`` or ``"auto"``: long if there is a column of tags.
        ignore: columns that are about something else, or ``"all"`` for all that are.
        allow_outside: accept paths that are absolute or have ``..`` in them.
    """
    options = TableOptions(delimiter, image_column, tags_column, layout, ignore, allow_outside)
    source, folder = _metadata_file(Path(file)), Path(images)
    if source.name in METADATA and source.absolute().is_relative_to(folder.absolute()):
        folder = source.parent
    suffix = source.suffix.lower()
    if suffix and suffix not in SUFFIXES:
        raise TagspreadError(f"{source} ends in {suffix}; these are read: {', '.join(SUFFIXES)}.")
    check_kind(source, b"PAR1" if suffix == ".parquet" else None)
    if suffix == ".parquet":
        return LabelTable(*labels_of_frame(read_parquet(source), Source(str(source), "row"), folder, options))
    if suffix == ".json":
        return label_studio.read_json(source, folder, options)
    if suffix == ".jsonl":
        return read_json_lines(source, folder, options)
    return _read_delimited(source, folder, options)


def options_for_run(file: Path, own: SettingValues, given: SettingValues) -> dict[str, Any]:
    """Return the options for a table that is used with a run: those given, else the run's own where they apply.

    Args:
        file: the table.
        own: options that the run's table was read with; those about columns apply if this table has the columns.
        given: what the user says about this table.
    """
    header = _header(file)
    stated = {name: value for name, value in given.items() if value is not None or name == "delimiter"}
    options = {name: own[name] for name in ("image_column", "tags_column") if own.get(name) in header}
    if stated.get("layout") == "wide":
        options.pop("tags_column", None)
    if ignored := own.get("ignore"):
        names = [ignored] if isinstance(ignored, str) else list(ignored)
        options["ignore"] = "all" if ignored == "all" else [name for name in names if name in header]
    if not stated.get("ignore"):
        stated.pop("ignore", None)
    always = {name: own[name] for name in ("delimiter", "allow_outside") if name in own}
    return {"delimiter": "|"} | always | options | stated


def _metadata_file(file: Path) -> Path:
    """Return the metadata file of a folder, or the file itself."""
    if not file.is_dir():
        return file
    there = [name for name in METADATA if (file / name).is_file()]
    if len(there) != 1:
        what = " and ".join(there) if there else f"none of {', '.join(METADATA)}"
        raise TagspreadError(f"{file} cannot be read as a table: it has {what}; give the file with the labels.")
    return file / there[0]


def _read_delimited(file: Path, folder: Path, options: TableOptions) -> LabelTable:
    separator = separator_of(file)
    lines = lines_of(file, separator)
    header = header_of(file, next(lines, None), separator)
    if label_studio.is_export(header):
        return label_studio.read_rows(file, folder, header, lines, options)
    if tuple(header) == PSEUDO_LABEL_COLUMNS:
        raise TagspreadError(
            f"{file} is what a run took its unlabeled images for, not labels that a person gave; correct it in "
            "Label Studio (tagspread pseudo-labels RUN --label-studio FILE) and give the file that comes back."
        )
    sample = list(islice(lines, SAMPLE))
    if not sample:
        raise TagspreadError(f"{file} has no rows below its header line.")
    source = Source(str(file), "line")
    columns = find_columns(header, [row for _, row in sample], options, source.name)
    rows = cells_of(chain(sample, lines), source, header, columns)
    return LabelTable(*collect_labels(rows, source, header, columns, options, folder))


def _header(file: Path) -> list[str]:
    """Return the names of a table's columns; none if they cannot be read, as reading the table will say why."""
    try:
        file = _metadata_file(file)
        if file.suffix.lower() == ".jsonl":
            return keys_of(file)
        if file.suffix.lower() == ".parquet":
            import pyarrow.parquet  # type: ignore[import-untyped]

            return list(pyarrow.parquet.read_schema(file).names)
        separator = separator_of(file)
        return header_of(file, next(lines_of(file, separator), None), separator)
    except (TagspreadError, OSError, ValueError, ImportError):
        return []
