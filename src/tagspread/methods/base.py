"""Base class of all methods: rules that turn a teacher's scores of the unlabeled set into pseudo-labels (targets).

A method is a small frozen dataclass. Its fields are its options. The training loop calls its functions in this order:

* ``start(labeled)`` once. It returns the state that lives through the run and is saved with it.
* ``new_epoch(labeled, state)`` and ``targets(scores, labeled, state)`` at the start of every epoch; ``targets`` gets
  the scores of the whole unlabeled set.
* ``step_targets(scores, targets, labeled, state)`` at every step, if ``per_step`` is set, with fresh teacher scores of
  the batch. The whole unlabeled set is then labeled only once, at the start.
* ``loss(output, targets, loss, state)`` at every step, for the unlabeled rows of the batch.

Most methods define only one of them; read ``methods/cap.py`` first. A few methods also change the network (``network``,
``begin_unlabeled``), the loss on labeled rows (``loss_labeled``), or the whole training step (``own_step``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from tagspread.aliases import SettingValues
from tagspread.core.losses import WHAT_TARGETS_ARE, invalid_targets
from tagspread.core.sharded_ranking import Shard
from tagspread.core.thresholds import class_counts
from tagspread.errors import TagspreadError

if TYPE_CHECKING:
    from tagspread.vision.backbones import TagNet

State: TypeAlias = dict[str, Tensor]
EntryLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Targets(NamedTuple):
    """Pseudo-labels: the targets that the student is trained on for unlabeled rows.

    Attributes:
        labels: 1, 0, -1 ignored, or soft targets between 0 and 1.
        weight: weight of each entry; None means 1 everywhere.
        places: within a step, the indices of the batch's rows in the unlabeled set.
    """

    labels: Tensor
    weight: Tensor | None = None
    places: Tensor | None = None


class SetApart(NamedTuple):
    """Labeled rows that are trained on without their labels, so that their scores are like those of unlabeled rows."""

    y: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Labeled:
    """What a method may know about the labeled set, and the progress of training.

    Attributes:
        y: labels, one row per item: 1, 0, -1 unknown.
        classes: names of the tags.
        epoch: number of epochs with the unlabeled set so far.
        epochs: total number of epochs with the unlabeled set.
        unlabeled_size: number of unlabeled rows.
        scores: the teacher's logits of the labeled rows, for methods with ``reads_labeled``.
        apart: rows set apart, for methods with ``share_apart`` above 0.
        positives: number of labeled positives of each class.
        known: number of rows with a known label for each class.
    """

    y: Tensor
    classes: tuple[str, ...]
    epoch: int = 0
    epochs: int = 1
    unlabeled_size: int = 0
    scores: Tensor | None = None
    apart: SetApart | None = None
    positives: list[int] = field(init=False)
    known: list[int] = field(init=False)

    def __post_init__(self) -> None:
        positives, known = class_counts(self.y)
        object.__setattr__(self, "positives", positives.tolist())
        object.__setattr__(self, "known", known.tolist())

    @property
    def tags_per_item(self) -> float:
        """Average number of tags per item: the sum of the class proportions, each over the rows with a known label."""
        return sum(c / n for c, n in zip(self.positives, self.known, strict=True) if n)

    def scored(self) -> tuple[Tensor, Tensor]:
        """Return the teacher's logits and labels to evaluate it on: those of the rows set apart if there are any."""
        if self.apart is not None:
            return self.apart.scores, self.apart.y.to(self.apart.scores.device)
        if self.scores is None:
            raise TagspreadError(
                "this method needs the scores of the labeled set; give them as Labeled(..., scores=...)."
            )
        return self.scores, self.y.to(self.scores.device)


class StudentStep(Protocol):
    """A custom training step: calling it trains on one batch and returns the loss, still on the device."""

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers, whose state is saved with the run."""

    def __call__(self, images: Tensor, labels: Tensor, weight: Tensor, places: Tensor) -> Tensor:
        """Train on one batch: labeled rows first, then ``len(places)`` unlabeled rows."""


@dataclass(frozen=True)
class Method:
    """Base class of all methods. It trains on the labeled set only; subclasses define how to use the unlabeled set."""

    summary: ClassVar[str] = ""
    uses_unlabeled: ClassVar[bool] = True
    per_step: ClassVar[bool] = False
    reads_labeled: ClassVar[bool] = False  # needs the teacher's scores of the labeled set, too
    labeled_loss: ClassVar[str | None] = None  # the name of the loss, for methods that are defined by their loss
    shares_warmup: ClassVar[bool] = True  # may start from the warm-up of another method's run
    on_features: ClassVar[bool] = False  # trains its own head on the features of the frozen network
    recipe: ClassVar[SettingValues] = {}  # settings that belong to the method; the user's settings override them
    file_digest: ClassVar[str] = ""  # SHA-256 of the file that a user-defined method was loaded from

    @property
    def share_apart(self) -> float:
        """Share of the labeled rows that is trained on without labels, to evaluate the teacher on."""
        return 0.0

    def start(self, labeled: Labeled) -> State:
        """Return the state that lives through the run; it is saved in the checkpoint and restored from it."""
        del labeled
        return {}

    def new_epoch(self, labeled: Labeled, state: State) -> None:
        """Update the state for an epoch, where the update depends on the labeled set only."""

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Compute the targets of one epoch from the teacher's logits of the whole unlabeled set (m x q, float32)."""
        raise TagspreadError(
            f"{type(self).__name__} does not define how to label the unlabeled set; write its targets()."
        )

    def step_targets(self, scores: Tensor, targets: Targets, labeled: Labeled, state: State) -> Targets:
        """Compute the targets of one step from fresh teacher logits of the batch and the batch's last targets."""
        del scores, labeled, state
        return targets

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Return the loss of each entry of the unlabeled rows. The state may be changed in place."""
        del state
        return loss(output, targets.labels, targets.weight)

    def loss_labeled(self, output: Tensor, y: Tensor, weight: Tensor, loss: EntryLoss) -> Tensor:
        """Return the loss of each entry of the labeled rows."""
        return loss(output, y, weight)

    def network(self, network: TagNet) -> TagNet:
        """Return the network that this method trains, made from the ordinary one."""
        return network

    def begin_unlabeled(self, network: TagNet) -> None:
        """Prepare the student for training with the unlabeled set, after the warm-up."""

    def targets_of_shard(self, scores: Tensor, shard: Shard, labeled: Labeled, state: State) -> Targets | None:
        """Compute the targets of the unlabeled rows of one of several processes, if it needs no other scores.

        If this returns None, each process calls ``targets`` with the scores of the whole unlabeled set.
        """
        del scores, shard, labeled, state
        return None

    def combines_rows(self, network: TagNet) -> str | None:
        """Return why several processes cannot share a batch; None if the loss of each row depends on that row only."""
        del network
        changed = [name for name in ("loss", "loss_labeled", "own_step") if _is_changed(self, name)]
        if not changed:
            return None
        return (
            f"its {changed[0]}() may combine the rows of a batch; if it does not, define combines_rows() to return None"
        )

    def own_step(self, network: TagNet, state: State) -> StudentStep | None:
        """Return a custom training step, if one loss and one optimizer are not enough for the method."""
        del network, state
        return None


def _is_changed(method: Method, name: str) -> bool:
    return getattr(type(method), name) is not getattr(Method, name)


def check_targets(method: Method, targets: object, scores: Tensor) -> Targets:
    """Return the targets that a method computed from ``scores``, or raise if they cannot be trained on."""
    rule = type(method).__name__
    if not isinstance(targets, Targets):
        raise TagspreadError(f"{rule} returned {type(targets).__name__} for targets; return ts.Targets(labels).")
    for part in ("labels", "weight"):
        value = getattr(targets, part)
        if part == "weight" and value is None:
            continue
        if not isinstance(value, Tensor) or value.shape != scores.shape:
            shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise TagspreadError(
                f"{rule} returned targets whose {part} is {shape}; give a tensor of the scores' shape, "
                f"{tuple(scores.shape)}."
            )
    if bool((invalid := invalid_targets(targets.labels)).any()):
        value = targets.labels[invalid][0].item()
        raise TagspreadError(f"{rule} returned targets that hold {value:g}; {WHAT_TARGETS_ARE}")
    if targets.weight is not None and not bool((targets.weight.isfinite() & (targets.weight >= 0)).all()):
        raise TagspreadError(f"{rule} returned targets with a weight that is negative or not finite; give 0 or more.")
    return targets


def check_share(option: str, value: float, least: float = 0.0) -> None:
    """Raise unless an option is a number from ``least`` to 1."""
    if not isinstance(value, Real) or not least <= value <= 1:
        raise TagspreadError(f"{option} is {value!r}; give a share from {least:g} to 1.")


def check_number(option: str, value: float, *, whole: bool = False, zero: bool = False) -> None:
    """Raise unless an option is a finite number above 0; ``whole`` requires an integer, ``zero`` also allows 0."""
    if not isinstance(value, Integral if whole else Real) or not 0 <= value < float("inf") or (not value and not zero):
        wanted = "a whole number of at least 1" if whole else f"a number {'of at least' if zero else 'above'} 0"
        raise TagspreadError(f"{option} is {value!r}; give {wanted}.")
