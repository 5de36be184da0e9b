"""``labels.json``: classes, decision thresholds, calibration and preprocessing of a run; loading its network.

A run is only data. It is read as JSON and safetensors, and nothing in it is executed: no pickles, and not the file of a
custom method.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from tagspread._version import __version__
from tagspread.core.calibration import Calibration
from tagspread.errors import Both, TagspreadError
from tagspread.methods import METHODS, get_method
from tagspread.run.folder import CHOSEN, CONFIG, DIGESTED_FILES, MANIFEST, RunFolder
from tagspread.vision.backbones import TagNet, build_network

FORMAT = 2  # raised when an older version could no longer read, or would misread, what is written
FILE = MANIFEST
SMALL = ("config.json", "metrics.json", "log.jsonl")  # files whose digests are checked whenever a run is read
LARGEST = 2**14  # pixels; larger image sizes are damage


@dataclass(frozen=True)
class Artifact:
    """The validated ``labels.json`` of a run.

    Attributes:
        path: the run folder.
        facts: the contents of the file.
        classes: names of the tags.
        thresholds: decision thresholds on the probabilities; inf if a tag is never predicted.
        calibration: calibration of the probabilities.
        shape: shape of the network's input (channels x height x width).
        model: file of the weights.
    """

    path: Path
    facts: dict[str, Any]
    classes: tuple[str, ...]
    thresholds: np.ndarray
    calibration: Calibration
    shape: tuple[int, int, int]
    model: Path


def artifact_facts(
    classes: tuple[str, ...], settings: dict[str, Any], network: TagNet, shape: tuple[int, ...], model: Path
) -> dict[str, Any]:
    """Return the entries of ``labels.json`` about the network; thresholds and calibration are added by the caller."""
    return {
        "format": FORMAT,
        "tagspread": __version__,
        "classes": list(classes),
        "preprocessing": {
            "image_size": shape[-1],
            "shape": list(shape),
            "scale": network.scale.flatten().tolist(),
            "shift": network.shift.flatten().tolist(),
        },
        "backbone": settings["backbone"],
        "head": settings["head"],
        "method": settings["method"],
        "method_options": settings["method_options"],
        "model": model.name,
        "sha256": {model.name: file_digest(model)},
        "classes_sha256": _names_digest(classes),
    }


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _names_digest(names: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()


def write_artifact(run: RunFolder, facts: dict[str, Any]) -> None:
    """Write ``labels.json``, the last file of a run, with the SHA-256 of all others that belong to it."""
    there = [name for name in DIGESTED_FILES if (run.path / name).is_file()]
    told = facts | {"sha256": {name: file_digest(run.path / name) for name in there}}
    run.write_json(FILE, told | {"run": run.read_json(CONFIG).get("id")})


def check_belongs(run: str | PathLike[str], facts: dict[str, Any], name: str) -> None:
    """Raise if a file of a run exists but is not the one that was written together with its ``labels.json``.

    Args:
        run: the run folder.
        facts: the contents of its ``labels.json``.
        name: name of the file; files without a digest in ``labels.json`` are not checked.
    """
    file, stated = Path(run) / name, facts.get("sha256")
    if isinstance(stated, dict) and name in stated and file.is_file() and stated[name] != file_digest(file):
        raise _mixed(file, f"its SHA-256 differs from {FILE}")


def _check_config(path: Path, facts: dict[str, Any]) -> None:
    """Raise if ``config.json`` is of another run. Only its id is compared, because its paths may change."""
    run_id = None
    with suppress(OSError, ValueError, AttributeError):  # missing or damaged: whoever needs the file reports it
        run_id = json.loads((path / CONFIG).read_text(encoding="utf-8")).get("id")
    if None not in (run_id, facts.get("run")) and run_id != facts["run"]:
        raise _mixed(path / CONFIG, f"its id is not the one in {FILE}")


def _mixed(file: Path, why: str) -> TagspreadError:
    return TagspreadError(
        f"{file} is not the file that training wrote ({why}): files of several runs are mixed, or it was changed; "
        "copy the run again."
    )


def read_artifact(run: str | PathLike[str], *, whole: bool = True) -> Artifact:
    """Read and check the ``labels.json`` of a run; the weights are checked when they are loaded.

    Args:
        run: the run folder.
        whole: also raise if its settings, log or metrics are of another run.
    """
    path = Path(run)
    facts = _read(path)
    found = facts.get("format")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise TagspreadError(
            f"{path / FILE} has no format number, so it is not of a finished run of this version; train again."
        )
    _check_format(path, found)
    try:
        classes = tuple(facts["classes"])
        thresholds = np.array([math.inf if value is None else float(value) for value in facts["thresholds"]])
        slope, intercept = (np.array(facts["calibration"][part], dtype=np.float64) for part in ("slope", "intercept"))
        channels, height, width = map(int, facts["preprocessing"]["shape"])
        model = path / Path(str(facts["model"])).name  # the name only, so that no file outside the run is read
        has_names = bool(classes) and all(isinstance(name, str) for name in classes)
        has_numbers = np.isfinite(slope).all() and np.isfinite(intercept).all() and not np.isnan(thresholds).any()
        if not (has_names and has_numbers) or channels != 3 or min(height, width) < 1 or max(height, width) > LARGEST:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise TagspreadError(
            f"{path / FILE} is damaged: a value is missing or of the wrong type; copy the file again."
        ) from None
    for name, values in (("thresholds", thresholds), ("slopes", slope), ("intercepts", intercept)):
        if values.shape != (len(classes),):
            raise TagspreadError(
                f"{path / FILE} has {len(classes)} classes but {len(values)} {name}; the list of classes was changed. "
                "Restore the file."
            )
    if facts.get("classes_sha256", _names_digest(classes)) != _names_digest(classes):
        raise TagspreadError(
            f"the classes in {path / FILE} are not those that training wrote, and the outputs of the network depend on "
            "their order; restore the file, and rename tags in the tables that predict writes."
        )
    if whole:
        _check_config(path, facts)
        for name in SMALL:
            check_belongs(path, facts, name)
    return Artifact(path, facts, classes, thresholds, Calibration(slope, intercept), (channels, height, width), model)


def check_resumable(run: str | Path) -> None:
    """Raise if the run cannot be resumed: it is of another version, or it was being replaced."""
    path = Path(run)
    RunFolder(path).check_resumable()
    try:
        found = json.loads((path / FILE).read_text(encoding="utf-8"))["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # not finished, or damaged: resuming fixes that
    if isinstance(found, int):
        _check_format(path, found)


def _check_format(path: Path, found: int) -> None:
    if found > FORMAT:
        raise TagspreadError(
            f"{path / FILE} has format {found}, tagspread {__version__} reads up to {FORMAT}; install a newer one."
        )
    if found < FORMAT:
        raise TagspreadError(
            f"{path / FILE} has format {found}, of an earlier version; tagspread {__version__} reads {FORMAT}: train "
            "again, or install the version that wrote it."
        )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise TagspreadError(f"there is no folder {path}; give a run folder.")
    try:
        facts = json.loads((path / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _lacks_file(RunFolder(path)) from None
    except (OSError, ValueError) as error:
        raise TagspreadError(f"{path / FILE} cannot be read ({error}); copy it again.") from None
    if not isinstance(facts, dict):
        raise TagspreadError(f"{path / FILE} is damaged: it holds no JSON object; copy it again.")
    return facts


def _lacks_file(run: RunFolder) -> TagspreadError:
    before = run.where_previous
    if not run.is_run:
        return TagspreadError(f"{run.path} has no {FILE}: it is not a run folder.{before}")
    if run.is_half_replaced:
        return TagspreadError(f"{run.path} has no {FILE}: the run was being replaced.{before}")
    if not (run.path / "metrics.json").exists():
        return TagspreadError(f"{run.path} has no {FILE}: training has not finished.{before}")
    return TagspreadError(
        f"{run.path} has no {FILE}, though its training has finished; copy it there, or write it again with @resume."
        f"{before}",
        resume=Both("ts.train(..., resume=True)", f"tagspread train --resume {run.path}"),
    )


def is_whole(run: str | Path) -> bool:
    """Return whether a run has a tagger, and all of its files are those that were written with it."""
    try:
        artifact = read_artifact(run)
        check_weights(artifact)
        for name in DIGESTED_FILES:
            check_belongs(run, artifact.facts, name)
    except TagspreadError:
        return False
    return True


def kept_facts(run: str | Path) -> dict[str, Any] | None:
    """Return the run's ``labels.json`` if it fits the weights: it may hold thresholds that the user chose."""
    try:
        artifact = read_artifact(run, whole=False)
        check_weights(artifact)
    except TagspreadError:
        return None
    return artifact.facts


def load_network(artifact: Artifact, device: torch.device) -> TagNet:
    """Load the run's network with its weights, in evaluation mode."""
    tensors = _tensors(artifact)
    facts = artifact.facts
    try:
        # normalize="none", because scale and shift are loaded with the weights
        network = build_network(
            facts["backbone"], len(artifact.classes), weights="none", head=facts["head"], normalize="none"
        )
        if facts["method"] in METHODS:  # built-in methods only; files are never executed
            network = get_method(facts["method"], **facts["method_options"]).network(network)
    except (KeyError, TypeError):
        raise TagspreadError(
            f"{artifact.path / FILE} is damaged: it does not name the network; copy it again."
        ) from None
    _check_fits(artifact, network, tensors)
    network.load_state_dict(tensors)
    return network.to(device).eval().requires_grad_(False)


def check_weights(artifact: Artifact) -> None:
    """Raise unless the file of the weights exists and is the one that training wrote."""
    model = artifact.model
    if not model.is_file():
        raise TagspreadError(f"{artifact.path} has no {model.name}, the weights that its {FILE} names; copy it there.")
    stated = artifact.facts.get("sha256", {})
    if not isinstance(stated, dict) or stated.get(model.name) != file_digest(model):
        raise TagspreadError(
            f"{model} is not the file that training wrote (its SHA-256 differs from {FILE}); copy it again."
        )


def _tensors(artifact: Artifact) -> dict[str, torch.Tensor]:
    check_weights(artifact)
    try:
        return load_file(artifact.model)
    except (OSError, SafetensorError) as error:
        raise TagspreadError(f"{artifact.model} cannot be read ({error}); copy it again.") from None


def _check_fits(artifact: Artifact, network: TagNet, tensors: dict[str, torch.Tensor]) -> None:
    expected = network.state_dict()
    outputs = [key for key in expected if key in tensors and key.startswith("head.") and key.endswith("bias")]
    for key in outputs:
        if expected[key].shape != tensors[key].shape and expected[key].shape == (len(artifact.classes),):
            raise TagspreadError(
                f"{artifact.path / FILE} has {len(artifact.classes)} classes but the network has {len(tensors[key])} "
                "outputs; the list of classes was changed. Restore the file."
            )
    mismatched = [key for key in {**expected, **tensors} if key not in expected or key not in tensors]
    mismatched += [key for key in expected if key in tensors and expected[key].shape != tensors[key].shape]
    if mismatched:
        raise TagspreadError(
            f"{artifact.model} does not fit the network {artifact.facts['backbone']!r} (such as {mismatched[0]!r}); "
            "restore both files. Networks of a custom method cannot be loaded without its code."
        )


def update_artifact(artifact: Artifact, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replace a run's ``labels.json`` by what ``change`` makes of it.

    Args:
        artifact: the run as it was read; one that was trained again since then is not changed.
        change: takes the facts that are there by now.
    """
    run = RunFolder(artifact.path)
    with run.locked(CHOSEN):
        now = read_artifact(run.path)
        if now.facts.get("sha256") != artifact.facts.get("sha256"):
            raise TagspreadError(f"{run.path} holds another run by now; nothing was changed. Call again.")
        run.write_json(FILE, change(now.facts))
