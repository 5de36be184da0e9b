"""Read labels from Label Studio exports: JSON, JSON-MIN, CSV and TSV.

An image is labeled if an annotation was submitted for it; tags that were not ticked are then absent. Images without an
annotation and skipped annotations give no labels. Where annotators disagree about a tag of an image, its label is
unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np

from tagspread.data.tables.cells import json_flaw
from tagspread.data.tables.image_names import NameRule, looks_like_image
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.layouts import COLUMN_OPTIONS, TAG_COLUMNS
from tagspread.data.tables.notes import Source
from tagspread.data.tables.options import TableOptions
from tagspread.errors import TagspreadError, did_you_mean

OWN_COLUMNS = frozenset(
    (
        "id",
        "annotation_id",
        "annotator",
        "created_at",
        "updated_at",
        "lead_time",
        "agreement",
        "was_cancelled",
        "file_name",
    )
)  # columns without answers; the last one comes from tasks that tagspread writes
EXPORT_COLUMNS = frozenset(("annotation_id", "annotator", "lead_time"))  # a table that has them is an export
UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # prefix that Label Studio adds to the names of uploaded files


class Annotation(NamedTuple):
    """The tags that one annotator gave to one image."""

    number: int  # of the task or line, for messages
    data: dict[str, Any]  # of the task, including its image
    tags: frozenset[str]


def read_json(source: Path, images: Path, options: TableOptions) -> LabelTable:
    """Read a JSON or JSON-MIN export; column options name keys of the tasks."""
    try:
        tasks = json.loads(source.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise TagspreadError(f"{source} is not in UTF-8 ({error}); export it again.") from None
    except json.JSONDecodeError as error:
        raise TagspreadError(
            f"{source} is not valid JSON (line {error.lineno}: {error.msg}); export it again."
        ) from None
    except (ValueError, RecursionError) as error:
        raise TagspreadError(f"{source} cannot be read ({json_flaw(error)}); export it again.") from None
    except OSError as error:
        raise TagspreadError(f"{source} cannot be read ({error.strerror}).") from None
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise TagspreadError(f"{source} is not a list of tasks; a .json file must be a Label Studio export.")
    where = Source(str(source), "task")
    if any("annotations" in task for task in tasks):
        answers = _of_tasks(tasks, where, options)
    elif tasks and all("annotation_id" in task for task in tasks):
        answers = _of_rows(list(enumerate(tasks, 1)), list(dict.fromkeys(k for t in tasks for k in t)), where, options)
    else:
        raise TagspreadError(
            f"{source} holds no annotations; import it into Label Studio, correct and submit the annotations there, "
            "and export them as JSON."
        )
    return _table(answers, where, images, options)


def read_rows(
    source: Path,
    images: Path,
    header: list[str],
    lines: Iterable[tuple[int, list[str]]],
    options: TableOptions,
) -> LabelTable:
    """Read the lines of a CSV or TSV export."""
    where = Source(str(source), "line")
    rows = []
    for number, cells in lines:
        if len(cells) != len(header):
            raise TagspreadError(
                f"{where.at(number)} has {len(cells)} cells, but the header has {len(header)}; export the table again."
            )
        rows.append((number, dict(zip(header, cells, strict=True))))
    return _table(_of_rows(rows, header, where, options), where, images, options)


def _of_tasks(tasks: list[dict[str, Any]], where: Source, options: TableOptions) -> Iterator[Annotation]:
    """Yield the annotations of a full JSON export, which has tasks with annotations with results."""
    asked: dict[str, None] = {}
    for number, task in enumerate(tasks, 1):
        try:
            submitted = [
                annotation["result"]
                for annotation in task.get("annotations") or ()
                if not annotation.get("was_cancelled")
            ]
            chosen = [[result for result in results if result["type"] == "choices"] for results in submitted]
            asked |= dict.fromkeys(str(result["from_name"]) for results in chosen for result in results)
            data = dict(task["data"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise TagspreadError(
                f"{where.at(number)} does not have the format of Label Studio; export as JSON again."
            ) from None
        if len(asked) > 1 and options.tags_column is None:
            raise TagspreadError(
                f"{where.at(number)} has answers to several questions ({', '.join(asked)}); name the one about tags "
                "with @tags_column.",
                **COLUMN_OPTIONS,
            )
        for results in chosen:
            about_tags = [
                result.get("value") for result in results if options.tags_column in (None, result["from_name"])
            ]
            yield Annotation(number, data, frozenset(_choices(about_tags, where, number)))


def _of_rows(
    rows: list[tuple[int, dict[str, Any]]], header: list[str], where: Source, options: TableOptions
) -> Iterator[Annotation]:
    """Yield the annotations of a flat export, which has one row per annotation and one column per question."""
    column = _tags_column(rows, header, where, options)
    for number, row in rows:
        if str(row.get("was_cancelled")).lower() not in ("true", "1"):
            yield Annotation(number, row, frozenset(_choices(row.get(column), where, number)))


def _tags_column(
    rows: list[tuple[int, dict[str, Any]]], header: list[str], where: Source, options: TableOptions
) -> str:
    if options.tags_column is not None:
        if options.tags_column not in header:
            close = did_you_mean(options.tags_column, header)
            raise TagspreadError(
                f"@tags_column: {where.name} has no column {options.tags_column!r}.{close}", tags_column=...
            )
        return options.tags_column
    sample = [row for _, row in rows[:200]]
    images = {key for key in header if any(_is_address(row.get(key)) for row in sample)}
    rest = [
        key for key in header if key not in OWN_COLUMNS | images | {options.image_column} and key not in options.ignored
    ]
    named = [key for key in rest if key.lower() in TAG_COLUMNS]
    if len(candidates := named or rest) != 1:
        listed = ", ".join(map(repr, candidates)) or "there is none"
        raise TagspreadError(
            f"{where.name}: cannot tell which column holds the tags ({listed}); name it with @tags_column.",
            **COLUMN_OPTIONS,
        )
    return candidates[0]


def _choices(value: Any, where: Source, number: int) -> list[str]:
    """Return the ticked choices: an export writes one choice as text and several as JSON."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        if value[0] not in "[{":
            return [value.strip()]
        try:
            return _choices(json.loads(value), where, number)
        except json.JSONDecodeError:
            return [value.strip()]  # a tag that begins with a bracket
        except (ValueError, RecursionError) as error:
            if isinstance(error, TagspreadError):
                raise
            raise TagspreadError(
                f"{where.at(number)} cannot be read ({json_flaw(error)}); export as JSON again."
            ) from None
    if isinstance(value, dict) and "choices" in value:
        return _choices(value["choices"], where, number)
    if isinstance(value, list):
        try:
            return [tag for part in value for tag in _choices(part, where, number)]
        except RecursionError as error:
            raise TagspreadError(f"{where.at(number)}: {json_flaw(error)}; export as JSON again.") from None
    raise TagspreadError(f"{where.at(number)} holds {str(value)[:80]!r} instead of choices; export as JSON again.")


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and looks_like_image(_path(value))


def _path(address: str) -> str:
    """Return the image path in an address: a plain path, a Label Studio local file or a web address.

    >>> _path("/data/local-files/?d=photos/a%20b.jpg"), _path("https://example.com/c.jpg?size=1")
    ('photos/a b.jpg', '/c.jpg')
    """
    try:
        parts = urlsplit(address)
    except ValueError:  # such as "http://["
        return address
    path = parts.query.removeprefix("d=") if parts.query.startswith("d=") else parts.path
    return unquote(path, errors="surrogateescape")  # the inverse of the quoting in exported tasks


def _image(answer: Annotation, where: Source, images: Path, options: TableOptions) -> str:
    """Return the name of the image: the one written by tagspread, or the file that its address leads to."""
    data, key = answer.data, options.image_column
    if key is None:
        if data.get("file_name"):
            return str(data["file_name"])
        key = next((key for key in ("image", *data) if _is_address(data.get(key))), None)
    if key is None or not isinstance(data.get(key), str):
        raise TagspreadError(
            f"{where.at(answer.number)} names no image; name the column of images with @image_column.", **COLUMN_OPTIONS
        )
    return _below(images, data[key])


def _table(answers: Iterable[Annotation], where: Source, images: Path, options: TableOptions) -> LabelTable:
    rule = NameRule(images, where, options.allow_outside)
    answers_of: dict[str, list[frozenset[str]]] = {}
    for answer in answers:
        name = rule(_image(answer, where, images, options), answer.number)
        answers_of.setdefault(name, []).append(answer.tags)
    if not answers_of:
        raise TagspreadError(f"{where.name} holds no submitted annotation; annotate some images first.")
    classes = tuple(sorted({tag for of_image in answers_of.values() for tags in of_image for tag in tags}))
    if not classes:
        raise TagspreadError(f"{where.name} holds no tags; give at least one image a tag.")
    y = np.array([[_agreed(of_image, name) for name in classes] for of_image in answers_of.values()], np.int8)
    return LabelTable([images / name for name in answers_of], classes, y, unlisted=0)


def _agreed(answers: list[frozenset[str]], tag: str) -> int:
    """Return the label that all annotators give, or -1 where they disagree."""
    votes = sum(tag in tags for tags in answers)
    return 1 if votes == len(answers) else 0 if votes == 0 else -1


def _below(images: Path, address: str) -> str:
    """Return the name, relative to the folder, of the image that an address leads to.

    Label Studio may serve a parent folder, or add a prefix to uploaded files. The longest end of the address that is an
    image in the folder is therefore returned. If there is none, the whole address is returned and later reported as
    missing.
    """
    pieces = [piece for piece in _path(address).split("/") if piece]
    for k in range(len(pieces)):
        *above, last = pieces[k:]
        for name in (last, UPLOADED.sub("", last)):
            if images.joinpath(*above, name).is_file():
                return "/".join((*above, name))
    return "/".join(pieces)
