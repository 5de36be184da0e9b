"""Images that were trained on, or that thresholds were chosen on, are recognized by content and counted exactly."""

import hashlib
import json
import os
import shutil

import numpy as np
import pytest
import torch

import tagspread as ts
from tagspread.data.images.store import TensorStore
from tagspread.predict.evaluation import evaluate
from tagspread.run.config import DataSource, RunConfig
from tagspread.run.record import CHOSEN_ON, RunRecord, chosen_on_digests, chosen_on_part, count_chosen_on
from tagspread.run.split import BATCH, Part, Split, digest_files, digest_items
from tests.predict.conftest import QUICK
from tests.predict.test_commands import tagspread


def digest_of(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest()[:16].encode()


def test_files_are_known_by_what_is_in_them(tmp_path):
    files = [tmp_path / str(number) for number in range(200)]
    for number, file in enumerate(files):
        file.write_bytes(b"image %d" % (number % 150))
    os.mkfifo(tmp_path / "pipe")  # which would never end
    odd = [tmp_path / "gone", tmp_path, tmp_path / "pipe", "a\0b"]
    digests = digest_files([*files, *odd])
    assert digests.tolist() == [digest_of(b"image %d" % (number % 150)) for number in range(200)] + [b""] * 4
    assert digest_files([]).tolist() == []


def test_items_are_known_by_their_pixels():
    images = torch.randint(0, 256, (BATCH + 3, 3, 4, 4), dtype=torch.uint8)
    images[-1] = images[0]
    expected = [digest_of(image.numpy().tobytes()) for image in images]
    assert digest_items(TensorStore(images, "cpu")).tolist() == expected
    assert expected[0] == expected[-1]


def synthetic(parts: dict[Part, int]) -> Split:
    """A split with so many images of each part; image k has digest k."""
    count = sum(parts.values())
    digests = np.array([f"{k:016x}".encode() for k in range(count)])
    names = [f"{k}.png" for k in range(count)]
    return Split(names, np.repeat(list(parts), list(parts.values())), digests, ("a",), np.zeros((count, 1), np.int8))


def test_counts_are_exact_however_many_images_there_are(tmp_path):
    split = synthetic({Part.LABELED: 5003, Part.HELD_OUT: 2001, Part.APART: 40, Part.TEST: 100})
    record = RunRecord(tmp_path, RunConfig("0", {}, DataSource(images=str(tmp_path))), split)
    asked = np.concatenate([split.digests[17:7030], [b""] * 5, split.digests[20:30]])
    assert record.trained_on(asked) == 5003 - 17 + 10
    assert count_chosen_on({CHOSEN_ON: chosen_on_part(Part.HELD_OUT)}, record, asked) == 2001
    assert count_chosen_on({CHOSEN_ON: chosen_on_part(Part.APART)}, record, asked) == 7030 - 7004
    others = json.loads(json.dumps({CHOSEN_ON: chosen_on_digests(asked)}))
    assert len(others[CHOSEN_ON]["digests"]) == 7030 - 17
    assert count_chosen_on(others, None, split.digests) == 7030 - 17
    assert count_chosen_on(others, None, split.digests[:20]) == 3


def test_what_a_run_does_not_know_is_not_guessed(tmp_path):
    split = synthetic({Part.LABELED: 3})
    arrays = RunRecord(tmp_path, RunConfig("0", {}), split)  # nothing says where such names start from
    assert arrays.trained_on(split.digests) is None
    assert count_chosen_on({CHOSEN_ON: chosen_on_part(Part.HELD_OUT)}, arrays, split.digests) is None
    assert count_chosen_on({CHOSEN_ON: chosen_on_part(Part.HELD_OUT)}, None, split.digests) is None
    for odd in (None, "x", {"digests": 5}, {"digests": [5]}, {"digests": ["é"]}, {"part": "test"}, {"part": 3}, {}):
        assert count_chosen_on({CHOSEN_ON: odd}, arrays, split.digests) is None
    assert count_chosen_on({}, arrays, split.digests) is None


def test_evaluate_says_so_after_decide(run, folder, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    call = ["evaluate", tmp_path / "run", "--labels", folder / "test.csv", "--samples", 2]
    assert "thresholds were chosen on" not in tagspread(*call)
    assert (
        json.loads(tagspread(*call, "--json"))["thresholds_chosen_on"] is None
    )  # chosen on the unlabeled set, without labels
    tagspread("thresholds", tmp_path / "run", "--labels", folder / "test.csv", "-q")
    assert "note: the thresholds were chosen on these images; precision, recall, F1" in tagspread(*call)
    assert json.loads(tagspread(*call, "--json"))["thresholds_chosen_on"] == 60
    lines = (folder / "test.csv").read_text().splitlines() + (folder / "labels.csv").read_text().splitlines()[1:]
    (tmp_path / "half.csv").write_text("\n".join([lines[0], *lines[31:91]]) + "\n")
    call[3] = tmp_path / "half.csv"
    assert "chosen on 30 of these 60 images" in tagspread(*call)
    tagspread("thresholds", tmp_path / "run", "--labels", tmp_path / "half.csv", "-q")
    text = tagspread(*call)
    assert "30 of these 60 images were used in training" in text  # who decides on training images is told both
    assert "thresholds were chosen on these images" in text


def test_held_out_images_are_not_those_trained_on(folder, tmp_path):
    out = ts.train(
        folder, folder / "labels.csv", tmp_path / "run", selection="held_out", **(QUICK | {"epochs": 1})
    ).path
    found = evaluate(ts.load(out, device="cpu"), folder / "labels.csv", samples=2)
    assert (found.thresholds_chosen_on, found.trained_on) == (12, 48)
    facts = json.loads((out / "labels.json").read_text())
    assert facts["format"] == 2
    assert facts[CHOSEN_ON] == {"part": "held_out"}
    del facts[CHOSEN_ON]
    (out / "labels.json").write_text(json.dumps(facts))
    found = evaluate(ts.load(out, device="cpu"), folder / "labels.csv", samples=2)
    assert found.thresholds_chosen_on is None


def test_a_tagger_without_its_run_does_not_know_what_it_was_trained_on(run, folder, tmp_path):
    (tmp_path / "tagger").mkdir()
    for name in ("labels.json", "ema.safetensors"):
        shutil.copy(run / name, tmp_path / "tagger")
    call = ["evaluate", tmp_path / "tagger", "--labels", folder / "labels.csv", "--images", folder, "--samples", 2]
    assert "it is unknown whether it was trained on these images" in tagspread(*call)
    assert json.loads(tagspread(*call, "--json"))["trained_on"] is None
    with pytest.raises(ts.TagspreadError, match="not a run folder"):
        evaluate(ts.load(tmp_path / "tagger", device="cpu"))
