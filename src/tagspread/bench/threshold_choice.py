"""Choose the pseudo-label threshold of IAT and PLC on held-out labeled images; the papers give no value.

IAT and PLC label a class as present above a fixed probability, and the best value depends on the data. For each labeled
share and seed, a fifth of the labeled set is held out, and a labeled-only run is trained on the rest with the loss of
the method. The threshold with the highest overall F1 on the held-out images is chosen. The method is then trained on
the whole labeled set with this threshold, as an ordinary cell. Only labeled images are used.
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
CANDIDATES = tuple(k / 20 for k in range(1, 20))  # 0.05 to 0.95
TUNED_FROM = {"plc": 0.5, "iat": CANDIDATES[0]}  # methods with one threshold, and its lowest value
BY_LABELS = "threshold chosen on held-out labels"  # variant name of such a row in the tables

Split: TypeAlias = tuple[str, str, float, int]  # dataset, setup, labeled share, seed


class Unchosen(NamedTuple):
    """A split whose threshold has not been chosen yet.

    Attributes:
        warmup: the labeled-only cell of the split.
        rows: placeholder records of the cells to run, one per method, so that tables show them as missing.
    """

    warmup: Cell
    rows: list[Record]


@dataclass(frozen=True)
class ThresholdChoice:
    """F1 at each threshold on the held-out images of one split.

    Attributes:
        dataset: name of the dataset.
        setup: ID of the setup of the labeled-only run.
        p: labeled share.
        seed: seed of the split and the run.
        images: number of held-out images.
        f1: overall F1 at each threshold.
    """

    dataset: str
    setup: str
    p: float
    seed: int
    images: int
    f1: dict[float, float]

    @property
    def split(self) -> Split:
        """The split that the threshold was chosen for."""
        return self.dataset, self.setup, self.p, self.seed

    def threshold(self, method: str) -> float:
        """Return the threshold with the highest F1 in the range of the method; the lowest one in a tie."""
        return max(sorted(t for t in self.f1 if t >= TUNED_FROM[method]), key=self.f1.__getitem__)

    def describe(self) -> str:
        """Describe the choice in one line."""
        thresholds = ", ".join(
            f"{method.upper()} {t:g} (overall F1 {100 * self.f1[t]:.1f})"
            for method, t in ((method, self.threshold(method)) for method in TUNED_FROM)
        )
        held_out = counted(self.images, "held-out labeled image")
        return f"{self.dataset} p={self.p:g} seed {self.seed}: thresholds chosen on {held_out}: {thresholds}"


def split_of(cell: Cell) -> Split:
    """Return the split of a cell."""
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
    """Train or resume a labeled-only run on four fifths of the labeled set; evaluate thresholds on the rest.

    The other arguments are those of ``run_training``.
    """
    if not round(HELD_OUT * len(dataset.labeled)):
        raise TagspreadError(
            f"{counted(len(dataset.labeled), 'labeled image')}: too few to hold out a fifth; increase --p."
        )
    reduced = replace(dataset, test=dataset.test[:0]).hold_out(HELD_OUT, warmup.config.seed)
    # labeled-only methods have the names of their losses; selection "last" holds out no further images
    config = replace(warmup.config, method=warmup.config.loss, selection="last")
    run = train_in(folder, reduced, config, options or RunOptions(), device=device, watcher=watcher)
    network = load_network(read_artifact(run.path), device)
    scores = score(network, reduced.store, reduced.held_out, device=device, precision=config.precision).sigmoid().cpu()
    remove_models(folder)
    truth = torch.from_numpy(reduced.y[reduced.held_out])
    f1 = {t: round(multilabel_report((scores >= t).to(torch.int8), truth)["OF1"], 4) for t in CANDIDATES}
    return ThresholdChoice(*split_of(warmup), len(truth), f1)


class ThresholdChoices:
    """The chosen thresholds of a grid, in ``thresholds.json``."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.file = results.folder / FILE

    def read(self) -> dict[Split, ThresholdChoice]:
        """Return the thresholds chosen so far."""
        try:
            splits = json.loads(self.file.read_text(encoding="utf-8"))["splits"]
            choices = [
                ThresholdChoice(**split | {"f1": {float(t): float(value) for t, value in split["f1"].items()}})
                for split in splits
            ]
            for choice in choices:
                choice.describe()  # raises if a value is missing
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{self.file} cannot be read ({error}); delete it to choose the thresholds again."
            raise TagspreadError(message) from None
        return {choice.split: choice for choice in choices}

    def add(self, choice: ThresholdChoice) -> None:
        """Store a choice, unless another process has stored one meanwhile, whose cells may be running."""
        with self.results.locked():
            choices = self.read()
            choices.setdefault(choice.split, choice)
            write_file(
                self.file, json.dumps({"splits": [asdict(stored) for stored in choices.values()]}, indent=1) + "\n"
            )


def chosen_rows(cells: Iterable[Record], choices: dict[Split, ThresholdChoice]) -> Iterator[Record]:
    """Return the cells that have the chosen threshold of their split, as cells of a separate row.

    The thresholds differ between seeds, but the rule for choosing them does not, so the cells form one row.
    """
    for cell in cells:
        choice = choices.get((cell["dataset"], cell["setup"]["id"], cell["p"], cell["seed"]))
        if choice is None or cell["method"] not in TUNED_FROM or cell["variant"] == BY_LABELS:
            continue
        if plain_options(cell["method"], {"threshold": choice.threshold(cell["method"])}) == cell["options"]:
            yield cell | {"variant": BY_LABELS}
