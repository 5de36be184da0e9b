"""One cell of a benchmark grid (method, labeled share, seed, settings): its key, training, and metrics."""

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
from tagspread.progress import Stopwatch, Watcher
from tagspread.run.config import DataSource, RunConfig
from tagspread.run.folder import RunFolder
from tagspread.run.split import FILE as SPLIT
from tagspread.train.compatibility import MACHINE_SETTINGS
from tagspread.train.config import TrainConfig, chooses_options, make_config
from tagspread.train.dataset import Dataset
from tagspread.train.experiment import network_after
from tagspread.train.trainer import Run, RunOptions, run_training

PSEUDO_LABEL_METRICS = tuple(f"pseudo_{metric}" for metric in ("OP", "OR", "OF1", "CP", "CR", "CF1"))
CURVES = ("loss", "test_map_raw", "test_map_ema", "pseudo_positives", "ignored", "seconds", *PSEUDO_LABEL_METRICS)
CELL_SETTINGS = ("method", "method_options", "seed")  # the cells of a table share all other settings
MODELS = (
    "labeled_only.safetensors",
    "model.safetensors",
    "ema.safetensors",
    "best.safetensors",
    "checkpoint/state.safetensors",
)
LARGE_FILES = (*MODELS, SPLIT)  # deleted from finished cells; split.csv is of no use without the networks


@dataclass(frozen=True)
class Cell:
    """One training run of a grid.

    Attributes:
        dataset: name of the dataset.
        p: labeled share.
        preset: preset that ``config`` is based on.
        config: all settings of the run.
        common: settings of the grid's labeled-only baseline, which all methods share apart from their own settings.
        weights: digest of the pretrained weights, or their name.
        facts: options that define the data, such as the number of generated images.
        asked: settings that the user gave, for the title of the table; they are part of ``common``.
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
        """Name of the cell and its folder; it is the same on all machines for the same data and settings."""
        name = f"{self.dataset}-{self.preset}-{self.config.method}-p{self.p:g}-s{self.config.seed}"
        name = re.sub(r"[^\w.-]+", "_", name)  # the name of a custom method is a path
        return f"{name}-{_digest([self.setup['id'], self.options, self.own, method_file_digest(self.config.method)])}"

    @property
    def own(self) -> SettingValues:
        """The settings in which the method's recipe differs from the other methods of the table."""
        return _changed(self.config, self.common)

    @cached_property
    def version(self) -> str:
        """Digest of the present version of the method: its file, its settings and the preset's options."""
        defaults = plain_options(self.config.method, self._default_options)
        return _digest([self.own, method_file_digest(self.config.method), defaults])

    @property
    def _default_options(self) -> SettingValues:
        preset = make_config(self.preset, method=self.config.method).method_options
        return all_options(self.config.method, preset)

    @cached_property
    def setup(self) -> Record:
        """The data, preset, network and settings that all cells of a table share."""
        common = self.common
        shared = {"preset": self.preset, "backbone": common.backbone, "image_size": common.image_size}
        # only settings that differ from their defaults, so that adding a setting later does not change the keys
        shared |= {"weights": self.weights, "data": self.facts, "settings": _changed(common, TrainConfig())}
        shown = {"weights_name": Path(common.weights).name, "asked": self.asked}
        return {"id": _digest([self.dataset, shared]), **shown, **shared}

    @property
    def warmup(self) -> Cell:
        """The labeled-only cell whose final network this cell can start from."""
        return replace(self, config=replace(self.common, seed=self.config.seed))

    @property
    def options(self) -> SettingValues:
        """The method's options that differ from their defaults; all given ones if they replace an automatic choice."""
        given = self.config.method_options
        return dict(given) if self._overrides_choice else plain_options(self.config.method, given)

    @property
    def _overrides_choice(self) -> bool:
        """Whether the given options replace those that mode ``"head"`` would choose; then defaults count as given."""
        return chooses_options(replace(self.config, method_options={})) and not chooses_options(self.config)

    @property
    def variant(self) -> str:
        """The method's options that differ from those of the preset, as text; empty for the method without changes."""
        defaults, given = self._default_options, self.config.method_options
        always_shown = given.keys() if self._overrides_choice else ()
        return ", ".join(
            f"{name}={value:g}" if isinstance(value, int | float) else f"{name}={value}"
            for name, value in all_options(self.config.method, given).items()
            if value != defaults[name] or name in always_shown
        )

    def identity(self) -> Record:
        """Return the entries of the cell's record that are known before it is run."""
        return {
            "key": self.key, "dataset": self.dataset, "method": self.config.method, "p": self.p,
            "seed": self.config.seed, "variant": self.variant, "options": self.options, "own": self.own,
            "version": self.version, "setup": self.setup,
        }  # fmt: skip


def _changed(config: TrainConfig, reference: TrainConfig) -> dict[str, object]:
    """Return the settings that differ, except those of the cell and the path of the weights, whose digest counts."""
    names = (setting.name for setting in fields(TrainConfig) if setting.name not in (*CELL_SETTINGS, "weights"))
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(reference, name)}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()[:10]


def all_options(method: str, given: SettingValues) -> dict[str, object]:
    """Return all options of a method: given values, otherwise defaults."""
    return {option.name: given.get(option.name, option.default) for option in fields(find_method(method))}


def plain_options(method: str, given: SettingValues) -> dict[str, object]:
    """Return the options that differ from the method's defaults.

    >>> plain_options("cap", {"keep_pos": 0.8, "keep_neg": 1.0})
    {'keep_pos': 0.8}
    """
    defaults = all_options(method, {})
    return {name: value for name, value in given.items() if name not in defaults or value != defaults[name]}


def machine_name(device: torch.device) -> str:
    """Return the name of the GPU or CPU, for records of measurements."""
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
    """Train or resume one cell and return its record; the other arguments are those of ``run_training``."""
    began = time.perf_counter()
    options = replace(options or RunOptions(), about=DataSource(bench=cell.identity()))
    trained = train_in(folder, dataset, cell.config, options, device=device, watcher=watcher)
    record = cell.identity() | cell_metrics(trained, cell.config)
    record["uses_unlabeled"] = find_method(cell.config.method).uses_unlabeled
    sizes = {"labeled": len(dataset.labeled), "unlabeled": len(dataset.unlabeled), "test": len(dataset.test)}
    wall = max(time.perf_counter() - began, record["seconds"])  # for a resumed run, the log includes the time before
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
    """Train in a folder of the grid; resume a run with the same settings, replace a run with other settings."""
    run = RunFolder(folder)
    # settings may differ under the same name, such as the path of the weights
    options = replace(options, resume=can_resume(run, config), overwrite=run.is_run)
    if watcher is not None:
        watcher.stopwatch = Stopwatch()  # of this run alone
    return run_training(dataset, config, folder, options, device=device, watcher=watcher)


def can_resume(run: RunFolder, config: TrainConfig) -> bool:
    """Return whether a folder holds a checkpoint of a run with the same settings."""
    if not run.is_run or run.is_half_replaced or not run.checkpoint.exists():
        return False
    settings = json.loads(json.dumps(config.to_dict()))  # tuples become lists, as in the stored settings
    stored = RunConfig.read(run.path).settings
    return all(stored.get(name) == value for name, value in settings.items() if name not in MACHINE_SETTINGS)


def failed_cell(identity: Record, error: Exception, device: torch.device) -> Record:
    """Return the record of a cell that failed."""
    words = str(error).strip() or "no message"
    message = words if isinstance(error, TagspreadError) else f"{type(error).__name__}: {words}"
    return identity | {"status": "failed", "message": message[:2000], **signature(device)}


def signature(device: torch.device) -> Record:
    """Return the machine, software versions and time of a measurement."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"machine": machine_name(device), "tagspread": __version__, "torch": torch.__version__, "finished": now}


def cell_metrics(run: Run, config: TrainConfig) -> Record:
    """Return the metrics of a run by both protocols.

    ``honest`` is the mAP of the last epoch's EMA network. A run that ends with its warm-up uses the network that the
    main stage would start from (``warm_start_from``), because after so few steps the paper's average still consists
    mostly of the initial weights. With selection ``held_out``, it is the network chosen on the held-out images.
    ``parity`` is the best test mAP of any epoch of the last stage, of student or EMA network.
    """
    if "test" not in run.metrics:
        raise TagspreadError("the run was not evaluated, because the dataset has no test images.")
    last_stage = run.log[-1]["stage"]
    lines = [line for line in run.log if line["stage"] == last_stage and "test_map_ema" in line]
    if last_stage == "head":  # a fitted head has no epochs to choose from
        fitted = run.metrics["test"]["mAP"]
        lines = [{"epoch": run.log[-1]["epoch"], "test_map_raw": fitted, "test_map_ema": fitted}]
    network = network_after(last_stage, config)
    last = {which: lines[-1][f"test_map_{which}"] for which in ("raw", "ema")}
    honest = last[network]
    if config.selection == "held_out":
        honest, network = run.metrics["test"]["mAP"], f"{run.metrics['network']}, chosen on held-out images"
    if not math.isfinite(honest):
        raise TagspreadError("no test image carries any class, so the mAP is undefined.")
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
    """Delete the networks and other large files of a finished run; keep its settings, log and metrics."""
    for name in LARGE_FILES:
        (folder / name).unlink(missing_ok=True)
