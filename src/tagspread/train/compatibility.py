"""Check that a checkpoint is compatible with the run that resumes from it: same data, method file and settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tagspread.errors import TagspreadError
from tagspread.train.config import TrainConfig

ONLY_WITH_UNLABELED = (
    "method",
    "method_options",
    "epochs",
    "schedule_epochs",
    "batch",
    "batch_labeled",
    "unlabeled_weight",
    "warm_start_from",
    "teacher_flips",
)  # settings without effect before the unlabeled set is used

MACHINE_SETTINGS = ("score_batch", "graphs")  # settings that change the speed of training, not its result


def check_compatible(
    facts: dict[str, Any],
    fingerprint: str,
    method_file: str,
    config: TrainConfig,
    folder: Path,
    ignoring: tuple[str, ...] = (),
) -> None:
    """Raise unless a checkpoint was saved with the present data and settings.

    Args:
        facts: metadata of the checkpoint.
        fingerprint: digest of the present data.
        method_file: digest of the file of a user-defined method.
        config: the present settings.
        folder: folder of the checkpoint, for error messages.
        ignoring: names of settings that may differ.
    """
    if facts["data"] != fingerprint:
        raise TagspreadError(
            f"the checkpoint in {folder} was saved with other data (images, labels, classes or split differ). Resume "
            "with the data that the run was started with, or start a new run in another folder."
        )
    if "method" not in ignoring and facts.get("method_file", method_file) != method_file:
        raise TagspreadError(
            f"{config.method} was changed after the checkpoint in {folder} was saved, so the run would mix two "
            "versions of the method. Restore the file, or start a new run in another folder."
        )
    then = TrainConfig.from_dict(facts["config"])
    changed = [
        f"{name} ({getattr(then, name)!r} then, {getattr(config, name)!r} now)"
        for name in _different_settings(then, config, ignoring)
    ]
    if changed:
        raise TagspreadError(
            f"the checkpoint in {folder} was saved with other settings: {', '.join(changed)}. "
            "Resume with the same settings, or start a new run in another folder."
        )


def same_before_unlabeled(config: TrainConfig, other: TrainConfig) -> bool:
    """Return whether two runs are the same before the unlabeled set is used, apart from their seeds."""
    return not _different_settings(config, other, (*ONLY_WITH_UNLABELED, "seed"))


def settings_chosen_by_run(config: TrainConfig) -> tuple[str, ...]:
    """Return the names of settings that the run itself chooses; when it is resumed, they come from the checkpoint."""
    return ("method_options", "unlabeled_weight") if config.mode == "head" else ()


def _different_settings(config: TrainConfig, other: TrainConfig, ignoring: tuple[str, ...]) -> list[str]:
    """Return the names of the settings that differ, apart from ignored ones and those of the machine."""
    names = (setting.name for setting in dataclasses.fields(TrainConfig))
    ignored = (*ignoring, *MACHINE_SETTINGS)
    return [name for name in names if name not in ignored and getattr(config, name) != getattr(other, name)]
