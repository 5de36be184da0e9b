"""Benchmark datasets, read from folders in the layout of their distribution."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from tagspread.bench.datasets import load
from tagspread.errors import TagspreadError
from tagspread.progress import Watcher


@pytest.fixture
def voc(tmp_path):
    """A VOC folder with twelve images, one of them broken."""
    root, rng = tmp_path / "VOC2012", np.random.default_rng(0)
    for folder in ("JPEGImages", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for k in range(12):
        Image.fromarray(rng.integers(0, 255, (20, 30, 3), np.uint8)).save(root / "JPEGImages" / f"p{k:02}.jpg")
    (root / "JPEGImages" / "p03.jpg").write_bytes(b"no image")
    for split, rows in (("train", range(8)), ("val", range(8, 12))):
        for at, name in enumerate(("cat", "dog")):
            text = "".join(f"p{k:02} {1 if k % 2 == at else -1}\n" for k in rows)
            (root / "ImageSets" / "Main" / f"{name}_{split}.txt").write_text(text)
    return root


def test_splits_of_a_data_set_share_one_store_and_hide_the_unlabeled(voc):
    source = load("voc", voc)
    splits = source.open(16, torch.device("cpu"), None, Watcher(quiet=True))
    one, other = splits(0.25, 1), splits(0.5, 2)
    assert one.store is other.store
    assert (len(one.labeled) + len(one.unlabeled), len(one.test)) == (7, 4)  # without the broken one
    assert 3 not in {*one.labeled.tolist(), *one.unlabeled.tolist()}
    assert (one.y[one.unlabeled] == -1).all()
    assert one.oracle is not None
    assert (one.oracle == source.y[one.unlabeled]).all()
    assert one.names[0] == "JPEGImages/p00.jpg"
    assert one.classes == ("cat", "dog")


def test_images_that_are_all_broken_are_said(voc):
    for file in (voc / "JPEGImages").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(TagspreadError, match="none of the 12 images can be read"):
        load("voc", voc).open(16, torch.device("cpu"), None, Watcher(quiet=True))


def test_images_that_are_all_missing_are_said_before_memory_is_asked_for(monkeypatch, voc):
    data = load("voc", voc)
    for path in data.paths:
        path.unlink()
    monkeypatch.setattr("tagspread.bench.datasets.open_store", None)
    with pytest.raises(TagspreadError, match=r"none of the 12 images that they name exists; the first is .*\.jpg"):
        data.open(8, torch.device("cpu"), None, Watcher())


def test_coco_is_train_2014_and_val_2014(tmp_path):
    (tmp_path / "annotations").mkdir()
    categories = [{"id": 1, "name": "cat"}, {"id": 3, "name": "dog"}]
    for part, ids in (("train2014", (1, 2, 3)), ("val2014", (4, 5))):
        index = {
            "images": [{"id": k, "file_name": f"{k}.jpg"} for k in ids],
            "annotations": [{"image_id": k, "category_id": 1 if k % 2 else 3} for k in ids],
            "categories": categories,
        }
        (tmp_path / "annotations" / f"instances_{part}.json").write_text(json.dumps(index))
    source = load("coco", tmp_path)
    assert (source.train, source.classes, source.y.tolist()) == (
        3,
        ("cat", "dog"),
        [[1, 0], [0, 1], [1, 0], [0, 1], [1, 0]],
    )
    assert source.names == ["train2014/1.jpg", "train2014/2.jpg", "train2014/3.jpg", "val2014/4.jpg", "val2014/5.jpg"]


def test_nus_is_train_and_test(tmp_path):
    for part, names, y in (("train", ["a.jpg", "b.jpg"], [[1, 0], [0, 1]]), ("val", ["c.jpg"], [[1, 1]])):
        np.save(tmp_path / f"formatted_{part}_images.npy", np.array(names))
        np.save(tmp_path / f"formatted_{part}_labels.npy", np.array(y))
    source = load("nus", tmp_path)
    assert (source.train, source.names, source.y.tolist()) == (2, ["a.jpg", "b.jpg", "c.jpg"], [[1, 0], [0, 1], [1, 1]])


def test_demo_is_the_same_every_time():
    one, again = load("demo", None, 100), load("demo", None, 100)
    assert one.images is not None
    assert again.images is not None
    assert (one.images == again.images).all()
    assert (one.train, len(one.y), one.facts) == (100, 150, {"canvases": 100})
