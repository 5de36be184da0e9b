"""Train a run from start to finish, or resume it: build the experiment, train, and write the run folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from tagspread._version import __version__
from tagspread.aliases import JsonObject
from tagspread.errors import Blank, TagspreadError
from tagspread.linear.rounds import Settings
from tagspread.progress import Watcher
from tagspread.run import schema
from tagspread.run.artifact import is_whole
from tagspread.run.config import DataSource, RunConfig
from tagspread.run.folder import RunFolder
from tagspread.run.split import has_split, write_split
from tagspread.train.config import TrainConfig, has_default_options
from tagspread.train.dataset import Dataset
from tagspread.train.deadline import Deadline
from tagspread.train.distributed import Processes
from tagspread.train.experiment import Experiment
from tagspread.train.feature_cache import runs_beside
from tagspread.train.features import FeatureExtractor, features_in_words, full_state, on_features
from tagspread.train.finalize import LABELED_ONLY, Ending, answer_first, finalize, release_others
from tagspread.train.head import ROUNDS, HeadData, choose_settings, describe, fit_head, train_head
from tagspread.train.interrupts import Interrupted
from tagspread.train.loading import check_same_data, split_of
from tagspread.train.loop import train_loop
from tagspread.train.preflight import SeededBackbone, choose_device, prepare
from tagspread.train.sample_check import sample_in_words
from tagspread.train.training import Training

_NO_RUN = cast("Run", None)  # in place of the run, which the first process shares
ALREADY_FINISHED = "{} is already finished; nothing was changed."


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        path: the run folder.
        metrics: the contents of ``metrics.json``, such as the mAP on the test images.
        log: one entry per epoch.
    """

    path: Path
    metrics: dict[str, Any]
    log: list[dict[str, Any]]

    def __fspath__(self) -> str:
        """Return the path of the run folder, so that ``ts.load(run)`` works."""
        return str(self.path)


def finished_run(path: str | Path) -> Run | None:
    """Return the run in a folder; return None if it is not finished, or if files are missing or damaged."""
    folder = RunFolder(path)
    if not is_whole(path):
        return None
    try:
        metrics = folder.read_json("metrics.json", schema.METRICS)
        return Run(folder.path, metrics, schema.read_log(folder.path / "log.jsonl"))
    except (OSError, TagspreadError):
        return None


@dataclass(frozen=True)
class RunOptions:
    """Options about the run folder and its files.

    Attributes:
        overwrite: replace the run in the folder.
        resume: resume the run in the folder, which must be of the same data and settings.
        keep: ``"better"`` to predict with the labeled-only model if it is better on the held-out or test images, and
            the interval of the difference says so; ``"last"`` never to. None: as recorded in the run to resume, else
            ``"last"``, because comparisons of methods need the method's own model.
        tensorboard: also write the metrics of each epoch for TensorBoard.
        cache: folder for features, if only the head is trained; the run folder if not given.
        after: folder of a finished labeled-only run of the same data and settings, to start from its end in place of a
            warm-up, so that several methods share one warm-up.
        about: where the data came from, recorded in ``config.json``.
        plan: how the settings were chosen for a time budget or a quality, recorded in ``config.json``.
        deadline: when the run must be finished; training ends early to keep to it.
    """

    overwrite: bool = False
    resume: bool = False
    keep: str | None = None
    tensorboard: bool = False
    cache: Path | None = None
    after: Path | None = None
    about: DataSource | None = None
    plan: JsonObject | None = None
    deadline: Deadline = field(default_factory=Deadline)


def run_training(
    dataset: Dataset,
    config: TrainConfig,
    out: str | Path,
    options: RunOptions | None = None,
    *,
    device: torch.device | None = None,
    watcher: Watcher | None = None,
    backbone: SeededBackbone | None = None,
    processes: Processes | None = None,
) -> Run:
    """Train on a dataset with the given settings, and write the run into the folder ``out``.

    Args:
        dataset: the data to train on.
        config: the settings.
        out: the run folder; if it holds another run, ``overwrite`` or ``resume`` is needed.
        options: options about the run folder.
        device: the device to train on; the GPU if there is one.
        watcher: shows the progress.
        backbone: the network without its head, if it was built already (:func:`seeded_backbone`).
        processes: the processes that train together, each with a part of the dataset; a single one if not given.
    """
    processes = processes or Processes()
    device, watcher, folder = device or choose_device(), watcher or Watcher(), RunFolder(out)
    options = options or RunOptions()
    if options.resume:
        folder.check_resumable()
    if processes.share(options.resume and folder.is_run and not folder.checkpoint.exists()):
        options = replace(options, resume=False, overwrite=True)  # stopped before the first checkpoint
    try:
        experiment = prepare(dataset, config, device, backbone=backbone, resume=options.resume, processes=processes)
        if options.tensorboard:
            _tensorboard_class()
        # a folder without a run to resume is refused below; locking it would leave files there
        writes = processes.is_first and (folder.is_run or not options.resume)
        lock = folder.locked() if writes else nullcontext()
        with lock, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            experiment.seed()  # within fork_rng, so that the caller's random state does not change
            return _run(experiment, folder, options, watcher)
    except (torch.OutOfMemoryError, MemoryError):
        raise _out_of_memory(device, config) from None
    except KeyboardInterrupt as stop:
        if isinstance(stop, Interrupted) or not folder.is_run or folder.keeps_old_run:
            raise
        raise Interrupted(str(folder.path)) from None  # interrupted before the first step; the run can be resumed
    finally:
        watcher.close()


def _run(experiment: Experiment, folder: RunFolder, options: RunOptions, watcher: Watcher) -> Run:
    """Start or resume, train, and write the results. Of several processes, the first one writes."""
    config, processes = experiment.config, experiment.processes
    watcher.begin("preparing")
    if processes.size > 1:
        split_of(experiment.dataset)  # the processes compute the digests of the images together
    run_config = None
    if processes.is_first and options.resume:
        check_same_data(folder, experiment.dataset)
    elif processes.is_first:
        run_config = _create(experiment, folder, options, watcher)

    # with a frozen network, the head alone is trained, on features
    others = runs_beside(folder.path)  # features that another run has computed are not computed again
    student_experiment, views = on_features(experiment, options.cache or folder.path, watcher, others)
    watcher.begin("preparing")
    if config.mode == "head" and processes.size > 1:  # all have computed features, the first process fits the head
        student_experiment = replace(student_experiment, processes=Processes())
        if not processes.is_first:
            return processes.share(_NO_RUN)
    training = Training(student_experiment, folder.checkpoint, watcher.stopwatch)
    recorder = RunRecorder(folder, experiment.network, training, options.tensorboard)
    if options.resume:
        training.resume()
        if (finished := _finished(experiment, training, folder)) is not None:
            watcher.note(ALREADY_FINISHED.format(folder.path))
            return processes.share(finished)
    else:
        _first_head(experiment, training, views, recorder, options, watcher)
        if run_config is not None:
            if config.mode == "head":  # it has chosen settings
                replace(run_config, settings=training.experiment.config.to_dict()).write(folder)
            folder.commit_start()
        training.save()

    stopped_early = train_loop(training, watcher, recorder, options.deadline)
    if stopped_early is not None:
        watcher.note(f"note: {stopped_early}; the run ends with the present model")
    if processes.is_first:
        return processes.share(_finish(experiment, training, folder, options, stopped_early, watcher))
    answer_first(training.experiment, training.student.network)
    return processes.share(_NO_RUN)


def _first_head(
    experiment: Experiment,
    training: Training,
    views: Tensor | None,
    recorder: RunRecorder,
    options: RunOptions,
    watcher: Watcher,
) -> None:
    """Set the head that training starts from, or that it consists of in mode ``head``."""
    if views is not None:
        _note_sample(experiment, views, watcher)
        train_head(training, views, watcher, labeled_only=recorder.labeled_only, deadline=options.deadline)
    elif experiment.config.start == "fitted_head":
        _fit_first_head(training, recorder, watcher, options, runs_beside(training.file.parent.parent))
    else:
        _note_sample(experiment, None, watcher)
    if options.after is not None:
        training.start_after(RunFolder(options.after).checkpoint)


def _finish(
    experiment: Experiment,
    training: Training,
    folder: RunFolder,
    options: RunOptions,
    stopped_early: str | None,
    watcher: Watcher,
) -> Run:
    """Write models and metrics, and return the run."""
    keep = options.keep or (RunConfig.read(folder.path).keep if options.resume else "last")
    images = None if options.about is None else options.about.images
    ending = Ending(keep, images, stopped_early)
    metrics = finalize(experiment, training, folder, ending, watcher)
    folder.forget_previous()
    release_others(training.experiment)
    return Run(folder.path, metrics, training.history.log)


def _finished(experiment: Experiment, training: Training, folder: RunFolder) -> Run | None:
    """Return the run to resume if it is finished; write its split if there is none, as of an earlier version."""
    processes = training.experiment.processes
    run = finished_run(folder.path) if processes.is_first else None
    if processes.is_first and not has_split(folder.path):  # the checkpoint was found to be of the same data
        write_split(folder, split_of(experiment.dataset))
    if processes.is_first and run is not None:
        folder.forget_previous()
    return processes.share(run)


def _create(experiment: Experiment, folder: RunFolder, options: RunOptions, watcher: Watcher) -> RunConfig:
    """Create the run folder with settings and split; return the settings."""
    folder.create(options.overwrite, bytes_needed=13 * _size_in_bytes(experiment.network))
    data = options.about or DataSource()
    run_config = RunConfig(__version__, experiment.config.to_dict(), data, options.keep or "last", options.plan)
    run_config.write(folder)
    write_split(folder, split_of(experiment.dataset))
    for note in experiment.notes:
        watcher.note(f"note: {note}")
    return run_config


class RunRecorder:
    """Writes the log and the labeled-only model into the run folder."""

    def __init__(self, folder: RunFolder, network: nn.Module, training: Training, tensorboard: bool) -> None:
        self._folder, self._network, self._training = folder, network, training
        self._tensorboard = tensorboard
        self._writer: Any = None

    def labeled_only(self) -> None:
        """Save the student as the labeled-only model."""
        if not self._training.experiment.processes.is_first:
            return
        self._folder.write_model(LABELED_ONLY, full_state(self._network, self._training.student.network))

    def epoch(self) -> None:
        """Write the log; with TensorBoard, also the metrics of its last entry."""
        if not self._training.experiment.processes.is_first:
            return
        log = self._training.history.log
        self._folder.write_log(log)
        if self._tensorboard:
            self._writer = self._writer or _tensorboard_class()(self._folder.path / "tensorboard")
            for name, value in log[-1].items():
                if isinstance(value, int | float):
                    self._writer.add_scalar(name, value, log[-1]["epoch"])
            self._writer.flush()


def _note_sample(experiment: Experiment, views: Tensor | None, watcher: Watcher) -> None:
    """Say whether the labeled images look like a random sample, for methods that use the unlabeled ones."""
    if (watcher.quiet and experiment.processes.size == 1) or not experiment.method.uses_unlabeled:
        return  # several processes read the images together, and all but one are quiet
    watcher.begin("testing the sample")
    if (words := sample_in_words(experiment.dataset, views)) is not None:
        watcher.note(f"note: {words}")


def _fit_first_head(
    training: Training, recorder: RunRecorder, watcher: Watcher, options: RunOptions, others: Sequence[Path]
) -> None:
    """Fit the head that training starts from.

    Its features are only written to a cache that the user gave: training changes the network, so that this run does not
    need them again.
    """
    began, experiment = time.perf_counter(), training.experiment
    config, dataset, method = experiment.config, experiment.dataset, experiment.method
    settings = Settings(method, unlabeled_weight=1.0 if config.unlabeled_weight is None else config.unlabeled_weight)
    extractor = FeatureExtractor(
        training.student.network, experiment.device, config.score_batch, config.precision, options.cache,
        others, watcher.begin("computing features"),
    )  # fmt: skip
    parts = [dataset.labeled, dataset.unlabeled] if settings.uses_unlabeled else [dataset.labeled]
    rows = np.concatenate(parts)
    views = extractor.train_views(dataset, rows, mirror=config.flip)
    watcher.note(features_in_words(extractor, len(rows), began))
    if experiment.processes.is_first:  # it alone has the features
        _note_sample(experiment, views, watcher)
        _fit_to_features(training, views, settings, recorder, watcher, options)
    experiment.processes.broadcast(list(training.student.network.state_dict().values()))


def _fit_to_features(
    training: Training,
    views: Tensor,
    settings: Settings,
    recorder: RunRecorder,
    watcher: Watcher,
    options: RunOptions,
) -> None:
    """Fit the head to features of the labeled and unlabeled rows."""
    began, experiment = time.perf_counter(), training.experiment
    config, dataset, method = experiment.config, experiment.dataset, experiment.method
    state = {name: value.to(experiment.device) for name, value in method.start(experiment.labeled()).items()}
    data, chosen = HeadData.of(dataset, views), ""
    if has_default_options(config):
        settings, was_compared = choose_settings(training, data, watcher, options.deadline)
        chosen = f"; {describe(settings, was_compared)}"
    progress = watcher.begin("fitting the head")
    fit_head(
        training.student.network, data, settings, labeled_only=recorder.labeled_only, method_state=state,
        watch=lambda number, *_: progress(number, ROUNDS), deadline=options.deadline,
    )  # fmt: skip
    watcher.note(f"head fitted on the frozen network's features in {time.perf_counter() - began:.1f} s{chosen}")


def _out_of_memory(device: torch.device, config: TrainConfig) -> TagspreadError:
    return TagspreadError(
        f"out of memory on {device}. Lower batch (now {config.batch}), score_batch "
        f"({config.score_batch or 'chosen for the device'}) or image_size ({config.image_size}), or keep images on "
        "disk with @cache.",
        cache=Blank("DIR"),
    )


def _tensorboard_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise TagspreadError(
            "TensorBoard is not installed; run pip install 'tagspread[tensorboard]', or omit the option."
        ) from None
    return SummaryWriter


def _size_in_bytes(network: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
