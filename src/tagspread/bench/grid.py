"""Benchmark grid: cells of methods, labeled shares, seeds and variants, in the order in which they are run."""

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
)  # in the order of the paper's tables  # fmt: skip
WARMUP = "asl"


@dataclass(frozen=True)
class Grid:
    """The requested cells: each method with each labeled share and seed, under common settings.

    Attributes:
        dataset: name of the dataset.
        methods: names of the methods.
        shares: labeled shares.
        seeds: seeds of split and training.
        preset: preset of the settings.
        settings: settings that override the preset and recipes.
        variants: methods with their own options, for a study.
        tuned: methods whose threshold is chosen for each split.
        facts: options that define the data.
    """

    dataset: str
    methods: tuple[str, ...]
    shares: tuple[float, ...] = SHARES
    seeds: tuple[int, ...] = (1, 2, 3)
    preset: str = "paper"
    settings: SettingValues = field(default_factory=dict)
    variants: tuple[tuple[str, SettingValues], ...] = ()
    tuned: tuple[str, ...] = ()
    facts: SettingValues = field(default_factory=dict)

    def __post_init__(self) -> None:
        for share in self.shares:
            if not 0 < share < 1:
                raise TagspreadError(f"--p {share:g} is not a labeled share; give a number between 0 and 1.")
        if (self.variants or self.tuned) and "method_options" in self.settings:
            raise TagspreadError("--set method_options cannot be combined with --study, which sets its own options.")
        self._check_options()

    def _check_options(self) -> None:
        """Raise for options that no method of the grid has, before anything is trained."""
        method_options = {name: list(all_options(name, {})) for name in self.methods}
        every = dict.fromkeys(option for options in method_options.values() for option in options)
        for option in self._options():
            if option not in every:
                listed = "; ".join(
                    f"{name}: {', '.join(options)}" for name, options in method_options.items() if options
                )
                raise TagspreadError(
                    f"--set method_options: no method of this grid has an option {option!r}. Options: "
                    f"{listed or 'none'}.{did_you_mean(option, every)}"
                )
        for name in self.methods:
            get_method(name, **self._options(name))

    def _options(self, method: str | None = None) -> SettingValues:
        """Return the given method options; with a method, only the options that it has."""
        given = self.settings.get("method_options")
        if not isinstance(given, dict):
            return {}  # a value of another type is refused with the other settings
        return {name: value for name, value in given.items() if method is None or name in all_options(method, {})}

    def config(self, method: str, seed: int, options: SettingValues | None = None) -> TrainConfig:
        """Return the settings of a run: preset, overridden by the recipes of dataset and method, and by the user."""
        # mode "full" unless requested, so that tables do not depend on the machine
        dataset = find_dataset(self.dataset)
        recipe = {"mode": "full", **dataset.recipes.get(self.preset, {})}
        overrides = {**find_method(method).recipe, **dataset.method_recipes.get(method, {}), **self.settings}
        if "epochs" in overrides:
            recipe.pop("schedule_epochs", None)  # it was chosen for the recipe's number of epochs
        settings = recipe | overrides | {"method": method, "seed": seed}
        if own := self._options(method):
            settings["method_options"] = own
        if method not in self.methods or (self._options() and not own):
            settings.pop("method_options", None)  # a baseline that was not requested, or a method without such options
        if options is not None:
            # in mode "head", CAP chooses options that are not given, so a study gives all of them
            give_all = settings.get("mode") == "head"
            settings["method_options"] = dict(options) if give_all else plain_options(method, options)
        return make_config(self.preset, **settings)

    def cells(self, choices: dict[Split, ThresholdChoice] | None = None) -> list[Cell]:
        """Return the cells in the order in which they are run: by share, then by seed, the common warm-up first.

        Args:
            choices: chosen thresholds of the ``tuned`` methods; splits without one have no cells of these methods yet.
        """
        runs: list[tuple[str, SettingValues | None]] = [(name, None) for name in self.methods]
        runs += list(self.variants)
        configs = [self.config(name, 1, options) for name, options in (*runs, *((name, None) for name in self.tuned))]
        common = self.config(WARMUP, 1)
        if WARMUP not in self.methods and any(starts_from_warmup(config, common) for config in configs):
            runs.insert(0, (WARMUP, None))
        runs.sort(key=lambda run: run[0] != WARMUP)
        cells: dict[str, Cell] = {}
        for warmup in self.warmups():
            choice = (choices or {}).get(split_of(warmup))
            tuned = [(name, {"threshold": choice.threshold(name)}) for name in self.tuned] if choice else []
            for method, options in (*runs, *tuned):
                cell = replace(warmup, config=self.config(method, warmup.config.seed, options))
                cells.setdefault(cell.key, cell)
        return list(cells.values())

    def unchosen(self, choices: dict[Split, ThresholdChoice]) -> list[Unchosen]:
        """Return the splits whose thresholds have not been chosen yet."""
        unchosen = []
        for warmup in self.warmups() if self.tuned else ():
            if split_of(warmup) not in choices:
                cells = [replace(warmup, config=self.config(name, warmup.config.seed)) for name in self.tuned]
                placeholder = {"variant": BY_LABELS, "options": {"threshold": None}}
                rows = [cell.identity() | placeholder | {"key": f"{cell.key}-threshold"} for cell in cells]
                unchosen.append(Unchosen(warmup, rows))
        return unchosen

    @cached_property
    def _weights(self) -> str:
        return digest_of_weights(self.config(WARMUP, 1).weights)

    def warmups(self) -> list[Cell]:
        """Return the labeled-only cell of each share and seed, also if the grid does not include it."""
        common = self.config(WARMUP, 1)
        shown_elsewhere = ("backbone", "weights", "image_size", "method_options")
        asked = {name: value for name, value in self.settings.items() if name not in shown_elsewhere}
        return [
            Cell(self.dataset, share, self.preset, self.config(WARMUP, seed), common, self._weights, self.facts, asked)
            for share in sorted(set(self.shares))
            for seed in dict.fromkeys(self.seeds)
        ]


def starts_from_warmup(config: TrainConfig, common: TrainConfig) -> bool:
    """Return whether a run begins with the same warm-up as the run ``common``, and can start from its end."""
    method = find_method(config.method)
    has_warmup = config.start == "warmup" and config.warmup_epochs > 0 and config.mode != "head"
    same_loss = (method.labeled_loss or config.loss) == WARMUP
    # a method that sets labeled images apart must not start from a network trained on their labels
    apart = get_method(config.method, **config.method_options).share_apart > 0
    shared = method.uses_unlabeled and method.shares_warmup and same_loss and not apart
    return has_warmup and shared and same_before_unlabeled(config, common)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return methods in the order of the paper's tables, followed by all others; ``all`` selects every method."""
    selected = list(names)
    if "all" in selected:
        selected = list(METHODS)
    built_in = dict.fromkeys((*PAPER_METHODS, *METHODS))
    custom = dict.fromkeys(name for name in selected if name not in built_in)
    return (*(name for name in built_in if name in selected), *custom)
