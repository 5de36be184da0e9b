"""Thresholds that no paper gives: chosen on labeled images that are held out from a labeled-only run.

IAT and PLC call a class present from one probability on, and which one serves depends on the data. For each labeled
share and seed a fifth of the labeled part is held out, a labeled-only run is trained on the rest, with the loss that
the method is going to be trained with, and the threshold is taken at which its overall F1 on the fifth is highest. The
method is then trained on the whole labeled part with that threshold: a cell like any other. Nothing but the labeled
part is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch

from tagspread.bench.cells import Cell, plain_options, remove_models, train_in
from tagspread.bench.records import Record
from tagspread.bench.results import Results, write_file
from tagspread.core.metrics import multilabel_report
from tagspread.errors import TagspreadError
from tagspread.progress import Watcher
from tagspread.run.artifact import load_network, read_artifact
from tagspread.train.dataset import Dataset
from tagspread.train.scoring import score
from tagspread.train.trainer import RunOptions
from tagspread.wording import counted

FILE = "thresholds.json"
HELD_OUT = 0.2
TRIED = tuple(k / 20 for k in range(1, 20))  # 0.05 to 0.95
TUNED_FROM = {"plc": 0.5, "iat": TRIED[0]}  # methods with one threshold for all, and the lowest that it may be
BY_LABELS = "threshold by held-out labels"  # what such a row of a table is called

Split: TypeAlias = tuple[str, str, float, int]  # data set, setup, labeled share, seed


class Unchosen(NamedTuple):
    """A split whose threshold is not known yet.

    Attributes:
        warmup: its labeled-only cell.
        rows: what stands for the cells to come, one for each method, so that a table can show that they are missing.
    """

    warmup: Cell
    rows: list[Record]


@dataclass(frozen=True)
class ThresholdChoice:
    """What the held-out images of one split say.

    Attributes:
        dataset: voc, coco, nus or demo.
        setup: of the labeled-only run.
        p: labeled share.
        seed: of the split and of the run.
        images: how many were held out.
        f1: their overall F1 at each threshold.
    """

    dataset: str
    setup: str
    p: float
    seed: int
    images: int
    f1: dict[float, float]

    @property
    def split(self) -> Split:
        """What the choice is for."""
        return self.dataset, self.setup, self.p, self.seed

    def threshold(self, method: str) -> float:
        """Return the best threshold that the method can have, the lowest of equals."""
        return max(sorted(t for t in self.f1 if t >= TUNED_FROM[method]), key=self.f1.__getitem__)

    def describe(self) -> str:
        """Return the choice in one line."""
        taken = ", ".join(
            f"{method.upper()} {t:g} (overall F1 {100 * self.f1[t]:.1f})"
            for method, t in ((method, self.threshold(method)) for method in TUNED_FROM)
        )
        held_out = counted(self.images, "held-out labeled image")
        return f"{self.dataset} p={self.p:g} seed {self.seed}: thresholds by {held_out}: {taken}"


def split_of(cell: Cell) -> Split:
    """Return the split that a cell is of."""
    return cell.dataset, cell.setup["id"], cell.p, cell.config.seed


def choose_threshold(
    warmup: Cell,
    dataset: Dataset,
    folder: Path,
    *,
    device: torch.device,
    watcher: Watcher | None = None,
    options: RunOptions | None = None,
) -> ThresholdChoice:
    """Train on four fifths of the labeled part, or resume that run, and try the thresholds on the rest.

    The other arguments are those of ``run_training``.
    """
    if not round(HELD_OUT * len(dataset.labeled)):
        raise TagspreadError(f"{counted(len(dataset.labeled), 'labeled image')}: too few to hold a fifth out.")
    apart = replace(dataset, test=dataset.test[:0]).hold_out(HELD_OUT, warmup.config.seed)
    # losses and labeled-only methods go by the same names; another fifth held out would be one too many
    config = replace(warmup.config, method=warmup.config.loss, selection="last")
    run = train_in(folder, apart, config, options or RunOptions(), device=device, watcher=watcher)
    network = load_network(read_artifact(run.path), device)
    found = score(network, apart.store, apart.held_out, device=device, precision=config.precision).sigmoid().cpu()
    remove_models(folder)
    truth = torch.from_numpy(apart.y[apart.held_out])
    f1 = {t: round(multilabel_report((found >= t).to(torch.int8), truth)["OF1"], 4) for t in TRIED}
    return ThresholdChoice(*split_of(warmup), len(truth), f1)


class ThresholdChoices:
    """The choices of a grid's folder, in ``thresholds.json``."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.file = results.folder / FILE

    def read(self) -> dict[Split, ThresholdChoice]:
        """Return what was chosen so far."""
        try:
            splits = json.loads(self.file.read_text(encoding="utf-8"))["splits"]
            choices = [
                ThresholdChoice(**split | {"f1": {float(t): float(value) for t, value in split["f1"].items()}})
                for split in splits
            ]
            for choice in choices:
                choice.describe()  # does it have what it takes?
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{self.file} cannot be read ({error}); delete it, and thresholds are chosen anew."
            raise TagspreadError(message) from None
        return {choice.split: choice for choice in choices}

    def add(self, choice: ThresholdChoice) -> None:
        """Keep a choice, unless another process has made it meanwhile: its cells may be at work."""
        with self.results.alone():
            known = self.read()
            known.setdefault(choice.split, choice)
            write_file(self.file, json.dumps({"splits": [asdict(one) for one in known.values()]}, indent=1) + "\n")


def chosen_rows(cells: Iterable[Record], choices: dict[Split, ThresholdChoice]) -> Iterator[Record]:
    """Return the cells whose threshold is the chosen one of their split, as cells of a row of their own.

    Thresholds differ from seed to seed; the rule by which they are chosen does not, so they belong in one row.
    """
    for cell in cells:
        choice = choices.get((cell["dataset"], cell["setup"]["id"], cell["p"], cell["seed"]))
        if choice is None or cell["method"] not in TUNED_FROM or cell["variant"] == BY_LABELS:
            continue
        if plain_options(cell["method"], {"threshold": choice.threshold(cell["method"])}) == cell["options"]:
            yield cell | {"variant": BY_LABELS}
