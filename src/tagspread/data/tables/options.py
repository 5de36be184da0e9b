"""How to read a table that belongs to a run: like the one that it was trained on, as far as the two are alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tagspread.data.tables.read import header_of, lines_of, separator_of
from tagspread.errors import TagspreadError


def read_alike(file: Path, own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return options of ``read_table``: those given; where they are silent, the run's own for columns that are there.

    Args:
        file: the table.
        own: options that the run's table was read with.
        given: what the user says about this one.
    """
    there = _columns(file)
    said = {name: value for name, value in given.items() if value is not None or name == "delimiter"}
    options = {name: own[name] for name in ("image_column", "tags_column") if own.get(name) in there}
    if said.get("layout") == "wide":
        options.pop("tags_column", None)
    if ignored := own.get("ignore"):
        names = [ignored] if isinstance(ignored, str) else list(ignored)
        options["ignore"] = "all" if ignored == "all" else [name for name in names if name in there]
    if not said.get("ignore"):
        said.pop("ignore", None)
    always = {name: own[name] for name in ("delimiter", "allow_outside") if name in own}
    return {"delimiter": "|"} | always | options | said


def _columns(file: Path) -> list[str]:
    """Return the names of a table's columns; none if that is not to be told, which is said when it is read."""
    try:
        if file.suffix.lower() == ".parquet":
            import pyarrow.parquet  # type: ignore[import-untyped]

            return list(pyarrow.parquet.read_schema(file).names)
        separator = separator_of(file)
        return header_of(file, next(lines_of(file, separator), None), separator)
    except (TagspreadError, OSError, ValueError, ImportError):
        return []
