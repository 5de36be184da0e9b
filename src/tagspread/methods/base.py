"""What a method is: a rule that turns a teacher's scores of the unlabeled set into targets.

A method is a small frozen dataclass: its fields are its options, its verbs are called by the loop in this order:

* ``start(labeled)`` once, for the state that must live through the run and be saved with it;
* ``new_epoch(labeled, state)`` and ``targets(scores, labeled, state)`` at the start of every epoch, the latter for
  the whole unlabeled set;
* ``step_targets(scores, targets, labeled, state)`` at every step, if ``per_step`` is set, with fresh teacher scores of
  the batch; the whole unlabeled set is then labeled once only, at the start;
* ``loss(output, targets, loss, state)`` at every step, for the unlabeled set's part of the batch.

Most methods write one of them; ``methods/cap.py`` is the one to read first. A few methods are more than a rule; they
bring a network of their own (``network``, ``begin_unlabeled``) and what its answers to the labeled part cost
(``loss_labeled``), or make a step in their own way (``own_step``).
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
from tagspread.core.thresholds import class_counts
from tagspread.errors import TagspreadError

if TYPE_CHECKING:
    from tagspread.vision.backbones import TagNet

State: TypeAlias = dict[str, Tensor]
EntryLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Targets(NamedTuple):
    """What the unlabeled set is trained on.

    Attributes:
        labels: 1, 0, -1 ignored, or soft targets between 0 and 1.
        weight: importance of each entry, if not all 1.
        places: at a step, which rows of the unlabeled set the batch holds.
    """

    labels: Tensor
    weight: Tensor | None = None
    places: Tensor | None = None


class SetApart(NamedTuple):
    """Labeled items that are trained on without their labels, so that their scores are those of any new item."""

    y: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Labeled:
    """What a method may know of the labeled part, and where training stands.

    Attributes:
        y: one row per item: 1, 0, -1 unknown.
        classes: the tags' names.
        epoch: epochs with the unlabeled set so far.
        epochs: epochs with the unlabeled set in all.
        unlabeled_size: how many items the unlabeled set has.
        scores: the teacher's logits of these items, for methods with ``reads_labeled``.
        apart: items set apart, for methods that ask for some by ``share_apart``.
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
        """How many tags an item has on average: the sum of the class proportions, each over what is known of it."""
        return sum(c / n for c, n in zip(self.positives, self.known, strict=True) if n)

    def scored(self) -> tuple[Tensor, Tensor]:
        """Return the teacher's logits and the labels to judge it by: those set apart, if there are any."""
        if self.apart is not None:
            return self.apart.scores, self.apart.y.to(self.apart.scores.device)
        if self.scores is None:
            raise TagspreadError("this method looks at the scores of the labeled part, and none were given.")
        return self.scores, self.y.to(self.scores.device)


class StudentStep(Protocol):
    """A step of the student: calling it with a batch trains on it and returns the loss, still on the device."""

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """What is saved with the run."""

    def __call__(self, images: Tensor, labels: Tensor, weight: Tensor, places: Tensor) -> Tensor:
        """Train on one batch: labeled rows first, then ``len(places)`` rows of the unlabeled set."""


@dataclass(frozen=True)
class Method:
    """Base of all methods: trains on the labeled part alone until a subclass says how to use the unlabeled set."""

    summary: ClassVar[str] = ""
    uses_unlabeled: ClassVar[bool] = True
    per_step: ClassVar[bool] = False
    reads_labeled: ClassVar[bool] = False  # wants the teacher's scores of the labeled part, too
    labeled_loss: ClassVar[str | None] = None  # a method that is defined by its loss names it
    shares_warmup: ClassVar[bool] = True  # may start from a warm-up that another method made
    on_features: ClassVar[bool] = False  # trains a head of its own on the frozen network's features
    recipe: ClassVar[SettingValues] = {}  # settings it needs to be itself, unless the user says otherwise

    @property
    def share_apart(self) -> float:
        """Which share of the labeled items is trained on without labels, to judge the teacher by."""
        return 0.0

    def start(self, labeled: Labeled) -> State:
        """Return the state that lives through the run; it is saved and restored with the checkpoint."""
        del labeled
        return {}

    def new_epoch(self, labeled: Labeled, state: State) -> None:
        """Bring the state up to date for an epoch; the place for what rests on the labeled part alone."""

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Turn the teacher's logits of the whole unlabeled set (m x q, float32) into targets for one epoch."""
        raise TagspreadError(f"{type(self).__name__} does not say how to label the unlabeled set; write its targets().")

    def step_targets(self, scores: Tensor, targets: Targets, labeled: Labeled, state: State) -> Targets:
        """Turn fresh teacher logits of one batch, and the targets it had last, into the targets of this step."""
        del scores, labeled, state
        return targets

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Return the unlabeled set's loss, entry by entry; the state may be changed in place."""
        del state
        return loss(output, targets.labels, targets.weight)

    def loss_labeled(self, output: Tensor, y: Tensor, weight: Tensor, loss: EntryLoss) -> Tensor:
        """Return the labeled part's loss, entry by entry."""
        return loss(output, y, weight)

    def network(self, network: TagNet) -> TagNet:
        """Return the network that this method trains, made from the ordinary one."""
        return network

    def begin_unlabeled(self, network: TagNet) -> None:
        """Prepare the student for the unlabeled set, after the warm-up."""

    def own_step(self, network: TagNet, state: State) -> StudentStep | None:
        """Return a step of the method's own making, where one loss and one optimizer are not enough."""
        del network, state
        return None


def check_targets(method: Method, found: object, scores: Tensor) -> Targets:
    """Return what a method made of scores, or raise if nothing can be trained on it."""
    rule = type(method).__name__
    if not isinstance(found, Targets):
        raise TagspreadError(f"{rule} returned {type(found).__name__} for targets; return ts.Targets(labels).")
    for part in ("labels", "weight"):
        value = getattr(found, part)
        if part == "weight" and value is None:
            continue
        if not isinstance(value, Tensor) or value.shape != scores.shape:
            shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise TagspreadError(
                f"{rule} returned targets whose {part} is {shape}; give a tensor of the scores' shape, "
                f"{tuple(scores.shape)}."
            )
    if bool((wrong := invalid_targets(found.labels)).any()):
        value = found.labels[wrong][0].item()
        raise TagspreadError(f"{rule} returned targets that hold {value:g}; {WHAT_TARGETS_ARE}")
    if found.weight is not None and not bool((found.weight.isfinite() & (found.weight >= 0)).all()):
        raise TagspreadError(f"{rule} returned targets with a weight that is negative or not finite; give 0 or more.")
    return found


def check_share(option: str, value: float, least: float = 0.0) -> None:
    """Raise unless an option is a share from 0, or from ``least``, to 1."""
    if not isinstance(value, Real) or not least <= value <= 1:
        raise TagspreadError(f"{option} is {value!r}; give a share from {least:g} to 1.")


def check_number(option: str, value: float, *, whole: bool = False, zero: bool = False) -> None:
    """Raise unless an option is a finite number above 0; ``whole`` asks for 1, 2, ..., ``zero`` allows 0, too."""
    if not isinstance(value, Integral if whole else Real) or not 0 <= value < float("inf") or (not value and not zero):
        wanted = "a whole number of at least 1" if whole else f"a number {'of at least' if zero else 'above'} 0"
        raise TagspreadError(f"{option} is {value!r}; give {wanted}.")
