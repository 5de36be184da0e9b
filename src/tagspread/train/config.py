"""Every setting of a training run, in one place, with two presets.

``paper`` is what the CAP paper states, its gaps filled from the released values. ``default`` is what works best here;
each line that differs says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Any

from torch import Tensor

from tagspread.core.losses import asl_loss, bce_loss
from tagspread.errors import TagspreadError, check_choice, did_you_mean
from tagspread.methods import find_method
from tagspread.methods.from_file import absolute_name
from tagspread.vision.augment import OPERATIONS, Views
from tagspread.vision.sizes import SMALLEST, default_image_size

SEEDS = 2**32  # how many the published split can be drawn with
LOSSES: dict[str, Callable[..., Tensor]] = {"asl": asl_loss, "bce": bce_loss}

_CHOICES = {
    "loss": tuple(LOSSES),
    "reduction": ("sum", "mean_mean"),
    "batch_norm": ("batch", "frozen"),
    "normalize": ("weights", "imagenet", "none"),
    "mode": ("full", "head", "auto"),
    "start": ("warmup", "fitted_head"),
    "warm_start_from": ("raw", "ema"),
    "selection": ("last", "held_out", "test_best"),
    "head": ("linear", "ml_decoder"),
    "precision": ("auto", "bf16", "fp32"),
    "graphs": ("auto", "off"),
}


@dataclass(frozen=True)
class TrainConfig:
    """Settings of one run. Sizes left at None follow from the data."""

    method: str = "cap"
    method_options: dict[str, Any] = field(default_factory=dict)
    seed: int = 1

    # network
    backbone: str = "resnet50"
    weights: str = "pretrained"  # "pretrained", "none" or a file
    head: str = "linear"
    image_size: int = 224
    normalize: str = "weights"  # what the weights were trained with; "none" feeds 0..1
    batch_norm: str = "batch"  # "frozen" keeps the statistics of the start

    mode: str = (
        "full"  # "head" leaves the network as it is; "auto" does that where there is no GPU and a large unlabeled set
    )

    # length and batches
    start: str = "warmup"  # or "fitted_head": a linear head fitted by the method on frozen features
    warmup_epochs: int = 12
    epochs: int = 28
    batch: int = 64
    batch_labeled: int | None = None  # of `batch`; None: 1.25 * labeled share * batch
    warmup_batch: int | None = None  # None: 320 * labeled share
    warm_start_from: str = "raw"

    # loss
    loss: str = "asl"
    loss_options: dict[str, float] = field(default_factory=dict)
    reduction: str = "sum"  # one sum over the mixed batch; "mean_mean" is the paper's eq. 6
    unlabeled_weight: float | None = None  # None: 1; in mode "head" what cross-validation says

    # optimizer: AdamW with one cycle
    lr: float = 1e-4
    lr_head: float | None = None  # None: lr
    weight_decay: float = 1e-4
    decay_all: bool = True  # also biases and norm layers
    schedule_epochs: int | None = None  # length the cycle is made for; None: the epochs that are run

    # teacher
    ema_decay: float = 0.9997
    ema_warmup: bool = True
    teacher_flips: bool = False  # average the scores of the image and its mirror image

    # views
    flip: bool = True
    cutout: float = 0.5
    warmup_cutout: bool = False
    operations: tuple[str, ...] = OPERATIONS

    # evaluation and machine
    selection: str = "last"
    evaluate_every: int = 1  # epochs; the last of a stage is always evaluated
    held_out: float = 0.2  # share of the labeled part, for selection="held_out" only
    precision: str = "auto"
    graphs: str = "auto"
    score_batch: int | None = None  # None: what suits the device

    def __post_init__(self) -> None:
        for setting in fields(self):
            object.__setattr__(self, setting.name, _typed(setting.name, str(setting.type), getattr(self, setting.name)))
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name in _AT_LEAST_ONE:
            if (value := getattr(self, name)) is not None and value < 1:
                raise TagspreadError(f"{name} is {value}; give a whole number of at least 1.")
        if self.image_size < SMALLEST:
            raise TagspreadError(f"image_size is {self.image_size}; give at least {SMALLEST} pixels.")
        for name in ("warmup_epochs", "epochs", "seed", "lr", "lr_head", "weight_decay", "unlabeled_weight"):
            if (value := getattr(self, name)) is not None and not 0 <= value < math.inf:
                raise TagspreadError(f"{name} is {value}; give a number of at least 0.")
        if self.seed >= SEEDS:
            raise TagspreadError(f"seed is {self.seed}; give a whole number below {SEEDS:,}.")
        for name in ("ema_decay", "held_out"):
            if not 0 <= getattr(self, name) < 1:
                raise TagspreadError(f"{name} is {getattr(self, name)}; give a number from 0 up to below 1.")
        if self.schedule_epochs is not None and self.schedule_epochs < self.epochs:
            raise TagspreadError(
                f"schedule_epochs is {self.schedule_epochs} but {self.epochs} epochs are run; the learning rate would "
                "be asked for after its end. Give at least as many, or leave it out."
            )
        Views(self.seed, self.flip, self.cutout, self.operations)  # says what is wrong with them

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """Return the configuration of ``values``; an unknown name is an error that names the closest."""
        cls.check_names(values)
        return cls(**values)

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Raise for a name that is no setting."""
        known = [setting.name for setting in fields(cls)]
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known) or f" There are {', '.join(known)}."
                raise TagspreadError(f"there is no setting {name!r}.{hint}")


_AT_LEAST_ONE = (
    "batch",
    "score_batch",
    "evaluate_every",
    "batch_labeled",
    "warmup_batch",
    "schedule_epochs",
)


def _typed(name: str, annotation: str, value: Any) -> Any:
    """Return ``value`` as the plain type of its field, or raise: 'False' is a text, and true."""
    if value is None and annotation.endswith("| None"):
        return None
    kind = annotation.partition(" ")[0].partition("[")[0]
    number = isinstance(value, Real) and not isinstance(value, bool)
    if kind == "int" and number and math.isfinite(value) and value == int(value):
        return int(value)
    if kind == "float" and number:
        return float(value)
    if kind == "tuple" and isinstance(value, list | tuple):
        return tuple(value)
    if kind in ("bool", "str", "dict") and isinstance(value, {"bool": bool, "str": str, "dict": dict}[kind]):
        return value
    wanted = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "tuple": "a list"}
    raise TagspreadError(f"{name} is {value!r}; give {wanted.get(kind, 'a mapping of names to values')}.")


PAPER: dict[str, Any] = {
    # the released code feeds ImageNet weights with images in 0..1
    "normalize": "none",
    # constant decay from the first step; the teacher is the average of the semi-supervised stage
    "ema_warmup": False,
}

DEFAULT: dict[str, Any] = {
    "mode": "auto",
    # a head fitted on frozen features is better after seconds than a warm-up is after minutes, and a random head
    # would first undo part of the pretrained network
    "start": "fitted_head",
    "warmup_epochs": 0,
    "epochs": 9,
    # the network's own: a little more than it was trained with
    "image_size": None,
    # batches of strong views are not what the pretrained statistics describe: keeping them is worth 2.7 mAP on VOC
    "batch_norm": "frozen",
    "loss": "bce",
    "batch_labeled": 8,
    # a network that begins with a head which works needs little change
    "lr": 3e-5,
    "lr_head": 1e-4,
    "weight_decay": 1e-2,
    "decay_all": False,
    # pseudo-labels near the border are the wrong ones: the surest 60 % of the positives, nearly all negatives
    "method_options": {"keep_pos": 0.6, "keep_neg": 0.98},
    # an average that follows within an epoch, or the teacher is always yesterday's
    "ema_decay": 0.995,
    "teacher_flips": True,
}

PRESETS: dict[str, dict[str, Any]] = {"paper": PAPER, "default": DEFAULT}


_OF_FULL_TRAINING = (
    "start", "epochs", "warmup_epochs", "schedule_epochs", "batch", "batch_labeled", "warmup_batch", "batch_norm",
    "loss", "loss_options", "reduction", "lr", "lr_head", "weight_decay", "decay_all", "ema_decay", "ema_warmup",
    "warm_start_from", "teacher_flips", "cutout", "warmup_cutout", "operations",
)  # fmt: skip


def make_config(preset: str = "default", **settings: Any) -> TrainConfig:
    """Return a preset with your settings on top.

    >>> make_config("paper", epochs=4).ema_warmup
    False
    >>> make_config("default", epoch=4)
    Traceback (most recent call last):
    tagspread.errors.TagspreadError: there is no setting 'epoch'. Did you mean 'epochs'?
    """
    check_choice("preset", preset, PRESETS)
    values = dict(PRESETS[preset])
    method = settings.get("method", "cap")
    if method != "cap" and "method_options" in values:
        del values["method_options"]  # the preset's options are CAP's
    if isinstance(method, str):
        values |= find_method(method).recipe
        settings["method"] = absolute_name(method)  # a run may be resumed from another folder
    if isinstance(file := settings.get("weights"), str) and file not in ("pretrained", "none", ""):
        settings["weights"] = str(Path(file).absolute())  # for the same reason
    if "lr" in settings:
        values.pop("lr_head", None)  # it belongs to the preset's rate
    if values.get("image_size", 0) is None and "image_size" not in settings:
        values["image_size"] = default_image_size(str(settings.get("backbone", TrainConfig.backbone)))
    if any(name in settings for name in _OF_FULL_TRAINING):
        values["mode"] = "full"  # who says how to train the network wants it trained
    return TrainConfig.from_dict(values | settings)


def check_heard(settings: Iterable[str], mode: str) -> None:
    """Raise if somebody says how the network is to be trained where it is not trained."""
    for name in settings:
        if mode == "head" and name in _OF_FULL_TRAINING:
            raise TagspreadError(
                f"{name} says how the network is trained, and in mode 'head' it is not; leave it out, or take mode "
                "'full'."
            )


_IN_HEAD_MODE = (
    "method", "method_options", "mode", "seed", "backbone", "weights", "image_size", "normalize", "head", "flip",
    "unlabeled_weight", "selection", "held_out", "precision", "score_batch",
)  # fmt: skip


def settings_in_use(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that had a part in a run, to show to people: a frozen network has no learning rate."""
    kept = {name: value for name, value in settings.items() if name in _IN_HEAD_MODE or settings.get("mode") != "head"}
    if kept.get("selection") != "held_out":
        kept.pop("held_out", None)
    return kept


def chooses_options(config: TrainConfig) -> bool:
    """Return whether a head finds its method's options itself: CAP's interval, unless it is the user's own."""
    usual = config.method_options in ({}, DEFAULT["method_options"])
    return config.mode == "head" and config.method == "cap" and usual
