"""Run ``tagspread bench``: read labels, plan the grid, train missing cells, write tables and charts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from torch.random import fork_rng

from tagspread.aliases import SettingValues
from tagspread.bench.cells import Cell
from tagspread.bench.charts import write_charts
from tagspread.bench.checks import check_data, check_folder, check_labeled, check_unused
from tagspread.bench.datasets import BenchmarkData, Splits, load
from tagspread.bench.grid import WARMUP, Grid, in_order
from tagspread.bench.records import Record, current
from tagspread.bench.results import Results
from tagspread.bench.runner import GridRunner
from tagspread.bench.studies import LABEL_STUDY, STUDIES, Study, write_label_study
from tagspread.bench.table_files import write_tables
from tagspread.bench.tables import build_tables
from tagspread.bench.threshold_choice import ThresholdChoices, chosen_rows
from tagspread.data.datasets import find_dataset
from tagspread.errors import TagspreadError, check_choice
from tagspread.progress import Watcher
from tagspread.train.preflight import choose_device
from tagspread.vision.backbones import build_backbone, check_network
from tagspread.wording import counted


@dataclass(frozen=True)
class Request:
    """The options of ``tagspread bench``; None for an option that was not given."""

    dataset: str
    out: Path
    root: Path | None = None
    methods: tuple[str, ...] | None = None
    shares: tuple[float, ...] | None = None
    seeds: tuple[int, ...] | None = None
    preset: str = "paper"
    study: str | None = None
    settings: SettingValues = field(default_factory=dict)
    canvases: int = 1200
    cache: Path | None = None
    device: str = "auto"
    budget: float | None = None  # minutes
    keep_models: bool = False
    retry_failed: bool = False
    dry_run: bool = False
    tables_only: bool = False

    def grid(self, facts: SettingValues) -> Grid:
        """Return the requested grid, with the defaults of dataset and study for options that were not given."""
        if self.study is not None:
            check_choice("--study", self.study, STUDIES)
        study = STUDIES[self.study] if self.study else Study(table=True)
        methods = self.methods or (() if self.study else ("all",))
        dataset = find_dataset(self.dataset)
        return Grid(
            self.dataset,
            in_order(methods),
            shares=self.shares or (dataset.shares if study.table else dataset.shares[:1]),
            seeds=self.seeds or dataset.seeds,
            preset=self.preset,
            settings=self.settings,
            variants=study.variants,
            tuned=study.tuned,
            facts=facts,
        )


def run_bench(request: Request, watcher: Watcher) -> int:
    """Run the benchmark; return how many requested cells failed (not counting those beyond the time budget)."""
    began = time.monotonic()
    results = Results(request.out)
    check_folder(results, request.dataset)
    if results.is_truncated:
        watcher.note(f"the last line of {results.file} is incomplete, so its cell counts as not run")
    if request.tables_only:
        write_all(request, watcher)
        return 0
    check_unused(results)
    source = load(request.dataset, request.root, request.canvases)
    data = check_data(results, source, request.root)
    grid = request.grid(source.facts)
    check_labeled(grid, source)
    common = grid.config(WARMUP, 1)
    check_network(common.backbone, common.weights)
    runner = GridRunner(
        request.out,
        choose_device(request.device),
        watcher,
        None if request.budget is None else 60 * request.budget,
        request.keep_models,
        began,
    )
    opened = cache(lambda: _open(source, request, grid, runner))
    choices = ThresholdChoices(results)
    unchosen = grid.unchosen(choices.read())
    to_choose = [split for split in unchosen if request.retry_failed or runner.status(split.rows[0]["key"]) != "failed"]
    if not request.dry_run:
        if to_choose or runner.pending(grid.cells(choices.read()), request.retry_failed):
            with fork_rng(devices=[]):  # find wrong weights or a failed download before images are decoded
                build_backbone(common.backbone, common.weights)
        # written first, so that the folder is recognized as that of a grid
        results.plan(_requested(grid, choices), data)
        runner.choose(to_choose, opened)
    cells, requested = grid.cells(choices.read()), _requested(grid, choices)
    pending = runner.pending(cells, request.retry_failed)
    if request.dry_run:
        show_plan(cells, pending, runner, watcher)
        if to_choose:
            splits = counted(len(to_choose), "split")
            watcher.note(f"further cells run once their threshold is chosen, in {splits}")
        return 0
    results.plan(requested, data)
    describe_start(cells, pending, runner, watcher)
    todo = {cell.key for cell in pending}
    if failed := sum(runner.status(cell["key"]) == "failed" for cell in requested if cell["key"] not in todo):
        watcher.note(f"{counted(failed, 'cell')} failed before; run again with --retry-failed")
    _study_labels(request, source, results)
    try:
        if pending:
            runner.run(pending, opened())
    except KeyboardInterrupt:
        if runner.records:  # show the results so far of an interrupted grid
            write_all(request, watcher)
        raise
    write_all(request, watcher)
    return sum(runner.status(cell["key"]) == "failed" for cell in requested)


def _requested(grid: Grid, choices: ThresholdChoices) -> list[Record]:
    """Return the cells of a grid, with placeholders for cells whose threshold has not been chosen yet."""
    chosen = choices.read()
    placeholders = [row for split in grid.unchosen(chosen) for row in split.rows]
    return [*(cell.identity() for cell in grid.cells(chosen)), *placeholders]


def _open(source: BenchmarkData, request: Request, grid: Grid, runner: GridRunner) -> Splits:
    splits = source.open(grid.config(WARMUP, 1).image_size, runner.device, request.cache, runner.watcher)
    runner.watcher.note(splits.store.describe())
    return splits


def write_all(request: Request, watcher: Watcher) -> None:
    """Write tables and charts from the results in the folder."""
    results = Results(request.out)
    planned = results.planned()
    records = current([record for record in results.read() if record["dataset"] == request.dataset], planned)
    if request.tables_only and not records:  # do not replace tables by empty ones
        raise TagspreadError(
            f"{request.out} holds no results of {request.dataset}; give the folder of a grid with --out."
        )
    choices = ThresholdChoices(results).read()
    shown = [*records, *chosen_rows(records, choices)]
    tables = build_tables(request.dataset, shown, [*planned, *chosen_rows(planned, choices)])
    study = request.out / LABEL_STUDY
    drawn = write_charts(request.out, shown, study)  # first, because table.html contains the charts
    for line in write_tables(request.out, request.dataset, tables, records) + drawn:
        watcher.note(line)


def _study_labels(request: Request, source: BenchmarkData, results: Results) -> None:
    """Write the study of class proportions, which needs labels only, for all requested splits."""
    planned = [cell for cell in results.planned() if cell["dataset"] == request.dataset]
    shares, seeds = (sorted({cell[name] for cell in planned}) for name in ("p", "seed"))
    write_label_study(request.out / LABEL_STUDY, source.y[: source.train], source.classes, shares, seeds)


def show_plan(cells: Sequence[Cell], pending: Sequence[Cell], runner: GridRunner, watcher: Watcher) -> None:
    """Print the status of each cell and a time estimate for the remaining ones."""
    todo = {cell.key for cell in pending}
    for cell in cells:
        status = runner.status(cell.key) or "to do"
        if cell.key in todo:
            status = "interrupted" if runner.is_interrupted(cell) else "to do"
        watcher.note(f"{cell.key}: {status}")
    describe_start(cells, pending, runner, watcher)


def describe_start(cells: Sequence[Cell], pending: Sequence[Cell], runner: GridRunner, watcher: Watcher) -> None:
    """Print the number of cells to run and a time estimate."""
    expected, estimate = [runner.expected_seconds(cell) for cell in pending], ""
    if expected:
        is_complete = all(seconds is not None for seconds in expected)
        minutes = f"about {sum(seconds or 0 for seconds in expected) / 60:.1f} min"
        estimate = f"; {minutes if is_complete else 'no time estimate yet'}"
    finished = len(cells) - len(pending)
    watcher.note(f"{counted(len(cells), 'cell')}: {finished} finished, {len(pending)} to run{estimate}")
