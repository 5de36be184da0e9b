"""``tagspread report``: everything put together into one file that needs no other, and no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from tagspread._version import __version__
from tagspread.aliases import Progress
from tagspread.core.bootstrap import MIN_POSITIVES
from tagspread.data.tables.options import GivenOptions
from tagspread.errors import Both, TagspreadError
from tagspread.files import write_text
from tagspread.predict.tables import check_output, reserve_output
from tagspread.predict.tagger import load
from tagspread.report.charts import (
    class_histogram,
    learning_charts,
    precision_strips,
    reliability_charts,
    share_strips,
    unlabeled_charts,
)
from tagspread.report.class_rows import ClassRow, class_rows
from tagspread.report.labeled import find_labeled
from tagspread.report.scored import GROUPS, UNSURE, Example, ScoredPart, examples, score_part
from tagspread.report.sentences import hundredths, length, notes, sentences, setting, tiles
from tagspread.report.summary import Missing, RunSummary, summarize_run
from tagspread.run.artifact import check_weights
from tagspread.run.split import FILE as SPLIT
from tagspread.train.config import settings_in_use
from tagspread.wording import counted

NAME = "report.html"
MOST_CLASSES = 100  # that are shown in detail: all their charts and images should fit into one mail


class Written(NamedTuple):
    """A report that was written, and what it could not show."""

    path: Path
    missing: list[Missing]


class Panel(NamedTuple):
    """All about one tag."""

    row: ClassRow
    histogram: Markup | None
    groups: list[tuple[str, str, list[Example]]]
    unlabeled: bool  # whether the histogram shows the unlabeled set, too


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
    progress: Progress | None = None,
) -> Written:
    """Write a page about a run; nothing is trained.

    Args:
        run: the run's folder.
        out: a new file ending in ``.html``; else ``report.html`` in the run's folder, where an older one is replaced.
        labels: a table of labeled images to judge by, instead of the run's own test images.
        images: the folder that its paths start from, or the run's own folder of images, if it was moved.
        table_options: how to read the table, see :func:`~tagspread.data.tables.read.read_table`; by default as
            the run's own.
        show_images: let the tagger look at images and show some; else only what the folder tells by itself.
        device: where the tagger runs.
        overwrite: replace a file that is at ``out``.
        progress: called with (done, total) while images are scored.
    """
    summary = summarize_run(run)
    if summary.artifact is not None:
        check_weights(summary.artifact)  # a page about another network than the one that is there would be a lie
    file = summary.path / NAME if out is None else Path(out)
    if out is not None:
        check_output(file, overwrite, (".html",))
    if labels is not None and not (show_images and summary.artifact):
        raise TagspreadError(
            "@labels names images to look at, which needs a finished run, and no @show_images.",
            labels=...,
            show_images=Both("show_images=False", "--no-images"),
        )
    labeled = find_labeled(summary, labels, images, show_images=show_images, table_options=table_options)
    scored = None
    if not show_images:
        summary.missing.append(Missing("How good each tag is, and example images", "--no-images was asked for"))
    elif labeled.part is not None:
        tagger = load(summary.path, device)
        try:
            scored = score_part(tagger, labeled.part, progress)
        except TagspreadError as error:
            if labels is not None:
                raise
            summary.missing.append(
                Missing("How good each tag is, and example images", error.on_command_line.rstrip("."))
            )
    if scored is not None and (changed := int((~scored.may_be_shown).sum())):
        what = f"Examples among {counted(changed, 'image')}"
        summary.missing.append(Missing(what, f"the content is not the one that the run recorded in {SPLIT}"))
    text = _render(_content(summary, scored, labeled.trained_y))
    if out is None:
        write_text(file, text, errors="replace")
    else:
        with reserve_output(file, overwrite, (".html",)):
            write_text(file, text, errors="replace")
    return Written(file, summary.missing)


def _content(summary: RunSummary, scored: ScoredPart | None, trained_y: np.ndarray | None) -> dict[str, object]:
    """Return everything the page is made from."""
    rows = class_rows(summary, trained_y, scored)
    return {
        "title": summary.path.resolve().name,
        "byline": _byline(summary),
        "tiles": tiles(summary, scored, None if trained_y is None else len(trained_y)),
        "sentences": sentences(summary, scored, rows),
        "notes": notes(summary, scored, rows),
        "missing": summary.missing,
        "learning": learning_charts(summary),
        "unlabeled": unlabeled_charts(summary),
        "shares": share_strips(rows),
        "precision": precision_strips(rows),
        "fewest": MIN_POSITIVES,
        "used_unlabeled": summary.unlabeled is not None,
        "judged_on": None if scored is None else f"{scored.evaluation.images:,} {scored.part.words}",
        "reliability": reliability_charts(summary, scored),
        "fitted": summary.artifact is not None and bool(summary.artifact.facts["calibration"].get("fitted_on")),
        "rows": rows,
        "panels": (panels := _panels(summary, scored, rows)),
        "linked": {panel.row.place for panel in panels},
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
    known = rows if scored is None else sorted(rows, key=lambda row: -scored.evaluation.classes[row.place].positives)
    shown = sorted(known[:MOST_CLASSES], key=lambda row: row.place)
    if len(shown) < len(rows):
        why = f"there are {len(rows):,} tags, and the page has room for {MOST_CLASSES}; the most frequent are shown"
        summary.missing.append(Missing("A closer look at the other tags", why))
    images = {}
    if scored is not None:
        images = examples(scored, summary.artifact.thresholds, [row.place for row in shown])
    panels = []
    for row in shown:
        groups = [(*_title(name, group), group) for name, group in images.get(row.place, {}).items()]
        panels.append(Panel(row, class_histogram(summary, scored, row), groups, summary.unlabeled is not None))
    return panels


def _title(name: str, group: Sequence[Example]) -> tuple[str, str]:
    """Return what a group of images is called: nothing that was not chosen is something the tagger is sure of."""
    return UNSURE if name == "sure" and not all(one.chosen for one in group) else GROUPS[name]


def _render(content: Mapping[str, object]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # tags and file names are the user's, and may look like markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["hundredths"] = hundredths
    return environment.get_template("page.html.j2").render(content)
