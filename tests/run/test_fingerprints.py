"""Thresholds judged on the images they were chosen on: known again by what is in the files, and said."""

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tagspread as ts
from tagspread.predict.evaluation import evaluate
from tagspread.run import fingerprints as chosen_on
from tagspread.run.fingerprints import DECIDING, KEY, in_common, remember
from tests.predict.conftest import QUICK
from tests.predict.test_commands import tagspread


def files(folder, numbers):
    for number in numbers:
        (folder / str(number)).write_bytes(b"image %d" % number)
    return [folder / str(number) for number in numbers]


def test_images_are_known_by_what_is_in_them(tmp_path):
    kept = remember(files(tmp_path, range(10)), DECIDING)
    assert kept is not None
    (tmp_path / "moved").write_bytes(b"image 3")
    assert in_common(kept, [tmp_path / "moved", tmp_path / "gone", *files(tmp_path, range(8, 12))]) == 3
    assert in_common(json.loads(json.dumps(kept)), files(tmp_path, range(10))) == 10
    assert in_common(kept, [tmp_path / "gone"]) == 0
    assert in_common(None, files(tmp_path, range(2))) is None
    for damaged in ("x", {"fingerprints": 5}, {"fingerprints": [5]}, {"complete": True}):
        assert in_common(damaged, files(tmp_path, range(2))) is None  # type: ignore[arg-type]
    assert remember([tmp_path / "number 3"], DECIDING) is None  # an array has no file


@given(st.integers(0, 200))
def test_of_many_images_a_part_is_enough(tmp_path_factory, shared):
    folder = tmp_path_factory.getbasetemp() / "many"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chosen_on, "MOST", 100)
        kept = remember(files(folder, range(200)), DECIDING)
    assert kept is not None
    assert len(kept["fingerprints"]) == 100
    found = in_common(kept, files(folder, range(200 - shared, 400 - shared)))
    assert found == pytest.approx(shared, abs=30)


def test_evaluate_says_so_after_decide(run, folder, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    call = ["evaluate", tmp_path / "run", "--labels", folder / "test.csv", "--samples", 2]
    assert "thresholds were chosen on" not in tagspread(*call)
    assert (
        json.loads(tagspread(*call, "--json"))["thresholds_chosen_on"] is None
    )  # chosen on the unlabeled set, without labels
    tagspread("thresholds", tmp_path / "run", "--labels", folder / "test.csv", "-q")
    assert "note: the thresholds were chosen on these very images, so precision, recall, F1" in tagspread(*call)
    assert json.loads(tagspread(*call, "--json"))["thresholds_chosen_on"] == 60
    lines = (folder / "test.csv").read_text().splitlines() + (folder / "labels.csv").read_text().splitlines()[1:]
    (tmp_path / "half.csv").write_text("\n".join([lines[0], *lines[31:91]]) + "\n")
    call[3] = tmp_path / "half.csv"
    assert "chosen on 30 of them" in tagspread(*call)
    tagspread("thresholds", tmp_path / "run", "--labels", tmp_path / "half.csv", "-q")
    text = tagspread(*call)
    assert "30 of them were trained on" in text  # who decides on training images is told both
    assert "chosen on these very images" in text


def test_held_out_images_are_not_those_trained_on(folder, tmp_path):
    out = ts.train(
        folder, folder / "labels.csv", tmp_path / "run", selection="held_out", **(QUICK | {"epochs": 1})
    ).path
    found = evaluate(ts.load(out, device="cpu"), folder / "labels.csv", samples=2)
    assert (found.thresholds_chosen_on, found.trained_on) == (12, 48)
    facts = json.loads((out / "labels.json").read_text())
    assert facts["format"] == 1
    del facts[KEY]  # as an older version wrote it
    (out / "labels.json").write_text(json.dumps(facts))
    found = evaluate(ts.load(out, device="cpu"), folder / "labels.csv", samples=2)
    assert found.thresholds_chosen_on is None
