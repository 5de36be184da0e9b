import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from tagspread.data.images.decode import decode
from tagspread.data.images.duplicates import (
    ALL_PAIRS,
    SIDE,
    close_pairs,
    fingerprints,
    groups,
    lookalikes,
    same_bytes,
    thumbnails,
)
from tagspread.errors import TagspreadError


def scene(seed, size=(160, 120)):
    """Return a soft image of large shapes, like a photograph, different for every seed."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(1))


def thumbs_of(tmp_path, images):
    out = []
    for k, image in enumerate(images):
        file = tmp_path / f"{k}.{'jpg' if isinstance(image, tuple) else 'png'}"
        if isinstance(image, tuple):
            image[0].save(file, quality=image[1])
        else:
            image.save(file)
        out.append(decode(file, SIDE))
    return thumbnails(np.stack(out))


@pytest.mark.parametrize("seed", range(5))
def test_copies_are_found_after_resizing_and_compressing(tmp_path, seed):
    one = scene(seed)
    copies = [one, one.resize((80, 60)), (one, 90), (one, 40), one.resize((300, 300)), (one.resize((97, 131)), 60)]
    pairs = lookalikes(thumbs_of(tmp_path, copies))
    assert [group.tolist() for group in groups(pairs, len(copies))] == [list(range(len(copies)))]


def test_different_images_are_no_duplicates(tmp_path):
    rng = np.random.default_rng(0)
    noise = [Image.fromarray(rng.integers(0, 256, (60, 60, 3), dtype=np.uint8)) for _ in range(40)]
    different = [scene(seed) for seed in range(60)] + noise
    assert len(lookalikes(thumbs_of(tmp_path, different))) == 0


def test_other_colors_and_flat_images_are_no_duplicates(tmp_path):
    gray = np.linspace(0, 200, 90, dtype=np.uint8)
    ramp = np.tile(gray, (90, 1))
    red, blue = (np.zeros((90, 90, 3), dtype=np.uint8) for _ in range(2))
    red[..., 0] = blue[..., 2] = ramp
    flat = [Image.new("RGB", (50, 50), color) for color in ("black", "white", "red")]
    thumbs = thumbs_of(tmp_path, [Image.fromarray(red), Image.fromarray(blue), *flat])
    assert np.array_equal(*fingerprints(thumbs)[0][:2])
    assert len(lookalikes(thumbs)) == 0


def test_many_equal_images_form_one_group(tmp_path):
    thumbs = np.repeat(thumbs_of(tmp_path, [scene(1), scene(2)]), [ALL_PAIRS + 5, 2], axis=0)
    pairs = lookalikes(thumbs)
    assert len(pairs) == ALL_PAIRS + 4 + 1
    assert [len(group) for group in groups(pairs, len(thumbs))] == [ALL_PAIRS + 5, 2]


def brute(prints, near):
    return [
        [i, j]
        for i, j in itertools.combinations(range(len(prints)), 2)
        if (int(prints[i]) ^ int(prints[j])).bit_count() <= near
    ]


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 19), st.sets(st.integers(0, 63), max_size=6)), max_size=20),
    st.integers(0, 15),
)
def test_close_pairs_as_by_brute_force(numbers, variants, near):
    some = {*numbers}
    for index, bits in variants:  # close to existing fingerprints; random ones are far apart
        some.add(numbers[index % len(numbers)] ^ sum(1 << bit for bit in bits))
    prints = np.array(sorted(some), dtype=np.uint64)
    assert close_pairs(prints, near).tolist() == brute(prints, near)


def test_close_pairs_where_buckets_are_full():
    prints = np.arange(400, dtype=np.uint64)
    assert close_pairs(prints, 3).tolist() == brute(prints, 3)
    assert close_pairs(np.empty(0, dtype=np.uint64), 4).shape == (0, 2)


@pytest.mark.parametrize("near", [-1, 16])
def test_bad_distance(near):
    with pytest.raises(TagspreadError, match=f"near is {near}; give 0 to 15 bits"):
        close_pairs(np.arange(3, dtype=np.uint64), near)


def test_same_bytes_only_among_equal_keys(tmp_path):
    contents = [b"same", b"other", b"same", b"same", b"size"]
    files = [tmp_path / str(k) for k in range(5)]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    assert same_bytes(files, [len(content) for content in contents]).tolist() == [[0, 2], [0, 3]]
    assert same_bytes(files, range(5)).shape == (0, 2)
    files[1].unlink()  # the only file of its size: never opened
    assert len(same_bytes(files, [len(content) for content in contents])) == 2


def test_a_mirrored_image_is_no_duplicate(tmp_path):
    one = scene(3)
    assert len(lookalikes(thumbs_of(tmp_path, [one, one.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]))) == 0


def test_groups_of_no_pairs():
    assert groups(np.empty((0, 2), dtype=np.int64), 5) == []
