"""``ts.train``: train a tagger on labeled and unlabeled images from Python, or resume a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tagspread._version import __version__
from tagspread.aliases import SettingValues
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.options import GivenOptions
from tagspread.data.tables.read import read_table
from tagspread.errors import Blank, TagspreadError, check_choice
from tagspread.linear.rounds import check_method
from tagspread.methods import get_method
from tagspread.progress import Watcher
from tagspread.review.answers import AnswerStore
from tagspread.review.audit import RunAudit, audit_in_words, audit_run
from tagspread.review.table import add_answers, read_answered
from tagspread.run.artifact import check_resumable, read_artifact
from tagspread.run.checkpoint import job_of_checkpoint
from tagspread.run.config import KEEP, DataSource, RunConfig
from tagspread.run.folder import RunFolder
from tagspread.run.split import has_split, read_split
from tagspread.train.config import TrainConfig, check_apply_to_mode, make_config, with_priors
from tagspread.train.dataset import Dataset
from tagspread.train.distributed import Processes, device_of, join
from tagspread.train.loading import (
    dataset_from_arrays,
    dataset_from_folder,
    recorded_dataset,
    reuse_test,
    split_off_test,
)
from tagspread.train.plan import make_planner
from tagspread.train.preflight import check_loss, choose_device, seeded_backbone
from tagspread.train.trainer import Run, RunOptions, run_training
from tagspread.vision.backbones import check_network
from tagspread.wording import counted

if TYPE_CHECKING:
    import pandas as pd

AnyPath = str | Path
AUDIT = "audit"  # in place of class priors: estimate them from the randomly drawn images that were reviewed


def train(
    images: AnyPath | Iterable[AnyPath] | np.ndarray | None,
    labels: AnyPath | np.ndarray | pd.DataFrame | None,
    out: AnyPath,
    *,
    method: str = "cap",
    classes: Sequence[str] | None = None,
    test_labels: AnyPath | np.ndarray | pd.DataFrame | None = None,
    test_images: Iterable[AnyPath] | np.ndarray | None = None,
    test_share: float | None = None,
    answers: AnyPath | None = None,
    compare: AnyPath | None = None,
    table_options: GivenOptions | Mapping[str, Any] | None = None,
    preset: str = "default",
    device: str = "auto",
    cache: AnyPath | None = None,
    overwrite: bool = False,
    resume: bool = False,
    quiet: bool = False,
    tensorboard: bool = False,
    keep: str | None = None,
    priors: Mapping[str, float] | str | None = None,
    time: str | float | None = None,
    quality: str | None = None,
    **settings: Any,
) -> Run:
    """Train a tagger on a few labeled images and many unlabeled ones.

    Args:
        images: a folder of images, a list of files, or an array (N x H x W x 3 or N x 3 x H x W, uint8).
        labels: for a folder, a label table (CSV, TSV, Parquet, or an export of Label Studio); otherwise a matrix with
            one row per image: 1, 0, -1 unknown. Images that the table does not name, and rows of the matrix that are
            all -1, are the unlabeled set.
        out: folder for the run.
        method: name of the method that uses the unlabeled set; see ``ts.METHODS``.
        classes: names of the tags, for a label matrix.
        test_labels: labels of the test set: a label table (for a folder) or a matrix.
        test_images: images of the test set, for a matrix.
        test_share: share of the labeled images to use as the test set, if you have none.
        answers: a reviewed run, whose answers (``tagspread review``) are added to ``labels``, for a folder of images.
        compare: an earlier run to compare with: its test images, as far as they are labeled, are the test images again,
            recognized by content. ``test_share`` is used only if there is none.
        table_options: options for reading the label tables, see :func:`tagspread.data.tables.read.read_table`.
        preset: ``"default"`` (what works best) or ``"paper"``.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        cache: folder for decoded images and features, for unlabeled sets larger than memory; later runs reuse them.
        overwrite: replace the run in ``out``, if there is one.
        resume: resume the run in ``out``. With ``labels=None`` it uses the images and labels recorded in its
            ``split.csv``; ``images`` is then None, or the new folder of images if it was moved.
        quiet: print nothing.
        tensorboard: also write TensorBoard files into the run folder.
        keep: ``"better"`` (the default of a new run): predict with the labeled-only model if its mAP is higher and the
            90 % interval of the difference excludes 0. ``"last"``: always predict with the model trained with the
            unlabeled images.
        priors: frequency of each tag in the unlabeled images (0 to 1), if you know it more precisely than the labels
            tell; CAP uses the labeled frequency of all other tags. ``"audit"`` estimates the frequencies from the
            randomly drawn images that were reviewed, see ``answers``.
        time: time budget, such as ``"10m"``, or a number of seconds. The settings that fit are chosen by measuring this
            machine for a few seconds, and training ends early if it takes longer than expected. Settings that you give
            are not changed.
        quality: ``"fast"`` for a first result, ``"good"`` (the preset), or ``"best"``, which trains the whole network
            even without a GPU; with ``time``, the settings to try first.
        settings: settings of :class:`~tagspread.train.config.TrainConfig`, such as ``epochs=4``.

    Returns:
        The run: ``run.path``, ``run.metrics``, ``run.log``.
    """
    _check_misplaced(settings)
    _check_runs_choices(keep, None if resume else compare)
    planner = make_planner(settings | {"preset": preset, "method": method}, time, quality, resume=resume)
    priors, audit = _resolve_priors(priors, answers)
    config = with_priors(make_config(preset, method=method, **settings), priors)
    processes, run_folder = _join(config, is_planned=not (time is None and quality is None)), RunFolder(out)
    resume, overwrite = _after_restart(processes, run_folder, resume, overwrite)
    with _locked(processes, run_folder, resume):
        if resume:  # checked before images are decoded, which may take long
            check_resumable(out)
        else:
            check_apply_to_mode(settings, config.mode)
            _check_free(processes, run_folder, overwrite)
        _check_settings(config, test_share, resume)
        _check_sources(images, labels, test_labels, test_share, resume)
        _check_answers(answers, images, labels)
        # built before images are decoded, so that wrong weights or a failed download are found early
        backbone = None if resume else seeded_backbone(config)
        torch_device, watcher = device_of(processes, choose_device(device)), processes.watcher(quiet)
        cache_folder = None if cache is None else Path(cache)
        size, plan_for = config.image_size, planner.on(backbone, torch_device)
        source = DataSource(
            cache=None if cache_folder is None else str(cache_folder.absolute()),
            test_share=test_share,
            compare=None if compare is None else str(Path(compare).absolute()),
        )
        if labels is None:
            moved = Path(images).absolute() if isinstance(images, str | Path) else None
            recorded = RunConfig.read(out).data
            dataset = recorded_dataset(
                Path(out),
                moved,
                size=size,
                device=torch_device,
                cache=cache_folder,
                watcher=watcher,
                processes=processes,
            )
            source = replace(recorded, images=recorded.images if moved is None else str(moved), cache=source.cache)
        elif isinstance(images, str | Path):
            paths = _folder_and_tables(images, labels, test_labels, classes, test_images)
            options = GivenOptions.of(table_options).to_dict()
            dataset, options = dataset_from_folder(
                *paths,
                size=size,
                device=torch_device,
                cache=cache_folder,
                watcher=watcher,
                processes=processes,
                table_options=options,
                amend=None if answers is None else _adding(answers, paths[0], watcher),
                planner=plan_for,
            )
            root, table, test_table = (None if path is None else str(path) for path in paths)
            reviewed = None if answers is None else str(Path(answers).absolute())
            source = replace(
                source, images=root, labels=table, test_labels=test_table, table_options=options, answers=reviewed
            )
        else:
            dataset = dataset_from_arrays(
                images,
                labels,
                test_images,
                test_labels,
                classes=classes,
                size=size,
                device=torch_device,
                cache=cache_folder,
                watcher=watcher,
                planner=plan_for,
                processes=processes,
            )
        if planner.plan is not None:
            config = with_priors(planner.plan.config, priors)
        if labels is not None:  # a resumed run has its test images in split.csv
            dataset = _set_test_aside(dataset, config, test_share, compare, out, resume, watcher)
        config = _with_audit(config, audit, dataset.classes, watcher)
        watcher.note(dataset.store.describe())
        run_options = RunOptions(
            overwrite=overwrite,
            resume=resume,
            keep=keep if keep is not None or resume else "better",
            tensorboard=tensorboard,
            cache=cache_folder,
            about=source,
            plan=None if planner.plan is None else planner.plan.to_dict(),
            deadline=planner.deadline,
        )
        run = run_training(
            dataset,
            config,
            out,
            run_options,
            device=torch_device,
            watcher=watcher,
            backbone=backbone,
            processes=processes,
        )
        if labels is None and images is not None and processes.is_first:  # record the new folder of images
            replace(RunConfig.read(out), data=source).write(run_folder)
        return run


def _join(config: TrainConfig, *, is_planned: bool) -> Processes:
    """Join the other processes, if torchrun has started several; raise if they differ in versions or settings."""
    processes = join()
    if processes.size > 1 and is_planned:
        raise TagspreadError(
            f"@time and @quality choose settings by measuring one process, but there are {processes.size}; omit them.",
            time=...,
            quality=...,
        )
    processes.check_same("versions", f"tagspread {__version__} with PyTorch {torch.__version__}")
    processes.check_same("settings", str(config.to_dict()))
    return processes


def _after_restart(processes: Processes, folder: RunFolder, resume: bool, overwrite: bool) -> tuple[bool, bool]:
    """Return whether to resume and to overwrite: a job that torchrun has restarted resumes its own run."""
    is_own = processes.job != "" and job_of_checkpoint(folder.checkpoint) == processes.job
    return (True, False) if processes.share(is_own) else (resume, overwrite)


def _locked(processes: Processes, folder: RunFolder, resume: bool) -> AbstractContextManager[None]:
    """Return the lock of the run; a folder without a run to resume is refused later, and locked it would be changed."""
    writes = processes.is_first and (folder.is_run or not resume)
    return folder.locked() if writes else nullcontext()


def _check_free(processes: Processes, folder: RunFolder, overwrite: bool) -> None:
    if processes.is_first:
        folder.check_free(overwrite)


def _adding(run: AnyPath, folder: Path, watcher: Watcher) -> Callable[[LabelTable, Sequence[Path]], LabelTable]:
    """Return a function that adds the answers of a reviewed run to a label table, and prints what it decided."""
    answered = read_answered(run, folder)

    def add(table: LabelTable, test: Sequence[Path]) -> LabelTable:
        amended, notes = add_answers(table, answered, test)
        labels = counted(int((answered.table.y >= 0).sum()), "answer")
        watcher.note(f"{labels} about {counted(len(answered.table), 'image')} are added from the review of {run}")
        for note in notes:
            watcher.note(f"note: {note}")
        return amended

    return add


def _resolve_priors(
    priors: Mapping[str, float] | str | None, answers: AnyPath | None
) -> tuple[Mapping[str, float] | None, RunAudit | None]:
    """Return the class priors, and the audit of the reviewed run if they are taken from there."""
    if not isinstance(priors, str):
        return priors, None
    if priors != AUDIT:
        message = f"@priors is {priors!r}; give {AUDIT!r}, or from Python a dict of frequencies by tag."
        raise TagspreadError(message, priors=...)
    if answers is None:
        raise TagspreadError(
            f"@priors is {AUDIT!r}, which estimates class frequencies from a reviewed run; give that run with "
            "@answers.",
            priors=...,
            answers=Blank("RUN"),
        )
    audit = audit_run(answers)
    return audit.priors, audit


def _with_audit(config: TrainConfig, audit: RunAudit | None, classes: Sequence[str], watcher: Watcher) -> TrainConfig:
    """Print what the audit says; return the configuration with the frequencies of the classes that there are."""
    if audit is None:
        return config
    for words in audit_in_words(audit):
        watcher.note(words)
    return with_priors(config, {tag: value for tag, value in audit.priors.items() if tag in classes})


def _check_runs_choices(keep: str | None, compare: AnyPath | None) -> None:
    """Raise for a wrong ``keep``, or if the run to compare with is none, before images are decoded."""
    if keep is not None:
        check_choice("keep", keep, KEEP)
    if compare is not None:
        read_artifact(compare)
        read_split(compare)


def _set_test_aside(
    dataset: Dataset,
    config: TrainConfig,
    test_share: float | None,
    compare: AnyPath | None,
    out: AnyPath,
    resume: bool,
    watcher: Watcher,
) -> Dataset:
    """Set labeled images aside for testing: those of an earlier run, or else a new random share."""
    if test_share is None and (compare is None or len(dataset.test)):
        return dataset
    if resume and has_split(out):
        earlier: Path | None = Path(out)  # its own
    else:
        earlier = Path(compare) if compare is not None else _replaced_run(out, test_share, config.seed)
    if earlier is not None and not len(dataset.test):
        again = reuse_test(dataset, earlier, watcher)
        if again is not None:
            return again
    if test_share is None:
        raise TagspreadError(
            f"no labeled image is a test image of {compare}, so the runs could not be compared; give @test_labels, or "
            "set images aside with @test_share.",
            test_labels=Blank("FILE"),
            test_share=0.2,
        )
    if compare is not None:
        watcher.note(f"note: no labeled image is a test image of {compare}; new test images are drawn")
    return split_off_test(dataset, test_share, config.seed, watcher)


def _replaced_run(out: AnyPath, test_share: float | None, seed: int) -> Path | None:
    """Return the run in ``out`` that is about to be replaced, if its test images were drawn in the same way."""
    folder = RunFolder(out)
    if not folder.is_finished or not has_split(out):
        return None
    config = RunConfig.read(out)
    is_same = (config.data.test_share, config.settings.get("seed")) == (test_share, seed)
    return folder.path if is_same else None


def _check_misplaced(settings: SettingValues) -> None:
    """Raise for an option for reading tables that was given as a setting."""
    if misplaced := sorted(settings.keys() & signature(read_table).parameters.keys()):
        name = misplaced[0]
        raise TagspreadError(f"{name} is an option for reading tables; give it as table_options={{{name!r}: ...}}.")


def _check_settings(config: TrainConfig, test_share: float | None, resume: bool) -> None:
    """Raise for wrong settings, as far as they can be checked without the data."""
    if test_share is not None and not 0 < test_share < 1:
        raise TagspreadError(f"@test_share is {test_share}; give a share between 0 and 1.", test_share=...)
    # a run that trains the whole network resumes from the weights in its checkpoint; the initial ones are not needed
    check_network(config.backbone, "none" if resume and config.mode == "full" else config.weights)
    method = get_method(config.method, **config.method_options)
    check_loss(method.labeled_loss or config.loss, config.loss_options)
    if config.mode == "head":
        check_method(method)


def _check_sources(images: object, labels: object, test_labels: object, test_share: float | None, resume: bool) -> None:
    """Raise for missing labels, or a folder or a table that does not exist, before any download starts."""
    if labels is None and not resume:
        raise TagspreadError(
            "labels is None; give labels, or resume=True to resume a run with the labels that it recorded."
        )
    is_recorded = isinstance(images, str | Path | None) and test_labels is None and test_share is None
    if labels is None and not is_recorded:
        raise TagspreadError(
            "labels is None, so the run resumes on the data that it recorded; omit test_labels and test_share, "
            "and give images as None or as the folder of images."
        )
    if isinstance(images, str | Path):
        _check_exist(images, labels, test_labels)


def _check_exist(folder: AnyPath, *tables: object) -> None:
    """Raise for a folder or a table that does not exist."""
    if not Path(folder).is_dir():
        raise TagspreadError(f"there is no folder {folder}.")
    for table in tables:
        if isinstance(table, str | Path) and not Path(table).exists():
            raise TagspreadError(f"there is no file {table}.")


def _check_answers(answers: AnyPath | None, images: object, labels: object) -> None:
    """Raise for a run without answers, before images are decoded."""
    if answers is None:
        return
    if not isinstance(images, str | Path) or not isinstance(labels, str | Path):
        raise TagspreadError("@answers is used with a folder of images and a label table only.", answers=...)
    AnswerStore.open(answers).close()


def _folder_and_tables(
    images: AnyPath, labels: object, test_labels: object, classes: object, test_images: object
) -> tuple[Path, Path, Path | None]:
    """Return absolute paths, so that the run finds its images from wherever it is read."""
    if classes is not None or test_images is not None:
        raise TagspreadError(
            "classes and test_images are for a label matrix; with a folder of images, omit them: the label "
            "tables name the classes and the test images."
        )
    if not isinstance(labels, str | Path) or not isinstance(test_labels, str | Path | None):
        raise TagspreadError(
            "images is a folder, so labels and test_labels must be files; give label tables, or a list of images."
        )
    test = None if test_labels is None else Path(test_labels).absolute()
    return Path(images).absolute(), Path(labels).absolute(), test
