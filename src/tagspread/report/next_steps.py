"""What to do next with a run: the commands, with paths filled in, most useful first."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from tagspread.aliases import SettingValues
from tagspread.data.tables.options import AUTO
from tagspread.errors import TagspreadError
from tagspread.report.class_rows import ClassRow
from tagspread.report.summary import RunSummary
from tagspread.run.split import Part
from tagspread.train.config import PRESETS, make_config
from tagspread.wording import counted

ENOUGH = 20  # labeled images of a tag, from which on other things limit its average precision
WEAK = 0.6  # average precision of a tag, below which more labels are suggested
OPTIONS = {"backbone": "resnet50", "weights": "pretrained", "method": "cap"}  # with the defaults of all presets
WITH_OPTION = (*OPTIONS, "mode", "image_size", "warmup_epochs", "epochs", "batch", "lr", "seed")
# what mode "head" chooses, or does not use
CHOSEN_IN_HEAD_MODE = ("method_options", "unlabeled_weight", "start", "warmup_epochs", "epochs", "schedule_epochs")
MOST_TAGS = 3  # named in one step
TO_REVIEW = 50  # images: about half an hour


class NextStep(NamedTuple):
    """One thing to do next.

    Attributes:
        title: what to do.
        reason: why.
        commands: commands to copy.
    """

    title: str
    reason: str
    commands: tuple[str, ...] = ()


def next_steps(summary: RunSummary, rows: Sequence[ClassRow]) -> list[NextStep]:
    """Return what to do next, most useful first; nothing for a run that is not finished or was trained on arrays.

    Args:
        summary: the run.
        rows: the metrics of each tag.
    """
    if summary.artifact is None:
        return [NextStep("Finish the training", "The run was stopped.", (_command("train", "--resume", summary.path),))]
    if summary.record is None or not summary.record.has_files or summary.data.images is None:
        return []
    run, data = summary.path.absolute(), summary.data
    again = f"{run}-2"
    retrain = ["train", data.images, "--labels", data.labels or "LABELS.csv"]
    if data.test_labels is not None:
        retrain += ["--test-labels", data.test_labels]
    retrain += _table_options(data.table_options)
    compare = ["--out", again, *_settings(summary), "--compare", run]
    has_unlabeled, has_test = (bool(len(summary.record.split.rows(part))) for part in (Part.UNLABELED, Part.TEST))
    steps = []
    if not has_test:
        steps.append(NextStep(
            "Set labeled images aside for testing", "Without test images, nobody knows how good the tagger is.",
            (_command(*retrain, "--test-share", "0.2", "--out", again, *_settings(summary)),),
        ))  # fmt: skip
    if has_unlabeled:
        title = f"Review {TO_REVIEW} unlabeled images and train again"
        reason = "The page shows the most useful images first. The second command ends with the difference to this run."
        reviewed = _command(*retrain, "--answers", run, *(compare if has_test else compare[:-2]))
        steps.append(NextStep(title, reason, (_command("review", run), reviewed)))
    if weak := _weak(rows):
        *first, last = [f"{ENOUGH - (row.labeled or 0)} more of “{row.name}”" for row in weak[:MOST_TAGS]]
        names = f"{', '.join(first)} and {last}" if first else last
        found = ", ".join(f"“{row.name}” has {counted(row.labeled or 0, 'labeled image')}" for row in weak[:MOST_TAGS])
        command = _command("suggest", run, "--strategy", "rare", "-n", TO_REVIEW, "-o", f"{run}-next.csv")
        steps.append(NextStep(f"Collect {names}", f"{found}. This lists unlabeled images that may have such tags:",
                              (command,) if has_unlabeled else ()))  # fmt: skip
    if any(row.is_implausible for row in rows) and has_unlabeled:
        reason = "The pseudo-labels of some tags contradict the labels. This measures how frequent the tags really are:"
        steps.append(NextStep("Check the class frequencies", reason, (_command("audit", run),)))
    if summary.artifact.facts.get("decision", {}).get("policy") in (None, "match"):
        reason = (
            "The thresholds only match how frequent the tags are. Label images that the run does not use (SPARE.csv), "
            "and choose thresholds by F1; this also calibrates the probabilities:"
        )
        steps.append(NextStep("Choose thresholds on spare labels", reason,
                              (_command("thresholds", run, "--labels", "SPARE.csv"),)))  # fmt: skip
    if "stopped_early" in summary.metrics or (summary.plan or {}).get("quality") == "fast":
        why = "The time budget was spent" if "stopped_early" in summary.metrics else "This was a first, fast result"
        longer = ["--out", again, *_settings(summary, network_only=True)]
        more = _command(*retrain, *longer, *(["--compare", run] if has_test else []))
        steps.append(
            NextStep("Train for longer", f"{why}. The default settings usually give a better tagger:", (more,))
        )
    tags = _command("predict", run, data.images, "-o", f"{run}-tags.csv")
    steps.append(NextStep("Tag all images", "One row per image: its tags, and a probability for each tag.", (tags,)))
    return steps


def _weak(rows: Sequence[ClassRow]) -> list[ClassRow]:
    """Return the tags that more labels may improve, the weakest first: few labels, and a low average precision."""

    def precision(row: ClassRow) -> float:
        return -1.0 if row.metrics is None or row.metrics.ap is None else row.metrics.ap

    few = [row for row in rows if row.labeled is not None and row.labeled < ENOUGH and precision(row) < WEAK]
    return sorted(few, key=lambda row: (precision(row), row.labeled))


def _table_options(options: SettingValues) -> list[str]:
    """Return the options with which the label tables of the run were read.

    >>> _table_options({"delimiter": None, "ignore": ["width"], "blank": "unlabeled", "fallback_delimiter": ";"})
    ['--delimiter', '', '--blank', 'unlabeled', '--ignore', 'width']
    """
    given = []
    for name in ("delimiter", "image_column", "tags_column", "blank"):
        if options.get(name, AUTO) not in (AUTO, None) or (name == "delimiter" and options.get(name, AUTO) is None):
            given += ["--" + name.replace("_", "-"), options[name] or ""]
    ignored = options.get("ignore") or []
    for name in [ignored] if isinstance(ignored, str) else ignored:
        given += ["--ignore", name]
    return [*given, "--allow-outside"] if options.get("allow_outside") else given


def _settings(summary: RunSummary, *, network_only: bool = False) -> list[str]:
    """Return the options for the settings of the run, so that a new run differs in its labels only.

    Args:
        summary: the run.
        network_only: only the network and its weights; the other settings are the default ones.
    """
    stored = {name: value for name, value in summary.settings.items() if name in OPTIONS or not network_only}
    own = {name: stored[name] for name in ("backbone", "method") if name in stored}
    candidates = []
    for preset in PRESETS:
        try:
            usual = json.loads(json.dumps(make_config(preset, **own).to_dict()))  # as config.json has it
        except TagspreadError:  # a method of the user's own, whose file is gone
            return []
        differing = {name: value for name, value in stored.items() if name in usual and usual[name] != value}
        if stored.get("mode") == "head":
            differing = {name: value for name, value in differing.items() if name not in CHOSEN_IN_HEAD_MODE}
        elif usual["mode"] == "auto":
            differing.pop("mode", None)  # it is chosen again
        candidates.append((len(differing), [] if preset == "default" else ["--preset", preset], differing))
    _, options, differing = min(candidates, key=lambda candidate: candidate[0])
    if network_only:
        options = []
    given = {name: stored[name] for name, default in OPTIONS.items() if stored.get(name, default) != default}
    for name, value in (given | differing).items():
        if isinstance(value, str | int | float) and not isinstance(value, bool) and name in WITH_OPTION:
            options += [f"--{name.replace('_', '-')}", str(value)]
        else:
            options += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return options


def _command(*words: object) -> str:
    """Return a command line, quoted for a shell."""
    return shlex.join(["tagspread", *map(str, words)])
