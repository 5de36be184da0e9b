"""The model card of a run: what it was trained on, how good it is, what it must not be trusted with.

Every figure is one that the run, or an evaluation of it, wrote down. What is not known is not guessed but said.
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
from tagspread.files import write_text
from tagspread.methods import METHODS
from tagspread.report.sentences import hundredths, length, setting
from tagspread.report.summary import RunSummary, summarize_run
from tagspread.run.artifact import Artifact
from tagspread.run.folder import RunFolder
from tagspread.run.split import Part
from tagspread.train.gain import gain_in_words

CARD = "README.md"
TEMPLATE = "card.md.j2"
PARTS = {"test": "test images", "held_out": "labeled images that were held out"}
UNTOLD: dict[str, object] = {"chosen_on": None, "classes_with_pooled_threshold": [], "classes_never_chosen": []}


class Measured(NamedTuple):
    """The mean average precision on some images, in 0..1, with the ends of its 90 % interval."""

    value: float
    low: float | None
    high: float | None
    images: int
    words: str


def write_card(
    run: Path, artifact: Artifact, settings: JsonObject, evaluation: JsonObject | None, title: str, file: Path
) -> None:
    """Write the model card of a run.

    Args:
        run: its folder.
        artifact: its tags and thresholds.
        settings: how it was trained, as it may be shown to others.
        evaluation: what :func:`read_evaluation` returned, if there is an evaluation.
        title: what to call it.
        file: where to.
    """
    summary = summarize_run(run) if RunFolder(run).is_run else None
    content = {
        "title": title,
        "facts": artifact.facts,
        "decision": UNTOLD | artifact.facts.get("decision", {}),
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
    """Return what ``tagspread evaluate --json`` printed about a run with these classes."""
    try:
        evaluation = json.loads(Path(file).read_text(encoding="utf-8"))
        names = tuple(one["name"] for one in evaluation["classes"])
        wanted = ("map", "map_low", "map_high", "images", "decisions", "calibration_error", "absent", "trained_on")
        missing = [name for name in wanted if name not in evaluation]
    except FileNotFoundError:
        raise TagspreadError(f"there is no file {file}.") from None
    except (OSError, ValueError, KeyError, TypeError):
        names, missing = (), ["classes"]
    if missing:
        raise TagspreadError(
            f"{file} is not what 'tagspread evaluate RUN --labels FILE --json' prints ({missing[0]} is "
            "missing); write that into a file."
        )
    if names != classes:
        raise TagspreadError(f"{file} is of a run with other tags; evaluate this one.")
    return {"thresholds_chosen_on": None} | dict(evaluation)  # which older versions did not write


def _measured(summary: RunSummary | None, evaluation: JsonObject | None) -> list[Measured]:
    found = []
    if evaluation is not None and evaluation["map"] is not None:
        words = "labeled images, by tagspread evaluate"
        found.append(
            Measured(evaluation["map"], evaluation["map_low"], evaluation["map_high"], evaluation["images"], words)
        )
    for part, words in PARTS.items():
        known = None if summary is None else summary.metrics.get(part)
        if known and known.get("mAP") is not None:
            low, high = known.get("interval_90") or (None, None)
            found.append(Measured(known["mAP"], low, high, known.get("images", 0), words))
    return found


def _gain(summary: RunSummary | None) -> str | None:
    """Return whether the unlabeled images helped, if the run measured that."""
    if summary is None or not {"difference", "left_out"} & set(summary.metrics.get("gain", {})):
        return None
    words = str(gain_in_words(summary.metrics, advise=False))
    return words[:1].upper() + words[1:]


def _data(summary: RunSummary | None) -> dict[str, object]:
    """Return how much was trained on, and how long; None where the run no longer tells."""
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
        {"name": name, "cut": "never" if np.isinf(cut) else f"{cut:.4g}", **known}
        for name, cut, known in zip(artifact.classes, artifact.thresholds.tolist(), metrics, strict=True)
    ]


def plain(text: object) -> str:
    r"""Return a text that Markdown shows as it is, also within a table.

    >>> print(plain("a|b *c*"))
    a\|b \*c\*
    """
    line = " ".join(str(text).split())
    return "".join("\\" + one if one in r"\`*_[]<>|#&~" else one for one in line)


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
    environment.filters |= {"hundredths": hundredths, "plain": plain, "setting": setting}
    return environment.get_template(TEMPLATE).render(content)
