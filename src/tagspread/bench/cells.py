"""One cell of a grid: a method on a labeled share with a seed under a recipe; what names it, and what it measures."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import time
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tagspread._version import __version__
from tagspread.aliases import SettingValues
from tagspread.bench.records import Record
from tagspread.errors import TagspreadError
from tagspread.methods import find_method
from tagspread.methods.from_file import method_file_digest
from tagspread.progress import Watcher
from tagspread.run.config import DataSource, RunConfig
from tagspread.run.folder import RunFolder
from tagspread.run.split import FILE as SPLIT
from tagspread.train.compatibility import MACHINE_SETTINGS
from tagspread.train.config import TrainConfig, chooses_options, make_config
from tagspread.train.dataset import Dataset
from tagspread.train.experiment import network_after
from tagspread.train.trainer import Run, RunOptions, run_training

QUALITY = tuple(f"pseudo_{figure}" for figure in ("OP", "OR", "OF1", "CP", "CR", "CF1"))
CURVES = ("loss", "test_map_raw", "test_map_ema", "pseudo_positives", "ignored", "seconds", *QUALITY)
OF_THE_CELL = ("method", "method_options", "seed")  # all other settings are shared by the cells of a table
MODELS = (
    "labeled_only.safetensors",
    "model.safetensors",
    "ema.safetensors",
    "best.safetensors",
    "checkpoint/state.safetensors",
)
LARGE = (*MODELS, SPLIT)  # all that nobody needs without the networks


@dataclass(frozen=True)
class Cell:
    """What one run of a grid is.

    Attributes:
        dataset: voc, coco, nus or demo.
        p: labeled share.
        preset: what ``config`` started from.
        config: every setting of the run.
        common: the settings that all methods of the grid begin from; a method's own recipe comes on top.
        weights: digest of the weights, or what stands for it.
        facts: what else makes the data set this one.
        asked: settings that the user gave, for the table's title; they are in ``common`` already.
    """

    dataset: str
    p: float
    preset: str
    config: TrainConfig
    common: TrainConfig
    weights: str
    facts: SettingValues = field(default_factory=dict)
    asked: SettingValues = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """Name of the cell and of its folder: the same for the same work, on any machine."""
        named = f"{self.dataset}-{self.preset}-{self.config.method}-p{self.p:g}-s{self.config.seed}"
        named = re.sub(r"[^\w.-]+", "_", named)  # a method of the user's own is named by its file
        return f"{named}-{_digest([self.setup['id'], self.options, self.own, method_file_digest(self.config.method)])}"

    @property
    def own(self) -> SettingValues:
        """The settings that are not the table's, as the method needs others to be itself."""
        return _changed(self.config, self.common)

    @cached_property
    def version(self) -> str:
        """What the method is by now, whatever options are tried: its file, its settings, the preset's options."""
        usual = plain_options(self.config.method, self._usual_options)
        return _digest([self.own, method_file_digest(self.config.method), usual])

    @property
    def _usual_options(self) -> SettingValues:
        preset = make_config(self.preset, method=self.config.method).method_options
        return all_options(self.config.method, preset)

    @cached_property
    def setup(self) -> Record:
        """What the cells of one table share: data, preset, network and settings."""
        common = self.common
        what = {"preset": self.preset, "backbone": common.backbone, "image_size": common.image_size}
        # settings that are as they usually are do not count: a setting that is new tomorrow changes no name
        what |= {"weights": self.weights, "data": self.facts, "settings": _changed(common, TrainConfig())}
        named = {"weights_name": Path(common.weights).name, "asked": self.asked}
        return {"id": _digest([self.dataset, what]), **named, **what}

    @property
    def warmup(self) -> Cell:
        """The labeled-only cell whose end is the start of this one."""
        return replace(self, config=replace(self.common, seed=self.config.seed))

    @property
    def options(self) -> SettingValues:
        """The method's options that are not as they usually are; all of them where the method would choose them."""
        given = self.config.method_options
        return dict(given) if self._is_settled else plain_options(self.config.method, given)

    @property
    def _is_settled(self) -> bool:
        """Whether options are given that a head would otherwise choose itself: usual ones are then a choice, too."""
        return chooses_options(replace(self.config, method_options={})) and not chooses_options(self.config)

    @property
    def variant(self) -> str:
        """What the method does here that it does not do in the preset; empty for the method as it is."""
        usual, given = self._usual_options, self.config.method_options
        said = given.keys() if self._is_settled else ()
        return ", ".join(
            f"{name}={value:g}" if isinstance(value, int | float) else f"{name}={value}"
            for name, value in all_options(self.config.method, given).items()
            if value != usual[name] or name in said
        )

    def identity(self) -> Record:
        """Return what a table needs to know of the cell before it is run."""
        return {
            "key": self.key, "dataset": self.dataset, "method": self.config.method, "p": self.p,
            "seed": self.config.seed, "variant": self.variant, "options": self.options, "own": self.own,
            "version": self.version, "setup": self.setup,
        }  # fmt: skip


def _changed(config: TrainConfig, usual: TrainConfig) -> dict[str, object]:
    """Return the settings that differ; not those of the cell, nor where the weights' file lies: its digest counts."""
    names = (setting.name for setting in fields(TrainConfig) if setting.name not in (*OF_THE_CELL, "weights"))
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(usual, name)}


def _digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=list).encode()).hexdigest()[:10]


def all_options(method: str, given: SettingValues) -> dict[str, object]:
    """Return every option of a method, as given or as it usually is."""
    return {option.name: given.get(option.name, option.default) for option in fields(find_method(method))}


def plain_options(method: str, given: SettingValues) -> dict[str, object]:
    """Return the options that differ from the method's own.

    >>> plain_options("cap", {"keep_pos": 0.8, "keep_neg": 1.0})
    {'keep_pos': 0.8}
    """
    usual = all_options(method, {})
    return {name: value for name, value in given.items() if name not in usual or value != usual[name]}


def machine_name(device: torch.device) -> str:
    """Return what the figures were measured on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {platform.machine()}, {os.cpu_count()} cores"


def run_cell(
    cell: Cell,
    dataset: Dataset,
    folder: Path,
    options: RunOptions | None = None,
    *,
    device: torch.device,
    watcher: Watcher | None = None,
) -> Record:
    """Train one cell, or resume it, and return its record; the other arguments are those of ``run_training``."""
    began = time.perf_counter()
    options = replace(options or RunOptions(), about=DataSource(bench=cell.identity()))
    trained = train_in(folder, dataset, cell.config, options, device=device, watcher=watcher)
    record = cell.identity() | cell_metrics(trained, cell.config)
    record["uses_unlabeled"] = find_method(cell.config.method).uses_unlabeled
    sizes = {"labeled": len(dataset.labeled), "unlabeled": len(dataset.unlabeled), "test": len(dataset.test)}
    wall = max(time.perf_counter() - began, record["seconds"])  # resumed, the log knows of the time before
    return record | {"sizes": sizes, "wall_seconds": round(wall, 1), **signature(device)}


def train_in(
    folder: Path,
    dataset: Dataset,
    config: TrainConfig,
    options: RunOptions,
    *,
    device: torch.device,
    watcher: Watcher | None = None,
) -> Run:
    """Train in a folder of the grid: a run with these settings is resumed, one with others is replaced."""
    run = RunFolder(folder)
    # other settings under the same name are, for example, weights that lay elsewhere
    options = replace(options, resume=can_go_on(run, config), overwrite=run.is_run)
    return run_training(dataset, config, folder, options, device=device, watcher=watcher)


def can_go_on(run: RunFolder, config: TrainConfig) -> bool:
    """Whether a folder holds a checkpoint of a run with these very settings."""
    if not run.is_run or run.is_half_replaced or not run.checkpoint.exists():
        return False
    wanted = json.loads(json.dumps(config.to_dict()))  # as JSON has it: lists for tuples
    found = RunConfig.read(run.path).settings
    return all(found.get(name) == value for name, value in wanted.items() if name not in MACHINE_SETTINGS)


def failed_cell(identity: Record, error: Exception, device: torch.device) -> Record:
    """Return the record of a cell that could not be run."""
    words = str(error).strip() or "no message"
    message = words if isinstance(error, TagspreadError) else f"{type(error).__name__}: {words}"
    return identity | {"status": "failed", "message": message[:2000], **signature(device)}


def signature(device: torch.device) -> Record:
    """Return where, when and with what."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"machine": machine_name(device), "tagspread": __version__, "torch": torch.__version__, "finished": now}


def cell_metrics(run: Run, config: TrainConfig) -> Record:
    """Return what a run has measured, by both protocols.

    Honest: the last epoch's average network (EMA); where a run ends with its warm-up, the network that the warm-up
    hands on (``warm_start_from``): after so few steps the paper's average still consists of its start; with selection
    ``held_out``, the network that was chosen there. Parity: the best epoch of the last stage, student or average, by
    the test part itself.
    """
    if "test" not in run.metrics:
        raise TagspreadError("the run was never evaluated; the data have no test part.")
    last_stage = run.log[-1]["stage"]
    lines = [line for line in run.log if line["stage"] == last_stage and "test_map_ema" in line]
    if last_stage == "head":  # fitted at once: there are no epochs to choose from
        fitted = run.metrics["test"]["mAP"]
        lines = [{"epoch": run.log[-1]["epoch"], "test_map_raw": fitted, "test_map_ema": fitted}]
    network = network_after(last_stage, config)
    last = {which: lines[-1][f"test_map_{which}"] for which in ("raw", "ema")}
    honest = last[network]
    if config.selection == "held_out":
        honest, network = run.metrics["test"]["mAP"], f"{run.metrics['network']}, chosen on held-out images"
    if not math.isfinite(honest):
        raise TagspreadError("no class has a positive in the test part; nothing can be measured.")
    best, epoch, best_network = max(
        (line[f"test_map_{which}"], -line["epoch"], which) for line in lines for which in ("raw", "ema")
    )
    seconds = sum(line["seconds"] for line in run.log if line["stage"] == last_stage)
    names = ("epoch", "stage", *(name for name in CURVES if any(name in line for line in run.log)))
    return {
        "status": "done",
        "honest": honest,
        "honest_is": network,
        "parity": best,
        "parity_is": f"{best_network} of epoch {-epoch}",
        "last": last,
        "interval_90": run.metrics["test"]["interval_90"] if honest == run.metrics["test"]["mAP"] else None,
        "seconds": round(seconds, 1),
        "curves": {name: [_rounded(line.get(name)) for line in run.log] for name in names},
    }


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return round(value, 6) if math.isfinite(value) else None  # JSON has no NaN


def remove_models(folder: Path) -> None:
    """Delete the large files of a finished run; its settings, log and figures stay."""
    for name in LARGE:
        (folder / name).unlink(missing_ok=True)
