import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from tagspread.data.images import store as module
from tagspread.data.images.cache import ImageCache
from tagspread.data.images.decode import decode
from tagspread.data.images.store import DiskStore, Store, TensorStore, open_store, prefetch
from tagspread.errors import TagspreadError

SIZE = 6
BYTES = 3 * SIZE * SIZE
ROWS = np.array([4, 0, 4, 2, 1])
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.fixture
def paths(tmp_path):
    rng = np.random.default_rng(2)
    made = [tmp_path / f"{k}.png" for k in range(7)]
    for path in made:
        Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(path)
    made[3].write_bytes(b"broken")
    return made


def expected(paths, rows=ROWS):
    return np.stack([decode(paths[row], SIZE) for row in rows])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("chunk", [2 * BYTES, 2**20])
def test_in_memory(tmp_path, paths, monkeypatch, device, cached, chunk):
    monkeypatch.setattr(module, "BYTES_AT_ONCE", chunk)
    seen: list[tuple[int, int]] = []
    folder = tmp_path / "cache" if cached else None
    store, broken = open_store(paths, SIZE, device, cache=folder, progress=lambda *counts: seen.append(counts))
    assert store.placement == ("memory" if device == "cpu" else "device")
    assert seen == [(k, 7) for k in range(1, 8)]
    assert [(one.index, one.path) for one in broken] == [(3, paths[3])]
    assert (len(store), store.shape) == (7, (3, SIZE, SIZE))
    found = store.batch(ROWS)
    assert found.device.type == device
    assert found.dtype == torch.uint8
    np.testing.assert_array_equal(found.cpu().numpy(), expected(paths))
    assert not store.batch(np.array([3])).any()
    assert store.batch(np.array([], dtype=np.int64)).shape == (0, 3, SIZE, SIZE)
    assert store.describe() == "7 images, 756 bytes, " + ("in memory" if device == "cpu" else "on the GPU")


@pytest.mark.parametrize("device", DEVICES)
def test_a_small_budget_sends_images_to_disk(tmp_path, paths, device):
    store, broken = open_store(paths, SIZE, device, cache=tmp_path / "cache", budget=7 * BYTES - 1)
    assert isinstance(store, DiskStore)
    assert (store.placement, len(store), [one.index for one in broken]) == ("disk", 7, [3])
    found = store.batch(ROWS)
    assert found.device.type == device
    np.testing.assert_array_equal(found.cpu().numpy(), expected(paths))
    assert not store.batch(np.array([3, 3])).any()
    assert store.batch(np.array([], dtype=np.int64)).shape == (0, 3, SIZE, SIZE)
    assert store.describe() == "7 images, 756 bytes, read from disk batch by batch"
    roomy, _ = open_store(paths, SIZE, device, cache=tmp_path / "cache", budget=7 * BYTES)
    assert roomy.placement != "disk"


def test_disk_reads_are_sequential(paths, tmp_path):
    class Recording:
        def __init__(self, images):
            self.images, self.shape, self.asked = images, images.shape, []

        def __len__(self):
            return len(self.images)

        def __getitem__(self, slot):
            self.asked.append(int(slot))
            return self.images[slot]

    cache = ImageCache(tmp_path / "cache", SIZE)
    slots, _ = cache.add(paths[::-1])
    recording = Recording(cache.images)
    store = DiskStore(recording, slots[::-1], "cpu")  # type: ignore[arg-type]
    np.testing.assert_array_equal(store.batch(ROWS).numpy(), expected(paths))
    assert recording.asked == sorted(recording.asked)
    assert len(recording.asked) == len(ROWS)


def test_too_many_images_without_a_cache(paths, monkeypatch):
    with pytest.raises(TagspreadError) as caught:
        open_store(paths, SIZE, "cpu", budget=300)
    message = str(caught.value)
    for part in ("7 images of 6 x 6 pixels", "756 bytes", "300 bytes", "cache=DIR", "image_size"):
        assert part in message
    monkeypatch.setattr(module, "usable_memory", lambda *_: int(0.6 * 10**9))
    with pytest.raises(TagspreadError, match=r"need 1\.0 GB, but only 0\.6 GB are available"):
        open_store(paths, 7000, "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("budget", [None, 0])
def test_feature_matrices(device, budget):
    features = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    features.setflags(write=False)
    store: Store = TensorStore(features, device, budget=budget)
    assert store.placement == ("memory" if device == "cpu" else "device" if budget is None else "pinned")
    found = store.batch(ROWS)
    assert found.device.type == device
    np.testing.assert_array_equal(found.cpu().numpy(), features[ROWS])
    assert store.shape == (5,)
    found.zero_()  # a batch is a copy
    np.testing.assert_array_equal(store.batch(ROWS).cpu().numpy(), features[ROWS])
    half = TensorStore(torch.ones(3, 2, dtype=torch.float16, device=device), device)
    assert half.batch(np.array([1])).dtype == torch.float16


def test_wrong_rows_slots_and_items(tmp_path, paths):
    tensors = TensorStore(np.zeros((4, 2)), "cpu")
    disk = DiskStore(np.zeros((4, 3, 2, 2), np.uint8), np.arange(4), "cpu")
    for store in (tensors, disk):
        for rows in (np.array([4]), np.array([-1]), np.zeros((1, 1), int)):
            with pytest.raises(TagspreadError, match="indices from 0 to 3"):
                store.batch(rows)
    for slots in ([0, 4], [-2]):
        with pytest.raises(TagspreadError, match="there are 4 images"):
            DiskStore(disk.images, np.array(slots), "cpu")
    with pytest.raises(TagspreadError, match=r"items have shape \(3,\)"):
        TensorStore(np.zeros(3), "cpu")
    assert len(open_store([], SIZE, "cpu")[0]) == 0


def test_description_of_sizes():
    assert module._amount(860_500_000) == "0.9 GB"
    assert module._amount(1_234e9) == "1,234.0 GB"
    assert module._amount(2_340_000) == "2.3 MB"
    assert module._amount(1234) == "1,234 bytes"


def prefetchers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tagspread-prefetch")]


def test_prefetch_keeps_the_order_and_limits_the_work_ahead():
    started = []

    def make(k):
        started.append(k)
        time.sleep(0.002 * (k % 3))
        return -k

    for ahead in (1, 3, 50):
        started.clear()
        made = prefetch(make, range(20), ahead)
        assert next(made) == 0
        time.sleep(0.1)
        assert started == list(range(min(20, ahead + 1)))
        assert list(made) == [-k for k in range(1, 20)]
        assert not prefetchers()
    assert list(prefetch(make, [])) == []


def test_prefetch_raises_at_the_right_place():
    made = prefetch(lambda k: 6 // (2 - k), range(5))
    assert [next(made), next(made)] == [3, 6]
    with pytest.raises(ZeroDivisionError):
        next(made)
    assert list(made) == []

    def items():
        yield from (1, 2)
        raise LookupError

    texts = prefetch(str, items())
    assert [next(texts), next(texts)] == ["1", "2"]
    with pytest.raises(LookupError):
        next(texts)
    assert not prefetchers()
    with pytest.raises(TagspreadError, match="ahead is 0"):
        next(prefetch(str, [1], 0))


def test_prefetch_ends_its_thread_when_closed():
    made = iter(prefetch(str, iter(int, 1), ahead=4))  # endless zeros
    assert next(made) == "0"
    assert prefetchers()
    made.close()  # type: ignore[attr-defined]
    assert not prefetchers()
    for _ in prefetch(str, iter(int, 1)):
        break
    assert not prefetchers()
