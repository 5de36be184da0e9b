r"""Hyperparameter search by cross-validation on the labeled rows: penalty, method variant, weight of the unlabeled set.

The labeled rows are split into stratified folds. Each fold in turn is held out, the rounds run on the other folds and
the unlabeled set, and the held-out rows are scored. The score of a setting is its average precision, averaged over
classes and folds. The search chooses one setting after the other: the penalty on labeled rows only, then, with the
unlabeled set, whether pseudo-labels are weighted by their confidence, the method variant, and the weight of the set.
The scores of the held-out rows by the labeled-only heads calibrate the confidence. It protects a good labeled-only head
from wrong pseudo-labels; where that head is poor, its confidence is too, and plain pseudo-labels may be far better.

With few rows these scores are noisy, and the best of many noisy scores is often best by chance. The default of each
setting is therefore kept unless another value is clearly better: with :math:`d_{fk}` the gain in fold f of F for class
k of q, if

.. math:: \bar d > 2 \max\Big(\frac{\mathrm{sd}_f(\bar d_f)}{\sqrt F}, \frac{\mathrm{sd}_k(\bar d_k)}{\sqrt q}\Big).

Four folds alone often agree by chance; a gain that only few classes have is not clear either. Plain pseudo-labels
instead of weighted ones are the exception: there a gain of more than two points that is clear over the folds suffices,
because a poor labeled-only head hides in few classes, too.

The unlabeled set is used if the mean gain over the labeled-only head is above 0. To ask for a clear gain here would
omit it where it helps: with few labeled rows, a gain of two points is within the noise of the folds.

Each fold is evaluated separately: scores of different heads are not ranked together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tagspread.aliases import Progress
from tagspread.core.calibration import fit_calibration
from tagspread.core.metrics import average_precision
from tagspread.data.split import stratified_split
from tagspread.errors import TagspreadError
from tagspread.linear.heads import Head, Layers, Rows, scores
from tagspread.linear.rounds import Settings, probe, spread
from tagspread.methods.base import Method
from tagspread.methods.cap import CAP

INTERVALS = ((0.5, 0.99), (0.5, 1.0), (0.8, 1.0))  # shares of the expected positives and negatives to use
FOLDS = 4
LARGE_GAIN = 0.02  # mean average precision
MOST_ROWS = 20_000
TRIAL_ROUNDS = 3  # later rounds change little, and about equally in all trials


@dataclass(frozen=True)
class SearchSpace:
    """The settings to try; the first of each is the default.

    Attributes:
        ridges: L2 penalties for the fit on labeled rows only, for features of unit variance.
        unlabeled_weights: weights of an unlabeled row; with 0, the unlabeled set is omitted if it does not help.
        by_confidence: also try to weight each pseudo-label by its confidence, see
            :func:`~tagspread.linear.rounds.confidence`; it is the default then.
    """

    ridges: tuple[float, ...] = (0.3, 1.0, 3.0, 0.1, 0.03)
    unlabeled_weights: tuple[float, ...] = (1.0, 0.3, 0.1, 0.0)
    by_confidence: bool = False

    def __post_init__(self) -> None:
        for name in ("ridges", "unlabeled_weights"):
            values = getattr(self, name)
            if not values or not all(math.isfinite(value) and value >= 0 for value in values):
                raise TagspreadError(f"{name} is {values}; give at least one number, none below 0.")

    def short(self) -> SearchSpace:
        """Return a smaller space: three penalties, and whether to use the unlabeled set.

        >>> SearchSpace().short()
        SearchSpace(ridges=(0.3, 1.0, 0.1), unlabeled_weights=(1.0, 0.0), by_confidence=False)
        """
        ridges = tuple(ridge for ridge in (0.3, 1.0, 0.1) if ridge in self.ridges) or self.ridges[:1]
        weights = (self.unlabeled_weights[0], *(0.0 for _ in self.unlabeled_weights[1:2]))
        return replace(self, ridges=ridges, unlabeled_weights=weights)


@dataclass(frozen=True)
class Trial:
    """One setting and its scores on the held-out rows.

    Attributes:
        settings: the setting.
        per_fold: mean average precision of each fold.
        out_of_fold: logits of the labeled rows, each by the head of a fold that did not train on it.
        per_class: average precision, folds x classes.
    """

    settings: Settings
    per_fold: Tensor
    out_of_fold: Tensor
    per_class: Tensor | None = None

    @property
    def mean(self) -> float:
        """Mean average precision over the folds; -inf if no fold has a positive."""
        return float(self.per_fold.nanmean().nan_to_num(-math.inf))

    def as_dict(self) -> dict[str, object]:
        """Return the setting and its scores as plain values."""
        return {**vars(self.settings), "mAP": self.mean, "per_fold": self.per_fold.tolist()}

    def above(self, other: Trial, errors: float, least: float | None = None) -> bool:
        """Return whether the gain over another trial is more than ``errors`` standard errors, over folds and classes.

        With ``least``, the gain must be larger than this instead of being clear over the classes.
        """
        gain = self.per_fold - other.per_fold
        gain = gain[~gain.isnan()]
        if len(gain) < 2:
            return False
        bound = errors * float(gain.std()) / len(gain) ** 0.5
        if least is not None:
            bound = max(bound, least)
        elif self.per_class is not None and other.per_class is not None:
            by_class = (self.per_class - other.per_class).nanmean(0)
            by_class = by_class[~by_class.isnan()]
            if len(by_class) > 2:  # the spread over two classes says little
                bound = max(bound, errors * float(by_class.std()) / len(by_class) ** 0.5)
        return bool(gain.mean() > bound)


@dataclass(frozen=True)
class SearchResult:
    """The result of the search.

    Attributes:
        settings: the chosen settings.
        trials: all trials; none if there are too few labeled rows to hold any out.
        out_of_fold: logits of the labeled rows, each by the head of a fold that did not train on it.
        labels: labels of the same rows.
    """

    settings: Settings
    trials: tuple[Trial, ...] = ()
    out_of_fold: Tensor | None = None
    labels: Tensor | None = None


@dataclass(frozen=True)
class _Fold:
    rows: Rows
    y: Tensor
    held_out: Rows
    held_out_y: Tensor
    index: Tensor
    probes: dict[float, Layers]


def intervals_of(method: Method) -> tuple[Method, ...]:
    """Return the variants of a method to try: for CAP, its reliable intervals.

    >>> len(intervals_of(CAP())), intervals_of(CAP(keep_pos=0.7))
    (3, (CAP(keep_pos=0.7, keep_neg=1.0, priors=None),))
    """
    if type(method) is CAP and (method.keep_pos, method.keep_neg) == (1.0, 1.0):
        return tuple(replace(method, keep_pos=up, keep_neg=down) for up, down in INTERVALS)
    return (method,)


def search_settings(
    labeled: Rows,
    y: Tensor,
    unlabeled: Rows,
    methods: Sequence[Method],
    *,
    head: Head,
    classes: Sequence[str],
    space: SearchSpace | None = None,
    folds: int = FOLDS,
    seed: int = 0,
    max_rounds: int = 5,
    most_rows: int = MOST_ROWS,
    progress: Progress | None = None,
    out_of_time: Callable[[], bool] | None = None,
) -> SearchResult:
    """Choose the settings with the best cross-validated average precision.

    Args:
        labeled: features of the labeled rows.
        y: their labels, on the same device.
        unlabeled: features of the unlabeled rows.
        methods: variants of the method to try.
        head: kind of head to fit.
        classes: names of the classes.
        space: penalties and weights to try.
        folds: number of folds.
        seed: seed of the folds and of the sampling.
        max_rounds: maximal number of rounds of each trial.
        most_rows: from more labeled, or unlabeled, rows than this, a sample of this size is used. Its weight is scaled
            so that it counts as much as all rows.
        progress: called with the number of finished and of all fits.
        out_of_time: asked after each trial; if true, the search ends with the best of the trials so far. The unlabeled
            set is then used only if a finished trial shows that it helps.
    """
    space = space or SearchSpace()
    default = Settings(methods[0], space.ridges[0], unlabeled_weight=space.unlabeled_weights[0])
    ratio = len(unlabeled) / len(labeled)
    labeled, y = _sample(labeled, most_rows, seed, y)
    unlabeled, _ = _sample(unlabeled, most_rows, seed, y.new_empty(len(unlabeled), 0))
    # each sampled unlabeled row stands for this many rows, relative to a labeled row
    rows_per_sample = ratio * len(labeled) / max(1, len(unlabeled))
    splits = _deal(labeled, y, min(folds, len(y)), seed)
    if not splits:
        return SearchResult(replace(default, unlabeled_weight=min(space.unlabeled_weights)))
    search = _Search(
        splits, y, unlabeled, default, head.coarse(), classes, min(max_rounds, TRIAL_ROUNDS), rows_per_sample,
        progress or (lambda done, total: None), out_of_time or (lambda: False),
    )  # fmt: skip
    best = search.best(space, methods)
    return SearchResult(best.settings, tuple(search.trials), best.out_of_fold, y.cpu())


@dataclass(frozen=True)
class _Search:
    """Cross-validation trials, one setting after the other; convex fits start from the result of an earlier one."""

    splits: Sequence[_Fold]
    y: Tensor
    unlabeled: Rows
    default: Settings
    head: Head
    classes: Sequence[str]
    rounds: int
    rows_per_sample: float
    progress: Progress = lambda done, total: None
    out_of_time: Callable[[], bool] = lambda: False
    trials: list[Trial] = field(default_factory=list)
    fits: list[int] = field(default_factory=lambda: [0, 0])  # finished, and all

    def best(self, space: SearchSpace, methods: Sequence[Method]) -> Trial:
        """Return the best trial: choose the penalty, then method variant and weight with the unlabeled set."""
        weights = [weight for weight in space.unlabeled_weights if weight > 0]
        spreads = bool(len(self.unlabeled) and weights and methods[0].uses_unlabeled)
        together = len(methods) + len(weights) - 1 + space.by_confidence if spreads else 0
        self.fits[1] = len(self.splits) * (len(space.ridges) + self.rounds * together)
        labeled_only = _settle(self._in_time(map(self._alone, space.ridges)))
        if not spreads or (0 in space.unlabeled_weights and self.out_of_time()):
            return labeled_only
        first = replace(labeled_only.settings, unlabeled_weight=weights[0])
        starts = [first]
        if space.by_confidence:
            starts.insert(0, replace(first, calibration=_calibrate(labeled_only.out_of_fold, self.y)))
        best = _settle(self._in_time(map(self._together, starts)), least=LARGE_GAIN)
        variants = [replace(best.settings, method=method) for method in methods[1:]]
        best = _settle([best, *self._in_time(map(self._together, variants))])
        others = [replace(best.settings, unlabeled_weight=weight) for weight in weights[1:]]
        best = _settle([best, *self._in_time(map(self._together, others))])
        if 0 in space.unlabeled_weights and labeled_only.mean >= best.mean:
            return labeled_only
        return best

    def _in_time(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return the trials that are made before the time is over, at least one if there are any."""
        made = []
        for trial in trials:
            made.append(trial)
            if self.out_of_time():
                break
        return made

    def _alone(self, ridge: float) -> Trial:
        def fit(fold: _Fold) -> Layers:
            nearest = min(fold.probes, key=lambda other: abs(math.log(other / ridge)), default=None)
            start = None if nearest is None or not self.head.convex else fold.probes[nearest]
            fold.probes[ridge] = layers = probe(fold.rows, fold.y, ridge, self.head, start)
            # fit a head that is not convex for as many steps as the trials with the unlabeled set
            for _ in range(0 if self.head.convex else self.rounds):
                layers = probe(fold.rows, fold.y, ridge, self.head, layers)
            return layers

        return self._try(replace(self.default, ridge=ridge, unlabeled_weight=0.0), fit)

    def _together(self, settings: Settings) -> Trial:
        scaled = replace(settings, unlabeled_weight=settings.unlabeled_weight * self.rows_per_sample)

        def fit(fold: _Fold) -> Layers:
            fitted = spread(
                fold.rows,
                fold.y,
                self.unlabeled,
                scaled,
                fold.probes[settings.ridge],
                head=self.head,
                classes=self.classes,
                max_rounds=self.rounds,
            )
            return fitted.layers

        return self._try(settings, fit)

    def _try(self, settings: Settings, fit: Callable[[_Fold], Layers]) -> Trial:
        """Run one setting on every fold and record the trial."""
        out_of_fold, per_class = torch.zeros(self.y.shape), []
        for fold in self.splits:
            logits = scores(fold.held_out, fit(fold)).cpu()
            out_of_fold[fold.index] = logits
            per_class.append(torch.as_tensor(average_precision(logits, fold.held_out_y.cpu())))
            self.fits[0] += self.rounds if settings.uses_unlabeled else 1
            self.progress(self.fits[0], self.fits[1])
        precisions = torch.stack(per_class)
        trial = Trial(settings, precisions.nanmean(1), out_of_fold, precisions)
        self.trials.append(trial)
        return trial


def _sample(rows: Rows, most: int, seed: int, y: Tensor) -> tuple[Rows, Tensor]:
    if len(rows) <= most:
        return rows, y
    sampled = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most].sort().values
    return rows.take(sampled), y[sampled.to(y.device)]


def _deal(labeled: Rows, y: Tensor, folds: int, seed: int) -> list[_Fold]:
    if folds < 2:
        return []
    parts = stratified_split(y.cpu().numpy(), [1 / folds] * folds, seed).parts
    splits = []
    for part in parts:
        held_out = torch.from_numpy(part)
        rest = torch.ones(len(y), dtype=torch.bool)
        rest[held_out] = False
        kept = rest.nonzero().squeeze(1)
        splits.append(
            _Fold(
                labeled.take(kept), y[kept.to(y.device)], labeled.take(held_out), y[held_out.to(y.device)], held_out, {}
            )
        )
    return splits


def _calibrate(out_of_fold: Tensor, y: Tensor) -> tuple[float, float] | None:
    """Fit one slope and intercept for all classes; None if all labels are equal."""
    labels = y.cpu()
    if not (labels == 1).any() or not (labels == 0).any():
        return None
    pooled = fit_calibration(out_of_fold, labels, min_positives=len(labels) + 1)  # no class has its own fit
    return float(pooled.slope[0]), float(pooled.intercept[0])


def _settle(trials: Sequence[Trial], least: float | None = None) -> Trial:
    """Return the first trial, the default, unless the best one is clearly above it."""
    best = max(trials, key=lambda trial: trial.mean)
    return best if best.above(trials[0], 2, least) else trials[0]
