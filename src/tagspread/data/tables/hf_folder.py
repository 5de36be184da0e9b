"""Image folders in the style of Hugging Face: images with ``metadata.csv`` or ``metadata.jsonl`` beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tagspread.data.tables.columns import find_shape, wanted
from tagspread.data.tables.frame import add_tags, text
from tagspread.data.tables.label_table import LabelTable, read_table
from tagspread.data.tables.rows import LongRows, NameRule, Source, WideRows
from tagspread.errors import TagspreadError

FILES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def read_hf_folder(
    folder: str | Path,
    *,
    tags_column: str | None = None,
    delimiter: str | None = "|",
    layout: str = "auto",
    ignore: str | Iterable[str] = (),
) -> LabelTable:
    """Read the labels of a folder: ``file_name`` with a list of tags, or with columns of 1, 0 and nothing.

    Args:
        folder: one split, such as ``pets/train``.
        tags_column: the column with lists of tags; else one called tags, labels, tag or label.
        delimiter: what separates tags that are text; None if each is one tag.
        layout: ``"long"``, ``"wide"`` or ``"auto"``.
        ignore: columns that are about something else, such as captions, or ``"all"``.
    """
    top = Path(folder)
    found = [name for name in FILES if (top / name).is_file()]
    if len(found) != 1:
        what = " and ".join(found) if found else f"none of {', '.join(FILES)}"
        raise TagspreadError(f"{top} has {what}; give the folder of one split, with one of them.")
    file = top / found[0]
    if file.suffix != ".jsonl":
        return read_table(
            file, top, delimiter, image_column="file_name", tags_column=tags_column, layout=layout, ignore=ignore
        )
    options = wanted("file_name", tags_column, layout, ignore)
    source, entries = Source(str(file), "line"), list(_entries(file))
    if not entries:
        raise TagspreadError(f"{file} has no lines.")
    header = list(dict.fromkeys(key for _, entry in entries for key in entry))
    sample = [[text(entry.get(key)) for key in header] for _, entry in entries[:200]]
    shape = find_shape(header, sample, options, str(file))
    rule, columns = NameRule(top, source, allow_outside=False), [header[k] for k in shape.columns]
    long, wide = LongRows(source, delimiter), WideRows(source, columns, drop_others=options.ignore is None)
    for number, entry in entries:
        name = rule(text(entry.get("file_name")), number)
        if shape.tags is None:
            wide.add(name, [text(entry.get(key)) for key in columns], number)
        else:
            add_tags(long, name, _tags(entry.get(header[shape.tags]), source, number), number)
    return wide.table(top) if shape.tags is None else long.table(top)


def _entries(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines that hold anything, with their numbers."""
    number = 0
    try:
        with file.open(encoding="utf-8-sig") as opened:
            for number, line in enumerate(opened, start=1):
                if not line.strip():
                    continue
                entry = json.loads(line)
                if not isinstance(entry, dict):
                    raise TagspreadError(f"{file} line {number} is no JSON object; write {{...}} on each line.")
                yield number, entry
    except UnicodeDecodeError as error:
        raise TagspreadError(f"{file} is not in UTF-8 ({error}; after line {number}).") from None
    except json.JSONDecodeError as error:
        raise TagspreadError(f"{file} line {number} is not JSON ({error.msg}, column {error.colno}).") from None
    except OSError as error:
        raise TagspreadError(f"{file} cannot be read ({error.strerror}).") from None


def _tags(cell: Any, source: Source, number: int) -> Any:
    """Return a list of tags, or text; numbers are tags as well, but nothing that holds more is."""
    if isinstance(cell, dict) or (isinstance(cell, list) and any(isinstance(tag, dict | list) for tag in cell)):
        raise TagspreadError(f"{source.at(number)} holds {cell!r:.80}, where a list of tags is expected.")
    return cell
