import json
import shutil

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, precision_recall_fscore_support

import tagspread as ts
from tagspread.core.bootstrap import MIN_POSITIVES
from tagspread.core.metrics import average_precision_interval
from tagspread.data.tables.label_table import LabelTable
from tagspread.predict.evaluation import decide_on_table, evaluate
from tests.predict.conftest import write_csv


def test_figures_equal_scikit_learn(tagger, run, folder, drawn):
    found = evaluate(tagger, folder / "test.csv", samples=50)
    y = drawn.y[60:120]
    said = tagger.predict([folder / f"p{i:03}.png" for i in range(60, 120)])
    assert found.images == 60
    assert found.map == pytest.approx(json.loads((run / "metrics.json").read_text())["test"]["mAP"])
    low, value, high = found.map_low or 1, found.map or 0, found.map_high or 0
    assert low <= value <= high
    present = y.any(axis=0)
    assert found.absent == [name for name, there in zip(tagger.classes, present, strict=True) if not there]
    assert found.map_absent_zero == pytest.approx(value * present.mean())
    assert found.decisions == ts.multilabel_report(said.chosen, y)
    precision, recall, f1, _ = precision_recall_fscore_support(y, said.chosen, zero_division=0)
    for k, one in enumerate(found.classes):
        assert (one.name, one.positives, one.known) == (tagger.classes[k], y[:, k].sum(), 60)
        assert one.chosen == said.chosen[:, k].sum()
        assert one.threshold == pytest.approx(tagger.thresholds[k])
        if present[k]:
            assert one.ap == pytest.approx(average_precision_score(y[:, k], said.probabilities[:, k]))
            assert one.positives < MIN_POSITIVES or 0 <= (one.ap_low or 0) <= (one.ap or 0) <= (one.ap_high or 0) <= 1
            assert one.recall == pytest.approx(recall[k])
            assert one.f1 == pytest.approx(f1[k])
        if one.chosen:
            assert one.precision == pytest.approx(precision[k])
    json.dumps(found.to_dict(), allow_nan=False)


def test_unknown_labels_count_for_nothing_and_absent_classes_are_named(tagger, folder, drawn, tmp_path):
    rows = [[f"p{i:03}.png", int(drawn.y[i, 0]), "" if i % 2 else int(drawn.y[i, 1]), 0] for i in range(60, 120)]
    table = write_csv(tmp_path / "t.csv", ["image", "0", "1", "9"], rows)
    found = evaluate(tagger, table, folder, samples=20)
    assert found.absent == ["2", "3", "4", "5", "6", "7", "8", "9"]
    assert [one.known for one in found.classes] == [60, 30, *[0] * 7, 60]
    half = tagger.predict([folder / f"p{i:03}.png" for i in range(60, 120, 2)])
    assert found.classes[1].ap == pytest.approx(ts.average_precision(half.probabilities, drawn.y[60:120:2])[1])
    assert found.classes[9].ap is None
    assert found.map == pytest.approx(np.mean([one.ap for one in found.classes[:2]]))


def test_broken_images_are_named_and_left_out(tagger, folder, drawn, tmp_path):
    rows = [["broken.png", 1], ["gone.png", 1], *([f"p{i:03}.png", int(drawn.y[i, 0])] for i in range(60, 80))]
    found = evaluate(tagger, write_csv(tmp_path / "t.csv", ["image", "0"], rows), folder, samples=5)
    assert found.images == 20
    assert [line.split("/")[-1].partition(":")[0] for line in found.unreadable] == ["broken.png", "gone.png"]


def test_images_that_were_trained_on_are_counted(tagger, folder, tmp_path):
    assert evaluate(tagger, folder / "test.csv", samples=2).trained_on == 0
    assert evaluate(tagger, folder / "labels.csv", samples=2).trained_on == 60
    shutil.copytree(folder, tmp_path / "copy")  # they are known by what they show, not by where they lie
    assert evaluate(tagger, folder / "labels.csv", tmp_path / "copy", samples=2).trained_on == 60


def test_a_handful_of_positives_claims_no_certainty(tagger, folder, drawn, tmp_path):
    rows = [[f"p{i:03}.png", int(i < 60 + MIN_POSITIVES), int(i < 59 + MIN_POSITIVES)] for i in range(60, 120)]
    few = evaluate(tagger, write_csv(tmp_path / "t.csv", ["image", "0", "1"], rows), folder, samples=20).classes
    assert [one.positives for one in few[:2]] == [MIN_POSITIVES, MIN_POSITIVES - 1]
    assert None not in (few[0].ap_low, few[0].ap_high, few[1].ap)
    assert (few[1].ap_low, few[1].ap_high) == (None, None)


def test_bad_tables_are_refused(tagger, folder, tmp_path):
    with pytest.raises(ValueError, match="none of the 1 images can be read"):
        evaluate(tagger, write_csv(tmp_path / "t.csv", ["image", "0"], [["x.png", 1]]), folder)
    with pytest.raises(ValueError, match="has none of the tags of the training labels \\(but 'hat'\\)"):
        evaluate(tagger, write_csv(tmp_path / "t.csv", ["image", "hat"], [["p000.png", 1]]), folder)
    with pytest.raises(ValueError, match="all labels of these images are unknown"):
        evaluate(tagger, LabelTable([folder / "p000.png"], tagger.classes, np.full((1, 10), -1)))
    other = ts.Tagger(
        tagger.artifact.__class__(**{**vars(tagger.artifact), "path": tmp_path}), tagger.network, tagger.device
    )
    with pytest.raises(ValueError, match=r"the folder that the paths in .* are relative to is unknown"):
        evaluate(other, folder / "test.csv")


def test_decide_keeps_thresholds_and_where_they_came_from(run, folder, drawn, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    before = ts.load(tmp_path / "run", device="cpu")
    facts = decide_on_table(before, folder / "test.csv", policy="fbeta:2", min_positives=3)
    after = ts.load(tmp_path / "run", device="cpu")
    assert after.artifact.facts["decision"]["policy"] == "fbeta:2"
    assert after.artifact.facts["decision"]["chosen_on"] == "60 images of test.csv"
    assert after.artifact.facts["classes"] == list(before.classes)
    said = after.predict([folder / f"p{i:03}.png" for i in range(60, 120)])
    expected = ts.choose_thresholds(said.probabilities, drawn.y[60:120], "fbeta:2", min_positives=3)
    np.testing.assert_allclose(after.thresholds, expected.thresholds)
    assert (
        facts["calibration"]["reliability"]["after"]["error"] < facts["calibration"]["reliability"]["before"]["error"]
    )
    with pytest.raises(ValueError, match="policy is 'best'"):
        decide_on_table(before, tmp_path / "none.csv", policy="best")


def test_class_intervals_hold_what_single_classes_say():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(60, 3))
    y = (scores + rng.normal(size=scores.shape) > 0.5).astype(int)
    y[:, 2] = 0
    low, high = average_precision_interval(scores, y, samples=100, seed=3)
    for k in range(2):
        one = ts.mean_average_precision_interval(scores[:, k : k + 1], y[:, k : k + 1], samples=100, seed=3)
        assert (low[k], high[k]) == pytest.approx(one)
    assert np.isnan([low[2], high[2]]).all()
