import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tagspread.data.images import cache as module
from tagspread.data.images.cache import ImageCache
from tagspread.data.images.decode import decode, decode_all
from tagspread.errors import TagspreadError

SIZE = 6


@pytest.fixture
def paths(tmp_path):
    rng = np.random.default_rng(1)
    made = []
    for k in range(5):
        made.append(tmp_path / f"image {k} é.png")
        Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(made[-1])
    return made


@pytest.fixture
def decoded(monkeypatch):
    """Return the names of all decoded files, in order."""
    names: list[str] = []

    def counting(paths, *rest):
        names.extend(Path(path).name for path in paths)
        return decode_all(paths, *rest)

    monkeypatch.setattr(module, "decode_all", counting)
    return names


def check(cache, slots, paths):
    for slot, path in zip(slots, paths, strict=True):
        np.testing.assert_array_equal(cache.images[slot], decode(path, cache.size))


def test_each_file_is_decoded_once_over_all_runs(tmp_path, paths, decoded):
    folder = tmp_path / "new" / "cache"
    cache = ImageCache(folder, SIZE)
    assert cache.images.shape == (0, 3, SIZE, SIZE)
    slots, broken = cache.add([*paths[:3], paths[0]])
    assert slots.tolist() == [0, 1, 2, 0]
    assert broken == []
    assert len(decoded) == 3
    check(cache, slots[:3], paths[:3])
    again = ImageCache(folder, SIZE)
    assert len(again) == 3
    slots, _ = again.add(paths[::-1])
    assert decoded[3:] == [paths[4].name, paths[3].name]
    check(again, slots, paths[::-1])
    check(cache, cache.add(paths)[0], paths)  # an older object sees what another one added
    assert len(decoded) == 5
    assert isinstance(again.images, np.memmap)
    assert not again.images.flags.writeable
    assert sorted(path.name for path in folder.iterdir()) == ["tagspread-6.json", "tagspread-6.u8"]


def test_relative_paths_are_the_same_files(tmp_path, paths, decoded, monkeypatch):
    ImageCache(tmp_path, SIZE).add(paths)
    monkeypatch.chdir(tmp_path)
    ImageCache(".", SIZE).add([path.name for path in paths])
    assert len(decoded) == 5


def test_a_changed_file_is_decoded_again(tmp_path, paths, decoded):
    cache = ImageCache(tmp_path / "cache", SIZE)
    cache.add(paths)
    Image.new("RGB", (3, 3), "red").save(paths[2])
    os.utime(paths[3], ns=(1, 1))  # same bytes, other modification time
    slots, _ = ImageCache(tmp_path / "cache", SIZE).add(paths)
    assert decoded[5:] == [paths[2].name, paths[3].name]
    check(ImageCache(tmp_path / "cache", SIZE), slots, paths)


def test_broken_files_have_no_slot(tmp_path, paths, decoded):
    paths[1].write_bytes(paths[1].read_bytes()[:60])
    listed = [paths[0], paths[1], tmp_path / "missing.png", paths[2], paths[1], tmp_path]
    cache = ImageCache(tmp_path / "cache", SIZE)
    slots, broken = cache.add(listed)
    assert slots.tolist() == [0, -1, -1, 1, -1, -1]
    assert [(one.index, one.path) for one in broken] == [(k, listed[k]) for k in (1, 2, 4, 5)]
    assert broken[0].reason == broken[2].reason
    assert "no such file" in broken[1].reason
    assert "directory" in broken[3].reason
    check(cache, [0, 1], [paths[0], paths[2]])
    Image.new("RGB", (3, 3), "red").save(paths[1])
    slots, broken = cache.add(listed)
    assert slots.tolist() == [0, 2, -1, 1, 2, -1]


def test_several_chunks_and_progress(tmp_path, paths, monkeypatch):
    monkeypatch.setattr(module, "BYTES_AT_ONCE", 2 * 3 * SIZE * SIZE)
    monkeypatch.setattr(module, "SAVE_EVERY", 1)
    cache, seen = ImageCache(tmp_path / "cache", SIZE), []
    cache.add(paths[:1])
    check(cache, cache.add(paths, lambda *counts: seen.append(counts), workers=1)[0], paths)
    assert seen == [(k, 5) for k in (2, 3, 4, 5)]
    cache.add(paths, lambda *counts: seen.append(counts))
    assert seen[-1] == (5, 5)


def test_a_crash_leaves_a_usable_cache(tmp_path, paths, decoded, monkeypatch):
    cache = ImageCache(tmp_path / "cache", SIZE)
    cache.add(paths[:2])
    with monkeypatch.context() as crash:  # the images are written, but the index is not
        crash.setattr(cache, "_save", lambda data: None)
        cache.add(paths[2:])
    (tmp_path / "cache" / "tagspread-6.json.new").write_text("half an ind")
    assert cache.data_file.stat().st_size == 5 * 3 * SIZE * SIZE
    again = ImageCache(tmp_path / "cache", SIZE)
    assert len(again) == 2
    slots, _ = again.add([paths[4], *paths[:4]])
    assert slots.tolist() == [2, 0, 1, 3, 4]
    check(again, slots, [paths[4], *paths[:4]])
    assert len(decoded) == 5 + 3


def test_an_interruption_keeps_what_was_decoded(tmp_path, paths, monkeypatch):
    monkeypatch.setattr(module, "BYTES_AT_ONCE", 2 * 3 * SIZE * SIZE)

    def stop(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ImageCache(tmp_path / "cache", SIZE).add(paths, stop)
    assert len(ImageCache(tmp_path / "cache", SIZE)) == 2


def test_two_sizes_side_by_side_and_other_files_untouched(tmp_path, paths):
    (tmp_path / "tagspread.json").write_text("mine")
    small, large = ImageCache(tmp_path, 4), ImageCache(tmp_path, 12)
    check(small, small.add(paths)[0], paths)
    check(large, large.add(paths[:2])[0], paths[:2])
    assert (len(ImageCache(tmp_path, 4)), len(ImageCache(tmp_path, 12))) == (5, 2)
    assert (tmp_path / "tagspread.json").read_text() == "mine"


def damage(cache, kind):
    content = json.loads(cache.index_file.read_text())
    if kind == "short":
        os.truncate(cache.data_file, 100)
    elif kind == "no data":
        cache.data_file.unlink()
    elif kind == "no index":
        cache.index_file.unlink()
    elif kind == "contradiction":
        cache.index_file.write_text(json.dumps(content | {"used": 1}))
    elif kind == "other size":
        cache.index_file.write_text(json.dumps(content | {"size": 7}))
    elif kind == "other version":
        cache.index_file.write_text(json.dumps(content | {"version": 99}))
    elif kind == "other decoder":
        cache.index_file.write_text(json.dumps(content | {"decoder": "stb"}))
    else:
        cache.index_file.write_bytes(kind)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("short", "has 100 bytes"),
        ("no data", "has 0 bytes"),
        ("no index", "but no tagspread-6.json"),
        ("contradiction", "is inconsistent"),
        ("other size", "7 x 7 pixels, not 6 x 6"),
        ("other version", "another version"),
        ("other decoder", "its JPEG files were decoded by stb, but torchvision decodes them here"),
        (b"", "is not the index"),
        (b"\xff\x00", "is not the index"),
        (b'{"format": "tagspread pict', "is not the index"),
        (b"[1, 2]", "is not the index"),
        (b'{"format": "recipes"}', "is not the index"),
    ],
)
def test_damaged_or_foreign_caches_raise_and_are_not_changed(tmp_path, paths, kind, message):
    cache = ImageCache(tmp_path / "cache", SIZE)
    cache.add(paths)
    damage(cache, kind)
    before = {path.name: path.read_bytes() for path in cache.folder.iterdir()}
    with pytest.raises(TagspreadError, match=message) as caught:
        ImageCache(tmp_path / "cache", SIZE)
    assert "Delete tagspread-6.u8 and tagspread-6.json" in str(caught.value)
    assert before == {path.name: path.read_bytes() for path in cache.folder.iterdir()}


def test_an_unwritable_folder_raises_before_decoding(tmp_path, paths, decoded, monkeypatch):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere"):
        with pytest.raises(TagspreadError, match="cannot be written or read"):
            ImageCache(folder, SIZE)
    cache = ImageCache(tmp_path / "cache", SIZE)
    cache.add(paths[:2])
    decoded.clear()
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who may write everywhere
    assert ImageCache(tmp_path / "cache", SIZE).add(paths[:2])[0].tolist() == [0, 1]  # reading suffices
    with pytest.raises(TagspreadError, match="permission denied"):
        cache.add(paths)
    assert decoded == []


def test_a_full_disk_raises_before_decoding(tmp_path, paths, decoded, monkeypatch):
    cache = ImageCache(tmp_path / "cache", SIZE)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=500))
    with pytest.raises(TagspreadError, match=r"0\.0 GB more for 5 images"):
        cache.add(paths)
    assert decoded == []
    assert cache.add(paths[:2])[0].tolist() == [0, 1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_fills_up_while_decoding(tmp_path, paths):
    cache = ImageCache(tmp_path / "cache", SIZE)
    cache.data_file.unlink()
    cache.data_file.symlink_to("/dev/full")
    with pytest.raises(TagspreadError, match="no space left"):
        cache.add(paths)
    assert len(ImageCache(tmp_path / "cache", SIZE)) == 0


def test_several_writers_share_one_cache(tmp_path, paths, decoded):
    parts = [paths[:4], paths[2:][::-1], paths[1:], paths]
    with ThreadPoolExecutor(8) as pool:  # all at once, with no cache yet
        assert all(len(cache) == 0 for cache in pool.map(lambda _: ImageCache(tmp_path / "new", SIZE), range(64)))
    caches = [ImageCache(tmp_path / "cache", SIZE) for _ in parts]  # a lock knows files, not processes
    with ThreadPoolExecutor(len(parts)) as pool:
        slots = list(pool.map(lambda cache, part: cache.add(part)[0], caches, parts))
    assert sorted(decoded) == [path.name for path in paths]
    for cache, found, part in zip(caches, slots, parts, strict=True):
        check(cache, found, part)
    assert len(ImageCache(tmp_path / "cache", SIZE)) == 5
