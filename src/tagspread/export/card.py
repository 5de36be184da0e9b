"""Model card of a run: training data, mAP and other metrics, thresholds, settings and limits.

All metrics come from the run's files or from an evaluation of it. Unknown facts are stated as unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tagspread._version import __version__
from tagspread.aliases import JsonObject
from tagspread.errors import TagspreadError
from tagspread.files import refuse_special, write_text
from tagspread.methods import METHODS
from tagspread.report.sentences import length, percent, setting
from tagspread.report.summary import RunSummary, summarize_run
from tagspread.run.artifact import Artifact
from tagspread.run.folder import RunFolder
from tagspread.run.split import Part
from tagspread.train.finalize import gain_in_words

CARD = "README.md"
TEMPLATE = "card.md.j2"
PARTS = {"test": "test images", "held_out": "labeled images that were held out"}
NO_DECISION: dict[str, object] = {"chosen_on": None, "classes_with_pooled_threshold": [], "classes_never_chosen": []}


class Measured(NamedTuple):
    """Mean average precision (mAP) on labeled images, in 0..1, with its 90 % interval."""

    value: float
    low: float | None
    high: float | None
    images: int
    description: str


def write_card(
    run: Path, artifact: Artifact, settings: JsonObject, evaluation: JsonObject | None, title: str, file: Path
) -> None:
    """Write the model card of a run.

    Args:
        run: its folder.
        artifact: its tags and thresholds.
        settings: training settings, without private paths.
        evaluation: result of :func:`read_evaluation`, if there is an evaluation.
        title: title of the card.
        file: the file to write.
    """
    summary = summarize_run(run) if RunFolder(run).is_run else None
    content = {
        "title": title,
        "facts": artifact.facts,
        "decision": NO_DECISION | artifact.facts.get("decision", {}),
        "fitted_on": artifact.facts["calibration"].get("fitted_on"),
        "size": " x ".join(map(str, artifact.shape[1:])),
        "settings": settings,
        "summary": METHODS[name].summary if (name := settings.get("method")) in METHODS else None,
        "measured": _measured(summary, evaluation),
        "evaluation": evaluation,
        "gain": _gain(summary),
        "warning": None if summary is None else summary.metrics.get("warning"),
        "rows": _rows(artifact, evaluation),
        "version": __version__,
        **_data(summary),
    }
    write_text(file, _render(content), errors="replace")


def read_evaluation(file: str | Path, classes: tuple[str, ...]) -> JsonObject:
    """Read the output of ``tagspread evaluate --json``; it must belong to a run with these classes."""
    refuse_special(Path(file))
    try:
        evaluation = json.loads(Path(file).read_text(encoding="utf-8"))
        names = tuple(row["name"] for row in evaluation["classes"])
        required = ("map", "map_low", "map_high", "images", "decisions", "calibration_error", "absent", "trained_on")
        missing = [name for name in required if name not in evaluation]
    except FileNotFoundError:
        raise TagspreadError(f"there is no file {file}.") from None
    except (OSError, ValueError, KeyError, TypeError):
        names, missing = (), ["classes"]
    if missing:
        raise TagspreadError(
            f"{file} is not an output of 'tagspread evaluate RUN --labels FILE --json' ({missing[0]} is missing); save "
            "that output in a file."
        )
    if names != classes:
        raise TagspreadError(f"{file} is the evaluation of a run with other tags; evaluate this run.")
    return {"thresholds_chosen_on": None} | dict(evaluation)  # missing in files of older versions


def _measured(summary: RunSummary | None, evaluation: JsonObject | None) -> list[Measured]:
    measured = []
    if evaluation is not None and evaluation["map"] is not None:
        interval = (evaluation["map_low"], evaluation["map_high"])
        description = "labeled images, with `tagspread evaluate`"
        measured.append(Measured(evaluation["map"], *interval, evaluation["images"], description))
    for part, description in PARTS.items():
        metrics = None if summary is None else summary.metrics.get(part)
        if metrics and metrics.get("mAP") is not None:
            low, high = metrics.get("interval_90") or (None, None)
            measured.append(Measured(metrics["mAP"], low, high, metrics.get("images", 0), description))
    return measured


def _gain(summary: RunSummary | None) -> str | None:
    """Return a sentence on whether the unlabeled images helped; None if the run did not measure it."""
    if summary is None or not {"difference", "left_out"} & set(summary.metrics.get("gain", {})):
        return None
    sentence = str(gain_in_words(summary.metrics, advise=False))
    return sentence[:1].upper() + sentence[1:]


def _data(summary: RunSummary | None) -> dict[str, object]:
    """Return the size of the training data and the length of the training; None where unknown."""
    if summary is None:
        return {"labeled": None, "unlabeled": None, "learned_from_unlabeled": False, "length": None}
    labeled = None if summary.record is None else len(summary.record.split.rows(Part.LABELED))
    return {
        "labeled": labeled,
        "unlabeled": None if summary.unlabeled is None else summary.unlabeled.size,
        "learned_from_unlabeled": summary.learned_from_unlabeled,
        "length": length(summary) if summary.log else None,
    }


def _rows(artifact: Artifact, evaluation: JsonObject | None) -> list[dict[str, object]]:
    metrics = [{}] * len(artifact.classes) if evaluation is None else evaluation["classes"]
    return [
        {"name": name, "threshold_text": "never" if np.isinf(threshold) else f"{threshold:.4g}", **row}
        for name, threshold, row in zip(artifact.classes, artifact.thresholds.tolist(), metrics, strict=True)
    ]


def plain(text: object) -> str:
    r"""Escape text for Markdown, also within a table.

    >>> print(plain("a|b *c*"))
    a\|b \*c\*
    """
    line = " ".join(str(text).split())
    return "".join("\\" + char if char in r"\`*_[]<>|#&~" else char for char in line)


def _render(content: Mapping[str, object]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # Markdown, where the filter `plain` escapes
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"percent": percent, "plain": plain, "setting": setting}
    return environment.get_template(TEMPLATE).render(content)
