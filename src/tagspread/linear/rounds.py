r"""Pseudo-labeling rounds on features: fit, score the unlabeled rows, label them by the method, fit both, repeat.

.. math:: W_0 = \arg\min L(\text{labeled}), \qquad
          T_r = \mathrm{method}(\mathrm{scores}(\text{unlabeled}, W_{r-1})), \qquad
          W_r = \arg\min L(\text{labeled}) + s\, L(\text{unlabeled}, T_r)

Each fit starts from the previous one. The rounds end when the pseudo-labels stop changing.

All fits have the same L2 penalty: :math:`\frac{n}{2} \lambda \lVert W \rVert^2` beside the summed losses of n labeled
rows. Relative to the mean loss, it is :math:`\lambda n / (n + s m)` with m unlabeled rows of weight s, so that a small
weight gives nearly the labeled-only head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tagspread.errors import TagspreadError
from tagspread.linear.heads import Head, Layers, Part, Rows, scores
from tagspread.methods.base import Labeled, Method, SetApart, State, Targets, check_targets

# functions that a method must not override to be usable with scores alone
_BEYOND_SCORES = ("step_targets", "loss", "loss_labeled", "network", "begin_unlabeled", "show", "own_step")


@dataclass(frozen=True)
class Settings:
    """The settings that are chosen on the labeled rows.

    Attributes:
        method: method that labels the unlabeled rows.
        ridge: L2 penalty, relative to the mean loss of the labeled rows.
        unlabeled_ridge: L2 penalty for fits with the unlabeled rows, relative to the mean loss of all rows; None keeps
            the penalty as strong as it is for the labeled rows only.
        unlabeled_weight: weight of an unlabeled row relative to a labeled one; 0 omits the unlabeled set.
        calibration: slope and intercept that turn logits into probabilities. With it, each pseudo-label is weighted by
            its confidence (:func:`confidence`).
    """

    method: Method
    ridge: float = 0.3
    unlabeled_ridge: float | None = None
    unlabeled_weight: float = 1.0
    calibration: tuple[float, float] | None = None

    @property
    def uses_unlabeled(self) -> bool:
        """Whether the unlabeled set is used at all."""
        return self.method.uses_unlabeled and self.unlabeled_weight > 0

    def penalty(self, labeled: int, unlabeled: int) -> float:
        """Return the L2 penalty of a fit on that many rows, relative to their mean loss.

        >>> Settings(Method(), ridge=0.3, unlabeled_weight=0.5).penalty(100, 1000)
        0.05
        """
        if self.unlabeled_ridge is not None:
            return self.unlabeled_ridge
        return self.ridge * labeled / (labeled + self.unlabeled_weight * unlabeled)


@dataclass(frozen=True)
class Fitted:
    """The result of the rounds.

    Attributes:
        layers: layers of the fitted head.
        targets: last pseudo-labels of the unlabeled set; None if it was not used.
        settled: for each unlabeled row, the last round that changed its pseudo-labels.
        log: one entry per round.
    """

    layers: Layers
    targets: Targets | None = None
    settled: Tensor | None = None
    log: list[dict[str, float]] = field(default_factory=list)


def check_method(method: Method) -> None:
    """Raise unless the method needs scores only."""
    name = type(method).__name__
    overridden = [
        function
        for function in _BEYOND_SCORES
        if getattr(type(method), function, None) is not getattr(Method, function, None)
    ]
    if overridden or method.per_step or getattr(method, "on_features", False):
        raise TagspreadError(
            f"{name} trains the network in its own way, which is not possible on features; use a method that needs "
            "scores only, such as 'cap'."
        )
    if method.labeled_loss not in (None, "bce"):
        raise TagspreadError(
            f"{name} is defined by the loss {method.labeled_loss!r}, but on features the loss is cross-entropy; "
            "use 'bce' for the labeled-only baseline."
        )


def probe(labeled: Rows, y: Tensor, ridge: float, head: Head, start: Layers | None = None) -> Layers:
    """Fit the head on the labeled rows only."""
    constant = constant_classes(y)
    if start is None:
        start = head.start(labeled.width, y.shape[1], labeled.device)
        *hidden, (weight, bias) = start
        # a class without both positives and negatives has zero weights; its bias gives its frequency
        weight = torch.where(constant.isnan()[:, None], weight, 0.0)
        start = (*hidden, (weight, torch.where(constant.isnan(), bias, constant)))
    return head.fit([Part(labeled, _without(y, constant))], start, ridge)


def spread(
    labeled: Rows,
    y: Tensor,
    unlabeled: Rows,
    settings: Settings,
    start: Layers,
    *,
    head: Head,
    classes: Sequence[str],
    max_rounds: int = 5,
    tolerance: float = 0.0,
    state: State | None = None,
    apart: Tensor | None = None,
    watch: Callable[[int, Targets, Tensor], None] | None = None,
    out_of_time: Callable[[], bool] | None = None,
) -> Fitted:
    """Fit the head on labeled and unlabeled rows, in rounds of pseudo-labeling.

    Args:
        labeled: features of the labeled rows.
        y: their labels, on the device of the features: 1, 0, -1 unknown.
        unlabeled: features of the unlabeled rows, in the same views.
        settings: method, penalties and weight of the unlabeled set.
        start: head fitted on the labeled rows only (:func:`probe`).
        head: kind of head to fit.
        classes: names of the classes.
        max_rounds: maximal number of rounds.
        tolerance: stop when at most this share of the pseudo-labels changes.
        state: state of the method, if it has been started already.
        apart: labels of the last unlabeled rows, if these rows were set apart from the labeled ones to evaluate on.
        watch: called with the number of each round and the targets and scores of the unlabeled set.
        out_of_time: asked after each round; if true, the rounds end.
    """
    if not settings.uses_unlabeled or not len(unlabeled):
        return Fitted(start)
    method, constant = settings.method, constant_classes(y)
    labeled_set = Labeled(y=y.cpu(), classes=tuple(classes), epochs=max_rounds, unlabeled_size=len(unlabeled))
    if state is None:
        state = {name: value.to(unlabeled.device) for name, value in method.start(labeled_set).items()}
    layers, previous, log = start, None, []
    penalty = settings.penalty(len(labeled), len(unlabeled))
    settled = torch.zeros(len(unlabeled), dtype=torch.int64)
    for number in range(1, max_rounds + 1):
        labeled_scores = scores(labeled, layers) if method.reads_labeled else None
        unlabeled_scores = scores(unlabeled, layers)
        rows_apart = None if apart is None else SetApart(apart, unlabeled_scores[len(unlabeled_scores) - len(apart) :])
        current = replace(labeled_set, epoch=number - 1, scores=labeled_scores, apart=rows_apart)
        method.new_epoch(current, state)
        targets = check_targets(method, method.targets(unlabeled_scores, current, state), unlabeled_scores)
        targets = targets._replace(labels=_as_constant(targets.labels, constant))
        changed: Tensor | None = None if previous is None else targets.labels != previous.labels
        share = 1.0 if changed is None else float(changed.float().mean())
        if changed is not None and share <= tolerance:
            break
        if watch is not None:
            watch(number, targets, unlabeled_scores)
        settled[slice(None) if changed is None else changed.any(1).cpu()] = number
        weight = targets.weight
        if settings.calibration is not None:
            weight = confidence(targets.labels, unlabeled_scores, settings.calibration) * (
                1.0 if weight is None else weight
            )
        unlabeled_part = Part(unlabeled, _without(targets.labels, constant), weight, settings.unlabeled_weight)
        layers = head.fit([Part(labeled, _without(y, constant)), unlabeled_part], layers, penalty)
        previous = targets
        log.append({"round": number, "moved": share, "positives": int((targets.labels > 0.5).sum())})
        if out_of_time is not None and out_of_time():
            break
    return Fitted(layers, previous, settled, log)


def confidence(labels: Tensor, scores: Tensor, calibration: tuple[float, float]) -> Tensor:
    r"""Return :math:`\max(0, 2p - 1)` for pseudo-labels that are right with probability p, by calibrated scores.

    Wrong labels cancel as many right ones, so labels of which a share p is right count as a share p - (1 - p).

    >>> confidence(torch.tensor([[1, 0, 1]]), torch.tensor([[0.0, -9.0, -9.0]]), (1.0, 0.0)).round(decimals=2).tolist()
    [[0.0, 1.0, 0.0]]
    """
    slope, intercept = calibration
    present = (slope * scores + intercept).sigmoid()
    return (2 * torch.where(labels > 0.5, present, 1 - present) - 1).clamp(min=0)


def constant_classes(y: Tensor) -> Tensor:
    """Return, per class, the log-odds of a class whose labeled labels are all equal, and NaN for the other classes.

    >>> constant_classes(torch.tensor([[1, 0, -1], [0, 0, -1]])).tolist()
    [nan, -1.609..., 0.0]
    """
    positives, n_labeled = (y == 1).sum(0).float(), (y >= 0).sum(0).float()
    learnable = (positives > 0) & (positives < n_labeled)
    odds = (positives + 0.5) / (n_labeled - positives + 0.5)  # half a row on each side keeps the odds finite
    return torch.where(learnable, math.nan, odds.log())


def _as_constant(labels: Tensor, constant: Tensor) -> Tensor:
    """Label constant classes by their labeled labels: equal scores cannot be ranked."""
    if bool(constant.isnan().all()):
        return labels
    always = torch.where(constant == 0, -1.0, (constant > 0).float()).to(labels.dtype)
    return torch.where(constant.isnan(), labels, always)


def _without(labels: Tensor, constant: Tensor) -> Tensor:
    """Ignore the constant classes in ``labels``."""
    return labels if bool(constant.isnan().all()) else torch.where(constant.isnan(), labels, -1)
