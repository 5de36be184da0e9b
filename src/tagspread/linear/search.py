r"""Choose the settings by cross-validation on the labeled rows; leaving the unlabeled set out is one of them.

The labeled rows are dealt into folds, class by class. Each fold in turn is hidden, the rounds run on the rest and the
unlabeled set, and the hidden rows are scored: the mean over classes and folds of the average precision says how good a
setting is. One thing is chosen after the other: the penalty, then how the unlabeled set is labeled, then the penalty
and the weight with the unlabeled set. Figures of a few rows are noisy, and the best of many noisy figures is often a
lucky one. So the unlabeled set is
left out unless it clearly helps, and what is usual stays unless something else is much better: with :math:`d_f` the
gain in fold f of F,

.. math:: \bar d > e \, \mathrm{sd}(d) / \sqrt F, \qquad e = 1 \text{ for the unlabeled, } 2 \text{ for the rest.}

Each fold is judged by itself: scores of different heads are not ranked together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tagspread.core.metrics import average_precision
from tagspread.data.split import stratified_split
from tagspread.errors import TagspreadError
from tagspread.linear.feature_rows import Rows
from tagspread.linear.heads import Head, Layers, scores
from tagspread.linear.rounds import Settings, probe, spread
from tagspread.methods.base import Method
from tagspread.methods.cap import CAP

INTERVALS = ((0.5, 0.99), (0.8, 1.0), (1.0, 1.0))  # shares of the expected positives and negatives that are used
TRIAL_ROUNDS = 3  # later rounds change little, and the same for all


@dataclass(frozen=True)
class SearchSpace:
    """What is tried; the first of each is the usual one.

    Attributes:
        ridges: penalties for the labeled part alone, for features of unit variance.
        unlabeled_ridges: penalties with the unlabeled set, which gives more to lean on.
        unlabeled_weights: of a row of the unlabeled set; 0 among them means that the unlabeled set has to prove its
            worth.
    """

    ridges: tuple[float, ...] = (0.3, 1.0, 3.0, 0.1, 0.03)
    unlabeled_ridges: tuple[float, ...] = (0.02, 0.1)
    unlabeled_weights: tuple[float, ...] = (1.0, 0.1, 0.0)

    def __post_init__(self) -> None:
        for name in ("ridges", "unlabeled_ridges", "unlabeled_weights"):
            values = getattr(self, name)
            if not values or not all(math.isfinite(value) and value >= 0 for value in values):
                raise TagspreadError(f"{name} is {values}; give at least one number, none below 0.")


@dataclass(frozen=True)
class Trial:
    """One setting, and what it reached on the hidden rows."""

    settings: Settings
    per_fold: Tensor
    out_of_fold: Tensor

    @property
    def mean(self) -> float:
        """The mean average precision over the folds; -inf if none has a positive to find."""
        return float(self.per_fold.nanmean().nan_to_num(-math.inf))

    def as_dict(self) -> dict[str, object]:
        """Return the setting and its figures as plain values."""
        return {**vars(self.settings), "mAP": self.mean, "per_fold": self.per_fold.tolist()}

    def above(self, other: Trial, errors: float) -> bool:
        """Whether the gain over another trial is more than so many of its standard errors."""
        gain = self.per_fold - other.per_fold
        gain = gain[~gain.isnan()]
        return len(gain) > 1 and float(gain.mean()) > errors * float(gain.std()) / len(gain) ** 0.5


@dataclass(frozen=True)
class SearchResult:
    """What was chosen.

    Attributes:
        settings: the best.
        trials: all that were tried; none if there are too few labeled rows to hide any.
        out_of_fold: logits of labeled rows by heads that had not seen them.
        labels: of the same rows.
    """

    settings: Settings
    trials: tuple[Trial, ...] = ()
    out_of_fold: Tensor | None = None
    labels: Tensor | None = None


@dataclass(frozen=True)
class _Fold:
    rows: Rows
    y: Tensor
    hidden: Rows
    hidden_y: Tensor
    where: Tensor
    probes: dict[float, Layers]


def intervals_of(method: Method) -> tuple[Method, ...]:
    """Return the variants of a method that are worth trying: for CAP its reliable intervals.

    >>> len(intervals_of(CAP())), intervals_of(CAP(keep_pos=0.7))
    (3, (CAP(keep_pos=0.7, keep_neg=1.0, priors=None),))
    """
    if type(method) is CAP and (method.keep_pos, method.keep_neg) == (1.0, 1.0):
        return tuple(replace(method, keep_pos=up, keep_neg=down) for up, down in INTERVALS)
    return (method,)


def search_settings(
    known: Rows,
    y: Tensor,
    unlabeled: Rows,
    methods: Sequence[Method],
    *,
    head: Head,
    classes: Sequence[str],
    space: SearchSpace | None = None,
    folds: int = 4,
    seed: int = 0,
    max_rounds: int = 5,
    most_rows: int = 20_000,
) -> SearchResult:
    """Return the settings that do best on labeled rows that were hidden.

    Args:
        known: features of the labeled rows.
        y: their labels, on the same device.
        unlabeled: features of the unlabeled rows.
        methods: how the unlabeled set may be labeled.
        head: what is fitted.
        classes: the tags' names.
        space: the penalties and weights to try.
        folds: into how many parts the labeled rows are dealt.
        seed: of the dealing, and of the sample of the unlabeled set.
        max_rounds: of each trial.
        most_rows: a larger unlabeled set, or more labeled rows, are represented by a sample of that many, which weighs
            as much against the others as all of them.
    """
    space = space or SearchSpace()
    usual = Settings(methods[0], space.ridges[0], space.unlabeled_ridges[0], space.unlabeled_weights[0])
    ratio = len(unlabeled) / len(known)
    known, y = _sample(known, most_rows, seed, y)
    unlabeled, _ = _sample(unlabeled, most_rows, seed, y.new_empty(len(unlabeled), 0))
    thinned = (
        ratio * len(known) / max(1, len(unlabeled))
    )  # a row of the sample stands for so many, against labeled ones
    dealt = _deal(known, y, min(folds, len(y)), seed)
    if not dealt:
        return SearchResult(replace(usual, unlabeled_weight=min(space.unlabeled_weights)))
    search = _Search(dealt, y, unlabeled, usual, head.coarse(), classes, min(max_rounds, TRIAL_ROUNDS), thinned)
    best = search.best(space, methods)
    return SearchResult(best.settings, tuple(search.trials), best.out_of_fold, y.cpu())


@dataclass(frozen=True)
class _Search:
    """Trials on the folds, one setting after the other; a convex fit starts from what an earlier one has found."""

    dealt: Sequence[_Fold]
    y: Tensor
    unlabeled: Rows
    usual: Settings
    head: Head
    classes: Sequence[str]
    rounds: int
    thinned: float
    trials: list[Trial] = field(default_factory=list)

    def best(self, space: SearchSpace, methods: Sequence[Method]) -> Trial:
        """Return the best trial: choose the penalty, then interval, penalty and weight with the unlabeled set."""
        labeled_only = _settle([self._alone(ridge) for ridge in space.ridges])
        weights = [weight for weight in space.unlabeled_weights if weight > 0]
        if not (len(self.unlabeled) and weights and methods[0].uses_unlabeled):
            return labeled_only
        first = Settings(methods[0], labeled_only.settings.ridge, space.unlabeled_ridges[0], weights[0])
        best = _settle([self._together(replace(first, method=method)) for method in methods])
        ridges, others = space.unlabeled_ridges[1:], weights[1:]
        best = _settle([best, *(self._together(replace(best.settings, unlabeled_ridge=ridge)) for ridge in ridges)])
        best = _settle([best, *(self._together(replace(best.settings, unlabeled_weight=weight)) for weight in others)])
        if 0 in space.unlabeled_weights and not best.above(labeled_only, errors=1):
            return labeled_only
        return best

    def _alone(self, ridge: float) -> Trial:
        def fit(fold: _Fold) -> Layers:
            nearest = min(fold.probes, key=lambda known_ridge: abs(math.log(known_ridge / ridge)), default=None)
            start = None if nearest is None or not self.head.convex else fold.probes[nearest]
            fold.probes[ridge] = layers = probe(fold.rows, fold.y, ridge, self.head, start)
            for _ in range(
                0 if self.head.convex else self.rounds
            ):  # as long as others are fitted with the unlabeled set
                layers = probe(fold.rows, fold.y, ridge, self.head, layers)
            return layers

        return self._try(replace(self.usual, ridge=ridge, unlabeled_weight=0.0), fit)

    def _together(self, settings: Settings) -> Trial:
        as_heavy = replace(settings, unlabeled_weight=settings.unlabeled_weight * self.thinned)

        def fit(fold: _Fold) -> Layers:
            fitted = spread(
                fold.rows,
                fold.y,
                self.unlabeled,
                as_heavy,
                fold.probes[settings.ridge],
                head=self.head,
                classes=self.classes,
                max_rounds=self.rounds,
            )
            return fitted.layers

        return self._try(settings, fit)

    def _try(self, settings: Settings, fit: Callable[[_Fold], Layers]) -> Trial:
        """Run one setting on every fold and write it down."""
        out_of_fold, per_fold = torch.zeros(self.y.shape), []
        for fold in self.dealt:
            found = scores(fold.hidden, fit(fold)).cpu()
            out_of_fold[fold.where] = found
            per_fold.append(average_precision(found, fold.hidden_y.cpu()).nanmean())
        trial = Trial(settings, torch.stack(per_fold), out_of_fold)
        self.trials.append(trial)
        return trial


def _sample(rows: Rows, most: int, seed: int, y: Tensor) -> tuple[Rows, Tensor]:
    if len(rows) <= most:
        return rows, y
    some = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most].sort().values
    return rows.take(some), y[some.to(y.device)]


def _deal(known: Rows, y: Tensor, folds: int, seed: int) -> list[_Fold]:
    if folds < 2:
        return []
    parts = stratified_split(y.cpu().numpy(), [1 / folds] * folds, seed).parts
    dealt = []
    for part in parts:
        hidden = torch.from_numpy(part)
        rest = torch.ones(len(y), dtype=torch.bool)
        rest[hidden] = False
        stay = rest.nonzero().squeeze(1)
        dealt.append(
            _Fold(known.take(stay), y[stay.to(y.device)], known.take(hidden), y[hidden.to(y.device)], hidden, {})
        )
    return dealt


def _settle(trials: Sequence[Trial]) -> Trial:
    """Return the first trial, the usual one, unless the best is well above it."""
    best = max(trials, key=lambda trial: trial.mean)
    return best if best.above(trials[0], errors=2) else trials[0]
