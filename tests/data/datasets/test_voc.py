import os
from pathlib import Path

import numpy as np
import pytest

from tagspread.data.datasets.voc import read_voc
from tagspread.errors import TagspreadError

TRUTH = {  # values of the devkit; 0 is present, but difficult
    "aeroplane": {"2008_000008": -1, "2008_000015": 1, "2007_000032": 0},
    "person": {"2008_000008": 1, "2008_000015": 0, "2007_000032": 1},
    "train": {"2008_000008": -1, "2008_000015": -1, "2007_000032": -1},
}


def write(root, truth=TRUTH, split="train"):
    main = root / "ImageSets" / "Main"
    main.mkdir(parents=True, exist_ok=True)
    for name, column in truth.items():
        lines = [f"{image} {'' if sign < 0 else ' '}{sign}\n" for image, sign in column.items()]
        (main / f"{name}_{split}.txt").write_text("".join(lines))
    (main / f"{split}.txt").write_text("".join(f"{image}\n" for image in truth["person"]))
    return root


def test_devkit_format(tmp_path):
    write(tmp_path)
    text = (tmp_path / "ImageSets/Main/aeroplane_train.txt").read_text()
    assert text == "2008_000008 -1\n2008_000015  1\n2007_000032  0\n"
    for split in ("val", "trainval"):  # files of other splits in the same folder
        write(tmp_path, {name: {"x": 1} for name in TRUTH}, split)
    table = read_voc(tmp_path, "train")
    assert table.classes == ("aeroplane", "person", "train")
    assert [path.relative_to(tmp_path).as_posix() for path in table.paths] == [
        "JPEGImages/2007_000032.jpg",
        "JPEGImages/2008_000008.jpg",
        "JPEGImages/2008_000015.jpg",
    ]
    assert table.y.dtype == np.int8
    assert table.y.tolist() == [[0, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert read_voc(tmp_path, "train", "unknown").y.tolist() == [[-1, 1, 0], [0, 1, 0], [1, -1, 0]]
    assert read_voc(str(tmp_path), "val").y.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("name", sorted(TRUTH))
@pytest.mark.parametrize("change", ["missing", "extra"])
def test_a_class_with_other_images(tmp_path, name, change):
    column = dict(TRUTH[name])
    if change == "missing":
        del column["2008_000015"]
    else:
        column["2009_000001"] = -1
    write(tmp_path, TRUTH | {name: column})
    with pytest.raises(TagspreadError, match=r"_train\.txt does not name the same images as .*aeroplane_train\.txt"):
        read_voc(tmp_path, "train")


@pytest.mark.parametrize("line", ["2008_000008", "2008_000008 2", "2008_000008 1 1", "2008_000008 +1"])
def test_a_malformed_line(tmp_path, line):
    file = write(tmp_path) / "ImageSets/Main/person_train.txt"
    file.write_text(f"2008_000008  1\n{line}\n2007_000032  1\n")
    with pytest.raises(TagspreadError, match=r"person_train\.txt line 2 is '.*'; it must be an image name and 1, 0"):
        read_voc(tmp_path, "train")


def test_wrong_folder_split_or_choice(tmp_path):
    write(tmp_path / "VOC2012")
    with pytest.raises(TagspreadError, match=r"has no ImageSets/Main/\*_train\.txt; give the folder of one year"):
        read_voc(tmp_path, "train")
    with pytest.raises(TagspreadError, match=r"has no ImageSets/Main/\*_test\.txt.* or another split"):
        read_voc(tmp_path / "VOC2012", "test")
    with pytest.raises(TagspreadError, match="difficult is 'ignore'; it must be one of 'negative', 'unknown'"):
        read_voc(tmp_path / "VOC2012", "train", "ignore")


REAL = Path(os.environ.get("TAGSPREAD_DATA", "")) / "VOCdevkit" / "VOC2012"
COUNTS = {
    "aeroplane": 327, "bicycle": 268, "bird": 395, "boat": 260, "bottle": 365, "bus": 213, "car": 590, "cat": 539,
    "chair": 566, "cow": 151, "diningtable": 269, "dog": 632, "horse": 237, "motorbike": 265, "person": 1994,
    "pottedplant": 269, "sheep": 171, "sofa": 257, "train": 273, "tvmonitor": 290,
}  # fmt: skip


@pytest.mark.data
@pytest.mark.skipif(
    "TAGSPREAD_DATA" not in os.environ or not REAL.is_dir(),
    reason="set TAGSPREAD_DATA to the folder that holds VOCdevkit/VOC2012",
)
def test_the_real_voc2012():
    train, val = read_voc(REAL, "train"), read_voc(REAL, "val")
    assert (len(train.paths), len(val.paths)) == (5717, 5823)
    assert dict(zip(train.classes, (train.y == 1).sum(0).tolist(), strict=True)) == COUNTS
    assert val.classes == train.classes
    assert set(np.unique(train.y)) == {0, 1}
    assert not set(train.paths) & set(val.paths)
    unknown = read_voc(REAL, "train", "unknown").y
    np.testing.assert_array_equal(unknown == 1, train.y == 1)
    assert (unknown == -1).any()
    assert [path for path in (*train.paths[::500], *val.paths[::500]) if not path.is_file()] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"PK\x03\x04\xff\xfe\xff", r"cat_train\.txt cannot be read as text"),
        (b"", "names no images"),
        (b"a 1\na -1\n", r"cat_train\.txt line 2 contradicts an earlier line about 'a'"),
        (b"../../secret 1\n", r"line 1 names '\.\./\.\./secret'; it must be a plain file name"),
    ],
)
def test_bad_files(tmp_path, text, words):
    folder = tmp_path / "ImageSets" / "Main"
    folder.mkdir(parents=True)
    (folder / "cat_train.txt").write_bytes(text)
    with pytest.raises(TagspreadError, match=words):
        read_voc(tmp_path, "train")


def test_byte_order_mark_windows_line_ends_and_blank_lines(tmp_path):
    folder = tmp_path / "ImageSets" / "Main"
    folder.mkdir(parents=True)
    (folder / "cat_train.txt").write_bytes(b"\xef\xbb\xbfb  1\r\n\r\na -1\r\n")
    table = read_voc(tmp_path, "train")
    assert [path.name for path in table.paths] == ["a.jpg", "b.jpg"]
    assert table.y.tolist() == [[0], [1]]
