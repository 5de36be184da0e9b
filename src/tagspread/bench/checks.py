"""Checks before a benchmark starts: output folder, data and labeled shares, before images are decoded.

A mistake that affects all cells is reported once, instead of as a failure of each cell.
"""

from __future__ import annotations

import math
from pathlib import Path

from tagspread.bench.charts import CHART_FILES
from tagspread.bench.datasets import BenchmarkData
from tagspread.bench.grid import Grid
from tagspread.bench.results import Results
from tagspread.bench.studies import LABEL_STUDY
from tagspread.bench.table_files import TABLES
from tagspread.bench.threshold_choice import FILE
from tagspread.data.split import paper_split
from tagspread.errors import TagspreadError
from tagspread.run.folder import RunFolder


def check_folder(results: Results, dataset: str) -> None:
    """Raise if the output folder is a file, a run folder, or holds a grid on another dataset."""
    out = results.folder
    if out.exists() and not out.is_dir():
        raise TagspreadError(f"{out} is a file; choose a folder for the grid with @out.", out=...)
    if RunFolder(out).is_run:
        raise TagspreadError(f"{out} is a run folder; choose another @out for a grid.", out=...)
    others = {cell["dataset"] for cell in results.planned()} - {dataset}
    if others:  # tables and charts have one name each
        raise TagspreadError(f"{out} holds a grid on {min(others)}; choose another @out for {dataset}.", out=...)


def check_unused(results: Results) -> None:
    """Raise if tables or charts would overwrite files of the user."""
    if results.plan_file.exists() or results.file.exists():
        return
    out = results.folder
    if existing := sorted(name for name in (*TABLES, *CHART_FILES, LABEL_STUDY, FILE) if (out / name).exists()):
        raise TagspreadError(
            f"{out} holds {existing[0]}, which would be overwritten, but no grid; choose another @out.",
            out=...,
        )


def check_data(results: Results, source: BenchmarkData, root: Path | None) -> str:
    """Return the digest of the data; raise if the grid in the folder has other data."""
    digest = source.digest()
    if results.data not in (None, digest):
        problem = f"{results.folder} holds a grid on other images or labels than those of {root}"
        if root is None:
            problem = f"{results.folder} holds a grid on another number of canvases"
        raise TagspreadError(f"{problem}; choose another @out.", out=...)
    return digest


def check_labeled(grid: Grid, source: BenchmarkData) -> None:
    """Raise for a labeled share that selects no image."""
    least = math.ceil(10**6 / source.train) / 10**6  # rounded up, so that the suggested share is accepted
    for share in grid.shares:
        if not len(paper_split(source.train, share)[0]):
            raise TagspreadError(
                f"--p {share:g} selects none of the {source.train:,} training images; give at least {least:g}."
            )
