"""Export of model-hub folders and their model cards."""

import json
import re
import shutil
from typing import Any

import numpy as np
import pytest

import tagspread as ts
from tagspread.errors import TagspreadError
from tagspread.export.card import plain
from tagspread.export.compare import generated
from tagspread.export.hub import FILES, export_hub
from tagspread.predict.evaluation import evaluate
from tagspread.run.folder import RunFolder
from tagspread.train.finalize import gain_in_words
from tests.runs import sign_again


@pytest.fixture(scope="session")
def figures(run, folder, tmp_path_factory):
    file = tmp_path_factory.mktemp("figures") / "evaluation.json"
    found = evaluate(ts.load(run, device="cpu"), folder / "test.csv", samples=20)
    file.write_text(json.dumps(found.to_dict()))
    return file


def test_the_folder_is_loaded_like_a_run(run, tmp_path):
    out = export_hub(run, tmp_path / "deep" / "hub")
    assert sorted(file.name for file in out.iterdir()) == sorted(FILES)
    before, after = (ts.load(one, device="cpu") for one in (run, out))
    assert after.classes == before.classes
    assert np.array_equal(after.thresholds, before.thresholds)
    images = generated()
    assert np.array_equal(before.predict(images).probabilities, after.predict(images).probabilities)
    config = json.loads((out / "config.json").read_text())
    assert (config["architecture"], config["num_classes"]) == ("small", 10)
    assert config["label_names"] == list(before.classes)
    assert not RunFolder(out).is_run  # nobody may take it for a run to resume or to replace


def test_no_path_of_the_machine_is_told(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    for name, place in (("config.json", ("settings",)), ("labels.json", ())):
        facts = json.loads((copy / name).read_text())
        inner = facts["settings"] if place else facts
        inner["method"] = "/home/me/rules.py:Rule"
        if place:
            inner["weights"] = "/home/me/weights.safetensors"
        (copy / name).write_text(json.dumps(facts))
    out = export_hub(copy, tmp_path / "hub")
    text = "".join((out / name).read_text() for name in FILES if name != "model.safetensors")
    assert "/home/me" not in text
    assert str(tmp_path.parent) not in text
    assert "rules.py:Rule" in text
    assert "weights.safetensors" in text


def test_the_card_has_the_runs_own_figures(run, tmp_path):
    text = (export_hub(run, tmp_path / "my_hub") / "README.md").read_text()
    metrics = json.loads((run / "metrics.json").read_text())["test"]
    low, high = metrics["interval_90"]
    line = f"| 40 test images | {100 * metrics['mAP']:.1f} | {100 * low:.1f} to {100 * high:.1f} |"
    assert line in text
    assert r"# my\_hub" in text
    assert "**Labeled images:** 40." in text
    assert "**Unlabeled images:** 20." in text
    assert "7 epochs" in text
    assert "“match”, chosen on 20 unlabeled images" in text
    assert "not calibrated; use them for ranking only" in text
    assert "were not evaluated one by one; rare tags" in text
    rows = re.findall(r"^\| (\d) \| ([\d.e-]+|never) \|$", text, re.M)
    cuts = json.loads((run / "labels.json").read_text())["thresholds"]
    assert [cut for _, cut in rows] == ["never" if cut is None else f"{cut:.4g}" for cut in cuts]


def test_the_card_of_a_model_that_was_kept_without_the_unlabeled(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    metrics = json.loads((copy / "metrics.json").read_text())
    (copy / "metrics.json").write_text(json.dumps(metrics | {"network": "labeled_only"}))
    sign_again(copy)
    before, after = ((export_hub(one, tmp_path / name) / "README.md").read_text() for name, one in
                     (("with", run), ("without", copy)))  # fmt: skip
    assert "a few labeled and many unlabeled images" in before
    assert "many unlabeled images" not in after
    assert "It learned from pseudo-labels on 20 unlabeled images" in before
    assert "learned from pseudo-labels" not in after
    assert "**Unlabeled images:** 20; this model was trained without them." in after


def test_the_card_has_the_figures_of_an_evaluation(run, tmp_path, figures):
    text = (export_hub(run, tmp_path / "hub", metrics=figures) / "README.md").read_text()
    known = json.loads(figures.read_text())
    assert f"| 40 labeled images, with `tagspread evaluate` | {100 * known['map']:.1f} |" in text
    assert f"{100 * known['decisions']['OR']:.1f} of 100 true tags are predicted" in text
    for one in known["classes"]:
        assert f"| {one['name']} |" in text
        if one["ap"] is not None:
            few, ends = one["positives"] < 5, [100 * (one[end] or 0) for end in ("ap_low", "ap_high")]
            interval = "too few images" if few else "{:.1f} to {:.1f}".format(*ends)
            assert f"| {100 * one['ap']:.1f} | {interval} |" in text
    assert "not evaluated" not in text


def test_a_run_that_knows_little(untrained, tmp_path):
    out = export_hub(untrained(classes=("a|b", "*c*", "<d>\n# e")), tmp_path / "hub")
    text = (out / "README.md").read_text()
    assert "Not evaluated: the run has no test images" in text
    assert "**Labeled images:** unknown." in text
    assert "many unlabeled images" not in text
    assert r"| a\|b | 0.5 |" in text
    assert r"| \*c\* | 0.5 |" in text
    assert r"| \<d\> \# e | 0.5 |" in text
    again = export_hub(out, tmp_path / "again")  # a folder that was handed on can be handed on
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    assert "\n\n\n" not in text


def test_what_was_there_stays_there(untrained, tmp_path):
    run, out = untrained(), tmp_path / "repository"
    (out / ".git").mkdir(parents=True)
    (out / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    export_hub(run, out)
    (out / "README.md").write_text("my own words")
    with pytest.raises(TagspreadError, match=r"already holds config.json, model.safetensors, README.md, labels.json"):
        export_hub(run, out)
    assert (out / "README.md").read_text() == "my own words"
    export_hub(run, out, overwrite=True)
    assert (out / "README.md").read_text() != "my own words"
    assert sorted(file.name for file in out.iterdir()) == sorted([*FILES, ".git", ".gitattributes"])


def test_places_that_are_refused(run, tmp_path):
    before = {file: file.read_bytes() for file in run.iterdir() if file.is_file()}
    with pytest.raises(TagspreadError, match="is a run folder, which must not be overwritten"):
        export_hub(run, run, overwrite=True)
    assert before == {file: file.read_bytes() for file in run.iterdir() if file.is_file()}
    (tmp_path / "file").write_text("")
    with pytest.raises(TagspreadError, match="is a file; give a folder"):
        export_hub(run, tmp_path / "file")
    with pytest.raises(TagspreadError, match="cannot be written to"):
        export_hub(run, tmp_path / "file" / "hub")


def test_a_changed_run_is_refused_and_leaves_nothing(untrained, tmp_path):
    run = untrained()
    with (run / "ema.safetensors").open("ab") as opened:
        opened.write(b"more")
    with pytest.raises(TagspreadError, match="SHA-256"):
        export_hub(run, tmp_path / "hub")
    assert not (tmp_path / "hub").exists()


def test_figures_that_are_refused(run, tmp_path, figures):
    known = json.loads(figures.read_text())
    wrong = {
        "there is no file": None,
        "(classes is missing)": "not JSON",
        "(decisions is missing)": json.dumps({name: value for name, value in known.items() if name != "decisions"}),
        "of a run with other tags": json.dumps(known | {"classes": known["classes"][1:]}),
    }
    for message, text in wrong.items():
        if text is not None:
            (tmp_path / "f.json").write_text(text)
        with pytest.raises(TagspreadError, match=re.escape(message)):
            export_hub(run, tmp_path / "hub", metrics=tmp_path / "f.json")
        assert not (tmp_path / "hub").exists()


def test_plain_text_in_markdown():
    assert plain("a\n b") == "a b"
    assert plain(r"\|") == r"\\\|"


def test_the_card_of_a_head_lists_what_had_a_part_in_it(folder, tmp_path):
    quick: dict[str, Any] = {"backbone": "small", "weights": "none", "image_size": 24, "flip": False, "quiet": True}
    out = tmp_path / "run"
    run = ts.train(folder, folder / "labels.csv", out, test_labels=folder / "test.csv", mode="head", **quick)
    card = (export_hub(run.path, tmp_path / "hub") / "README.md").read_text()
    assert str(gain_in_words(run.metrics, advise=False))[1:] in card
    assert "fitted on the frozen network" in card
    assert "epoch" not in card
    for unused in ("lr", "warmup\\_epochs", "cutout", "ema\\_decay", "held\\_out"):
        assert f"| {unused} |" not in card
    assert "| unlabeled\\_weight |" in card
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["settings"]["mode"] == "head"
    assert "{" not in card
