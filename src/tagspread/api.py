"""``ts.train``: from images and labels, as you have them, to a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tagspread.aliases import SettingValues
from tagspread.data.tables.given_options import GivenOptions
from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError
from tagspread.linear.rounds import check_method
from tagspread.methods import get_method
from tagspread.progress import Watcher
from tagspread.run.artifact import check_resumable
from tagspread.run.config import DataSource, RunConfig
from tagspread.run.folder import RunFolder
from tagspread.train.config import TrainConfig, check_heard, make_config
from tagspread.train.loading import dataset_from_arrays, dataset_from_folder, put_aside_for_testing
from tagspread.train.preflight import check_loss, seeded_backbone
from tagspread.train.record import recorded_dataset
from tagspread.train.trainer import Run, RunOptions, choose_device, run_training
from tagspread.vision.backbones import check_network

if TYPE_CHECKING:
    import pandas as pd

AnyPath = str | Path


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
    table_options: GivenOptions | Mapping[str, Any] | None = None,
    preset: str = "default",
    device: str = "auto",
    cache: AnyPath | None = None,
    overwrite: bool = False,
    resume: bool = False,
    quiet: bool = False,
    tensorboard: bool = False,
    keep_better: bool = False,
    **settings: Any,
) -> Run:
    """Train a tagger on a few labeled images and many unlabeled ones.

    Args:
        images: a folder of images, a list of files, or an array (N x H x W x 3 or N x 3 x H x W, uint8).
        labels: for a folder, a table (CSV, TSV, Parquet, or an export of Label Studio); else a matrix with one row per
            image: 1, 0, -1 unknown. A row of -1 is part of the unlabeled set; with a folder, every image that the table
                does
            not name is.
        out: folder for the run.
        method: how the unlabeled set is used; see ``ts.METHODS``.
        classes: names of the tags, for a matrix.
        test_labels: labels to evaluate on: a table (for a folder) or a matrix.
        test_images: images of that matrix.
        test_share: put this share of the labeled images aside to evaluate on, if you have no test set.
        table_options: how to read the tables: options of :func:`tagspread.data.tables.read.read_table`.
        preset: ``"default"`` (what works best) or ``"paper"``.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``.
        cache: folder for decoded images and features, for unlabeled sets larger than memory; a second run decodes
            nothing.
        overwrite: replace a run that is in ``out``.
        resume: resume the run in ``out``. With ``labels=None`` the data are those that its ``split.csv`` records;
            ``images`` is then None or, if it was moved, the folder of images.
        quiet: print nothing.
        tensorboard: also write TensorBoard files into the run's folder.
        keep_better: if the unlabeled images did harm, keep the model that labels alone made.
        settings: anything of :class:`~tagspread.train.config.TrainConfig`, such as ``epochs=4``.

    Returns:
        The run: ``run.path``, ``run.metrics``, ``run.log``.
    """
    _check_misplaced(settings)
    config = make_config(preset, method=method, **settings)
    run_folder = RunFolder(out)
    with (
        run_folder.locked() if run_folder.is_run or not resume else nullcontext()
    ):  # or nobody is to find a folder there
        if resume:  # before images are decoded, which may take long
            check_resumable(out)
        else:
            check_heard(settings, config.mode)
            run_folder.check_free(overwrite)
        _check_settings(config, test_share, resume)
        if labels is None and not resume:
            raise TagspreadError("labels is None; only a run that is resumed (resume=True) knows its labels itself.")
        if isinstance(images, str | Path):
            _check_there(images, labels, test_labels)
        # wrong weights, or a download that fails, show before images are decoded
        backbone = None if resume else seeded_backbone(config)
        place, watcher = choose_device(device), Watcher(quiet)
        kept = None if cache is None else Path(cache)
        size = config.image_size
        about = DataSource(cache=None if kept is None else str(kept.absolute()), test_share=test_share)
        if labels is None:
            if not isinstance(images, str | Path | None) or test_labels is not None or test_share is not None:
                raise TagspreadError("labels is None, so the data are those of the run; give no other data beside it.")
            moved = None if images is None else Path(images).absolute()
            recorded = RunConfig.read(out).data
            dataset = recorded_dataset(Path(out), moved, size=size, device=place, cache=kept, watcher=watcher)
            about = replace(recorded, images=recorded.images if moved is None else str(moved), cache=about.cache)
        elif isinstance(images, str | Path):
            if classes is not None or test_images is not None:
                raise TagspreadError("classes and test_images go with a matrix of labels; a folder's table names them.")
            where = _folder_and_tables(images, labels, test_labels)
            options = GivenOptions.of(table_options).to_dict()
            dataset = dataset_from_folder(
                *where, size=size, device=place, cache=kept, watcher=watcher, table_options=options
            )
            root, table, test_table = (None if path is None else str(path) for path in where)
            about = replace(about, images=root, labels=table, test_labels=test_table, table_options=options)
        else:
            dataset = dataset_from_arrays(
                images,
                labels,
                test_images,
                test_labels,
                classes=classes,
                size=size,
                device=place,
                cache=kept,
                watcher=watcher,
            )
        if test_share is not None:
            dataset = put_aside_for_testing(dataset, test_share, config.seed, watcher)
        watcher.note(dataset.store.describe())
        run_options = RunOptions(
            overwrite=overwrite,
            resume=resume,
            keep_better=keep_better,
            tensorboard=tensorboard,
            cache=kept,
            about=about,
        )
        run = run_training(dataset, config, out, run_options, device=place, watcher=watcher, backbone=backbone)
        if labels is None and images is not None:  # from now on the run knows where its images are
            replace(RunConfig.read(out), data=about).write(run_folder)
        return run


def _check_misplaced(settings: SettingValues) -> None:
    """Raise for what is no setting, but an option of reading tables."""
    if found := sorted(settings.keys() & signature(read_table).parameters.keys()):
        raise TagspreadError(f"{found[0]} says how to read a table; give it as table_options={{{found[0]!r}: ...}}.")


def _check_settings(config: TrainConfig, test_share: float | None, resume: bool) -> None:
    """Raise for what needs no look at the data."""
    if test_share is not None and not 0 < test_share < 1:
        raise TagspreadError(f"@test_share is {test_share}; give a share between 0 and 1.", test_share=...)
    # the checkpoint of a whole network has all of its weights; those it began from may be gone
    check_network(config.backbone, "none" if resume and config.mode == "full" else config.weights)
    method = get_method(config.method, **config.method_options)
    check_loss(method.labeled_loss or config.loss, config.loss_options)
    if config.mode == "head":
        check_method(method)


def _check_there(folder: AnyPath, *tables: object) -> None:
    """Raise for a folder or a table that is not there: a download would take longer to fail."""
    if not Path(folder).is_dir():
        raise TagspreadError(f"there is no folder {folder}.")
    for table in tables:
        if isinstance(table, str | Path) and not Path(table).exists():
            raise TagspreadError(f"there is no file {table}.")


def _folder_and_tables(images: AnyPath, labels: object, test_labels: object) -> tuple[Path, Path, Path | None]:
    """Return absolute paths, so that the run finds its images from wherever it is read."""
    if not isinstance(labels, str | Path) or not isinstance(test_labels, str | Path | None):
        raise TagspreadError("images is a folder but labels are no file; give a table, or a list of images.")
    test = None if test_labels is None else Path(test_labels).absolute()
    return Path(images).absolute(), Path(labels).absolute(), test
