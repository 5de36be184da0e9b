"""The grid: which cells, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from tagspread.aliases import SettingValues
from tagspread.bench.cells import Cell, all_options, plain_options
from tagspread.bench.threshold_choice import BY_LABELS, Split, ThresholdChoice, Unchosen, split_of
from tagspread.data.datasets import find_dataset
from tagspread.data.datasets.published import SHARES
from tagspread.errors import TagspreadError, did_you_mean
from tagspread.methods import METHODS, find_method, get_method
from tagspread.train.compatibility import same_before_unlabeled
from tagspread.train.config import TrainConfig, make_config
from tagspread.vision.weights import digest_of_weights

PAPER_METHODS = (
    "bce", "asl", "llr", "llct", "llcp", "plc", "top1", "topk", "iat", "adsh", "freematch", "drml", "cap",
)  # in the order of its tables  # fmt: skip
WARMUP = "asl"


@dataclass(frozen=True)
class Grid:
    """What is asked for: every method on every share with every seed, all under one recipe."""

    dataset: str
    methods: tuple[str, ...]
    shares: tuple[float, ...] = SHARES
    seeds: tuple[int, ...] = (1, 2, 3)
    preset: str = "paper"
    settings: SettingValues = field(default_factory=dict)
    variants: tuple[tuple[str, SettingValues], ...] = ()  # methods with options of their own
    tuned: tuple[str, ...] = ()  # methods whose threshold is chosen for each split
    facts: SettingValues = field(default_factory=dict)

    def __post_init__(self) -> None:
        for share in self.shares:
            if not 0 < share < 1:
                raise TagspreadError(f"--p {share:g}: give the labeled share of the data, between 0 and 1.")
        if (self.variants or self.tuned) and "method_options" in self.settings:
            raise TagspreadError("--set method_options goes with --methods, not with a study, which sets its own.")
        self._check_options()

    def _check_options(self) -> None:
        """Raise for options that no method of the grid has, before anything is trained."""
        known = {name: list(all_options(name, {})) for name in self.methods}
        every = dict.fromkeys(option for options in known.values() for option in options)
        for option in self._options():
            if option not in every:
                listed = "; ".join(f"{name}: {', '.join(options)}" for name, options in known.items() if options)
                raise TagspreadError(
                    f"--set method_options: no method of this grid has an option {option!r}; there are "
                    f"{listed or 'none'}.{did_you_mean(option, every)}"
                )
        for name in self.methods:
            get_method(name, **self._options(name))

    def _options(self, method: str | None = None) -> SettingValues:
        """Return the options that were asked for; with a method, those of them that it has."""
        asked = self.settings.get("method_options")
        if not isinstance(asked, dict):
            return {}  # what else it may be is refused with the other settings
        return {name: value for name, value in asked.items() if method is None or name in all_options(method, {})}

    def config(self, method: str, seed: int, options: SettingValues | None = None) -> TrainConfig:
        """Return a run's settings: preset, the data set's recipe, the method's own, and on top what was asked for."""
        # a table's rows are of one kind, whatever the machine
        dataset = find_dataset(self.dataset)
        recipe = {"mode": "full", **dataset.recipes.get(self.preset, {})}
        on_top = {**find_method(method).recipe, **dataset.method_recipes.get(method, {}), **self.settings}
        if "epochs" in on_top:
            recipe.pop("schedule_epochs", None)  # it belongs to the recipe's number of epochs
        chosen = recipe | on_top | {"method": method, "seed": seed}
        if own := self._options(method):
            chosen["method_options"] = own
        if method not in self.methods or (self._options() and not own):
            chosen.pop("method_options", None)  # the warm-up that nobody named has none; whoever has none, the preset's
        if options is not None:
            # on a frozen network, CAP without options chooses them itself: there a study says all of them
            whole = chosen.get("mode") == "head"
            chosen["method_options"] = dict(options) if whole else plain_options(method, options)
        return make_config(self.preset, **chosen)

    def cells(self, choices: dict[Split, ThresholdChoice] | None = None) -> list[Cell]:
        """Return the cells in the order they are run: by share, by seed, the common warm-up first.

        Args:
            choices: thresholds of the ``tuned`` methods; a split without one has no cells of theirs yet.
        """
        wanted: list[tuple[str, SettingValues | None]] = [(name, None) for name in self.methods]
        wanted += list(self.variants)
        begun = [self.config(name, 1, options) for name, options in (*wanted, *((name, None) for name in self.tuned))]
        common = self.config(WARMUP, 1)
        if WARMUP not in self.methods and any(starts_from_warmup(config, common) for config in begun):
            wanted.insert(0, (WARMUP, None))
        wanted.sort(key=lambda one: one[0] != WARMUP)
        cells: dict[str, Cell] = {}
        for warmup in self.warmups():
            choice = (choices or {}).get(split_of(warmup))
            tuned = [(name, {"threshold": choice.threshold(name)}) for name in self.tuned] if choice else []
            for method, options in (*wanted, *tuned):
                cell = replace(warmup, config=self.config(method, warmup.config.seed, options))
                cells.setdefault(cell.key, cell)
        return list(cells.values())

    def unchosen(self, choices: dict[Split, ThresholdChoice]) -> list[Unchosen]:
        """Return the splits of which a threshold is still to be chosen."""
        found = []
        for warmup in self.warmups() if self.tuned else ():
            if split_of(warmup) not in choices:
                cells = [replace(warmup, config=self.config(name, warmup.config.seed)) for name in self.tuned]
                still = {"variant": BY_LABELS, "options": {"threshold": None}}
                rows = [cell.identity() | still | {"key": f"{cell.key}-threshold"} for cell in cells]
                found.append(Unchosen(warmup, rows))
        return found

    @cached_property
    def _weights(self) -> str:
        return digest_of_weights(self.config(WARMUP, 1).weights)

    def warmups(self) -> list[Cell]:
        """Return the labeled-only cell of every share and seed, whether or not the grid runs it."""
        common = self.config(WARMUP, 1)
        named = ("backbone", "weights", "image_size", "method_options")  # shown in places of their own
        asked = {name: value for name, value in self.settings.items() if name not in named}
        return [
            Cell(self.dataset, share, self.preset, self.config(WARMUP, seed), common, self._weights, self.facts, asked)
            for share in sorted(set(self.shares))
            for seed in dict.fromkeys(self.seeds)
        ]


def starts_from_warmup(config: TrainConfig, common: TrainConfig) -> bool:
    """Whether a run begins with the warm-up that ``common`` is, and can therefore take it from that run."""
    method = find_method(config.method)
    begins = config.start == "warmup" and config.warmup_epochs > 0 and config.mode != "head"
    same_loss = (method.labeled_loss or config.loss) == WARMUP
    # who sets labeled images apart must not start from a network that has seen their labels
    apart = get_method(config.method, **config.method_options).share_apart > 0
    shared = method.uses_unlabeled and method.shares_warmup and same_loss and not apart
    return begins and shared and same_before_unlabeled(config, common)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return methods in the order of the paper's tables, others after them; ``all`` stands for every one."""
    chosen = list(names)
    if "all" in chosen:
        chosen = list(METHODS)
    known = dict.fromkeys((*PAPER_METHODS, *METHODS))
    return (*(name for name in known if name in chosen), *dict.fromkeys(name for name in chosen if name not in known))
