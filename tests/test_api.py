"""`ts.train` from Python: what is refused before any work, what is found from anywhere, and what a run stands for."""

import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

import tagspread as ts
from tagspread import api
from tagspread.cli import app
from tagspread.data.datasets.digits import digit_canvases
from tagspread.errors import TagspreadError
from tagspread.predict.evaluation import own_test_part
from tagspread.train import loop
from tagspread.train.interrupts import Interrupted
from tagspread.vision.backbones import build_network

QUICK: dict[str, Any] = {
    "backbone": "small", "weights": "none", "image_size": 24, "batch": 16, "lr": 0.003, "flip": False,
    "warmup_epochs": 1, "epochs": 1, "preset": "paper", "device": "cpu", "quiet": True,
}  # fmt: skip
TAGS = ("dog [small]", "dog [large]", "[/b]")


@pytest.fixture(scope="module")
def drawn():
    return digit_canvases(60, 1, seed=0)[0]


@pytest.fixture(scope="module")
def half(drawn):
    y = drawn.y[:, :3].copy()
    y[30:] = -1
    return y


@pytest.fixture
def folder(tmp_path, drawn):
    """Images with tags that a terminal might take for commands, joined in a way of their own."""
    top = tmp_path / "images"
    top.mkdir()
    lines = ["image,tags"]
    for i, image in enumerate(drawn.images):
        Image.fromarray(image.transpose(1, 2, 0)).save(top / f"{i:02}.png")
        lines.append(f"{i:02}.png," + ";".join(name for name, on in zip(TAGS, drawn.y[i, :3], strict=True) if on))
    (top / "labels.csv").write_text("\n".join(lines[:31]))
    (top / "test.csv").write_text("\n".join([lines[0], *lines[31:51]]))
    return top


def tagspread(*words):
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exception is None, result.exception
    return result.output


def test_only_public_names_are_listed():
    assert dir(ts) == sorted(ts.__all__)
    assert not {"wording", "errors", "Any", "TYPE_CHECKING", "core"} & set(dir(ts))
    assert all(getattr(ts, name) is not None for name in dir(ts))


def test_a_run_stands_for_its_folder(drawn, half, tmp_path):
    run = ts.train(drawn.images, half, tmp_path / "run", **QUICK)
    assert ts.load(run, device="cpu").classes == ("class 0", "class 1", "class 2")


@pytest.mark.parametrize("classes", [[0, 1, 2], ["a", "", "b"], ["a", "a", "b"], "abc"])
def test_classes_that_are_no_names_are_refused_before_a_run_is_replaced(classes, drawn, half, tmp_path):
    run = ts.train(drawn.images, half, tmp_path / "run", **QUICK)
    before = (run.path / "labels.json").read_bytes()
    with pytest.raises(TagspreadError, match="give a list of different names"):
        ts.train(drawn.images, half, run.path, classes=classes, overwrite=True, **QUICK)
    assert (run.path / "labels.json").read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method_options": {"keep_po": 0.5}}, "Did you mean 'keep_pos'"),
        ({"method_options": {"keep_pos": "a"}}, "keep_pos is 'a'"),
        ({"loss_options": {"gamma_neg": -1}}, "gamma_neg is -1"),
        ({"loss_options": {"gama": 1}}, "has no option 'gama'"),
    ],
)
def test_options_are_looked_at_before_images_are(settings, words, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "dataset_from_folder", None)
    with pytest.raises(TagspreadError, match=words):
        ts.train(folder, folder / "labels.csv", tmp_path / "run", **(QUICK | settings))


def test_a_test_image_under_another_name_is_still_that_image(folder, tmp_path):
    (folder / "linked.png").symlink_to(folder / "03.png")
    (tmp_path / "test.csv").write_text("image,tags\nlinked.png,[/b]\n")
    with pytest.raises(TagspreadError, match=r"both name .*linked\.png"):
        ts.train(folder, folder / "labels.csv", tmp_path / "run", test_labels=tmp_path / "test.csv",
                 table_options={"delimiter": ";"}, **QUICK)  # fmt: skip


def test_a_run_begun_with_a_relative_file_of_weights_is_gone_on_with_from_anywhere(drawn, half, tmp_path, monkeypatch):
    donor = build_network("test_resnet", 1, weights="none").backbone
    save_file({name: value.contiguous() for name, value in donor.state_dict().items()}, tmp_path / "w.safetensors")
    monkeypatch.chdir(tmp_path)
    settings = QUICK | {"backbone": "test_resnet", "weights": "w.safetensors", "mode": "full"}

    def stop(*_):
        raise Interrupted("run")

    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate", stop)
        with pytest.raises(Interrupted):
            ts.train(drawn.images, half, tmp_path / "run", **settings)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    settings["weights"] = str(tmp_path / "w.safetensors")
    shutil.move(tmp_path / "w.safetensors", tmp_path / "gone.safetensors")  # the checkpoint has all it needs
    assert len(ts.train(drawn.images, half, tmp_path / "run", resume=True, **settings).log) == 2


def test_tags_are_shown_as_they_are_and_tables_read_as_in_training(folder, tmp_path):
    options = {"delimiter": ";"}
    run = ts.train(folder, folder / "labels.csv", tmp_path / "run", table_options=options, **QUICK)
    for words in (["evaluate", run.path, "--labels", folder / "test.csv", "--samples", 2], ["pseudo-labels", run.path]):
        said = tagspread(*words)
        assert all(name in said for name in TAGS)
    tagspread("thresholds", run.path, "--labels", folder / "test.csv", "--policy", "match")
    tagspread("predict", run.path, folder, "--fill", folder / "labels.csv", "-o", tmp_path / "filled.csv", "--top", 2)
    assert ";" in (tmp_path / "filled.csv").read_text().splitlines()[-1]
    assert "|" not in (tmp_path / "filled.csv").read_text()


def test_columns_are_found_as_in_training(folder, tmp_path):
    """Not told again, and not where a table has none of that name."""
    odd, test = tmp_path / "odd.csv", tmp_path / "test.csv"
    for plain, other in ((folder / "labels.csv", odd), (folder / "test.csv", test)):
        rows = [line.split(",", 1) for line in plain.read_text().splitlines()[1:]]
        other.write_text("note,Etiketten,Bild\n" + "".join(f"x,{tags},{name}\n" for name, tags in rows))
    options = {"delimiter": ";", "image_column": "Bild", "tags_column": "Etiketten", "ignore": ["note"]}
    run = ts.train(folder, odd, tmp_path / "run", table_options=options, **QUICK)
    for table in (test, folder / "test.csv"):
        tagspread("evaluate", run.path, "--labels", table, "--samples", 2)
        tagspread("thresholds", run.path, "--labels", table, "--policy", "match")
        tagspread("report", run.path, "--labels", table, "--overwrite")
    tagspread("predict", run.path, folder, "--fill", odd, "-o", tmp_path / "filled.csv", "--top", 2)
    filled = (tmp_path / "filled.csv").read_text()
    assert filled.startswith(odd.read_text())
    assert len(filled) > len(odd.read_text())


def test_a_frame_of_labels_names_the_classes(drawn, half, tmp_path):
    frame = pd.DataFrame(half, columns=["a", "b", "c"])
    run = ts.train(drawn.images, frame, tmp_path / "run", **QUICK)
    assert ts.load(run, device="cpu").classes == ("a", "b", "c")
    test = {"test_images": drawn.images[:20], "test_labels": pd.DataFrame(half[:20], columns=["b", "a", "c"])}
    with pytest.raises(TagspreadError, match="other columns than labels"):
        ts.train(drawn.images, frame, tmp_path / "other", **test, **QUICK)


def test_files_that_are_trained_on_are_not_tested_on(drawn, half, tmp_path):
    files = []
    for k, image in enumerate(drawn.images):
        files.append(tmp_path / f"{k}.png")
        Image.fromarray(image.transpose(1, 2, 0)).save(files[-1])
    linked = tmp_path / "linked.png"
    linked.symlink_to(files[0])
    for tested in (files[29:31], [linked, files[40]]):
        with pytest.raises(TagspreadError, match="is in images, with labels, and in test_images"):
            ts.train(files, half, tmp_path / "run", test_images=tested, test_labels=drawn.y[:2, :3], **QUICK)
    both = np.concatenate([half, 1 - half[:1]])
    with pytest.raises(TagspreadError, match=r"0\.png is given twice, with labels that contradict each other"):
        ts.train([*files, files[0]], both, tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()
    # the same file twice with the same labels, and tested on what was in the unlabeled set, is the user's business
    more = {"test_images": files[40:50], "test_labels": drawn.y[40:50, :3]}
    ts.train([*files, files[0]], np.concatenate([half, half[:1]]), tmp_path / "run", **more, **QUICK)


def test_paths_may_come_one_by_one_and_options_of_tables_have_their_place(drawn, half, tmp_path):
    for k, image in enumerate(drawn.images):
        Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / f"{k:02}.png")
    run = ts.train((tmp_path / f"{k:02}.png" for k in range(60)), half, tmp_path / "run", **QUICK)
    assert len(run.log) == 2
    with pytest.raises(TagspreadError, match=r"give it as table_options=\{'image_column': \.\.\.\}"):
        ts.train(tmp_path, tmp_path / "t.csv", tmp_path / "x", image_column="file", **QUICK)


def test_arrays_that_are_trained_on_and_tested_on_are_counted(drawn, half, tmp_path, capsys):
    more = {"test_images": drawn.images[25:35], "test_labels": drawn.y[25:35, :3]}
    ts.train(drawn.images, half, tmp_path / "run", **more, **QUICK | {"quiet": False})
    said = " ".join(capsys.readouterr().out.split())
    assert "note: 5 of 10 test_images are also among the labeled images" in said


def test_a_run_that_is_replaced_is_there_until_the_new_one_is(drawn, half, tmp_path, monkeypatch):
    run = ts.train(drawn.images, half, tmp_path / "run", **QUICK)
    before = (run.path / "ema.safetensors").read_bytes()
    (run.path / "mine.txt").write_text("mine")

    def stop(*_):
        raise KeyboardInterrupt

    for _ in range(2):  # the second replaces one that never ended
        with monkeypatch.context() as patch:
            patch.setattr(loop, "student_steps", stop)
            with pytest.raises(Interrupted, match="run"):
                ts.train(drawn.images, half, run.path, overwrite=True, **QUICK)
    assert (run.path / "previous" / "ema.safetensors").read_bytes() == before
    assert ts.load(run.path / "previous", device="cpu").classes == ("class 0", "class 1", "class 2")
    with pytest.raises(TagspreadError, match=r"The run that it replaces is in .*previous"):
        ts.load(run.path)
    ts.train(drawn.images, half, run.path, resume=True, **QUICK)
    assert not (run.path / "previous").exists()
    assert (run.path / "mine.txt").read_text() == "mine"


def test_tables_are_looked_for_before_weights_are_fetched(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "seeded_backbone", None)
    with pytest.raises(TagspreadError, match=r"there is no file .*nope\.csv"):
        ts.train(folder, folder / "nope.csv", tmp_path / "run")
    with pytest.raises(TagspreadError, match="there is no folder"):
        ts.train(folder / "nowhere", folder / "labels.csv", tmp_path / "run")


def test_where_its_test_images_are_is_not_known_to_a_run_from_python(drawn, half, tmp_path):
    run = ts.train(drawn.images, half, tmp_path / "run", test_share=0.3, **QUICK)
    with pytest.raises(TagspreadError, match="started from Python with arrays of images"):
        own_test_part(ts.load(run, device="cpu"))


def test_sigterm_before_the_first_step_says_how_to_go_on(folder, tmp_path):
    words = ["--labels", folder / "labels.csv", "--delimiter", ";", "--out", tmp_path / "run", "--backbone", "small"]
    words += ["--weights", "none", "--mode", "head", "--image-size", "24", "--device", "cpu"]
    code = (
        "import os, signal, sys\n"
        "from tagspread.train import features\n"
        "from tagspread.cli import main\n"
        "features.embed = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "train", folder, *map(str, words)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 130
    assert f"tagspread train --resume {tmp_path / 'run'}" in done.stderr.replace("\n", "")


def test_a_report_reads_a_table_of_another_shape(folder, tmp_path):
    run = ts.train(folder, folder / "labels.csv", tmp_path / "run", table_options={"delimiter": ";"}, **QUICK)
    lines = (folder / "test.csv").read_text().replace("image,tags", "image,keywords").replace(";", "+")
    (tmp_path / "t.csv").write_text(lines)
    words = ["--tags-column", "keywords", "--delimiter", "+"]
    tagspread("report", run.path, "--labels", tmp_path / "t.csv", *words, "-o", tmp_path / "page.html")
    assert "images of the given label table" in (tmp_path / "page.html").read_text()


def test_few_test_images_per_tag_are_said(folder, tmp_path):
    run = ts.train(folder, folder / "labels.csv", tmp_path / "run", table_options={"delimiter": ";"}, **QUICK)
    lines = (folder / "test.csv").read_text().splitlines()
    (tmp_path / "t.csv").write_text("\n".join(lines[:7]))
    said = tagspread("evaluate", run.path, "--labels", tmp_path / "t.csv", "--images", folder, "--samples", 2)
    assert "tags are on fewer than 5 of these images" in said
    said = tagspread("evaluate", run.path, "--labels", folder / "test.csv", "--samples", 2)
    assert "on fewer than" not in said


def test_labels_that_wrap_around_are_refused():
    for value in (-128, -2, 2, 127):
        with pytest.raises(TagspreadError, match=f"holds {value} at row 0, class 0"):
            ts.class_counts(np.array([[value, 1]], np.int8))
