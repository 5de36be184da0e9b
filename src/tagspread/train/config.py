"""Training settings (``TrainConfig``) and the presets ``default`` and ``paper``.

``paper`` follows the CAP paper, and the released code where the paper gives no value. ``default`` is what worked best
in our measurements; comments give the reasons for its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Real
from pathlib import Path
from typing import Any

from torch import Tensor

from tagspread.core.losses import asl_loss, bce_loss
from tagspread.errors import TagspreadError, check_choice, did_you_mean
from tagspread.methods import METHODS, find_method
from tagspread.methods.from_file import absolute_name
from tagspread.vision.augment import OPERATIONS, Views
from tagspread.vision.sizes import LARGEST, SMALLEST, default_image_size

SEEDS = 2**32  # number of seeds that NumPy's legacy generator accepts, which draws the published split
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
    "search": ("full", "short"),
}


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run.

    The presets (``ts.PRESETS``) override some of the defaults shown here.

    Attributes:
        method: name of the method, or ``FILE.py:CLASS`` for a method of your own.
        method_options: options of the method, such as ``{"keep_pos": 0.8}``.
        seed: random seed.
        backbone: name of the network.
        weights: initial weights: ``"pretrained"``, ``"none"`` or a file.
        head: ``"linear"``, or ``"ml_decoder"``, which attends to regions of the image for each class.
        image_size: height and width to which images are resized.
        normalize: normalization of pixels: ``"weights"`` (as the weights were trained), ``"imagenet"``, or ``"none"``
            (pixels in 0..1).
        batch_norm: ``"batch"`` uses and updates batch statistics; ``"frozen"`` keeps the initial statistics.
        mode: ``"full"`` trains the whole network, ``"head"`` a linear head on the frozen network. ``"auto"`` chooses
            ``"head"`` if there is no GPU and the network is pretrained.
        start: ``"warmup"``, or ``"fitted_head"``: a linear head fitted by the method on features of the frozen network.
        warmup_epochs: epochs on the labeled images alone.
        epochs: epochs on labeled and unlabeled images, after the warm-up.
        batch: images per step, labeled and unlabeled together.
        batch_labeled: labeled images among them; None: ``1.25 * labeled share * batch``.
        warmup_batch: images per step of the warm-up; None: ``320 * labeled share``.
        warm_start_from: network that continues after the warm-up: the student (``"raw"``) or its average (``"ema"``).
        loss: ``"asl"`` (asymmetric loss) or ``"bce"`` (binary cross-entropy).
        loss_options: options of the loss, such as ``{"gamma_neg": 4}``.
        reduction: ``"sum"``: one sum over the mixed batch; ``"mean_mean"``: equation 6 of the paper.
        unlabeled_weight: weight of the unlabeled images in the loss; None: 1, or chosen by cross-validation in mode
            ``"head"``.
        search: what cross-validation tries in mode ``"head"``: ``"full"``, or ``"short"``: a quarter of the fits, with
            one reliable interval of CAP.
        lr: peak learning rate (AdamW, one cycle).
        lr_head: the same for the head; None: ``lr``.
        weight_decay: weight decay.
        decay_all: also decay biases and normalization layers.
        schedule_epochs: length of the learning rate cycle; None: ``epochs``.
        ema_decay: decay of the moving average of the weights (the teacher).
        ema_warmup: use a lower decay in the first steps.
        teacher_flips: average the teacher's scores of each image and its mirror image.
        flip: mirror images at random; False where left and right have a meaning, as in digits.
        cutout: side of the square that Cutout covers, as a share of the image's side; 0: no Cutout.
        warmup_cutout: use Cutout in the warm-up, too.
        operations: names of the operations of RandAugment.
        selection: model to keep: ``"last"``, or the best epoch on held-out (``"held_out"``) or test images
            (``"test_best"``).
        evaluate_every: epochs between evaluations; the last epoch of a stage is always evaluated.
        held_out: share of the labeled images to hold out, with selection ``"held_out"``.
        precision: ``"bf16"``, ``"fp32"`` or ``"auto"``: bf16 on GPUs that support it.
        graphs: ``"auto"`` uses CUDA graphs on a GPU, ``"off"`` does not.
        score_batch: images per batch when scoring; None: chosen for the device.
    """

    method: str = "cap"
    method_options: dict[str, Any] = field(default_factory=dict)
    seed: int = 1

    # network
    backbone: str = "resnet50"
    weights: str = "pretrained"
    head: str = "linear"
    image_size: int = 224
    normalize: str = "weights"
    batch_norm: str = "batch"
    mode: str = "full"

    # length and batches
    start: str = "warmup"
    warmup_epochs: int = 12
    epochs: int = 28
    batch: int = 64
    batch_labeled: int | None = None
    warmup_batch: int | None = None
    warm_start_from: str = "raw"

    # loss
    loss: str = "asl"
    loss_options: dict[str, float] = field(default_factory=dict)
    reduction: str = "sum"
    unlabeled_weight: float | None = None

    # cross-validation in mode "head"
    search: str = "full"

    # optimizer
    lr: float = 1e-4
    lr_head: float | None = None
    weight_decay: float = 1e-4
    decay_all: bool = True
    schedule_epochs: int | None = None

    # teacher
    ema_decay: float = 0.9997
    ema_warmup: bool = True
    teacher_flips: bool = False

    # views
    flip: bool = True
    cutout: float = 0.5
    warmup_cutout: bool = False
    operations: tuple[str, ...] = OPERATIONS

    # evaluation and machine
    selection: str = "last"
    evaluate_every: int = 1
    held_out: float = 0.2
    precision: str = "auto"
    graphs: str = "auto"
    score_batch: int | None = None

    def __post_init__(self) -> None:
        for setting in fields(self):
            object.__setattr__(self, setting.name, _typed(setting.name, str(setting.type), getattr(self, setting.name)))
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name in _AT_LEAST_ONE:
            if (value := getattr(self, name)) is not None and value < 1:
                raise TagspreadError(f"{name} is {value}; give a whole number of at least 1.")
        if not SMALLEST <= self.image_size <= LARGEST:
            raise TagspreadError(f"image_size is {self.image_size}; give {SMALLEST} to {LARGEST:,} pixels.")
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
                f"schedule_epochs is {self.schedule_epochs}, less than epochs ({self.epochs}), so the learning rate "
                f"schedule would end before training does. Give at least {self.epochs}, or omit schedule_epochs."
            )
        Views(self.seed, self.flip, self.cutout, self.operations)  # raises if one of them is wrong

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """Return the configuration with these values; raise for an unknown name, suggesting the closest one."""
        cls.check_names(values)
        return cls(**values)

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Raise for a name that is not a setting."""
        settings = [setting.name for setting in fields(cls)]
        for name in names:
            if name not in settings:
                hint = did_you_mean(name, settings) or f" The settings are {', '.join(settings)}."
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
    """Return ``value`` as the plain type of its field; raise if it has another type (the string 'False' is true)."""
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
    expected = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "str": "a string",
        "tuple": "a list",
    }
    raise TagspreadError(f"{name} is {value!r}; give {expected.get(kind, 'a mapping of names to values')}.")


PAPER: dict[str, Any] = {
    # the released code gives images in 0..1 to ImageNet weights
    "normalize": "none",
    # constant decay from the first step; the teacher restarts with the stage that uses the unlabeled set
    "ema_warmup": False,
}

DEFAULT: dict[str, Any] = {
    "mode": "auto",
    # a head fitted on frozen features takes seconds and is better than one after minutes of warm-up; training from a
    # random head would first damage the pretrained network
    "start": "fitted_head",
    "warmup_epochs": 0,
    "epochs": 9,
    # None: chosen for the network, a little more than it was trained with
    "image_size": None,
    # the statistics of strongly augmented batches differ from the pretrained ones: keeping those gains 2.7 mAP on VOC
    "batch_norm": "frozen",
    "loss": "bce",
    "batch_labeled": 8,
    # a low rate, because training starts from a good head
    "lr": 3e-5,
    "lr_head": 1e-4,
    "weight_decay": 1e-2,
    "decay_all": False,
    # pseudo-labels near the threshold are wrong most often: use the surest 60 % of the positives, nearly all negatives
    "method_options": {"keep_pos": 0.6, "keep_neg": 0.98},
    # the teacher follows the student within an epoch
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
    """Return the settings of a preset, overridden by ``settings``.

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
        # the absolute path of a user's own file, so that the run can be resumed from another working directory
        settings["method"] = method if method in METHODS else absolute_name(method)
    if isinstance(file := settings.get("weights"), str) and file not in ("pretrained", "none", ""):
        settings["weights"] = str(Path(file).absolute())  # for the same reason
    if "lr" in settings:
        values.pop("lr_head", None)  # it was chosen for the preset's lr
    if values.get("image_size", 0) is None and "image_size" not in settings:
        values["image_size"] = default_image_size(str(settings.get("backbone", TrainConfig.backbone)))
    if any(name in settings for name in _OF_FULL_TRAINING):
        values["mode"] = "full"  # these settings have an effect in mode "full" only
    return TrainConfig.from_dict(values | settings)


def check_apply_to_mode(settings: Iterable[str], mode: str) -> None:
    """Raise for a setting of full training in mode ``"head"``, where it would have no effect."""
    for name in settings:
        if mode == "head" and name in _OF_FULL_TRAINING:
            raise TagspreadError(
                f"{name} has no effect in mode 'head', which does not train the network; omit it, or use mode 'full'."
            )


_IN_HEAD_MODE = (
    "method", "method_options", "mode", "seed", "backbone", "weights", "image_size", "normalize", "head", "flip",
    "unlabeled_weight", "search", "selection", "held_out", "precision", "score_batch",
)  # fmt: skip


def settings_in_use(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that had an effect in a run, for display: a frozen network has no learning rate."""
    used = {name: value for name, value in settings.items() if name in _IN_HEAD_MODE or settings.get("mode") != "head"}
    if used.get("selection") != "held_out":
        used.pop("held_out", None)
    return used


def has_default_options(config: TrainConfig) -> bool:
    """Return whether the method is CAP and the user gave no options, so that a head on features may choose them.

    Class priors are facts about the data, not options to choose.
    """
    options = {name: value for name, value in config.method_options.items() if name != "priors"}
    return config.method == "cap" and options in ({}, DEFAULT["method_options"])


def chooses_options(config: TrainConfig) -> bool:
    """Return whether the run chooses the method's options: in mode ``"head"``, unless the user gave them."""
    return config.mode == "head" and has_default_options(config)


def with_priors(config: TrainConfig, priors: Mapping[str, float] | None) -> TrainConfig:
    """Return the configuration with class priors for CAP; its other options are kept.

    >>> with_priors(make_config("default"), {"cat": 0.1}).method_options
    {'keep_pos': 0.6, 'keep_neg': 0.98, 'priors': {'cat': 0.1}}
    """
    if priors is None:
        return config
    if config.method != "cap":
        raise TagspreadError(
            f"priors are the class frequencies that CAP labels by, but the method is {config.method!r}; use method "
            "'cap', or omit the priors."
        )
    return replace(config, method_options=config.method_options | {"priors": dict(priors)})
