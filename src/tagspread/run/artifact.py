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
from tagspread.run import schema
from tagspread.run.folder import CHOSEN, CONFIG, DIGESTED_FILES, MANIFEST, RunFolder
from tagspread.vision.backbones import TagNet, build_network

FORMAT = 2  # format of labels.json; increased with each change that older versions cannot read correctly
FILE = MANIFEST
SMALL_FILES = ("config.json", "metrics.json", "log.jsonl")  # their digests are checked whenever a run is read
CHANNELS = 3  # of every image


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
    """Write ``labels.json``, the last file of a run, with the SHA-256 of the other files of the run."""
    digests = {name: file_digest(run.path / name) for name in DIGESTED_FILES if (run.path / name).is_file()}
    run.write_json(FILE, facts | {"sha256": digests, "run": run.read_json(CONFIG, schema.CONFIG).get("id")})


def check_belongs(run: str | PathLike[str], facts: dict[str, Any], name: str) -> None:
    """Raise if the SHA-256 of a run's file differs from the digest in its ``labels.json``.

    Args:
        run: the run folder.
        facts: the contents of its ``labels.json``.
        name: name of the file; a missing file, or one without a digest in ``labels.json``, is not checked.
    """
    file, digests = Path(run) / name, facts.get("sha256")
    if isinstance(digests, dict) and name in digests and file.is_file() and digests[name] != file_digest(file):
        raise _mixed(file, f"its SHA-256 differs from {FILE}")


def _check_config(path: Path, facts: dict[str, Any]) -> None:
    """Raise if ``config.json`` belongs to another run; only the run ID is compared, because paths may change."""
    run_id = None
    with suppress(OSError, ValueError, AttributeError):  # missing or damaged: reported when the file is read
        run_id = schema.parse_json((path / CONFIG).read_bytes()).get("id")
    if None not in (run_id, facts.get("run")) and run_id != facts["run"]:
        raise _mixed(path / CONFIG, f"its ID is not the one in {FILE}")


def _mixed(file: Path, why: str) -> TagspreadError:
    return TagspreadError(
        f"{file} is not the file that training wrote ({why}): the files of several runs were mixed, or "
        "the file was changed. Copy the run again."
    )


def read_artifact(run: str | PathLike[str], *, whole: bool = True) -> Artifact:
    """Read and check the ``labels.json`` of a run; the weights are checked when they are loaded.

    Args:
        run: the run folder.
        whole: also raise if the settings, log or metrics belong to another run.
    """
    path = Path(run)
    facts = _read(path)
    version = facts.get("format")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise TagspreadError(
            f"{path / FILE} has no format number, so this version of tagspread did not write it; train again."
        )
    _check_format(path, version)
    schema.validate(facts, schema.LABELS, path / FILE)
    classes = tuple(facts["classes"])
    thresholds = np.array([math.inf if value is None else float(value) for value in facts["thresholds"]])
    slope, intercept = (np.array(facts["calibration"][part], dtype=np.float64) for part in ("slope", "intercept"))
    channels, height, width = facts["preprocessing"]["shape"]
    if channels != CHANNELS:
        raise TagspreadError(
            f"{path / FILE} is damaged: preprocessing.shape has {channels} channels, not {CHANNELS}; copy the file "
            "again."
        )
    model = path / Path(facts["model"]).name  # the name only, so that no file outside the run is read
    for name, values in (("thresholds", thresholds), ("slopes", slope), ("intercepts", intercept)):
        if values.shape != (len(classes),):
            raise TagspreadError(
                f"{path / FILE} has {len(classes)} classes but {len(values)} {name}; the list of classes was changed. "
                "Restore the original file."
            )
    if facts.get("classes_sha256", _names_digest(classes)) != _names_digest(classes):
        raise TagspreadError(
            f"the classes in {path / FILE} are not those that training wrote, but the network's outputs depend on "
            "their order. Restore the original file; to rename tags, change the tables that predict writes."
        )
    if whole:
        _check_config(path, facts)
        for name in SMALL_FILES:
            check_belongs(path, facts, name)
    return Artifact(path, facts, classes, thresholds, Calibration(slope, intercept), (channels, height, width), model)


def check_resumable(run: str | Path) -> None:
    """Raise if the run cannot be resumed: another version wrote it, or it was being replaced."""
    path = Path(run)
    RunFolder(path).check_resumable()
    try:
        version = schema.parse_json((path / FILE).read_bytes())["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # not finished, or damaged; resuming writes the file again
    if isinstance(version, int):
        _check_format(path, version)


def _check_format(path: Path, version: int) -> None:
    if version > FORMAT:
        raise TagspreadError(
            f"{path / FILE} has format {version}, but tagspread {__version__} reads formats up to {FORMAT}; install a "
            "newer version."
        )
    if version < FORMAT:
        raise TagspreadError(
            f"{path / FILE} has format {version} of an earlier version, but tagspread {__version__} reads format "
            f"{FORMAT}; train again, or install the version that wrote the file."
        )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise TagspreadError(f"the run folder {path} does not exist; check the path.")
    try:
        return schema.read_object(path / FILE)
    except FileNotFoundError:
        raise _lacks_file(RunFolder(path)) from None


def _lacks_file(run: RunFolder) -> TagspreadError:
    hint = run.where_previous
    if not run.is_run:
        return TagspreadError(f"{run.path} has no {FILE}: it is not a run folder.{hint}")
    if run.is_half_replaced:
        return TagspreadError(f"{run.path} has no {FILE}: the run was being replaced.{hint}")
    if not (run.path / "metrics.json").exists():
        return TagspreadError(f"{run.path} has no {FILE}: training has not finished.{hint}")
    return TagspreadError(
        f"{run.path} has no {FILE}, though its training has finished; copy it there, or write it again with @resume."
        f"{hint}",
        resume=Both("ts.train(..., resume=True)", f"tagspread train --resume {run.path}"),
    )


def is_whole(run: str | Path) -> bool:
    """Return whether a run is finished and all its files are complete and unchanged."""
    try:
        artifact = read_artifact(run)
        check_weights(artifact)
        for name in DIGESTED_FILES:
            check_belongs(run, artifact.facts, name)
    except TagspreadError:
        return False
    return True


def kept_facts(run: str | Path) -> dict[str, Any] | None:
    """Return the run's ``labels.json`` if it matches the weights; its thresholds may be the user's choice."""
    try:
        artifact = read_artifact(run, whole=False)
        check_weights(artifact)
    except TagspreadError:
        return None
    return artifact.facts


def load_network(artifact: Artifact, device: torch.device) -> TagNet:
    """Load the run's network with its weights, in evaluation mode."""
    tensors = _tensors(artifact)
    with suppress(NotImplementedError, RuntimeError), torch.device("meta"):
        # without memory: a file that was changed may name a network of any size
        _check_fits(artifact, _untrained_network(artifact), tensors)
    network = _untrained_network(artifact)
    _check_fits(artifact, network, tensors)
    network.load_state_dict(tensors)
    return network.to(device).eval().requires_grad_(False)


def _untrained_network(artifact: Artifact) -> TagNet:
    """Return the run's network with random weights; only built-in methods change it, as files are never executed."""
    facts = artifact.facts
    try:
        # normalize="none", because scale and shift are loaded with the weights
        network = build_network(
            facts["backbone"], len(artifact.classes), weights="none", head=facts["head"], normalize="none"
        )
        if facts["method"] in METHODS:
            network = get_method(facts["method"], **facts["method_options"]).network(network)
    except TypeError as error:
        raise TagspreadError(
            f"{artifact.path / FILE} is damaged: method_options do not fit {facts['method']} ({error}); copy the file "
            "again."
        ) from None
    return network


def check_weights(artifact: Artifact) -> None:
    """Raise if the weights file is missing or is not the one that training wrote."""
    model = artifact.model
    if not model.is_file():
        raise TagspreadError(f"{artifact.path} has no {model.name}, the weights listed in {FILE}; copy it there.")
    digests = artifact.facts.get("sha256", {})
    if not isinstance(digests, dict) or digests.get(model.name) != file_digest(model):
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
            f"{artifact.model} does not match the network {artifact.facts['backbone']!r}: {mismatched[0]!r} differs or "
            f"is missing. Restore {FILE} and the weights. The network of a custom method cannot be loaded."
        )


def update_artifact(artifact: Artifact, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Rewrite a run's ``labels.json`` with new facts, such as thresholds; raise if the run has been trained again.

    Args:
        artifact: the run as it was read before.
        change: returns the new facts, given those in the file now.
    """
    run = RunFolder(artifact.path)
    with run.locked(CHOSEN):
        current = read_artifact(run.path)
        if current.facts.get("sha256") != artifact.facts.get("sha256"):
            raise TagspreadError(f"{run.path} was trained again meanwhile; nothing was changed. Run the command again.")
        run.write_json(FILE, change(current.facts))
