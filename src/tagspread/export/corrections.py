"""The way back: what people corrected, and the labels that the run was trained on, in one table to train on anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError
from tagspread.run.folder import RunFolder


class Merged(NamedTuple):
    """What came together.

    Attributes:
        known: how many images of the run's own labels.
        new: how many of the corrected ones.
        new_tags: what the run did not know; nobody looked for them in its own images, so there they are unknown.
    """

    known: int
    new: int
    new_tags: tuple[str, ...]


def merge_corrected(run: str | Path, corrected: Path, out: Path, *, overwrite: bool = False) -> Merged:
    """Write the run's labels and a corrected export into one new table.

    Args:
        run: folder of the run, which says where its images and labels are.
        corrected: what Label Studio exported.
        out: the table to write.
        overwrite: replace a table that is there; never one of those that are merged.
    """
    data = RunFolder(run).read_json("config.json").get("data") or {}
    if not data.get("images") or not data.get("labels"):
        raise TagspreadError(
            f"{run} was started from Python with its own data; read the export there with read_table, and merge."
        )
    images, outside = Path(data["images"]), bool(data["table_options"].get("allow_outside"))
    known = read_table(data["labels"], images, **data["table_options"])
    new = read_table(corrected, images, allow_outside=outside)
    if out.exists() and any(out.samefile(source) for source in (data["labels"], corrected)):
        raise TagspreadError(
            f"{out} is one of the tables to merge; give another file, so that nothing of yours is lost."
        )
    replace(known, unlisted=-1).merge(new).write(out, images, overwrite=overwrite)
    return Merged(len(known), len(new), tuple(name for name in new.classes if name not in set(known.classes)))
