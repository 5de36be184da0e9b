import shutil
from dataclasses import replace
from typing import Any

import tagspread as ts
from tagspread.predict.evaluation import ClassMetrics, decide_on_table
from tagspread.report.class_rows import class_rows
from tagspread.report.labeled import find_labeled
from tagspread.report.page import write_report
from tagspread.report.sentences import length, notes, sentences, tiles
from tagspread.report.summary import summarize_run
from tagspread.train.finalize import gain_in_words


def without_space(text):
    return text.replace("\u00a0", " ")


def test_without_images_the_metrics_are_those_of_training(run):
    summary: Any = summarize_run(run)
    said = without_space(sentences(summary, None, [])[0])
    low, high = summary.metrics["test"]["interval_90"]
    assert f"{100 * summary.metrics['test']['mAP']:.1f} out of 100" in said
    assert "40 test images" in said
    assert f"(90 % interval {100 * low:.1f} to {100 * high:.1f})" in said
    assert [tile.name for tile in tiles(summary, None, 60)] == ["mAP", "labeled", "unlabeled"]


def test_nothing_measured_nothing_said(run):
    summary = replace(summarize_run(run), metrics={}, log=[], unlabeled=None)
    assert sentences(summary, None, []) == []
    assert tiles(summary, None, None) == []


def test_whether_the_unlabeled_helped_is_said_in_the_words_of_training(run):
    summary: Any = summarize_run(run)
    words = gain_in_words(summary.metrics)
    assert without_space(sentences(summary, None, [])[-1]).lower() == f"{words}.".lower()
    unknown = replace(summary, metrics={"gain": {"not_measured": "nothing was kept"}})
    assert sentences(unknown, None, []) == []
    assert notes(unknown, None, [])[0].endswith("whether the unlabeled images helped: nothing was kept.")


def test_tied_tags_are_not_ranked(run):
    summary: Any = summarize_run(run)
    metrics = ClassMetrics("", 1, 40, 1.0, None, None, 0.5, 1, 1.0, 1.0, 1.0)
    rows = [
        replace(row, metrics=replace(metrics, ap=ap))
        for row, ap in zip(class_rows(summary, None, None), (1, 1, 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.4), strict=True)
    ]
    names = [row.name for row in rows]
    best = ", ".join(f"“{name}”" for name in names[:3])
    lowest = f"“{names[9]}” (40.0) and 2 tags tied at 50.0 (“{names[8]}”, “{names[7]}”)"
    ranking = f"Highest average precision: 3 tags tied at 100.0 ({best}). Lowest: {lowest}."
    assert sentences(summary, None, rows)[-2] == ranking
    equal = [replace(row, metrics=metrics) for row in rows]
    assert not any("Highest" in sentence for sentence in sentences(summary, None, equal))


def test_warnings_are_passed_on(run, drawn_y):
    summary: Any = summarize_run(run)
    summary = replace(summary, metrics={"warning": "chosen on the test part"})
    few = drawn_y[:3]
    rows = class_rows(summary, few, None)
    said = notes(summary, None, rows)
    assert said[0] == "Chosen on the test part."
    assert any("Fewer than 5 labeled images carry" in note for note in said)


def test_an_implausible_share_of_pseudo_labels_is_named(run):
    summary: Any = summarize_run(run)
    labeled: Any = find_labeled(summary)
    rows: Any = class_rows(summary, labeled.trained_y, None)
    assert not any(row.is_implausible for row in rows)  # CAP assigns the shares of the labeled images
    low, high = rows[0].share_interval
    for assigned, assigned_or_ignored, is_implausible in (
        (high + 0.01, high + 0.01, True),
        (low - 0.01, low - 0.005, True),
        (low - 0.01, low + 0.01, False),  # enough pseudo-labels are ignored
    ):
        row = replace(rows[0], assigned=assigned, assigned_or_ignored=assigned_or_ignored)
        assert row.is_implausible is is_implausible
    implausible = [replace(rows[0], assigned=1.0, assigned_or_ignored=1.0), *rows[1:]]
    assert any("contradicts" in note and rows[0].name in note for note in notes(summary, None, implausible))


def test_one_epoch_is_one_epoch(run):
    summary = replace(summarize_run(run), log=[{"epoch": 0, "seconds": 3.0}], metrics={})
    assert length(summary) == "1 epoch in 3 s"
    head = replace(summary, settings=summary.settings | {"mode": "head"})
    assert length(head) == "a linear head fitted in 3 s"
    assert length(replace(head, log=[{"epoch": 0, "seconds": 3.0, "pseudo_positives": 4}] * 2)) == "2 rounds in 6 s"


def test_thresholds_chosen_on_the_same_images_are_mentioned(run, folder, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    tagger = ts.load(tmp_path / "run", device="cpu")
    decide_on_table(tagger, folder / "test.csv")
    assert "The thresholds were chosen on 40 of these 40 images" in write_report(tmp_path / "run").path.read_text()
