import base64
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import tagspread.report.scored as module
from tagspread.data.tables.label_table import LabelTable
from tagspread.report.labeled import Part


def opened(uri):
    kind, text = uri.split(",")
    assert kind == "data:image/webp;base64"
    return Image.open(io.BytesIO(base64.b64decode(text)))


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from([1, 0, -1])), min_size=1, max_size=30), st.integers(1, 4))
def test_groups_hold_what_their_names_say(rows, most):
    p, y = np.array([row[0] / 20 for row in rows]), np.array([row[1] for row in rows])
    picked = module.pick(p, y, 0.5, most)

    def best(mask, key):  # by brute force: values, as ties may be broken either way
        return sorted(key[mask])[:most]

    assert sorted(-p[picked["confident"]]) == best(np.ones(len(p), bool), -p)
    assert np.allclose(sorted(abs(p[picked["near_threshold"]] - 0.5)), best(abs(p - 0.5) <= module.NEAR, abs(p - 0.5)))
    assert sorted(-p[picked["false_positives"]]) == best((p >= 0.5) & (y == 0), -p)
    assert sorted(p[picked["false_negatives"]]) == best((p < 0.5) & (y == 1), p)


def test_a_tag_without_threshold_has_no_images_near_it():
    picked = module.pick(np.array([0.9, 0.1]), np.array([1, 0]), np.inf, 3)
    assert picked == {"confident": [0, 1], "near_threshold": [], "false_positives": [], "false_negatives": [0]}


@pytest.mark.parametrize(("size", "expected"), [((600, 300), (224, 112)), ((30, 60), (30, 60)), ((5000, 4), (224, 1))])
def test_thumbnails_keep_their_proportions_and_are_never_enlarged(tmp_path, size, expected):
    Image.new("RGB", size, "red").save(tmp_path / "a.png")
    assert opened(module.thumbnail(tmp_path / "a.png")).size == expected


def test_thumbnails_are_upright(tmp_path):
    image = Image.new("RGB", (200, 100), "red")
    image.paste("blue", (100, 0, 200, 100))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees to the right: what is left comes to the top
    image.save(tmp_path / "a.jpg", exif=exif, quality=95)
    small = opened(module.thumbnail(tmp_path / "a.jpg")).convert("RGB")
    assert small.size == (100, 200)
    assert small.getpixel((50, 20))[0] > 200
    assert small.getpixel((50, 180))[2] > 200


@pytest.fixture
def scored(tmp_path):
    """Twelve noise images with three tags."""
    random = np.random.default_rng(0)
    paths = [tmp_path / f"{i}.png" for i in range(12)]
    for path in paths:
        Image.fromarray(random.integers(0, 255, (60, 60, 3), np.uint8)).save(path)
    y = random.integers(0, 2, (12, 3)).astype(np.int8)
    y[:, 2] = [1] + [0] * 11
    part = Part(LabelTable(paths, ("a", "b", "c"), y), "test images", True, tmp_path)
    return module.ScoredPart(part, [], random.random((12, 3)), None, None, np.ones(12, bool))  # type: ignore[arg-type]


def shown(found):
    return [one for groups in found.values() for group in groups.values() for one in group]


def test_examples_tell_what_they_are(scored):
    found = module.examples(scored, np.full(3, 0.5), range(3))
    names = [path.name for path in scored.part.table.paths]
    for k, groups in found.items():
        assert list(groups) == list(module.GROUPS)
        for one in (one for group in groups.values() for one in group):
            row = names.index(one.name)
            assert one.probability == scored.probabilities[row, k]
            assert (one.label, one.predicted) == (scored.part.table.y[row, k], one.probability >= 0.5)


def test_images_are_left_out_until_the_page_is_small_enough(scored, monkeypatch):
    everything = shown(module.examples(scored, np.full(3, 0.5), range(3)))
    size = sum(len(one.image) for one in everything)
    monkeypatch.setattr(module, "MAX_BYTES", size // 2)
    fewer = shown(module.examples(scored, np.full(3, 0.5), range(3)))
    assert 0 < len(fewer) < len(everything)
    assert sum(len(one.image) for one in fewer) <= size // 2
    monkeypatch.setattr(module, "MAX_BYTES", 1)
    least = module.examples(scored, np.full(3, 0.5), range(3))
    assert all(len(group) <= 1 for groups in least.values() for group in groups.values())
