"""Plan a run for a time budget: measure the rates of this machine briefly, and choose the settings that fit.

The quality names the settings to try first: ``"good"`` those of the preset, ``"best"`` the whole network, also without
a GPU, and ``"fast"`` a head on the frozen network, for a first result. A time budget goes down a ladder of cheaper
settings, and takes the first whose estimate fits. Settings that the user gave are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tagspread.aliases import JsonObject, SettingValues
from tagspread.data.images.decode import available_cores, decode_all
from tagspread.data.images.find import list_folder
from tagspread.data.modality import ImageModality
from tagspread.errors import Blank, TagspreadError, check_choice
from tagspread.linear.heads import DenseRows, Part
from tagspread.linear.logistic import gradient
from tagspread.linear.search import FOLDS, INTERVALS, MOST_ROWS, TRIAL_ROUNDS, SearchSpace
from tagspread.methods import get_method
from tagspread.train.config import TrainConfig, check_apply_to_mode, has_default_options, make_config
from tagspread.train.deadline import Deadline, seconds_of
from tagspread.train.head import ROUNDS
from tagspread.train.preflight import (
    SeededBackbone,
    choose_device,
    is_untrained,
    measured_network,
    resolve_mode,
    seeded_backbone,
)
from tagspread.train.scoring import autocast
from tagspread.vision.augment import Views
from tagspread.vision.backbones import TagNet
from tagspread.vision.sizes import accepts_any_size
from tagspread.wording import counted, duration

QUALITY = ("fast", "good", "best")
FAST_SIZE = 224  # pixels
FAST_UNLABELED = 2000  # images
FEWER_EPOCHS = (6, 3)  # where the network has to be trained
SMALL_SIZE = 160  # pixels: below, tags of small objects are lost
FEWEST_UNLABELED = 100  # a budget that leaves time for fewer unlabeled images is refused
SAFETY = 0.8  # share of the budget that a plan may take by its estimate: machines are not always equally fast
SAMPLE = 16  # images to decode for a measurement
LEAST_SECONDS = 0.4  # of one measurement
STEPS = 22  # computations of loss and gradient of one fit in cross-validation, measured
FINAL_STEPS = 90  # and of one of the final fits
FIXED = 3.0  # seconds for thresholds, intervals and files


class Counts(NamedTuple):
    """Numbers of images and classes."""

    labeled: int
    unlabeled: int
    test: int
    classes: int


@dataclass(frozen=True)
class Rates:
    """Rates of a machine with a network.

    Attributes:
        size: image size that was measured, in pixels.
        decode: images per second that are decoded; infinite for images in memory.
        score: images per second that the network scores.
        train: images per second in training, with augmentation; infinite if not measured.
        fit: numbers (rows x features x classes) per second in a computation of loss and gradient of a linear head.
        width: number of features.
    """

    size: int
    decode: float
    score: float
    train: float
    fit: float
    width: int


@dataclass(frozen=True)
class Plan:
    """Settings of a run, and the estimated time of its steps.

    Attributes:
        config: the settings.
        unlabeled: number of unlabeled images to use.
        counts: the numbers of images that there are.
        seconds: estimated seconds of each step.
        time: the budget in seconds; None without one.
        quality: the quality that was asked for.
        elapsed: seconds of the budget that were over when the plan was made.
    """

    config: TrainConfig
    unlabeled: int
    counts: Counts
    seconds: Mapping[str, float]
    quality: str = "good"
    time: float | None = None
    elapsed: float = 0.0

    @property
    def total(self) -> float:
        """Estimated seconds of the whole run."""
        return self.elapsed + sum(self.seconds.values())

    def in_words(self) -> str:
        """Describe the plan in a sentence."""
        config = self.config
        budget = f"quality {self.quality}" if self.time is None else f"{duration(self.time)}, quality {self.quality}"
        what = (
            f"a head on the frozen network{', short search' if config.search == 'short' else ''}"
            if config.mode == "head"
            else f"the whole network, {counted(config.epochs, 'epoch')}"
        )
        mirror = "" if config.flip else ", without mirror images"
        part = (
            f"all {self.counts.unlabeled:,}" if self.unlabeled == self.counts.unlabeled else f"{self.unlabeled:,} of "
        )
        part += "" if self.unlabeled == self.counts.unlabeled else f"{self.counts.unlabeled:,}"
        steps = ", ".join(f"{name} {duration(value)}" for name, value in self.seconds.items() if value >= 1)
        return (
            f"plan ({budget}): {what}, {config.image_size} pixels{mirror}, {part} unlabeled images; about "
            f"{duration(self.total)} on this machine ({steps})"
        )

    def to_dict(self) -> JsonObject:
        """Return what ``config.json`` records."""
        return {
            "quality": self.quality, "time": self.time, "unlabeled": self.unlabeled,
            "unlabeled_available": self.counts.unlabeled, "estimated_seconds": round(self.total, 1),
            "estimated_steps": {name: round(value, 1) for name, value in self.seconds.items()},
        }  # fmt: skip


@dataclass
class Planner:
    """Makes the plan of a run as soon as its images are listed, before any is decoded.

    Attributes:
        settings: the settings that the user gave, among them the preset and the method.
        time: the budget in seconds, from ``began`` on; None for no budget.
        quality: one of ``QUALITY``; None for no plan without a budget.
        began: start of the run, on the clock of ``time.perf_counter``.
        plan: the plan, once it is made.
    """

    settings: SettingValues
    time: float | None = None
    quality: str | None = None
    began: float = field(default_factory=perf_counter)
    plan: Plan | None = None

    def on(self, network: SeededBackbone | None, device: torch.device) -> PlanFor | None:
        """Return a function that makes the plan for a network and a device; None if nothing is to be planned."""
        if network is None or (self.time is None and self.quality is None):
            return None
        return partial(self._make, network, device)

    def _make(
        self, network: SeededBackbone, device: torch.device, counts: Counts, files: Sequence[Path], size: int | None
    ) -> Plan:
        given, quality = dict(self.settings), self.quality or "good"
        if size is not None:
            given["image_size"] = size
        candidates = list(ladder(given, counts, device, quality)) or [(make_config(**given), counts.unlabeled)]
        trains = any(config.mode == "full" for config, _ in candidates)
        largest = max(config.image_size for config, _ in candidates)
        measured = replace(candidates[0][0], image_size=largest)
        rates = measure(network, measured, device, files, counts.classes, trains=trains)
        elapsed = perf_counter() - self.began
        plans = []
        for config, most in candidates:
            seconds = estimate(config, counts._replace(unlabeled=most), rates)
            plans.append(Plan(config, most, counts, seconds, quality, self.time, elapsed))
        self.plan = plans[0] if self.time is None else _fitting(plans, rates, self.time)
        return self.plan

    @property
    def deadline(self) -> Deadline:
        """The deadline of the run; never without a budget."""
        if self.time is None:
            return Deadline()
        finish = FIXED if self.plan is None else self.plan.seconds["finish"]
        return Deadline(self.began + self.time, reserve=1.5 * finish)


# makes a plan from the numbers of images, the image files (none for images in memory), and the size of images in memory
PlanFor = Callable[[Counts, Sequence[Path], int | None], Plan]


def make_planner(
    settings: SettingValues, time: str | float | None, quality: str | None, *, resume: bool = False
) -> Planner:
    """Return the planner of a run; raise if time or quality are wrong, or would have no effect.

    Args:
        settings: the settings that the user gave, among them the preset and the method.
        time: the budget, such as ``"10m"`` or a number of seconds.
        quality: one of ``QUALITY``.
        resume: whether the run is resumed, with the settings that it has.
    """
    seconds = None if time is None else seconds_of(time)
    if quality is not None:
        check_choice("quality", quality, QUALITY)
        if resume:
            raise TagspreadError("@quality chooses settings, but a resumed run keeps its own; omit it.", quality=...)
    if (seconds is not None or quality is not None) and settings["preset"] != "default":
        raise TagspreadError(
            f"@time and @quality choose the settings, but those of the preset {settings['preset']!r} are fixed; omit "
            "them, or the preset.",
            time=...,
            quality=...,
        )
    return Planner(settings, seconds, quality)


def ladder(
    given: SettingValues, counts: Counts, device: torch.device, quality: str
) -> Iterator[tuple[TrainConfig, int]]:
    """Yield settings from the best to the cheapest, each with the number of unlabeled images to use.

    Args:
        given: the settings that the user gave; they are in all configurations.
        counts: numbers of images.
        device: the device of the run.
        quality: the first rung.
    """
    normal = make_config(**given)
    size = normal.image_size
    sizes = [size, *(side for side in (FAST_SIZE, SMALL_SIZE) if side < size and accepts_any_size(normal.backbone))]
    cheap = {"mode": "head", "search": "short", "flip": False}  # without mirror images: half the features
    short: list[SettingValues] = [{**cheap, "image_size": side} for side in sizes]
    rungs: list[SettingValues] = {
        "best": [{"mode": "full"}, {"mode": "head"}, *short],
        "good": [{}, {"mode": "head"}, *short],
        "fast": [rung for rung in short if rung["image_size"] <= FAST_SIZE] or short,
    }[quality]
    most = min(counts.unlabeled, FAST_UNLABELED) if quality == "fast" else counts.unlabeled
    configs = [_on_rung(rung, given, counts, device) for rung in rungs]
    if not any(config.mode == "head" for config in configs if config is not None):  # the network has to be trained
        small = {"image_size": rungs[0]["image_size"]} if quality == "fast" else {}
        fewer = sorted({min(count, normal.epochs) for count in FEWER_EPOCHS}, reverse=True)
        epochs = fewer[-1:] if quality == "fast" else fewer
        configs += [_on_rung({"mode": "full", "epochs": count, **small}, given, counts, device) for count in epochs]
    seen: list[TrainConfig] = []
    for config in configs:
        if config is not None and config not in seen:
            seen.append(config)
            yield config, most


def _on_rung(rung: SettingValues, given: SettingValues, counts: Counts, device: torch.device) -> TrainConfig | None:
    """Return the settings of a rung with those that the user gave; None if they exclude each other."""
    chosen = {name: value for name, value in rung.items() if name not in given}
    try:
        config = make_config(**{**given, **chosen})
        method = get_method(config.method, **config.method_options)
        config = resolve_mode(config, method, device)
        check_apply_to_mode(given, config.mode)
    except TagspreadError:
        return None
    if chosen.get("mode") == "head" and is_untrained(config):
        return None
    return config if rung.get("mode", config.mode) == config.mode else None


def _fitting(plans: Sequence[Plan], rates: Rates, budget: float) -> Plan:
    """Return the first plan that fits a budget, if need be with fewer unlabeled images."""
    for plan in plans:
        if plan.elapsed + SAFETY**-1 * sum(plan.seconds.values()) <= budget:
            return plan
    cheapest = plans[-1]
    most = cheapest.unlabeled
    while most > FEWEST_UNLABELED:
        most = max(FEWEST_UNLABELED, int(0.8 * most))
        fewer = replace(
            cheapest,
            unlabeled=most,
            seconds=estimate(cheapest.config, cheapest.counts._replace(unlabeled=most), rates),
        )
        if fewer.elapsed + SAFETY**-1 * sum(fewer.seconds.values()) <= budget:
            return fewer
        cheapest = fewer
    needed = cheapest.elapsed + SAFETY**-1 * sum(cheapest.seconds.values())
    raise TagspreadError(
        f"@time is {duration(budget)}, but on this machine even the smallest plan takes about {duration(needed)}: "
        f"{cheapest.config.backbone} on {counted(sum(cheapest.counts[:3]), 'image')}. Give at least "
        f"{duration(needed)}, a smaller @backbone, or fewer labeled and test images.",
        time=...,
        backbone=Blank("NAME"),
    )


def estimate(config: TrainConfig, counts: Counts, rates: Rates) -> dict[str, float]:
    """Estimate the seconds of each step of a run.

    Args:
        config: the settings, with mode ``"auto"`` resolved.
        counts: numbers of images that are used.
        rates: the rates of the machine.
    """
    n, m, t, classes = counts
    smaller = (rates.size / config.image_size) ** 2
    score, train = rates.score * smaller, rates.train * smaller
    views = 2 if config.flip else 1
    per_row = views * rates.width * classes / rates.fit
    final = FINAL_STEPS * per_row * (2 * n + ROUNDS * (n + m))
    seconds = {"decoding": (n + m + t) / rates.decode}
    is_short = config.search == "short"
    space = SearchSpace().short() if is_short else SearchSpace()
    # with and without confidence, then the other intervals and weights; weight 0 needs no fit
    together = 2 + (0 if is_short else len(INTERVALS) - 1) + len(space.unlabeled_weights) - 2
    rows = min(n, MOST_ROWS) + min(m, MOST_ROWS)
    fitted_rows = len(space.ridges) * min(n, MOST_ROWS) + together * TRIAL_ROUNDS * rows
    choosing = FOLDS * STEPS * per_row * fitted_rows
    if config.mode == "head":
        seconds["features"] = (views * (n + m) + t) / score
        seconds["choosing settings"] = choosing
        seconds["fitting"] = final
        seconds["finish"] = FIXED
    else:
        unlabeled = max(1, config.batch - (config.batch_labeled or 1))
        passes = (2 if config.teacher_flips else 1) * m + 2 * t
        trained_on = m * config.batch / unlabeled if m else n
        if config.start == "fitted_head":
            seconds["features"] = views * (n + m) / score
            if has_default_options(config):
                seconds["choosing settings"] = choosing
            seconds["fitting"] = final
        epochs = config.warmup_epochs + config.epochs
        seconds["training"] = epochs * (passes / score + trained_on / train)
        seconds["finish"] = FIXED + (2 * t + m) / score
    return seconds


def estimate_in_words(folder: Path, counts: Counts, backbone: str | None = None, image_size: int | None = None) -> str:
    """Describe how long training takes on this machine, by default and with quality ``"fast"``.

    The network is measured with random weights, so nothing is downloaded.

    Args:
        folder: the folder of images.
        counts: numbers of labeled, unlabeled and test images, and of classes.
        backbone: the network; that of the default settings if not given.
        image_size: the image size; that of the default settings if not given.
    """
    chosen: SettingValues = {"backbone": backbone, "image_size": image_size}
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    device = choose_device()
    network = seeded_backbone(make_config(**given), "none")
    files, plans = list_folder(folder).images, []
    for quality in ("good", "fast"):
        planner = Planner(given | {"preset": "default"}, quality=quality)
        if (plan_for := planner.on(network, device)) is not None:
            plans.append(plan_for(counts, files, None))
    where = "the GPU" if device.type == "cuda" else f"{counted(available_cores(), 'CPU core')}"
    good, fast = plans
    network_name = good.config.backbone
    return (
        f"Training takes about {duration(sum(good.seconds.values()))} on this machine ({where}, {network_name}, "
        f"{good.config.image_size} pixels), and about {duration(sum(fast.seconds.values()))} with --quality fast; "
        "--time 10m keeps to a budget."
    )


def measure(
    backbone: SeededBackbone,
    config: TrainConfig,
    device: torch.device,
    files: Sequence[Path] = (),
    classes: int = 20,
    *,
    trains: bool = True,
) -> Rates:
    """Measure the rates of this machine with a network, in a few seconds; the network does not change.

    Args:
        backbone: the network without its head.
        config: settings with the image size, the batch size and the views.
        device: the device of the run.
        files: image files, some of which are decoded; without any, images in memory are assumed.
        classes: number of classes.
        trains: measure training, too.
    """
    size = config.image_size
    images = np.zeros((SAMPLE, 3, size, size), np.uint8)
    decode = float("inf")
    if files:
        chosen = [files[at] for at in np.linspace(0, len(files) - 1, SAMPLE).astype(int)]
        began = perf_counter()
        decode_all(chosen, size, images)
        decode = SAMPLE / (perf_counter() - began)
    network = measured_network(backbone, classes, config, device)
    batch = ImageModality((3, size, size)).suitable_batch(device)
    pixels = torch.from_numpy(images).to(device)
    items = pixels.repeat(-(-batch // SAMPLE), 1, 1, 1)[:batch]
    with torch.inference_mode():
        width = network.features(items[:1]).shape[-1]
        score = batch / _seconds(lambda: _scored(network, items, config.precision), device)
    train = float("inf")
    if trains:
        count = min(config.batch, batch) if device.type == "cpu" else config.batch
        shown = pixels.repeat(-(-count // SAMPLE), 1, 1, 1)[:count]
        views = Views(config.seed, config.flip, config.cutout, config.operations)
        train = count / _seconds(lambda: _trained(network, shown, views, config), device)
        network.zero_grad(set_to_none=True)
    rows = DenseRows(torch.linspace(-2, 2, 256 * width, device=device).view(256, width))
    labels = torch.zeros(256, classes, dtype=torch.int8, device=device)
    start = torch.zeros(classes, width + 1, device=device)
    fit = 256 * width * classes / _seconds(lambda: gradient([Part(rows, labels)], start, 0.1), device)
    return Rates(size, decode, score, train, fit, width)


def _scored(network: TagNet, items: Tensor, precision: str) -> None:
    with autocast(items.device, precision):
        network(items)


def _trained(network: TagNet, images: Tensor, views: Views, config: TrainConfig) -> None:
    shown = network.show(views, images, np.arange(len(images)), 0, config.cutout > 0)
    with autocast(images.device, config.precision):
        output = network(shown)
    output.float().sum().backward()


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one call, on average over some of them, after a first one that may be slow."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    call()
    wait()
    began, calls = perf_counter(), 0
    while calls == 0 or perf_counter() - began < LEAST_SECONDS:
        call()
        wait()
        calls += 1
    return (perf_counter() - began) / calls
