import html
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

import tagspread as ts
from tagspread.linear.search import search_settings
from tagspread.predict.evaluation import evaluate
from tagspread.report.page import _title, write_report
from tagspread.report.scored import Example
from tagspread.run.pseudo_labels import read_pseudo_labels
from tagspread.train import head
from tagspread.train.finalize import gain_in_words
from tests.report.conftest import EVIL, file_name
from tests.runs import sign_again

OUTSIDE = re.compile(r"""(?:src|href|action|data)\s*=\s*["'](?!data:|#)|url\(|@import|https?://""", re.IGNORECASE)


def test_the_page_needs_nothing_from_outside(page):
    text = page.read_text()
    assert not OUTSIDE.search(re.sub(r"data:image/webp;base64,[\w+/=]+", "data:", text))
    assert len(text.encode()) < 5_000_000


def test_text_of_the_user_is_never_markup(page):
    text = page.read_text()
    assert text.count("<script>") == text.count("</script>") == 1  # our own
    assert html.escape(EVIL, quote=False)[:20] in text
    assert EVIL not in text
    assert "onerror=hit" in text
    assert "<img src=x" not in text
    assert "my &lt;b&gt;run" in text


def test_the_table_says_what_evaluate_says(page, run, folder):
    found: Any = evaluate(ts.load(run, device="cpu"), folder / "test.csv")
    text = page.read_text()
    body = text[text.index("<tbody>") : text.index("</tbody>")]
    for row, one in zip(body.split("<tr>")[1:], found.classes, strict=True):
        values = re.findall(r'<td data-value="([^"]*)"', row)
        for cell, value in ((4, one.positives), (5, one.ap), (7, one.precision), (8, one.recall), (9, one.f1)):
            assert values[cell] == ("" if value is None else str(value))
    assert f"<strong>{100 * found.map:.1f}</strong>" in text


def test_without_images_there_is_still_a_page(run, tmp_path):
    written = write_report(run, tmp_path / "page.html", show_images=False)
    text = written.path.read_text()
    assert "data:image/webp" not in text
    assert "--no-images was given" in text
    for part in ("learning", "unlabeled", "tags", "examples"):
        assert f'<section id="{part}"' in text
    assert "labeled images, with 90" in text
    assert "unlabeled: " in text


def test_an_unfinished_run_has_a_page_too(copied):
    for name in ("labels.json", "metrics.json"):
        (copied / name).unlink()
    text = write_report(copied).path.read_text()
    assert 'id="learning"' in text
    assert 'id="tags"' not in text
    assert "training has not finished" in text


def test_a_run_that_has_just_begun_has_a_page(copied):
    for name in ("labels.json", "metrics.json", "log.jsonl"):
        (copied / name).unlink()
    assert "training has not finished" in write_report(copied).path.read_text()


def test_images_that_are_gone_are_missed_in_words(copied, folder, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    config = copied / "config.json"
    config.write_text(config.read_text().replace(f'"images": "{folder}"', f'"images": "{empty}"'))
    written = write_report(copied, device="cpu")
    assert any("none of the 40 images can be read" in one.why for one in written.missing)
    assert "labeled images, with 90" in written.path.read_text()


@pytest.mark.parametrize("images", [True, False])
def test_a_changed_model_is_refused_and_the_page_about_the_old_one_stays(copied, images):
    (copied / "report.html").write_text("a good page")
    (copied / "ema.safetensors").write_bytes(b"other")
    with pytest.raises(ts.TagspreadError, match="not the file that training wrote"):
        write_report(copied, device="cpu", show_images=images)
    assert (copied / "report.html").read_text() == "a good page"
    assert not list(copied.glob(".*.tmp"))


def test_a_map_that_differs_from_that_of_training_is_pointed_out(copied):
    import json

    metrics = json.loads((copied / "metrics.json").read_text())
    metrics["test"]["mAP"] = 0.999
    (copied / "metrics.json").write_text(json.dumps(metrics))
    sign_again(copied)
    assert "Training measured a mAP of 99.9" in write_report(copied, device="cpu").path.read_text()


def test_pages_are_replaced_only_where_they_are_ours(copied, tmp_path):
    first = write_report(copied, show_images=False).path
    assert first == copied / "report.html"
    assert write_report(copied, show_images=False).path == first  # the run's own is written anew
    other = tmp_path / "mine.html"
    other.write_text("mine")
    with pytest.raises(ts.TagspreadError, match="exists"):
        write_report(copied, other, show_images=False)
    assert other.read_text() == "mine"
    write_report(copied, other, show_images=False, overwrite=True)
    assert other.read_text().startswith("<!doctype html>")
    with pytest.raises(ts.TagspreadError, match=r"\.html"):
        write_report(copied, tmp_path / "page.pdf")
    assert not list(tmp_path.glob(".*.tmp"))


def test_labels_need_images(copied, folder):
    with pytest.raises(ts.TagspreadError, match="cannot be combined with show_images=False"):
        write_report(copied, labels=folder / "test.csv", show_images=False)


def test_the_command(copied, tmp_path):
    def command(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "tagspread", "report", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
        )

    done = command(copied, "--no-images")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == str(copied / "report.html")
    assert "note: not shown: metrics per tag" in done.stdout
    refused = command(tmp_path)
    assert refused.returncode == 2
    assert "not a run folder" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_broken_images_are_named(run, folder, tmp_path, drawn_y):
    from tests.report.conftest import write_csv

    own = write_csv(tmp_path / "own.csv", range(5, 12), drawn_y)
    text = write_report(run, tmp_path / "page.html", labels=own, device="cpu").path.read_text()
    assert "1 image cannot be read and is left out" in text
    assert html.escape(file_name(7)) in text


def test_of_very_many_tags_only_the_most_frequent_have_examples(run, folder, tmp_path, monkeypatch):
    from tagspread.report import page

    monkeypatch.setattr(page, "MAX_CLASSES", 3)
    written = write_report(run, tmp_path / "page.html", device="cpu")
    found = evaluate(ts.load(run, device="cpu"), folder / "test.csv", samples=1).classes
    most = sorted(range(10), key=lambda k: -found[k].positives)[:3]
    text = written.path.read_text()
    assert re.findall(r'<article class="panel" id="tag-(\d)"', text) == [str(k) for k in sorted(most)]
    assert set(re.findall(r'href="#tag-(\d)"', text)) == set(map(str, most))
    assert "the 3 most frequent of 10 tags" in written.missing[0].why


def test_a_head_on_a_frozen_network_has_rounds_and_no_epochs(folder, tmp_path):
    quick: dict[str, Any] = {"backbone": "small", "weights": "none", "image_size": 24, "flip": False, "quiet": True}
    out = tmp_path / "run"
    run = ts.train(folder, folder / "labels.csv", out, test_labels=folder / "test.csv", mode="head", **quick).path
    text = write_report(run, device="cpu").path.read_text()
    said = text[text.index("<body>") : text.index("<script>")]
    rounds = len((run / "log.jsonl").read_text().splitlines())
    one = "a linear head fitted in" if "pseudo_positives" not in (run / "log.jsonl").read_text() else f"{rounds} round"
    assert one in said
    assert "epoch" not in said
    assert "<dt>lr</dt>" not in said
    assert "<dt>unlabeled_weight</dt>" in said
    assert "These probabilities are not calibrated" in said


def test_a_head_that_left_the_unlabeled_out_shows_nothing_of_it(folder, tmp_path, monkeypatch):
    def without_unlabeled(*arguments: Any, **options: Any) -> Any:
        found = search_settings(*arguments, **options)
        return replace(found, settings=replace(found.settings, unlabeled_weight=0.0))

    monkeypatch.setattr(head, "search_settings", without_unlabeled)
    settings: dict[str, Any] = {"backbone": "small", "weights": "none", "image_size": 24, "mode": "head"}
    more: dict[str, Any] = {"test_labels": folder / "test.csv", "device": "cpu", "quiet": True}
    run = ts.train(folder, folder / "labels.csv", tmp_path / "run", **settings, **more)
    words = "he unlabeled images were not used: cross-validation on the labeled images showed no gain from them"
    assert gain_in_words(run.metrics) == "t" + words
    text = write_report(run.path, device="cpu").path.read_text()
    assert f"T{words}." in text
    for unlabeled in ("Unlabeled images", "positive pseudo-labels", "pseudo-label", ">changes<", "no difference"):
        assert unlabeled not in text, unlabeled
    with pytest.raises(ts.TagspreadError, match="this run did not use the unlabeled images, because cross-validation"):
        read_pseudo_labels(run.path)


def test_images_below_the_threshold_are_not_called_confident():
    def example(predicted: bool) -> Example:
        return Example("a.png", 0.2, 1, predicted, "")

    assert _title("confident", [example(True)])[0] == "Most confident"
    assert _title("confident", [example(True), example(False)])[0] == "Highest probabilities"
    assert _title("false_negatives", [example(False)])[0] == "False negatives"
