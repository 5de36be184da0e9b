import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tagspread as ts
from tagspread.predict import images as images_module
from tagspread.predict.images import read_chunks


def paths(folder, numbers):
    return [folder / f"p{i:03}.png" for i in numbers]


def test_files_pillow_images_and_arrays_get_the_same_answer(tagger, folder, drawn):
    files = tagger.predict(paths(folder, range(5)))
    array = drawn.images[:5]
    for given in (
        [str(path) for path in paths(folder, range(5))],
        [Image.open(path) for path in paths(folder, range(5))],
        list(array),
        list(array.transpose(0, 2, 3, 1)),
        array,
        np.ascontiguousarray(array.transpose(0, 2, 3, 1)),
        torch.from_numpy(array),
        iter(paths(folder, range(5))),
    ):
        found = tagger.predict(given)
        np.testing.assert_array_equal(found.probabilities, files.probabilities)
        assert found.tags == files.tags
        assert found.errors == [""] * 5
    assert files.images == [str(path) for path in paths(folder, range(5))]
    assert tagger.predict(array).images[4] == "image 4"
    assert tagger.predict(paths(folder, [0])[0]).tags == files.tags[:1]  # a single one
    assert tagger.predict(Image.open(folder / "p000.png")).tags == files.tags[:1]
    assert len(tagger.predict(folder)) == 161


def test_the_figures_of_training_come_out_again(run, tagger, folder, drawn):
    found = tagger.predict(paths(folder, range(60, 120)))
    stored = json.loads((run / "metrics.json").read_text())
    assert ts.mean_average_precision(found.probabilities, drawn.y[60:120]) == pytest.approx(stored["test"]["mAP"])


def test_tags_are_what_reaches_its_threshold_the_most_probable_first(tagger, drawn):
    found = tagger.predict(drawn.images)
    np.testing.assert_array_equal(found.chosen, found.probabilities >= tagger.thresholds)
    for tags, chosen, p in zip(found.tags, found.chosen, found.probabilities, strict=True):
        assert set(tags) == {name for name, on in zip(tagger.classes, chosen, strict=True) if on}
        shown = [p[tagger.classes.index(name)] for name in tags]
        assert shown == sorted(shown, reverse=True)
    share = found.chosen[120:].mean(0)  # about as often as labeled: nothing was held out
    np.testing.assert_allclose(share, drawn.y[:60].mean(0), atol=0.15)


def test_top_and_threshold(tagger, drawn):
    plain = tagger.predict(drawn.images[:20])
    best = tagger.predict(drawn.images[:20], top=2)
    assert [len(tags) for tags in best.tags] == [2] * 20
    for tags, p in zip(best.tags, plain.probabilities, strict=True):
        assert tags == [tagger.classes[k] for k in np.argsort(-p)[:2]]
    both = tagger.predict(drawn.images[:20], top=2, threshold=0.7)
    for tags, p in zip(both.tags, plain.probabilities, strict=True):
        assert tags == [tagger.classes[k] for k in np.argsort(-p)[:2] if p[k] >= 0.7]
    assert tagger.predict(drawn.images[:20], threshold=0.0).chosen.all()
    assert len(tagger.predict(drawn.images[:2], top=99).tags[0]) == 10
    per_class = np.full(10, 2.0)
    per_class[3] = 0.0
    assert tagger.predict(drawn.images[:2], threshold=per_class).tags == [["3"], ["3"]]


def test_mirror_images_are_averaged_and_the_batch_does_not_matter(tagger, drawn):
    some = drawn.images[:7]
    logits = [next(tagger.logits(x))[1] for x in (some, some[..., ::-1])]
    expected = tagger.calibration.probabilities((logits[0] + logits[1]) / 2)
    np.testing.assert_allclose(tagger.predict(some, mirror=True).probabilities, expected, atol=1e-6)
    np.testing.assert_allclose(
        tagger.predict(some, batch=2).probabilities, tagger.predict(some).probabilities, atol=1e-5
    )


def test_broken_files_are_rows_with_an_error(tagger, folder):
    found = tagger.predict(
        [folder / "p000.png", folder / "broken.png", folder / "nothing.png", folder, folder / "p001.png"]
    )
    assert [bool(error) for error in found.errors] == [False, True, True, True, False]
    assert found.errors[2] == "no such file or directory"
    assert found.errors[3] == "it is a directory"
    assert np.isnan(found.probabilities[1:4]).all()
    assert found.tags[1:4] == [[], [], []]
    good = tagger.predict(paths(folder, [0, 1]))
    np.testing.assert_array_equal(found.probabilities[[0, 4]], good.probabilities)
    with Image.open(folder / "broken.png") as cut:  # opened, not yet decoded
        assert tagger.predict([cut]).errors[0]


def test_images_of_another_size_are_squeezed_as_files_are(tagger, tmp_path):
    large = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    Image.fromarray(large).save(tmp_path / "large.png")
    expected = tagger.predict(tmp_path / "large.png").probabilities
    for given in (Image.fromarray(large), [large], large[None], [torch.from_numpy(large).permute(2, 0, 1)]):
        np.testing.assert_array_equal(tagger.predict(given).probabilities, expected)
    gray = tagger.predict([large[..., 0]]).probabilities
    np.testing.assert_array_equal(gray, tagger.predict(large[None, ..., 0]).probabilities)
    np.testing.assert_array_equal(gray, tagger.predict([Image.fromarray(large[..., 0])]).probabilities)


def test_any_number_of_images_a_few_chunks_in_memory(tagger, folder, monkeypatch):
    monkeypatch.setattr(images_module, "CHUNK_BYTES", 10 * 3 * 24 * 24)
    asked = []

    def endless():
        while True:
            asked.append(folder / "p000.png")
            yield asked[-1]

    stream = tagger.stream(endless())
    assert [len(next(stream)) for _ in range(5)] == [10] * 5
    assert len(asked) <= 10 * (5 + images_module.CHUNKS_AHEAD)
    stream.close()
    many = tagger.predict(paths(folder, range(35)))
    monkeypatch.undo()
    np.testing.assert_allclose(many.probabilities, tagger.predict(paths(folder, range(35))).probabilities, atol=1e-6)
    monkeypatch.setattr(images_module, "ARRAY_BYTES", 4 * 3 * 24 * 24)
    parts = list(read_chunks(np.zeros((9, 3, 24, 24), np.uint8), (3, 24, 24)))
    assert [len(part.names) for part in parts] == [4, 4, 1]
    assert parts[2].names == ["image 8"]


def test_nothing_and_a_frame(tagger, drawn):
    nothing = tagger.predict([])
    assert len(nothing) == 0
    assert nothing.probabilities.shape == (0, 10)
    frame = tagger.predict(drawn.images[:2]).to_frame()
    assert frame.columns.tolist() == ["image", "tags", "error", *tagger.classes]
    assert frame["tags"][0] == tagger.predict(drawn.images[:1]).tags[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.zeros((2, 24, 24, 3), np.float32), "have dtype float32; give uint8"),
        (torch.zeros(2, 3, 24, 24), "have dtype float32; give uint8"),
        (np.zeros((24, 24, 3), np.uint8), "is one image; put it into a list"),
        (np.zeros((2, 5, 24, 24), np.uint8), r"shape \(2, 5, 24, 24\); give N x H x W x 3"),
        ([np.zeros((2, 3, 24, 24), np.uint8)], r"give H x W x 3"),
        ([np.zeros(24, np.uint8)], r"give H x W x 3"),
        (np.zeros((3, 24, 24), np.uint8), "is one image; put it into a list"),
        ([3], "int is not an image"),
        (3, "int is not an image"),
    ],
)
def test_what_is_no_image_is_refused(tagger, given, words):
    with pytest.raises(ValueError, match=words):
        tagger.predict(given)


def test_options_are_checked(tagger, drawn):
    with pytest.raises(ValueError, match="top is 0"):
        tagger.predict(drawn.images[:1], top=0)
    for options, words in (
        ({"top": 1.5}, "top is 1.5; give a whole number of at least 1"),
        ({"batch": -1}, "batch is -1; give a whole number of at least 1"),
        ({"threshold": np.nan}, "threshold holds NaN"),
    ):
        with pytest.raises(ValueError, match=words):
            tagger.predict(drawn.images[:1], **options)
    with pytest.raises(ValueError, match="thresholds have shape"):
        tagger.predict(drawn.images[:1], threshold=[0.5, 0.5])


def test_a_run_of_oblong_arrays_takes_arrays_and_pillow_images(drawn, folder, tmp_path):
    oblong = drawn.images[:, :, :, :20]
    y = drawn.y.copy()
    y[40:] = -1
    quick: dict[str, Any] = {
        "backbone": "small",
        "weights": "none",
        "warmup_epochs": 1,
        "epochs": 1,
        "batch": 16,
        "quiet": True,
    }
    run = ts.train(oblong, y, tmp_path / "run", preset="paper", device="cpu", **quick)
    tagger = ts.load(run.path, device="cpu")
    found = tagger.predict(oblong[:3])
    assert found.classes[0] == "class 0"
    np.testing.assert_array_equal(
        tagger.predict([Image.fromarray(x.transpose(1, 2, 0)) for x in oblong[:3]]).probabilities, found.probabilities
    )
    with pytest.raises(ValueError, match="trained on arrays of 24 x 20 pixels"):
        tagger.predict(folder / "p000.png")
