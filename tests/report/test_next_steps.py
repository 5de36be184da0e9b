"""The report says what to do next, by commands that can be copied and run."""

import shlex
from dataclasses import replace

import numpy as np
import pytest
from typer.main import get_command

from tagspread.cli import app
from tagspread.report.class_rows import class_rows
from tagspread.report.doubtful import doubtful_images
from tagspread.report.next_steps import ENOUGH, next_steps
from tagspread.report.summary import summarize_run
from tagspread.run.pseudo_labels import read_pseudo_labels


@pytest.fixture(scope="module")
def summary(run):
    return summarize_run(run)


def commands(summary):
    rows = class_rows(summary, summary.record.split.y[:60], None)
    return [shlex.split(command) for step in next_steps(summary, rows) for command in step.commands]


def test_all_commands_can_be_parsed_and_name_the_run(summary, run):
    program = get_command(app)
    found = commands(summary)
    assert [words[1] for words in found] == ["review", "train", "suggest", "thresholds", "predict"]
    for _, name, *words in found:
        context = program.commands[name].make_context(name, list(words))  # type: ignore[attr-defined]
        assert str(run) in map(str, context.params.values())


def test_a_new_run_has_the_settings_of_the_first(summary):
    (words,) = [words for words in commands(summary) if words[1] == "train"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options["--preset"] == "paper"
    assert (options["--backbone"], options["--weights"], options["--image-size"]) == ("small", "none", "24")
    assert (options["--epochs"], options["--warmup-epochs"], options["--batch"]) == ("3", "4", "32")
    assert (options["--set"], options["--compare"]) == ("flip=false", str(summary.path))
    assert options["--labels"] == summary.data.labels


def test_a_new_run_reads_its_tables_like_the_first(summary):
    read_with = {"blank": "unlabeled", "ignore": ["width"], "allow_outside": False, "delimiter": None}
    data = replace(summary.data, table_options=read_with)
    (words,) = [words for words in commands(replace(summary, data=data)) if words[1] == "train"]
    context = get_command(app).commands["train"].make_context("train", words[2:])  # type: ignore[attr-defined]
    assert {name: context.params[name] for name in read_with} == read_with | {"delimiter": ""}


def test_a_run_that_was_stopped_is_resumed_first(summary):
    (step,) = next_steps(replace(summary, artifact=None), [])
    assert shlex.split(step.commands[0])[1:] == ["train", "--resume", str(summary.path)]


def test_a_fast_result_is_followed_by_a_longer_training(summary):
    titles = [step.title for step in next_steps(summary, [])]
    longer = [step.title for step in next_steps(replace(summary, plan={"quality": "fast"}), [])]
    assert "Train for longer" not in titles
    assert "Train for longer" in longer


def test_tags_with_few_labels_are_collected(summary):
    rows = class_rows(summary, summary.record.split.y[:60], None)
    (step,) = [step for step in next_steps(summary, rows) if step.title.startswith("Collect ")]
    rarest = min(rows, key=lambda row: row.labeled or 0)
    assert f"{ENOUGH - (rarest.labeled or 0)} more of “{rarest.name}”" in step.title


def test_doubtful_images_are_those_nearest_to_a_threshold(summary, run, page):
    shown = doubtful_images(summary)
    assert 0 < len(shown) <= 12
    names = [image.name for image in read_pseudo_labels(run)]
    thresholds = np.asarray(summary.artifact.thresholds)
    distance = np.abs(summary.unlabeled.scores - np.log(thresholds / (1 - thresholds)))  # it is not calibrated
    first = shown[0]
    assert names[int(distance.min(1).argmin())] == first.name
    odds = [
        np.log(np.divide(p, 1 - np.array(p))) for p in ([i.probability for i in shown], [i.threshold for i in shown])
    ]
    distances = np.abs(odds[0] - odds[1])
    assert distances[0] == pytest.approx(distance.min(), rel=1e-4, abs=1e-6)
    assert (np.diff(distances) >= -1e-9).all()
    text = page.read_text()
    assert text.index("What to do next") < text.index('id="tags"') < text.index('id="unlabeled"')
    assert "Doubtful unlabeled images" in text


def test_changed_images_are_not_shown(copied, folder, tmp_path):
    changed = summarize_run(copied)
    assert changed.record is not None
    changed.record.split.digests[:] = changed.record.split.digests[::-1].copy()
    assert doubtful_images(changed) == []
