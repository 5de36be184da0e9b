"""What a method is: a rule that turns a teacher's scores of the pile into targets, and nothing else.

A method is a small frozen dataclass: its fields are its options, its verbs are pure. The loop calls

* ``start(labelled)`` once, for the state that must live through the run and be saved with it;
* ``targets(scores, labelled, state)`` at the start of every epoch, for the whole pile;
* ``step_targets(scores, targets, labelled, state)`` at every step, if ``per_step`` is set, with fresh teacher scores of
  the batch;
* ``loss(logits, targets, loss)`` at every step, for the pile's part of the batch.

Most methods write one of them; ``methods/cap.py`` is the one to read first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import ClassVar, NamedTuple, TypeAlias

from torch import Tensor

from tagspread.core.thresholds import class_counts
from tagspread.errors import TagspreadError

State: TypeAlias = dict[str, Tensor]
EntryLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Targets(NamedTuple):
    """What the pile is trained on: 1, 0, -1 ignored (or soft targets), and the weight of each entry, if not all 1."""

    labels: Tensor
    weight: Tensor | None = None


@dataclass(frozen=True)
class Labelled:
    """What a method may know of the labelled part, and where training stands."""

    y: Tensor
    classes: tuple[str, ...]
    epoch: int = 0
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


@dataclass(frozen=True)
class Method:
    """Base of all methods: trains on the labelled part alone until a subclass says how to use the pile."""

    summary: ClassVar[str] = ""
    uses_pile: ClassVar[bool] = True
    per_step: ClassVar[bool] = False
    labelled_loss: ClassVar[str | None] = None  # a method that is defined by its loss names it

    def start(self, labelled: Labelled) -> State:
        """Return the state that lives through the run; it is saved and restored with the checkpoint."""
        del labelled
        return {}

    def targets(self, scores: Tensor, labelled: Labelled, state: State) -> Targets:
        """Turn the teacher's logits of the whole pile (m x q, float32) into targets for one epoch."""
        raise TagspreadError(f"{type(self).__name__} does not say how to label the pile; write its targets().")

    def step_targets(self, scores: Tensor, targets: Targets, labelled: Labelled, state: State) -> Targets:
        """Turn fresh teacher logits of one batch, and the epoch's targets of it, into the targets of this step."""
        del scores, labelled, state
        return targets

    def loss(self, logits: Tensor, targets: Targets, loss: EntryLoss) -> Tensor:
        """Return the pile's loss, entry by entry."""
        return loss(logits, targets.labels, targets.weight)


def check_share(option: str, value: float) -> None:
    """Raise unless an option is a share from 0 to 1."""
    if not isinstance(value, Real) or not 0 <= value <= 1:
        raise TagspreadError(f"{option} is {value!r}; give a share from 0 to 1.")
