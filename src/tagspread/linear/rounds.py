r"""Rounds on features: fit the labeled part, score the unlabeled set, let the method label it, fit both, and again.

.. math:: W_0 = \arg\min L(\text{labeled}), \qquad
          T_r = \mathrm{method}(\mathrm{scores}(\text{unlabeled}, W_{r-1})), \qquad
          W_r = \arg\min L(\text{labeled}) + s\, L(\text{unlabeled}, T_r)

each fit starting from the last one, until the targets stop moving.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tagspread.errors import TagspreadError
from tagspread.linear.feature_rows import Rows
from tagspread.linear.heads import Head, Layers, Part, scores
from tagspread.methods.base import Labeled, Method, SetApart, State, Targets, check_targets

# what a method may not have rewritten if scores are all it needs
_BEYOND_SCORES = ("step_targets", "loss", "loss_labeled", "network", "begin_unlabeled", "show", "own_step")


@dataclass(frozen=True)
class Settings:
    """What is chosen on the labeled part.

    Attributes:
        method: how the unlabeled set is labeled.
        ridge: penalty on the weights when the labeled part is fitted alone.
        unlabeled_ridge: the same for fits with the unlabeled set, which give more to lean on.
        unlabeled_weight: importance of a row of the unlabeled set beside a labeled one; 0 leaves the unlabeled set out.
    """

    method: Method
    ridge: float = 0.1
    unlabeled_ridge: float = 0.02
    unlabeled_weight: float = 1.0

    @property
    def uses_unlabeled(self) -> bool:
        """Whether the unlabeled set takes any part."""
        return self.method.uses_unlabeled and self.unlabeled_weight > 0


@dataclass(frozen=True)
class Fitted:
    """What came out of the rounds.

    Attributes:
        layers: the head.
        targets: what the unlabeled set was last labeled with; None if it took no part.
        settled: for each row of the unlabeled set, the round that last changed its targets.
        log: one entry per round.
    """

    layers: Layers
    targets: Targets | None = None
    settled: Tensor | None = None
    log: list[dict[str, float]] = field(default_factory=list)


def check_method(method: Method) -> None:
    """Raise unless the method labels from scores alone."""
    name = type(method).__name__
    rewritten = [
        verb for verb in _BEYOND_SCORES if getattr(type(method), verb, None) is not getattr(Method, verb, None)
    ]
    if rewritten or method.per_step or getattr(method, "on_features", False):
        raise TagspreadError(
            f"{name} needs a network that is trained on images, which a head on features is not; "
            "on features take a method that labels from scores alone, such as 'cap'."
        )
    if method.labeled_loss not in (None, "bce"):
        raise TagspreadError(
            f"{name} is defined by the loss {method.labeled_loss!r}, but on features the loss is cross-entropy; "
            "take 'bce' for the labeled part alone."
        )


def probe(known: Rows, y: Tensor, ridge: float, head: Head, start: Layers | None = None) -> Layers:
    """Return the head fitted on the labeled rows alone."""
    constant = constant_classes(y)
    if start is None:
        start = head.start(known.width, y.shape[1], known.device)
        *hidden, (weight, bias) = start
        # a class that is always there, never there, or never looked at has no direction: its bias says how often it is
        weight = torch.where(constant.isnan()[:, None], weight, 0.0)
        start = (*hidden, (weight, torch.where(constant.isnan(), bias, constant)))
    return head.fit([Part(known, _without(y, constant))], start, ridge)


def spread(
    known: Rows,
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
) -> Fitted:
    """Let the labels spread to the unlabeled set, in rounds.

    Args:
        known: features of the labeled rows.
        y: their labels, on the device of the features: 1, 0, -1 unknown.
        unlabeled: features of the unlabeled rows, in the same views.
        settings: the method, the penalties and the weight of the unlabeled set.
        start: the head fitted on the labeled rows alone (:func:`probe`).
        head: what is fitted.
        classes: the tags' names.
        max_rounds: at most so many.
        tolerance: the share of the unlabeled set's entries that may still move when it is called done.
        state: the method's, if it has been started already.
        apart: the labels of the last rows of the unlabeled set, if those were set apart from the labeled ones to judge
            by.
        watch: is shown each round's number, targets and scores of the unlabeled set.
    """
    if not settings.uses_unlabeled or not len(unlabeled):
        return Fitted(start)
    method, constant = settings.method, constant_classes(y)
    stand = Labeled(y=y.cpu(), classes=tuple(classes), epochs=max_rounds, unlabeled_size=len(unlabeled))
    if state is None:
        state = {name: value.to(unlabeled.device) for name, value in method.start(stand).items()}
    layers, before, log = start, None, []
    settled = torch.zeros(len(unlabeled), dtype=torch.int64)
    for number in range(1, max_rounds + 1):
        seen = scores(known, layers) if method.reads_labeled else None
        found = scores(unlabeled, layers)
        judged = None if apart is None else SetApart(apart, found[len(found) - len(apart) :])
        now = replace(stand, epoch=number - 1, scores=seen, apart=judged)
        method.new_epoch(now, state)
        targets = check_targets(method, method.targets(found, now, state), found)
        targets = targets._replace(labels=_as_constant(targets.labels, constant))
        moved: Tensor | None = None if before is None else targets.labels != before.labels
        share = 1.0 if moved is None else float(moved.float().mean())
        if moved is not None and share <= tolerance:
            break
        if watch is not None:
            watch(number, targets, found)
        settled[slice(None) if moved is None else moved.any(1).cpu()] = number
        unlabeled_part = Part(unlabeled, _without(targets.labels, constant), targets.weight, settings.unlabeled_weight)
        layers = head.fit([Part(known, _without(y, constant)), unlabeled_part], layers, settings.unlabeled_ridge)
        before = targets
        log.append({"round": number, "moved": share, "positives": int((targets.labels > 0.5).sum())})
    return Fitted(layers, before, settled, log)


def constant_classes(y: Tensor) -> Tensor:
    """Return, per class, the log-odds of one that cannot be learnt (all known labels alike), NaN for the others.

    >>> constant_classes(torch.tensor([[1, 0, -1], [0, 0, -1]])).tolist()
    [nan, -1.609..., 0.0]
    """
    positives, known = (y == 1).sum(0).float(), (y >= 0).sum(0).float()
    learnable = (positives > 0) & (positives < known)
    odds = (positives + 0.5) / (known - positives + 0.5)  # half a row on each side: never certain
    return torch.where(learnable, math.nan, odds.log())


def _as_constant(labels: Tensor, constant: Tensor) -> Tensor:
    """Return the labels with what is known of constant classes: scores that do not differ cannot be ranked."""
    if bool(constant.isnan().all()):
        return labels
    always = torch.where(constant == 0, -1.0, (constant > 0).float()).to(labels.dtype)
    return torch.where(constant.isnan(), labels, always)


def _without(labels: Tensor, constant: Tensor) -> Tensor:
    """Return the labels with nothing said about the constant classes."""
    return labels if bool(constant.isnan().all()) else torch.where(constant.isnan(), labels, -1)
