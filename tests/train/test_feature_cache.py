"""Features of a frozen network are kept image by image: no image passes through the network twice."""

import copy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import tagspread as ts
from tagspread.errors import TagspreadError
from tagspread.predict.embedding import embed_images
from tagspread.progress import Watcher
from tagspread.train import features
from tagspread.train.config import make_config
from tagspread.train.feature_cache import FeatureCache, cache_key, pixel_digests, runs_beside
from tagspread.train.features import FeatureExtractor, embed
from tagspread.train.trainer import RunOptions, run_training
from tagspread.vision.backbones import SmallNet, build_network
from tests.train.conftest import make_dataset

CPU = torch.device("cpu")


@pytest.fixture
def passed(monkeypatch):
    """The images that pass through the network, as their pixels."""
    images: list[bytes] = []
    forward = SmallNet.forward

    def counted(self, x):
        images.extend(row.numpy().tobytes() for row in x.contiguous())
        return forward(self, x)

    monkeypatch.setattr(SmallNet, "forward", counted)
    return images


@pytest.fixture
def small():
    torch.manual_seed(0)
    return build_network("small", 3, weights="none").eval()


def make_cache(folder, network, dataset, mirror=False, precision="fp32", others=()):
    return FeatureCache(folder, cache_key(network, dataset.store.shape, mirror=mirror, precision=precision), others)


def head_config(**settings):
    return make_config(mode="head", backbone="small", weights="none", image_size=24, **settings)


def more_labels(dataset, count):
    """The same images, with more of them labeled."""
    rows = np.concatenate([dataset.labeled, dataset.unlabeled])
    return replace(dataset, labeled=rows[:count], unlabeled=rows[count:])


def test_with_more_labels_no_features_are_computed(tmp_path, passed, silent):
    dataset, options = make_dataset(train=120, test=20, labeled=30), RunOptions(cache=tmp_path / "cache")
    run_training(dataset, head_config(), tmp_path / "one", options, watcher=silent)
    assert len(passed) == len(set(passed)) == 120 + 120 + 20  # test images are not mirrored
    passed.clear()
    again = run_training(more_labels(dataset, 60), head_config(), tmp_path / "two", options, watcher=silent)
    assert passed == []
    assert again.log[-1]["chosen"]["ridge"] > 0


def test_a_new_image_is_the_only_one_that_is_computed(tmp_path, passed, silent):
    whole = make_dataset(train=60, test=10, labeled=20)
    part = replace(whole, unlabeled=whole.unlabeled[:-3])
    options = RunOptions(cache=tmp_path / "cache")
    run_training(part, head_config(flip=False), tmp_path / "one", options, watcher=silent)
    passed.clear()
    run_training(whole, head_config(flip=False), tmp_path / "two", options, watcher=silent)
    assert len(passed) == 3


def test_remains_of_a_killed_process_are_removed_although_no_features_are_missing(tmp_path, small):
    dataset = make_dataset(train=20, test=4, labeled=8)
    cache, rows = make_cache(tmp_path, small, dataset), np.arange(20)
    embed(small, dataset.store, rows, torch.device("cpu"), cache=cache)
    shards = sorted(cache.folder.iterdir())
    killed = "import os, sys; from tagspread.files import atomic_file, hold_lock\n"
    killed += f"folder = {str(cache.folder)!r}; from pathlib import Path\n"
    killed += "with hold_lock(Path(folder, '.lock')), atomic_file(Path(folder, 'a')): os._exit(0)"
    subprocess.run([sys.executable, "-c", killed], check=True)
    assert len(list(cache.folder.iterdir())) == len(shards) + 2  # the lock and a temporary file
    embed(small, dataset.store, rows, torch.device("cpu"), cache=cache)
    assert sorted(cache.folder.iterdir()) == shards


def test_retraining_beside_a_run_uses_its_features(tmp_path, passed, silent):
    dataset = make_dataset(train=60, test=10, labeled=20)
    first = run_training(dataset, head_config(), tmp_path / "one", watcher=silent)
    assert list(first.path.glob("features-*"))
    before = sorted(first.path.rglob("*"))
    passed.clear()
    second = run_training(more_labels(dataset, 30), head_config(), tmp_path / "two", watcher=silent)
    assert passed == []
    assert sorted(first.path.rglob("*")) == before  # other runs are read, never written
    assert runs_beside(second.path) == [first.path]
    run_training(dataset, head_config(), tmp_path / "elsewhere" / "three", watcher=silent)
    assert len(passed) == 60 + 60 + 10


def test_predict_and_evaluate_use_the_features_of_training(tmp_path, passed, silent):
    dataset = make_dataset(train=60, test=30, labeled=20)
    done = run_training(dataset, head_config(), tmp_path / "run", watcher=silent)
    passed.clear()
    images = dataset.store.batch(dataset.test).numpy()
    found = ts.load(done.path, device="cpu").predict(images).probabilities
    assert passed == []
    new = images[:4, :, ::-1].copy()
    both = ts.load(done.path, device="cpu").predict(np.concatenate([images[:4], new])).probabilities
    assert len(passed) == 4
    np.testing.assert_allclose(both[:4], found[:4], atol=1e-6)
    mirrored = ts.load(done.path, device="cpu").predict(images[:4], mirror=True).probabilities
    for folder in done.path.glob("features-*"):
        for shard in folder.iterdir():
            shard.unlink()
    fresh = ts.load(done.path, device="cpu")
    passed.clear()
    np.testing.assert_allclose(fresh.predict(images).probabilities, found, atol=1e-5)
    np.testing.assert_allclose(fresh.predict(images[:4], mirror=True).probabilities, mirrored, atol=1e-5)
    assert len(passed) == 30 + 8


def test_embed_and_train_share_a_cache(tmp_path, passed, monkeypatch):
    folder, cache = tmp_path / "images", tmp_path / "cache"
    folder.mkdir()
    for i, image in enumerate(make_dataset(train=20, test=4, labeled=10).store.batch(np.arange(24)).numpy()):
        Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{i:02}.png")
    torch.manual_seed(1)  # the network of seed 1, since this one has no weights to read
    options = {"backbone": "small", "weights": "none", "image_size": 24, "cache": cache}
    first = embed_images(folder, **options)
    assert len(passed) == 48
    labels = tmp_path / "labels.csv"
    labels.write_text("image,tags\n" + "".join(f"{i:02}.png,{'a' if i % 2 else 'b'}\n" for i in range(12)))
    ts.train(folder, labels, tmp_path / "run", mode="head", seed=1, quiet=True, **options)
    torch.manual_seed(1)
    again = embed_images(folder, **options)
    assert len(passed) == 48
    np.testing.assert_array_equal(first.features, again.features)


def test_a_key_stands_for_one_network_and_view(tmp_path, small):
    dataset = make_dataset(train=20, test=4, labeled=10)
    key = cache_key(small, dataset.store.shape, mirror=False, precision="fp32")
    others = [build_network("small", 3, weights="none"), copy.deepcopy(small), copy.deepcopy(small)]
    convolution = [part for part in others[1].backbone.modules() if isinstance(part, torch.nn.Conv2d)][1]
    convolution.stride = (1, 1)  # the same tensors, and another network
    others[2].scale *= 2  # another normalization
    keys = {cache_key(other, dataset.store.shape, mirror=False, precision="fp32") for other in others}
    keys |= {
        cache_key(small, dataset.store.shape, mirror=True, precision="fp32"),
        cache_key(small, dataset.store.shape, mirror=False, precision="bf16"),
        cache_key(small, (3, 32, 32), mirror=False, precision="fp32"),
    }
    assert len({key} | keys) == 7
    same_body = copy.deepcopy(small)
    with torch.no_grad():
        same_body.head.weight.zero_()
    assert cache_key(same_body, dataset.store.shape, mirror=False, precision="fp32") == key


def test_features_are_those_of_the_network(tmp_path, small, monkeypatch):
    monkeypatch.setattr(features, "ROWS_AT_ONCE", 16)
    dataset = make_dataset(train=50, test=10, labeled=20)
    rows = np.random.default_rng(0).permutation(50)
    rows = np.concatenate([rows, rows[:3]])  # an image may be there twice
    cache = make_cache(tmp_path, small, dataset, mirror=True)
    for _ in range(2):
        found = embed(small, dataset.store, rows, CPU, mirror=True, cache=cache)
        torch.testing.assert_close(found, small.features(dataset.store.batch(rows).flip(-1)), atol=1e-5, rtol=0)
    assert len(list(cache.folder.iterdir())) == 4  # 16 + 16 + 16 + 2, and no lock remains
    assert len(embed(small, dataset.store, rows[:0], CPU, cache=cache)) == 0


def test_an_interrupted_computation_continues(tmp_path, small, passed, monkeypatch):
    monkeypatch.setattr(features, "ROWS_AT_ONCE", 16)
    dataset, rows = make_dataset(train=50, test=10, labeled=20), np.arange(50)
    whole = embed(small, dataset.store, rows, CPU)
    cache = make_cache(tmp_path, small, dataset)

    def stop(done, total):
        if done > 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed(small, dataset.store, rows, CPU, batch=8, cache=cache, progress=stop)
    passed.clear()
    seen = []
    found = embed(small, dataset.store, rows, CPU, batch=8, cache=cache, progress=lambda *done: seen.append(done))
    assert len(passed) == 50 - 32
    assert seen == [(8, 18), (16, 18), (18, 18)]
    torch.testing.assert_close(found, whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "not_a_shard"])
def test_a_damaged_shard_is_recreated(damage, tmp_path, small, passed, monkeypatch):
    monkeypatch.setattr(features, "ROWS_AT_ONCE", 16)
    dataset, rows = make_dataset(train=50, test=10, labeled=20), np.arange(48)
    cache = make_cache(tmp_path, small, dataset)
    whole = embed(small, dataset.store, rows, CPU, cache=cache)
    names = {file.name for file in cache.folder.iterdir()}
    shard = sorted(cache.folder.iterdir())[1]
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(
        {"truncated": content[:-100], "flipped": content, "empty": b"", "not_a_shard": b"{}" * 50}[damage]
    )
    passed.clear()
    found = embed(small, dataset.store, rows, CPU, cache=make_cache(tmp_path, small, dataset))
    assert len(passed) == 16
    torch.testing.assert_close(found, whole, atol=1e-5, rtol=0)
    assert len(list(cache.folder.iterdir())) == 3
    assert names - {shard.name} < {file.name for file in cache.folder.iterdir()}
    embed(small, dataset.store, rows, CPU, cache=make_cache(tmp_path, small, dataset))
    assert len(passed) == 16


def test_several_may_need_the_same_features(tmp_path, small, passed, monkeypatch):
    monkeypatch.setattr(features, "ROWS_AT_ONCE", 8)
    dataset, rows = make_dataset(train=60, test=10, labeled=20), np.arange(70)
    whole = embed(small, dataset.store, rows, CPU)
    passed.clear()

    def one(_):
        return embed(small, dataset.store, rows, CPU, cache=make_cache(tmp_path, small, dataset))

    with ThreadPoolExecutor(4) as pool:  # a lock knows files, not processes
        for found in pool.map(one, range(4)):
            torch.testing.assert_close(found, whole, atol=1e-5, rtol=0)
    assert len(passed) == 70


WRITER = """
from pathlib import Path
import numpy as np
from tagspread.train.feature_cache import FeatureCache
cache = FeatureCache(Path({folder!r}), "0" * 16)
for part in range(20):
    digests = np.array([f"{{row:032x}}".encode() for row in range(50 * part, 50 * part + 50)], dtype="S32")
    with cache.writing():
        cache.add(digests, np.arange(50 * part, 50 * part + 50, dtype=np.float32)[:, None])
"""


def test_two_processes_write_at_once(tmp_path):
    program = [sys.executable, "-c", WRITER.format(folder=str(tmp_path))]
    writers = [subprocess.Popen(program) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    cache = FeatureCache(tmp_path, "0" * 16)
    digests = np.array([f"{row:032x}".encode() for row in range(1000)], dtype="S32")
    values, found = cache.read(digests)
    assert found.all()
    assert values is not None
    assert np.array_equal(values[:, 0], np.arange(1000))
    assert len(list(tmp_path.glob("features-*/*"))) == 20  # the same contents have the same name


def test_digests_depend_on_the_pixels_only():
    dataset = make_dataset(train=20, test=4, labeled=10)
    rows = np.arange(24)
    digests = pixel_digests(dataset.store, rows)
    assert len(set(digests)) == 24
    assert (pixel_digests(dataset.store, rows[::-1]) == digests[::-1]).all()


def test_a_replaced_run_keeps_no_outdated_features(tmp_path, silent):
    path = tmp_path / "run"
    dataset = make_dataset(train=60, test=10, labeled=20)
    for seed, precision in ((1, "fp32"), (2, "fp32"), (1, "bf16")):
        config = head_config(precision=precision, seed=seed)
        run_training(dataset, config, path, RunOptions(overwrite=True), watcher=silent)
        mine = path / "features-2024"
        mine.mkdir(exist_ok=True)
        assert len([folder for folder in path.glob("features-*") if folder != mine]) == 2
        assert mine.exists()


def test_images_that_cannot_be_read_have_no_features(tmp_path, passed, silent):
    dataset = make_dataset(train=60, test=10, labeled=20)
    without = replace(dataset, unlabeled=dataset.unlabeled[5:])  # as if five files were broken
    run_training(without, head_config(flip=False), tmp_path / "run", watcher=silent)
    assert len(passed) == 65


def test_a_folder_that_cannot_be_written(tmp_path, small):
    dataset = make_dataset(train=20, test=4, labeled=10)
    (tmp_path / "file").write_text("")
    extractor = FeatureExtractor(small, CPU, folder=tmp_path / "file")
    with pytest.raises(TagspreadError, match=r"features cannot be cached in .*choose another cache"):
        extractor.featured(dataset)


def test_what_is_printed(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(Watcher, "note", lambda self, text: said.append(text))
    dataset = make_dataset(train=60, test=10, labeled=20)
    for name in ("one", "two"):
        run_training(dataset, head_config(flip=False), tmp_path / name, watcher=Watcher(quiet=True))
    spoken = [text for text in said if text.startswith("features of 70 images")]
    assert "(70 views computed)" in spoken[0]
    assert "none had to be computed" in spoken[1]
    assert load_file(next((tmp_path / "one").glob("features-*/*")))["features"].shape == (70, 128)
