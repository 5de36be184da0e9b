"""Export a folder to share or upload: ``tagspread export RUN --hub DIR`` writes weights, tags and a model card.

``ts.load(DIR)`` reads it like a run. Paths of the training machine are removed. Other files in the folder, such as
those of a repository, are kept.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tagspread._version import __version__
from tagspread.aliases import JsonObject
from tagspread.errors import TagspreadError
from tagspread.export.card import CARD, read_evaluation, write_card
from tagspread.export.compare import generated
from tagspread.files import (
    LOCK,
    PREVIOUS,
    atomic_file,
    refuse_others,
    remove_stale,
    swap_files,
    temporary_folder,
    write_json,
)
from tagspread.predict.tagger import Tagger, load
from tagspread.run.artifact import FILE, Artifact, file_digest
from tagspread.run.config import RunConfig
from tagspread.run.folder import RunFolder
from tagspread.run.schema import parse_json
from tagspread.train.config import settings_in_use

LIBRARY = "tagspread"
CONFIG, MODEL = "config.json", "model.safetensors"
FILES = (CONFIG, MODEL, CARD, FILE)  # the last is the manifest: until it is there, nothing is read


def export_hub(
    run: str | Path, folder: str | Path, *, metrics: str | Path | None = None, overwrite: bool = False
) -> Path:
    """Export a run as a folder with a model card that others can load.

    Args:
        run: the run's folder.
        folder: the folder to write to; it may hold other files.
        metrics: output of ``tagspread evaluate RUN --labels FILE --json``, for the metrics per tag in the model card.
        overwrite: replace existing files.
    """
    target = Path(folder)
    _check_folder(target, overwrite)
    tagger = load(run, device="cpu")
    evaluation = None if metrics is None else read_evaluation(metrics, tagger.classes)
    settings = _settings(Path(run))
    try:
        target.mkdir(parents=True, exist_ok=True)
        with refuse_others(target / LOCK, target, "is being exported to", "choose another folder"):
            _check_folder(target, overwrite)
            for place in (target, target / PREVIOUS):
                remove_stale(place)
            with temporary_folder(target, "export") as fresh:
                _write(tagger, settings, fresh)
                write_card(Path(run), tagger.artifact, settings, evaluation, target.resolve().name, fresh / CARD)
                _check_same(tagger, fresh)
                swap_files(fresh, target, FILES)
    except OSError as error:
        raise TagspreadError(
            f"{target} cannot be written to ({error.strerror or error}); free disk space there or choose another "
            "folder."
        ) from None
    return target


def _check_folder(target: Path, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise TagspreadError(f"{target} is a file; give a folder.")
    if RunFolder(target).is_run:
        raise TagspreadError(f"{target} is a run folder, which must not be overwritten; choose another folder.")
    there = [name for name in FILES if (target / name).exists()]
    if there and not overwrite and not _is_unfinished(target):
        raise TagspreadError(
            f"{target} already holds {', '.join(there)}; choose another folder, or replace such files with @overwrite.",
            overwrite=True,
        )


def _is_unfinished(target: Path) -> bool:
    """Say whether a folder is what an export left that was killed: our config.json, and no manifest."""
    try:
        found = parse_json((target / CONFIG).read_bytes())
        return found["library_name"] == LIBRARY and not (target / FILE).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _settings(run: Path) -> JsonObject:
    """Return the settings that the run used, without paths of the training machine."""
    config = RunConfig.find(run)
    settings = {} if config is None else settings_in_use(config.settings)
    return settings | {name: Path(str(settings[name])).name for name in ("method", "weights") if name in settings}


def _write(tagger: Tagger, settings: JsonObject, fresh: Path) -> None:
    artifact = tagger.artifact
    with artifact.model.open("rb") as opened, atomic_file(fresh / MODEL) as written:
        shutil.copyfileobj(opened, written)
    write_json(fresh / CONFIG, _config(artifact, settings))
    together = {name: file_digest(fresh / name) for name in (CONFIG, MODEL)}
    told = artifact.facts | {"model": MODEL, "sha256": together}
    write_json(fresh / FILE, told | {"method": Path(str(told.get("method", ""))).name})


def _config(artifact: Artifact, settings: JsonObject) -> JsonObject:
    """Return the facts about a model that programs read before they load it, under the names that timm uses."""
    return {
        "library_name": LIBRARY,
        "library_version": __version__,
        "architecture": artifact.facts["backbone"],
        "head": artifact.facts["head"],
        "num_classes": len(artifact.classes),
        "label_names": list(artifact.classes),
        "input_size": list(artifact.shape),
        "settings": settings,
    }


def _check_same(tagger: Tagger, fresh: Path) -> None:
    """Raise unless the new folder can be loaded and predicts the same as the run."""
    images = generated()
    before, after = (each.predict(images) for each in (tagger, load(fresh, device="cpu")))
    same = np.array_equal(before.probabilities, after.probabilities, equal_nan=True)
    if not (same and (before.chosen == after.chosen).all()):
        raise TagspreadError(
            "the exported folder does not predict the same as the run, so it was not kept; check the disk."
        )
