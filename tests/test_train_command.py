"""Run ``tagspread train`` on an image folder and a CSV file; kill and resume it."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

import tagspread as ts
from tagspread.data.datasets.digits import CLASSES, digit_canvases

QUICK = ["--backbone", "small", "--weights", "none", "--image-size", "24", "--batch", "32", "--lr", "0.003"]
QUICK += ["--preset", "paper", "--warmup-epochs", "2", "--epochs", "6", "--set", "flip=false", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """120 images, 30 of them tagged in labels.csv, 20 in test.csv, one broken."""
    top = tmp_path_factory.mktemp("images")
    drawn, _ = digit_canvases(120, 1, seed=0)
    for i, image in enumerate(drawn.images):
        Image.fromarray(image.transpose(1, 2, 0)).save(top / f"canvas {i:03}.png")
    (top / "broken.png").write_bytes((top / "canvas 000.png").read_bytes()[:100])
    for name, rows in (("labels.csv", range(30)), ("test.csv", range(30, 50))):
        with (top / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["image", "tags"])
            for i in rows:
                writer.writerow(
                    [f"canvas {i:03}.png", "|".join(c for c, on in zip(CLASSES, drawn.y[i], strict=True) if on)]
                )
    return top


def command(*arguments):
    return [sys.executable, "-m", "tagspread", "train", *map(str, arguments)]


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False)


def start(folder, out):
    return [folder, "--labels", folder / "labels.csv", "--test-labels", folder / "test.csv", "--out", out, *QUICK]


@pytest.fixture(scope="module")
def uninterrupted(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    result = run(*start(folder, out))
    assert result.returncode == 0, result.stderr
    return out, result.stdout


def same_weights(one, other):
    for name in ("model.safetensors", "ema.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_what_a_person_reads(uninterrupted):
    out, text = uninterrupted
    assert "broken.png" in text  # named
    assert "1 of 121 images cannot be read and are left out" in text
    assert "epoch 7 main | loss" in text
    lines = text.splitlines()
    assert lines[lines.index(f"done: {out}") + 1].startswith("it took ")
    figure, note = lines[-2:]  # the last is what the run is worth
    assert "test mAP" in figure
    assert "tags are on fewer than 5 of these images" in note
    assert "thresholds were chosen by policy match on" in text
    assert "probabilities are not calibrated, good for ranking only ('tagspread thresholds' improves both" in text
    assert "Traceback" not in text
    assert json.loads((out / "config.json").read_text())["settings"]["epochs"] == 6


def wait_for_epoch(out, epoch):
    for _ in range(6000):  # two minutes: the machine may be busy
        log = out / "log.jsonl"
        if log.is_file() and len(log.read_text().splitlines()) > epoch:
            return
        time.sleep(0.02)
    raise AssertionError("the run did not get there")


@pytest.mark.parametrize("epoch", [0, 4])
def test_killed_without_warning_and_resumed_bit_for_bit(folder, uninterrupted, tmp_path, epoch):
    out = tmp_path / "run"
    process = subprocess.Popen(command(*start(folder, out)), stdout=subprocess.DEVNULL)
    wait_for_epoch(out, epoch)
    time.sleep(0.05 * epoch)  # somewhere in the next epoch
    process.kill()
    process.wait()
    assert not (out / "metrics.json").exists()
    result = run("--resume", out, "--device", "cpu")
    assert result.returncode == 0, result.stderr
    same_weights(uninterrupted[0], out)


def test_terminated_it_saves_and_says_how_to_go_on(folder, uninterrupted, tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(
        command(*start(folder, out)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    wait_for_epoch(out, 2)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    assert process.returncode == 130
    assert f"tagspread train --resume {out}" in said
    assert run("--resume", out, "--device", "cpu", "--quiet").returncode == 0
    same_weights(uninterrupted[0], out)


def test_bad_calls_are_one_message_and_exit_code_2(folder, uninterrupted, tmp_path):
    out, _ = uninterrupted
    for arguments, words in [
        ([], "the folder of images and --labels FILE and --out RUN are missing"),
        ([folder, "--labels", folder / "labels.csv"], "error: --out RUN is missing"),
        (start(folder, out), "holds another run"),
        (["--resume", tmp_path / "nothing"], "is not a run folder"),
        (["--resume", out, "--epochs", "3"], "leave out all other settings"),
        ([*start(folder, tmp_path / "x"), "--method", "capp"], "Did you mean 'cap'"),
        ([*start(folder, tmp_path / "x"), "--set", "ephocs=3"], "Did you mean 'epochs'"),
        ([*start(folder, tmp_path / "x"), "--set", "nonsense"], "NAME=VALUE"),
        ([*start(folder, tmp_path / "x"), "--set", "out=3"], "there is no setting 'out'"),
        ([*start(folder, tmp_path / "x"), "--test-share", "1.5"], "--test-share is 1.5; give a share between 0 and 1"),
    ]:
        result = run(*arguments)
        assert result.returncode == 2, result.stderr
        assert words in " ".join(result.stderr.split())
        assert "Traceback" not in result.stderr
    assert not (tmp_path / "x").exists()


def test_python_gives_the_same_as_the_command(folder, uninterrupted, tmp_path):
    settings: dict[str, Any] = {"backbone": "small", "weights": "none", "image_size": 24, "batch": 32, "lr": 0.003}
    settings |= {"warmup_epochs": 2, "epochs": 6, "flip": False}
    result = ts.train(
        folder,
        folder / "labels.csv",
        tmp_path / "run",
        test_labels=folder / "test.csv",
        preset="paper",
        device="cpu",
        cache=tmp_path / "cache",
        quiet=True,
        **settings,
    )
    assert load_file(result.path / "ema.safetensors").keys()
    same_weights(uninterrupted[0], result.path)
    assert any((tmp_path / "cache").iterdir())


def test_arrays_in_every_layout(tmp_path):
    drawn, unseen = digit_canvases(80, 20, seed=0)
    y = drawn.y.copy()
    y[20:] = -1
    quick: dict[str, Any] = {
        "backbone": "small",
        "weights": "none",
        "warmup_epochs": 1,
        "epochs": 1,
        "batch": 16,
        "quiet": True,
    }
    figures = []
    for name, change in [
        ("first", lambda x: x),
        ("last", lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1))),
        ("gray", lambda x: x[:, 0]),
    ]:
        result = ts.train(
            change(drawn.images), y, tmp_path / name, test_images=change(unseen.images), test_labels=unseen.y,
            classes=CLASSES, preset="paper", device="cpu", **quick,
        )  # fmt: skip
        figures.append(result.metrics["test"]["mAP"])
    assert len(set(figures)) == 1
    with pytest.raises(ValueError, match="test_images and test_labels belong together"):
        ts.train(drawn.images, y, tmp_path / "x", test_images=unseen.images, device="cpu", **quick)
    with pytest.raises(ValueError, match="images hold float32; give uint8"):
        ts.train(drawn.images.astype(np.float32), y, tmp_path / "x", device="cpu", **quick)
    more: dict[str, Any] = {"test_images": unseen.images, "test_labels": unseen.y[:, 1:]}
    with pytest.raises(ValueError, match="test_labels have 9 classes but labels 10"):
        ts.train(drawn.images, y, tmp_path / "x", device="cpu", **more, **quick)
    with pytest.raises(ValueError, match="classes is 'ab'"):
        ts.train(drawn.images, y, tmp_path / "x", classes="ab", device="cpu", **quick)
    with pytest.raises(ValueError, match=r"labels have shape \(79, 10\) for 80 images"):
        ts.train(drawn.images, y[1:], tmp_path / "x", device="cpu", **quick)
    with pytest.raises(ValueError, match=r"images have shape \(80, 24\); give N x H x W x 3"):
        ts.train(drawn.images[:, 0, :, 0], y, tmp_path / "x", device="cpu", **quick)


def test_a_list_of_files_without_a_test_part_and_a_share_put_aside(folder, tmp_path):
    files = sorted(folder.glob("canvas*.png"))
    y = np.full((len(files), 2), -1)
    y[:20] = [[1, 0], [0, 1]] * 10
    quick: dict[str, Any] = {"backbone": "small", "image_size": 24, "warmup_epochs": 1, "epochs": 1, "quiet": True}
    quick |= {"preset": "paper", "device": "cpu"}
    assert "test" not in ts.train(files, y, tmp_path / "a", **quick).metrics
    aside = ts.train(files, y, tmp_path / "b", test_share=0.2, **quick)
    assert aside.metrics["test"]["images"] == 4
    table = folder / "labels.csv"
    result = ts.train(folder, table, tmp_path / "c", test_share=0.2, **quick)
    assert result.metrics["test"]["images"] == 6
    with pytest.raises(ValueError, match="both name"):
        ts.train(folder, table, tmp_path / "d", test_labels=table, **quick)


def test_check_and_train_read_tables_alike(folder, tmp_path):
    table = tmp_path / "semicolons.csv"
    lines = (folder / "labels.csv").read_text().replace("|", "+").splitlines()
    table.write_text("\n".join([lines[0] + ",who", *(line + ",me" for line in lines[1:])]))
    options = ["--labels", str(table), "--delimiter", "+", "--ignore", "who"]
    check = [sys.executable, "-m", "tagspread", "check", str(folder), *options]
    result = subprocess.run([*check, "--json"], capture_output=True, text=True, check=False)
    assert json.loads(result.stdout)["counts"]
    bad = subprocess.run(check[:-2], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert "who" in bad.stdout
    done = run(folder, *options, "--out", tmp_path / "run", *QUICK, "--epochs", "1")
    assert done.returncode == 0, done.stderr


def test_check_and_train_read_a_metadata_file_in_the_folder(folder, tmp_path):
    train = tmp_path / "photos" / "train"
    shutil.copytree(folder, train)
    (train / "broken.png").unlink()
    with (train / "labels.csv").open(newline="") as file:
        entries = [{"file_name": row["image"], "tags": row["tags"].split("|")} for row in csv.DictReader(file)]
    (train / "metadata.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    check = [sys.executable, "-m", "tagspread", "check", str(train.parent), "--labels", str(train / "metadata.jsonl")]
    result = subprocess.run([*check, "--json"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    counts = json.loads(result.stdout)["counts"]
    assert (counts["images"], counts["labeled"], counts["missing"]) == (120, 30, 0)
    done = run(train.parent, "--labels", train, "--out", tmp_path / "run", *QUICK, "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "labels.json").read_text())["classes"] == sorted(
        {tag for entry in entries for tag in entry["tags"]}
    )
