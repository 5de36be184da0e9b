"""Compare two runs: same images by content, the paired difference, and training that keeps the test images."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tagspread as ts
from tagspread.cli import app
from tagspread.core.compare import paired_difference_interval
from tagspread.predict.comparison import compare_runs
from tagspread.run.split import Part, read_split
from tests.predict.conftest import QUICK, tags_of, write_csv
from tests.runs import sign_again


def names_of_test_images(run):
    split = read_split(run)
    return {split.names[row] for row in split.rows(Part.TEST)}


@pytest.fixture(scope="module")
def grown(folder, drawn, tmp_path_factory):
    """The image folder under other names, with more labels; two labels of an image are corrected."""
    top = tmp_path_factory.mktemp("grown")
    y = drawn.y.copy()
    y[70, :2] = 1 - y[70, :2]
    for i in range(160):
        shutil.copy(folder / f"p{i:03}.png", top / f"moved{i:03}.png")
    write_csv(top / "labels.csv", ["image", "tags"], [[f"moved{i:03}.png", tags_of(y[i])] for i in range(130)])
    return top


@pytest.fixture(scope="module")
def later(grown, run, tmp_path_factory):
    """A run on the grown folder with the same test images; they have other names there."""
    out = tmp_path_factory.mktemp("runs") / "later"
    return ts.train(grown, grown / "labels.csv", out, compare=run, **QUICK).path


def test_the_test_images_stay_and_all_others_are_trained_on(run, later):
    assert names_of_test_images(later) == {f"moved{name[1:]}" for name in names_of_test_images(run)}
    assert len(read_split(later).rows(Part.LABELED)) == 130 - 60
    assert json.loads((later / "config.json").read_text())["data"]["compare"] == str(run)


def test_the_difference_is_that_of_scores_of_both_runs(run, later, grown, drawn):
    found = compare_runs(run, later, samples=100, device="cpu")
    rows = sorted(int(name[5:8]) for name in names_of_test_images(later))
    y = drawn.y[rows].copy()
    y[rows.index(70), :2] = 1 - y[rows.index(70), :2]
    files = [grown / f"moved{row:03}.png" for row in rows]
    old, new = (
        np.concatenate([logits for _, logits in ts.load(one, device="cpu").logits(files)]) for one in (run, later)
    )
    assert (found.difference, found.low, found.high) == pytest.approx(
        paired_difference_interval(new, old, y, samples=100)
    )
    assert found.images == 60
    assert found.before == pytest.approx(ts.mean_average_precision(old, y))
    for k, tag in enumerate(found.tags):
        assert tag.positives == (y[:, k] == 1).sum()
        if tag.positives >= 5:
            _, low, high = paired_difference_interval(new[:, [k]], old[:, [k]], y[:, [k]], samples=100)
            assert tag.low == pytest.approx(low)
            assert tag.high == pytest.approx(high)
        elif tag.positives:
            assert tag.low is None
            assert tag.after is not None
    assert any("1 image labeled differently in the two runs" in note for note in found.notes)


def test_the_command_says_the_same(run, later):
    result = CliRunner().invoke(app, ["compare", str(run), str(later), "--samples", "20", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    found = compare_runs(run, later, samples=20, device="cpu")
    assert found.verdict in result.output
    assert f"difference of {100 * found.difference:.1f}".replace("-", "\u2212")[:-1] in found.verdict
    result = CliRunner().invoke(app, ["compare", str(run), str(later), "--samples", "20", "--json", "--device", "cpu"])
    assert json.loads(result.output)["difference"] == pytest.approx(found.difference)


def test_a_run_does_not_differ_from_itself(run):
    steps = []
    found = compare_runs(run, run, samples=20, device="cpu", progress=lambda *step: steps.append(step))
    assert {total for _, total in steps} == {2 * found.images}  # both runs score them
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1] == (2 * found.images, 2 * found.images)
    assert (found.difference, found.low, found.high) == (0, 0, 0)
    assert "is not measurably different" in found.verdict
    assert found.notes == []


def copy_with_tests(run, out, keep):
    """Copy a run, and make labeled images of its test images except some."""
    shutil.copytree(run, out)
    lines = list(csv.reader((out / "split.csv").read_text().splitlines()))
    tests = [line for line in lines if line[1] == "test"]
    for line in tests[keep:]:
        line[1] = "omitted"
    with (out / "split.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)
    sign_again(out)
    return out


def test_different_test_images_are_compared_on_the_common_ones(run, tmp_path):
    found = compare_runs(copy_with_tests(run, tmp_path / "less", keep=45), run, samples=10, device="cpu")
    assert found.images == 45
    assert "the runs have different test images (45 and 60); compared on the 45 that they have in common" in found.notes


def test_nothing_in_common_is_one_message(run, folder, drawn, tmp_path):
    with pytest.raises(ValueError, match="has no test images to compare on; give labeled images"):
        compare_runs(run, copy_with_tests(run, tmp_path / "none", keep=0), device="cpu")
    top = tmp_path / "others"
    top.mkdir()
    for i in range(20):
        Image.fromarray(255 - drawn.images[i].transpose(1, 2, 0)).save(top / f"n{i:03}.png")
    for name, rows in (("labels.csv", range(10)), ("test.csv", range(10, 15))):
        write_csv(top / name, ["image", "tags"], [[f"n{i:03}.png", tags_of(drawn.y[i])] for i in rows])
    other = ts.train(top, top / "labels.csv", tmp_path / "o", test_labels=top / "test.csv", **QUICK).path
    result = CliRunner().invoke(app, ["compare", str(run), str(other)])
    assert "have no test image in common (60 and 5 test images)" in str(result.exception)
    found = compare_runs(run, other, folder / "test.csv", folder, samples=10, device="cpu")  # a table is in common
    assert found.images == 60
    found = compare_runs(run, other, folder / "labels.csv", folder, samples=10, device="cpu")
    assert any(f"{run} was trained on 60 of these 60 images" in note for note in found.notes)
    with pytest.raises(ValueError, match="no labeled image is a test image of"):
        ts.train(top, top / "labels.csv", tmp_path / "x", compare=run, **QUICK)
    drawn_anew = ts.train(top, top / "labels.csv", tmp_path / "y", compare=run, test_share=0.3, **QUICK)
    assert len(names_of_test_images(drawn_anew.path)) == 3


def test_a_run_that_replaces_another_keeps_its_test_images(folder, drawn, tmp_path):
    table = tmp_path / "labels.csv"
    write_csv(table, ["image", "tags"], [[f"p{i:03}.png", tags_of(drawn.y[i])] for i in range(60)])
    first = names_of_test_images(ts.train(folder, table, tmp_path / "run", test_share=0.25, **QUICK).path)
    write_csv(table, ["image", "tags"], [[f"p{i:03}.png", tags_of(drawn.y[i])] for i in range(100)])
    again = ts.train(folder, table, tmp_path / "run", test_share=0.25, overwrite=True, **QUICK)
    assert names_of_test_images(again.path) == first
    other = ts.train(folder, table, tmp_path / "run", test_share=0.25, overwrite=True, seed=5, **QUICK)
    assert names_of_test_images(other.path) != first


def test_training_ends_with_the_comparison(run, grown, tmp_path):
    settings = "--backbone small --weights none --image-size 24 --batch 32 --preset paper --warmup-epochs 1 --epochs 1"
    start = ["train", str(grown), "--labels", str(grown / "labels.csv"), "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, [*start, *settings.split(), "--device", "cpu", "--compare", str(run)])
    assert result.exit_code == 0, result.output
    assert f"all 60 test images of {run} are test images again" in result.output
    assert compare_runs(run, tmp_path / "run", device="cpu").verdict in result.output
    result = CliRunner().invoke(app, ["train", "--resume", str(tmp_path / "run"), "--device", "cpu"])
    assert "is already finished" in result.output
    assert "points on 60 common test images" in result.output


def test_the_run_to_compare_with_must_be_one(folder, tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        ts.train(folder, folder / "labels.csv", tmp_path / "run", compare=tmp_path / "none", **QUICK)
    assert not (tmp_path / "run").exists()
