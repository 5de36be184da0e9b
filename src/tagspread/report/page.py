"""Write the HTML report of a run: one self-contained file that works offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from tagspread._version import __version__
from tagspread.core.bootstrap import MIN_POSITIVES
from tagspread.data.tables.options import GivenOptions
from tagspread.errors import Both, TagspreadError
from tagspread.files import write_text
from tagspread.predict.tables import check_output, reserve_output
from tagspread.predict.tagger import load
from tagspread.progress import Watcher
from tagspread.report.charts import (
    class_histogram,
    learning_charts,
    precision_strips,
    reliability_charts,
    share_strips,
    unlabeled_charts,
)
from tagspread.report.class_rows import ClassRow, class_rows
from tagspread.report.doubtful import DoubtfulImage, doubtful_images
from tagspread.report.labeled import METRICS_AND_EXAMPLES, find_labeled
from tagspread.report.next_steps import next_steps
from tagspread.report.scored import GROUPS, HIGHEST, Example, ScoredPart, examples, score_part
from tagspread.report.sentences import length, notes, percent, sentences, setting, tiles, times
from tagspread.report.summary import Missing, RunSummary, summarize_run
from tagspread.run.artifact import check_weights
from tagspread.run.split import FILE as SPLIT
from tagspread.train.config import settings_in_use
from tagspread.wording import counted

NAME = "report.html"
MAX_CLASSES = 100  # with examples, so that the page can be sent by mail


class WrittenReport(NamedTuple):
    """Path of a report, and what it cannot show."""

    path: Path
    missing: list[Missing]


class Panel(NamedTuple):
    """Details of one tag: metrics, histogram and examples.

    Attributes:
        row: the metrics of the tag.
        histogram: histogram of its probabilities.
        groups: title, description and examples of each group.
        unlabeled: whether the histogram includes the unlabeled set.
    """

    row: ClassRow
    histogram: Markup | None
    groups: list[tuple[str, str, list[Example]]]
    unlabeled: bool


def write_report(
    run: str | Path,
    out: str | Path | None = None,
    *,
    labels: str | Path | None = None,
    images: str | Path | None = None,
    table_options: GivenOptions | Mapping[str, Any] | None = None,
    show_images: bool = True,
    device: str = "auto",
    overwrite: bool = False,
    watcher: Watcher | None = None,
) -> WrittenReport:
    """Write the HTML report of a run; nothing is trained.

    Args:
        run: the run folder.
        out: the file to write, ending in ``.html``; by default ``report.html`` in the run folder, which is replaced if
            it exists.
        labels: label table of the images to evaluate, instead of the run's own test images.
        images: folder that the paths in ``labels`` are relative to, or the run's folder of images, if it was moved.
        table_options: options for reading ``labels``, see :func:`~tagspread.data.tables.read.read_table`; by default
            those of the run.
        show_images: run the tagger on images and show examples; if False, only the run folder is read.
        device: device to run the tagger on.
        overwrite: replace an existing file ``out``.
        watcher: shows the progress of each step.
    """
    summary = summarize_run(run)
    if summary.artifact is not None:
        check_weights(summary.artifact)  # the report must describe the run's present weights
    file = summary.path / NAME if out is None else Path(out)
    if out is not None:
        check_output(file, overwrite, (".html",))
    if labels is not None and not (show_images and summary.artifact):
        raise TagspreadError(
            "@labels requires a finished run, and cannot be combined with @show_images.",
            labels=...,
            show_images=Both("show_images=False", "--no-images"),
        )
    labeled = find_labeled(summary, labels, images, show_images=show_images, table_options=table_options)
    scored = None
    if not show_images:
        summary.missing.append(Missing(METRICS_AND_EXAMPLES, "--no-images was given"))
    elif labeled.part is not None:
        tagger = load(summary.path, device)
        try:
            scored = score_part(tagger, labeled.part, watcher)
        except TagspreadError as error:
            if labels is not None:
                raise
            summary.missing.append(Missing(METRICS_AND_EXAMPLES, error.on_command_line.rstrip(".")))
    if scored is not None and (changed := int((~scored.may_be_shown).sum())):
        what = f"Examples from {counted(changed, 'image')}"
        summary.missing.append(Missing(what, f"the content differs from the digest that the run recorded in {SPLIT}"))
    doubtful = doubtful_images(summary, images if labels is None else None) if show_images else []
    text = _render(_content(summary, scored, labeled.trained_y, doubtful))
    if out is None:
        write_text(file, text, errors="replace")
    else:
        with reserve_output(file, overwrite, (".html",)):
            write_text(file, text, errors="replace")
    return WrittenReport(file, summary.missing)


def _content(
    summary: RunSummary,
    scored: ScoredPart | None,
    trained_y: np.ndarray | None,
    doubtful: Sequence[DoubtfulImage],
) -> dict[str, object]:
    """Return the variables of the page template."""
    rows = class_rows(summary, trained_y, scored)
    return {
        "title": summary.path.resolve().name,
        "byline": _byline(summary),
        "tiles": tiles(summary, scored, None if trained_y is None else len(trained_y)),
        "sentences": sentences(summary, scored, rows),
        "notes": notes(summary, scored, rows),
        "missing": summary.missing,
        "next_steps": next_steps(summary, rows),
        "doubtful": doubtful,
        "times": times(summary),
        "learning": learning_charts(summary),
        "unlabeled": unlabeled_charts(summary),
        "shares": share_strips(rows),
        "precision": precision_strips(rows),
        "min_positives": MIN_POSITIVES,
        "used_unlabeled": summary.unlabeled is not None,
        "evaluated_on": None if scored is None else f"{scored.evaluation.images:,} {scored.part.description}",
        "reliability": reliability_charts(summary, scored),
        "is_calibrated": summary.artifact is not None and bool(summary.artifact.facts["calibration"].get("fitted_on")),
        "rows": rows,
        "panels": (panels := _panels(summary, scored, rows)),
        "linked": {panel.row.index for panel in panels},
        "decision": {} if summary.artifact is None else summary.artifact.facts.get("decision", {}),
        "settings": [(name, setting(value)) for name, value in settings_in_use(summary.settings).items()],
        "data": [(name, setting(value)) for name, value in summary.data.to_dict().items()],
        "version": __version__,
        "trained_with": summary.version,
    }


def _byline(summary: RunSummary) -> str:
    parts = [f"Method {summary.settings.get('method')}", f"network {summary.settings.get('backbone')}"]
    if summary.classes:
        parts.append(counted(len(summary.classes), "tag"))
    if summary.log:
        parts.append(length(summary))
    return ", ".join(parts)


def _panels(summary: RunSummary, scored: ScoredPart | None, rows: Sequence[ClassRow]) -> list[Panel]:
    if summary.artifact is None or (scored is None and summary.unlabeled is None):
        return []
    ranked = rows if scored is None else sorted(rows, key=lambda row: -scored.evaluation.classes[row.index].positives)
    shown = sorted(ranked[:MAX_CLASSES], key=lambda row: row.index)
    if len(shown) < len(rows):
        why = f"the page shows the {MAX_CLASSES} most frequent of {len(rows):,} tags"
        summary.missing.append(Missing("Examples of the other tags", why))
    images = {}
    if scored is not None:
        images = examples(scored, summary.artifact.thresholds, [row.index for row in shown])
    panels = []
    for row in shown:
        groups = [(*_title(name, group), group) for name, group in images.get(row.index, {}).items()]
        panels.append(Panel(row, class_histogram(summary, scored, row), groups, summary.unlabeled is not None))
    return panels


def _title(name: str, group: Sequence[Example]) -> tuple[str, str]:
    """Return title and description of a group; images below the threshold are not called confident."""
    is_confident = all(example.predicted for example in group)
    return HIGHEST if name == "confident" and not is_confident else GROUPS[name]


def _render(content: Mapping[str, object]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # names of tags and files may contain markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    return environment.get_template("page.html.j2").render(content)
