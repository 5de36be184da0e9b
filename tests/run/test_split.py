"""``split.csv`` is read as it was written, whatever images and classes are called; anything else is refused."""

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagspread.errors import TagspreadError
from tagspread.run.folder import RunFolder
from tagspread.run.split import Part, Split, differences, has_split, read_split, write_split

NAMES = st.binary(min_size=1, max_size=20).filter(lambda raw: b"\0" not in raw).map(os.fsdecode)  # need not be UTF-8
CLASSES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
ODD = st.sampled_from(["image", "part", "digest", 'a "b"', "a,b", "a\r\nb", "\r", "\n", " a ", "#", "=1+1", "\ufeff"])
DIGESTS = st.one_of(st.just(b""), st.binary(min_size=8, max_size=8).map(lambda raw: raw.hex().encode()))


@st.composite
def splits(draw: Any) -> Split:
    names = draw(st.lists(st.one_of(NAMES, ODD), min_size=1, max_size=12))
    classes = draw(st.lists(st.one_of(CLASSES, ODD), min_size=1, max_size=6, unique=True))
    count = len(names)
    parts = np.array(draw(st.lists(st.sampled_from(Part), min_size=count, max_size=count)), np.int8)
    digests = np.array(draw(st.lists(DIGESTS, min_size=count, max_size=count)), "S16")
    cells = st.lists(st.sampled_from([1, 0, -1]), min_size=len(classes), max_size=len(classes))
    y = np.array(draw(st.lists(cells, min_size=count, max_size=count)), np.int8)
    y[parts == Part.UNLABELED] = -1
    return Split(names, parts, digests, tuple(classes), y)


def same(one: Split, other: Split) -> bool:
    arrays = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("parts", "digests", "y"))
    return arrays and list(one.names) == list(other.names) and one.classes == other.classes


@given(splits())
def test_round_trip(tmp_path_factory, split):
    folder = tmp_path_factory.mktemp("run")
    assert not has_split(folder)
    write_split(RunFolder(folder), split)
    assert has_split(folder)
    read = read_split(folder)
    assert same(read, split)
    assert [read.y.dtype, read.parts.dtype] == [np.dtype(np.int8)] * 2
    assert differences(split, read) == []


def example() -> Split:
    return Split(
        ["a.png", "b.png", "c, d.png", "e.png", "/f.png"],
        np.array([Part.LABELED, Part.UNLABELED, Part.HELD_OUT, Part.TEST, Part.OMITTED], np.int8),
        np.array([b"0123456789abcdef", b"1" * 16, b"2" * 16, b"3" * 16, b""]),
        ("image", "digest"),
        np.array([[1, 0], [-1, -1], [0, -1], [1, 1], [-1, 1]], np.int8),
    )


TEXT = """image,part,digest,image,digest
a.png,labeled,0123456789abcdef,1,0
b.png,unlabeled,1111111111111111,,
"c, d.png",held_out,2222222222222222,0,
e.png,test,3333333333333333,1,1
/f.png,omitted,,,1
"""


def test_the_file_is_a_plain_table(tmp_path):
    write_split(RunFolder(tmp_path), example())
    assert (tmp_path / "split.csv").read_text() == TEXT
    assert example().rows(Part.LABELED, Part.TEST).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (",held_out,", ",held,", r"line 4 is damaged \(c, d.png\): its part is 'held', not one of labeled, unlabeled"),
        ("1111,,", "1111,1,", r"line 3 is damaged \(b.png\): 'image' is '1', not blank for an unlabeled image"),
        (",1,0\n", ",1,2\n", r"line 2 is damaged \(a.png\): 'digest' is '2', not 1, 0 or blank"),
        (",1,1\n", ",1,-1\n", r"line 5 is damaged \(e.png\): 'digest' is '-1', not 1, 0 or blank"),
        ("0123456789abcdef", "0123456789abcdeF", r"its digest is '0123456789abcdeF', not 16 hex digits"),
        ("0123456789abcdef", "0123", r"its digest is '0123', not 16 hex digits"),
        (",1,1\n", ",1\n", "line 5 is damaged: it has 4 cells, but the header line has 5"),
        (",1,1\n", ",1,1,1\n", "line 5 is damaged: it has 6 cells, but the header line has 5"),
        ("e.png,test", "\ne.png,test", "line 5 is damaged: it has 0 cells, but the header line has 5"),
        ("a.png,", ",", "line 2 is damaged: it names no image"),
        ('"c, d.png"', '"c, d.png', r"line \d is damaged"),
        ("image,part,digest,image", "path,part,digest,image", "line 1 is not image, part, digest and one column per"),
        ("digest,image,digest", "digest,image,image", "line 1 is not image, part, digest and one column per"),
        (",image,digest\n", "\n", "line 1 is not image, part, digest and one column per"),
        (TEXT, "", "line 1 is not image, part, digest and one column per"),
        (TEXT.partition("\n")[2], "", "has no rows below its header line"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path, before, after, words):
    assert TEXT.count(before) == 1
    (tmp_path / "split.csv").write_text(TEXT.replace(before, after))
    with pytest.raises(TagspreadError, match=words) as caught:
        read_split(tmp_path)
    assert str(tmp_path / "split.csv") in str(caught.value)
    assert "copy" in str(caught.value)


def test_lines_are_those_of_an_editor_even_after_names_with_line_ends(tmp_path):
    split = replace(example(), names=["a\nb.png", "b.png", "c.png", "e.png", "f.png"])
    write_split(RunFolder(tmp_path), split)
    file = tmp_path / "split.csv"
    file.write_text(file.read_text().replace("e.png,test", "e.png,tset"))
    with pytest.raises(TagspreadError, match="line 6 is damaged"):
        read_split(tmp_path)


def test_a_run_without_one_says_what_it_is_for(tmp_path):
    with pytest.raises(TagspreadError, match=r"has no split.csv, which records the part of each image"):
        read_split(tmp_path)


def test_many_rows(tmp_path):
    draw = np.random.default_rng(0)
    count = 20_000
    parts = draw.integers(0, len(Part), count).astype(np.int8)
    y = draw.integers(-1, 2, (count, 80)).astype(np.int8)
    y[parts == Part.UNLABELED] = -1
    digests = np.array([f"{one:016x}".encode() for one in draw.integers(0, 2**62, count)])
    split = Split([f"folder/{k:06}.jpg" for k in range(count)], parts, digests, tuple(map(str, range(80))), y)
    write_split(RunFolder(tmp_path), split)
    assert same(read_split(tmp_path), split)
    with (tmp_path / "split.csv").open(newline="") as opened:
        assert sum(1 for _ in csv.reader(opened)) == count + 1


def changed(**changes: Any) -> list[str]:
    return differences(example(), replace(example(), **changes))


def test_differences_name_the_first_images():
    then = example()
    digests, y, parts = then.digests.copy(), then.y.copy(), then.parts.copy()
    digests[0], digests[2] = b"", b"9" * 16
    y[3, 0] = 0
    parts[1], parts[0] = Part.LABELED, Part.OMITTED
    assert changed(digests=digests, y=y, parts=parts) == [
        "1 image is missing (a.png)",
        "1 image is changed (c, d.png)",
        "1 image is labeled differently (e.png)",
        "1 image is in another part (b.png: unlabeled, now labeled)",
    ]
    assert changed(classes=("image", "size")) == ["the classes were image, digest, now they are image, size"]
    names = ["a.png", "e.png", "c, d.png", "b.png", "/f.png"]
    order = [0, 3, 2, 1, 4]
    shuffled = Split(names, then.parts[order], then.digests[order], then.classes, then.y[order])
    assert differences(then, shuffled) == ["the images are in another order"]


def test_differences_of_other_images():
    then = example()
    rows = [1, 3]
    now = Split(
        ["n1", "b.png", "n2", "e.png", "n3", "n4", "n5"],
        np.array([1, *then.parts[rows[:1]], 1, *then.parts[rows[1:]], 1, 1, 1], np.int8),
        np.array([b"a" * 16, then.digests[1], b"b" * 16, b"c" * 16, *[b"d" * 16] * 3]),
        then.classes,
        np.full((7, 2), -1, np.int8),
    )
    assert differences(then, now) == [
        "5 images are new (n1, n2, n3 and 2 more)",
        "3 images are missing (a.png, c, d.png, /f.png)",
        "1 image is changed (e.png)",
        "1 image is labeled differently (e.png)",
    ]


def test_a_file_that_is_listed_twice_is_counted_twice():
    then = example()
    twice = replace(then, names=["a.png", "a.png", *then.names[2:]])
    assert differences(twice, then)[0] == "1 image is new (b.png)"
    assert differences(then, twice)[:2] == ["1 image is new (a.png)", "1 image is missing (b.png)"]


def test_recorded_paths_are_absolute_or_start_from_the_folder_of_images(tmp_path):
    from tagspread.data.images.store import TensorStore
    from tagspread.train.dataset import Dataset

    root = tmp_path / "photos"
    files = [root / "a.png", root / "sub" / "b.png", root / ".." / "c.png", tmp_path / "photos2" / "d.png"]
    store = TensorStore(np.zeros((4, 3), np.float32), "cpu")
    y = np.array([[1], [0], [1], [0]], np.int8)
    dataset = Dataset(store, y, ("x",), np.arange(4), np.empty(0, np.int64), files=files, root=root)
    outside = [str(files[2]), str(files[3])]
    assert dataset.recorded_names() == ["a.png", "sub/b.png", *outside]
    assert replace(dataset, root=None).recorded_names() == [str(file) for file in files]
    assert replace(dataset, files=()).recorded_names() == [f"number {row}" for row in range(4)]
    assert all(Path(name).is_absolute() for name in outside)
