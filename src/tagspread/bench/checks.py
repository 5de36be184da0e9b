"""Before a grid: what can be found wrong with its folder, its data or its network is, before images are decoded.

One mistake that all cells share is one message; found by each cell in turn, it would be a table of failures.
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
    """Raise if the folder is none, or another run's, or that of a grid on another data set."""
    out = results.folder
    if out.exists() and not out.is_dir():
        raise TagspreadError(f"{out} is a file; give a folder for the grid with @out.", out=...)
    if RunFolder(out).is_run:
        raise TagspreadError(f"{out} is a run folder; choose another @out for a grid.", out=...)
    others = {cell["dataset"] for cell in results.planned()} - {dataset}
    if others:  # tables and charts have one name each
        raise TagspreadError(f"{out} holds a grid on {min(others)}; choose another @out for {dataset}.", out=...)


def check_unused(results: Results) -> None:
    """Raise if tables and charts would take the place of files that no grid has made."""
    if results.plan_file.exists() or results.file.exists():
        return
    out = results.folder
    if found := sorted(name for name in (*TABLES, *CHART_FILES, LABEL_STUDY, FILE) if (out / name).exists()):
        raise TagspreadError(
            f"{out} holds {found[0]}, which is not of a grid; choose another @out, so that nothing of yours is lost.",
            out=...,
        )


def check_data(results: Results, source: BenchmarkData, root: Path | None) -> str:
    """Return the digest of the data; raise if the folder's cells are of others."""
    digest = source.digest()
    if results.data not in (None, digest):
        found = f"{results.folder} holds a grid on other images or labels than those of {root}"
        if root is None:
            found = f"{results.folder} holds a grid on another number of canvases"
        raise TagspreadError(f"{found}; choose another @out.", out=...)
    return digest


def check_labeled(grid: Grid, source: BenchmarkData) -> None:
    """Raise for a labeled share of which no image is left."""
    least = math.ceil(10**6 / source.train) / 10**6  # rounded up, or it would be refused in turn
    for share in grid.shares:
        if not len(paper_split(source.train, share)[0]):
            raise TagspreadError(
                f"--p {share:g}: of {source.train:,} training images that is none; give at least {least:g}."
            )
