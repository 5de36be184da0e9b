"""Merge corrected labels from Label Studio with the labels of a run into one table, to retrain on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tagspread.data.tables.read import read_table
from tagspread.errors import Blank, TagspreadError
from tagspread.run.record import RunRecord
from tagspread.run.split import Part


class Merged(NamedTuple):
    """Counts of a merge.

    Attributes:
        known: number of the run's labeled images.
        new: number of corrected images.
        new_tags: tags that the run does not have; for the run's labeled images, they are unknown.
    """

    known: int
    new: int
    new_tags: tuple[str, ...]


def merge_corrected(
    run: str | Path, corrected: Path, out: Path, *, images: str | Path | None = None, overwrite: bool = False
) -> Merged:
    """Write the run's labels, as its ``split.csv`` records them, and a corrected export into one new table.

    Args:
        run: folder of the run.
        corrected: an export of Label Studio.
        out: the table to write.
        images: the image folder, if it was moved after training.
        overwrite: replace an existing table, but never one of the merged tables.
    """
    record = RunRecord.read(run)
    if not record.has_files:
        raise TagspreadError(
            f"{run} was started from Python with its own data; read the export there with read_table, and merge."
        )
    data = record.config.data
    root = Path(images).absolute() if images is not None else record.root()
    if root is None:
        raise TagspreadError(
            f"{run} was started from Python with a list of files; say which folder holds them all with @images.",
            images=Blank("DIR"),
        )
    parts = [Part.LABELED, Part.APART, Part.HELD_OUT]
    if data.test_labels is None:  # then all labels are of one table: those put aside to test on, and of broken files
        parts += [Part.TEST, Part.OMITTED]
    rows = record.split.rows(*parts)
    known = record.table(rows[(record.split.y[rows] >= 0).any(axis=1)], root)
    new = read_table(corrected, root, allow_outside=bool(data.table_options.get("allow_outside")))
    sources = [corrected, *(Path(table) for table in (data.labels,) if table is not None)]
    if out.exists() and any(source.exists() and out.samefile(source) for source in sources):
        raise TagspreadError(
            f"{out} is one of the tables to merge; choose another file, so that nothing of yours is lost."
        )
    known.merge(new).write(out, root, overwrite=overwrite)
    return Merged(len(known), len(new), tuple(name for name in new.classes if name not in set(known.classes)))
