"""Read labels from JSON lines, one object per image, such as ``metadata.jsonl`` of Hugging Face ``datasets``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tagspread.data.tables.cells import json_flaw, text, text_or_list
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.layouts import SAMPLE, collect_labels, find_columns
from tagspread.data.tables.notes import Source
from tagspread.data.tables.options import TableOptions
from tagspread.errors import RowErrors, TagspreadError


def read_json_lines(file: Path, folder: Path, options: TableOptions, errors: RowErrors) -> LabelTable:
    """Read a JSON lines file: its keys are the columns, and tags may be a list or text."""
    entries = list(_entries(file))
    if not entries:
        raise TagspreadError(f"{file} has no lines; write one JSON object per image.")
    source, header = Source(str(file), "line"), _keys(entries)
    sample = [[text(entry.get(key)) for key in header] for _, entry in entries[:SAMPLE]]
    columns = find_columns(header, sample, options, source.name)

    def rows() -> Iterator[tuple[int, str, str | list[str]]]:
        for number, entry in entries:
            try:
                if columns.tags is None:
                    cells: str | list[str] = [text(entry.get(header[k])) for k in columns.classes]
                else:
                    cells = _tags(entry.get(header[columns.tags]), source, number)
            except TagspreadError as error:
                errors.add(error)
                continue
            yield number, text(entry.get(header[columns.image])), cells

    return LabelTable(*collect_labels(rows(), source, header, columns, options, folder, errors))


def keys_of(file: Path) -> list[str]:
    """Return the keys of all objects in a JSON lines file."""
    return _keys(_entries(file))


def _keys(entries: Iterable[tuple[int, dict[str, Any]]]) -> list[str]:
    return list(dict.fromkeys(key for _, entry in entries for key in entry))


def _entries(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of nonempty lines, with their line numbers."""
    number = 0
    try:
        with file.open(encoding="utf-8-sig") as opened:
            for number, line in enumerate(opened, start=1):
                if not line.strip():
                    continue
                entry = json.loads(line)
                if not isinstance(entry, dict):
                    raise TagspreadError(f"{file} line {number} is not a JSON object; write {{...}} on each line.")
                yield number, entry
    except UnicodeDecodeError as error:
        raise TagspreadError(f"{file} is not in UTF-8 ({error}; after line {number}); save it as UTF-8.") from None
    except json.JSONDecodeError as error:
        raise TagspreadError(
            f"{file} line {number} is not valid JSON ({error.msg}, column {error.colno}); correct the line."
        ) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or thousands of nested lists
        raise TagspreadError(
            f"{file} line {number} cannot be read ({json_flaw(error)}); write the image and its tags."
        ) from None
    except OSError as error:
        raise TagspreadError(f"{file} cannot be read ({error.strerror}).") from None


def _tags(cell: Any, source: Source, number: int) -> str | list[str]:
    """Return tags as a list or as text; numbers are valid tags, objects and nested lists are not."""
    if isinstance(cell, dict) or (isinstance(cell, list) and any(isinstance(tag, dict | list) for tag in cell)):
        raise TagspreadError(f"{source.at(number)} holds {cell!r:.80}; write a list of tags or text.")
    return text_or_list(cell)
