"""``ts.train``: from pictures and labels, as you have them, to a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tagspread.data.decode import Broken
from tagspread.data.pile import find_pictures
from tagspread.data.store import Store, TensorStore, open_store
from tagspread.data.table import LabelTable, read_table
from tagspread.errors import TagspreadError
from tagspread.train.config import TrainConfig, make_config
from tagspread.train.console import Watcher
from tagspread.train.problem import Problem
from tagspread.train.session import Run, choose_device, run_training

AnyPath = str | Path


def train(
    images: AnyPath | Sequence[AnyPath] | np.ndarray,
    labels: AnyPath | np.ndarray,
    out: AnyPath,
    *,
    method: str = "cap",
    classes: Sequence[str] | None = None,
    test_labels: AnyPath | np.ndarray | None = None,
    test_images: Sequence[AnyPath] | np.ndarray | None = None,
    preset: str = "default",
    device: str = "auto",
    cache: AnyPath | None = None,
    overwrite: bool = False,
    resume: bool = False,
    quiet: bool = False,
    tensorboard: bool = False,
    **settings: Any,
) -> Run:
    """Train a tagger on a few labelled pictures and many unlabelled ones.

    Args:
        images: a folder of pictures, a list of files, or an array (N x H x W x 3 or N x 3 x H x W, uint8).
        labels: for a folder, a CSV file; else a matrix with one row per picture: 1, 0, -1 unknown. A row of -1 is
            part of the pile; with a folder, every picture that the file does not name is.
        out: folder for the run.
        method: how the pile is used; see ``ts.METHODS``.
        classes: names of the tags, for a matrix.
        test_labels: labels to evaluate on: a CSV file (for a folder) or a matrix.
        test_images: pictures of that matrix.
        preset: ``"default"`` (what works best) or ``"paper"``.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``.
        cache: folder for decoded pictures, for piles larger than memory; a second run decodes nothing.
        overwrite: replace a run that is in ``out``.
        resume: go on with the run in ``out``.
        quiet: print nothing.
        tensorboard: also write TensorBoard files into the run's folder.
        settings: anything of :class:`~tagspread.train.config.TrainConfig`, such as ``epochs=4``.

    Returns:
        The run: ``run.path``, ``run.metrics``, ``run.log``.
    """
    config = make_config(preset, method=method, **settings)
    place, watcher = choose_device(device), Watcher(quiet)
    about: dict[str, Any] = {}
    if isinstance(images, str | Path):
        if isinstance(labels, np.ndarray):
            raise TagspreadError("images is a folder but labels is a matrix; give a CSV file, or a list of pictures.")
        about = {"images": str(images), "labels": str(labels), "test_labels": test_labels and str(test_labels)}
        about |= {"cache": cache and str(cache), "preset": preset}
        paths, y, names, parts = _from_folder(Path(images), labels, test_labels)
        store, broken = open_store(paths, config.image_size, place, cache=_path(cache), progress=watcher.decoding)
        problem = _problem(store, y, names, parts, paths, broken, watcher)
    else:
        problem = _from_arrays(images, labels, test_images, test_labels, classes, config, place, cache, watcher)
    watcher.note(problem.store.describe())
    return run_training(
        problem,
        config,
        out,
        device=place,
        overwrite=overwrite,
        resume=resume,
        about=about,
        watcher=watcher,
        tensorboard=tensorboard,
    )


def _path(value: AnyPath | None) -> Path | None:
    return None if value is None else Path(value)


def _from_folder(
    folder: Path, labels: AnyPath, test_labels: Any
) -> tuple[list[Path], np.ndarray, tuple[str, ...], np.ndarray]:
    """Return paths, matrix, class names and each path's part: 0 training, 1 test."""
    table = read_table(labels, folder)
    tables: list[tuple[LabelTable, np.ndarray]] = [(table, table.y)]
    if test_labels is not None:
        test = read_table(test_labels, folder)
        tables.append((test, test.aligned(table.classes, str(test_labels))))
    paths = [path for one, _ in tables for path in one.paths]
    if both := set(table.paths) & set(paths[len(table.paths) :]):
        raise TagspreadError(
            f"{labels} and {test_labels} both name {min(both)}; a picture that is trained on says nothing about how "
            "good the tagger is. Take it out of one of them."
        )
    named = {path.resolve() for path in paths}
    pile = [path for path in find_pictures(folder) if path.resolve() not in named]
    y = np.concatenate([matrix for _, matrix in tables] + [np.full((len(pile), len(table.classes)), -1, np.int8)])
    part = np.zeros(len(paths) + len(pile), dtype=int)
    part[len(table.paths) : len(paths)] = 1
    return paths + pile, y, table.classes, part


def _from_arrays(
    images: Any, labels: Any, test_images: Any, test_labels: Any, classes: Any, config: TrainConfig, place: Any,
    cache: AnyPath | None, watcher: Watcher,
) -> Problem:  # fmt: skip
    y = np.asarray(labels)
    if y.ndim != 2 or len(y) != len(images):
        raise TagspreadError(f"labels have shape {y.shape} for {len(images)} images; give one row per image.")
    part = np.zeros(len(y), dtype=int)
    if (test_images is None) != (test_labels is None):
        raise TagspreadError("test_images and test_labels belong together; give both or neither.")
    if test_images is not None:
        y = np.concatenate([y, np.asarray(test_labels)])
        part = np.concatenate([part, np.ones(len(test_images), dtype=int)])
    names = tuple(classes) if classes is not None else tuple(f"class {k}" for k in range(y.shape[1]))
    if isinstance(images, np.ndarray) and images.dtype == np.uint8:
        everything = images if test_images is None else np.concatenate([images, test_images])
        return _problem(TensorStore(_channels_first(everything), place), y, names, part, (), [], watcher)
    paths = [Path(path) for path in images] + [Path(path) for path in test_images if test_images is not None]
    store, broken = open_store(paths, config.image_size, place, cache=_path(cache), progress=watcher.decoding)
    return _problem(store, y, names, part, paths, broken, watcher)


def _channels_first(pictures: np.ndarray) -> np.ndarray:
    if pictures.ndim == 3:
        pictures = np.repeat(pictures[:, None], 3, axis=1)
    if pictures.ndim != 4 or 3 not in (pictures.shape[1], pictures.shape[3]):
        raise TagspreadError(f"images have shape {pictures.shape}; give N x H x W x 3, N x 3 x H x W or N x H x W.")
    return pictures if pictures.shape[1] == 3 else np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))


def _problem(
    store: Store, y: np.ndarray, classes: tuple[str, ...], part: np.ndarray, paths: Sequence[Path],
    broken: list[Broken], watcher: Watcher,
) -> Problem:  # fmt: skip
    """Sort rows into parts, broken pictures left out and named."""
    good = np.ones(len(y), dtype=bool)
    good[[b.index for b in broken]] = False
    for b in broken[:10]:
        watcher.note(f"left out: {b.path} ({b.reason})")
    if broken:
        watcher.note(f"{len(broken)} of {len(y)} pictures cannot be read and are left out")
    known = (y >= 0).any(1)
    rows = np.arange(len(y))
    return Problem(
        store,
        y,
        classes,
        labelled=rows[good & known & (part == 0)],
        pile=rows[good & ~known & (part == 0)],
        test=rows[good & known & (part == 1)],
        names=[str(path) for path in paths],
    )
