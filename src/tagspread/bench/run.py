"""The whole of ``tagspread bench``: read the labels, plan, train what is missing, write tables and charts."""

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
from tagspread.train.trainer import choose_device
from tagspread.vision.backbones import build_backbone, check_network
from tagspread.wording import counted


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line; None where nothing was said."""

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
        """Return the grid, with what is usual for a table or a study where nothing was said."""
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
    """Do all of it; return how many of the cells asked for have failed. Cells left by the budget are none of them."""
    began = time.monotonic()
    results = Results(request.out)
    check_folder(results, request.dataset)
    if results.is_cut_off:
        watcher.note(f"the last line of {results.file} was cut off while it was written: its cell counts as not run")
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
    now = [split for split in unchosen if request.retry_failed or runner.status(split.rows[0]["key"]) != "failed"]
    if not request.dry_run:
        if now or runner.pending(grid.cells(choices.read()), request.retry_failed):
            with fork_rng(devices=[]):  # wrong weights, or a download that fails, show before images are decoded
                build_backbone(common.backbone, common.weights)
        # before anything else is left in the folder, so that it is known again as a grid's
        results.plan(_asked(grid, choices), data)
        runner.choose(now, opened)
    cells, asked = grid.cells(choices.read()), _asked(grid, choices)
    pending = runner.pending(cells, request.retry_failed)
    if request.dry_run:
        show_plan(cells, pending, runner, watcher)
        if now:
            watcher.note(f"thresholds of {counted(len(now), 'split')}: chosen first; their cells come on top")
        return 0
    results.plan(asked, data)
    describe_start(cells, pending, runner, watcher)
    todo = {cell.key for cell in pending}
    if failed := sum(runner.status(cell["key"]) == "failed" for cell in asked if cell["key"] not in todo):
        watcher.note(f"{counted(failed, 'cell')} failed before: --retry-failed tries again")
    _study_labels(request, source, results)
    try:
        if pending:
            runner.run(pending, opened())
    except KeyboardInterrupt:
        if runner.records:  # whoever stops a long grid wants to see what it has found
            write_all(request, watcher)
        raise
    write_all(request, watcher)
    return sum(runner.status(cell["key"]) == "failed" for cell in asked)


def _asked(grid: Grid, choices: ThresholdChoices) -> list[Record]:
    """Return the cells of a grid, and what stands for those whose threshold is still to be chosen."""
    known = choices.read()
    waiting = [row for split in grid.unchosen(known) for row in split.rows]
    return [*(cell.identity() for cell in grid.cells(known)), *waiting]


def _open(source: BenchmarkData, request: Request, grid: Grid, runner: GridRunner) -> Splits:
    splits = source.open(grid.config(WARMUP, 1).image_size, runner.device, request.cache, runner.watcher)
    runner.watcher.note(splits.store.describe())
    return splits


def write_all(request: Request, watcher: Watcher) -> None:
    """Write tables and charts from what the folder holds."""
    results = Results(request.out)
    planned = results.planned()
    records = current([record for record in results.read() if record["dataset"] == request.dataset], planned)
    if request.tables_only and not records:  # tables with nothing in them would take the place of others
        raise TagspreadError(f"{request.out} holds no results of {request.dataset}; give the --out of a grid.")
    choices = ThresholdChoices(results).read()
    shown = [*records, *chosen_rows(records, choices)]
    tables = build_tables(request.dataset, shown, [*planned, *chosen_rows(planned, choices)])
    study = request.out / LABEL_STUDY
    for line in write_tables(request.out, request.dataset, tables, records) + write_charts(request.out, shown, study):
        watcher.note(line)


def _study_labels(request: Request, source: BenchmarkData, results: Results) -> None:
    """Write down what labels alone tell, for every split that was asked for."""
    planned = [cell for cell in results.planned() if cell["dataset"] == request.dataset]
    shares, seeds = (sorted({cell[name] for cell in planned}) for name in ("p", "seed"))
    write_label_study(request.out / LABEL_STUDY, source.y[: source.train], source.classes, shares, seeds)


def show_plan(cells: Sequence[Cell], pending: Sequence[Cell], runner: GridRunner, watcher: Watcher) -> None:
    """Say of each cell whether it is done, and about how long the rest takes."""
    todo = {cell.key for cell in pending}
    for cell in cells:
        status = runner.status(cell.key) or "to do"
        if cell.key in todo:
            status = "begun" if runner.is_begun(cell) else "to do"
        watcher.note(f"{cell.key}: {status}")
    describe_start(cells, pending, runner, watcher)


def describe_start(cells: Sequence[Cell], pending: Sequence[Cell], runner: GridRunner, watcher: Watcher) -> None:
    """Say in a sentence or two what is there and what is to be done."""
    known, estimate = [runner.expected_seconds(cell) for cell in pending], ""
    if known:
        whole = all(seconds is not None for seconds in known)
        minutes = f"about {sum(seconds or 0 for seconds in known) / 60:.1f} min"
        estimate = f", {minutes if whole else 'nobody knows yet how long that takes'}"
    settled = len(cells) - len(pending)
    watcher.note(f"{counted(len(cells), 'cell')}, {settled} of them settled, {len(pending)} to run{estimate}")
