"""Whether a checkpoint belongs to a run: same data and same settings, or training does not continue from it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tagspread.errors import TagspreadError
from tagspread.methods.from_file import method_file_digest
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
)  # settings that make no difference until the unlabeled set is used


MACHINE_SETTINGS = ("score_batch", "graphs")  # settings that change the speed of training, not its result


def check_compatible(
    facts: dict[str, Any], fingerprint: str, config: TrainConfig, folder: Path, ignoring: tuple[str, ...] = ()
) -> None:
    """Raise unless a checkpoint was made of the data and with the settings that there are now.

    Args:
        facts: what the checkpoint says about itself.
        fingerprint: the digest of the present data.
        config: the present settings.
        folder: the checkpoint's, for messages.
        ignoring: settings that may differ.
    """
    if facts["data"] != fingerprint:
        raise TagspreadError(
            f"the checkpoint in {folder} is of other data (other images, labels, classes or split); "
            "resume with the data it was started on, or start a new run in another folder."
        )
    now = method_file_digest(config.method)
    if "method" not in ignoring and facts.get("method_file", now) != now:
        raise TagspreadError(
            f"{config.method} was changed since the checkpoint in {folder} was made; half of the run would follow one "
            "rule and half another. Put the file back as it was, or start a new run in another folder."
        )
    then = TrainConfig.from_dict(facts["config"])
    changed = [
        f"{name} ({getattr(then, name)!r} then, {getattr(config, name)!r} now)"
        for name in _different_settings(then, config, ignoring)
    ]
    if changed:
        raise TagspreadError(
            f"the checkpoint in {folder} was made with other settings: {', '.join(changed)}. "
            "Resume without changing them, or start a new run in another folder."
        )


def same_before_unlabeled(one: TrainConfig, other: TrainConfig) -> bool:
    """Return whether two runs are the same until the unlabeled set is used, whatever their seeds."""
    return not _different_settings(one, other, (*ONLY_WITH_UNLABELED, "seed"))


def settings_chosen_by_run(config: TrainConfig) -> tuple[str, ...]:
    """Return the settings that a run chooses itself: the checkpoint has them, the caller who resumes it need not."""
    return ("method_options", "unlabeled_weight") if config.mode == "head" else ()


def _different_settings(one: TrainConfig, other: TrainConfig, ignoring: tuple[str, ...]) -> list[str]:
    """Return the names of the settings that make two runs different."""
    names = (setting.name for setting in dataclasses.fields(TrainConfig))
    ignored = (*ignoring, *MACHINE_SETTINGS)
    return [name for name in names if name not in ignored and getattr(one, name) != getattr(other, name)]
