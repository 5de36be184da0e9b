import re

import numpy as np
import pytest

from tagspread.data.datasets.nus import read_nus
from tagspread.errors import TagspreadError

NAMES = ["actor\\0001_2124494179.jpg", "zoo\\0002_11.jpg", "actor\\0003_5.jpg"]
TRUTH = {"airport": [0, 1, 0], "sky": [1, 1, 0]}


def write(top, split="Train", names=NAMES, truth=TRUTH, end=" \r\n"):
    (top / "ImageList").mkdir(parents=True, exist_ok=True)
    (top / "ImageList" / f"{split}Imagelist.txt").write_bytes("".join(name + end for name in names).encode())
    folder = top / "Groundtruth" / "TrainTestLabels"
    folder.mkdir(parents=True, exist_ok=True)
    for concept, values in truth.items():
        text = "".join(f"{value}{end}" for value in values)
        (folder / f"Labels_{concept}_{split}.txt").write_bytes(text.encode())
    return top


def write_arrays(top, names=NAMES, y=((0, 1), (1, 1), (0, 0)), split="train", **options):
    np.save(top / f"formatted_{split}_images.npy", np.array(names, **options))
    np.save(top / f"formatted_{split}_labels.npy", np.array(y))
    return top


@pytest.mark.parametrize("end", ["\n", " \n", " \r\n"])
def test_original_distribution(tmp_path, end):
    write(tmp_path, end=end)
    write(tmp_path, "Test", NAMES[:1], {"airport": [1], "sky": [0]}, end)
    table = read_nus(tmp_path, "train")
    assert table.classes == ("airport", "sky")
    assert [path.relative_to(tmp_path).as_posix() for path in table.paths] == [n.replace("\\", "/") for n in NAMES]
    assert table.y.dtype == np.int8
    assert table.y.tolist() == [[0, 1], [1, 1], [0, 0]]
    assert read_nus(tmp_path, "test").y.tolist() == [[1, 0]]
    assert read_nus(tmp_path, "val") == read_nus(tmp_path, "test")


@pytest.mark.parametrize("place", ["Concepts81.txt", "ConceptsList/Concepts81.txt"])
def test_the_order_of_the_concepts(tmp_path, place):
    write(tmp_path)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("sky \nairport\n\n")
    table = read_nus(tmp_path, "train")
    assert (table.classes, table.y[0].tolist()) == (("sky", "airport"), [1, 0])
    (tmp_path / place).write_text("sky\nzebra\n")
    with pytest.raises(TagspreadError, match=r"there is no file .*Labels_zebra_Train\.txt"):
        read_nus(tmp_path, "train")


def test_image_folder(tmp_path):
    write(tmp_path)
    (tmp_path / "Flickr").mkdir()
    assert read_nus(tmp_path, "train").paths[0] == tmp_path / "Flickr/actor/0001_2124494179.jpg"
    assert read_nus(tmp_path, "train", tmp_path / "x").paths[0] == tmp_path / "x/actor/0001_2124494179.jpg"


@pytest.mark.parametrize("kind", [str, bytes])
@pytest.mark.parametrize("number", [np.int64, np.float32, bool])
def test_arrays(tmp_path, kind, number):
    names = np.array(NAMES) if kind is str else np.array([name.encode() for name in NAMES])
    write_arrays(tmp_path, names, np.array([[0, 1], [1, 1], [0, 0]], number))
    table = read_nus(tmp_path, "train")
    assert table.classes == ("concept 1", "concept 2")
    assert table.y.tolist() == [[0, 1], [1, 1], [0, 0]]
    assert table.paths[1] == tmp_path / "zoo/0002_11.jpg"
    (tmp_path / "Concepts81.txt").write_text("airport\nsky\n")
    assert read_nus(tmp_path, "train") == read_nus(write(tmp_path / "first"), "train", tmp_path)
    with pytest.raises(TagspreadError, match="has neither ImageList/TestImagelist"):
        read_nus(tmp_path, "val")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": object}, "holds Python objects, which are not loaded"),
        ({"names": NAMES[:2]}, "has shape (3, 2), "),
        ({"y": (0, 1, 1)}, "has shape (3,), "),
        ({"y": ((0, 1), (1, 2), (0, 0))}, "holds 2 in row 1, column 1; labels must be 0 or 1"),
        ({"y": ((0, -1), (1, 0), (0, 0))}, "holds -1 in row 0, column 1"),
        ({"y": (("a",), ("b",), ("c",))}, "holds <U1; labels must be 0 or 1"),
        ({"names": [1, 2, 3]}, "it must be a list of names"),
        (
            {"names": ["a.jpg", "../b.jpg", "c.jpg"]},
            "formatted_train_images.npy line 2 names '../b.jpg', which is outside",
        ),
    ],
)
def test_bad_arrays(tmp_path, options, words):
    write_arrays(tmp_path, **options)
    with pytest.raises(TagspreadError, match=re.escape(words)):
        read_nus(tmp_path, "train")


def test_arrays_that_do_not_match_other_files(tmp_path):
    write_arrays(tmp_path)
    (tmp_path / "Concepts81.txt").write_text("airport\n")
    with pytest.raises(TagspreadError, match=r"Concepts81\.txt has 1 names, but .* has 2 columns"):
        read_nus(tmp_path, "train")
    (tmp_path / "formatted_train_labels.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(TagspreadError, match=r"labels\.npy cannot be read"):
        read_nus(tmp_path, "train")
    (tmp_path / "formatted_train_labels.npy").unlink()
    with pytest.raises(TagspreadError, match=r"there is no file .*labels\.npy; names and labels must be"):
        read_nus(tmp_path, "train")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"truth": TRUTH | {"sky": [1, 0]}}, r"Labels_sky_Train\.txt has 2 lines, but .*TrainImagelist\.txt has 3"),
        ({"truth": TRUTH | {"sky": [1, 0, 2]}}, r"Labels_sky_Train\.txt line 3 is '2'; it must be 0 or 1"),
        ({"truth": TRUTH | {"sky": [1, "", 1]}}, r"Labels_sky_Train\.txt line 2 is ''"),
        ({"truth": {}}, "TrainTestLabels holds no entries for Train"),
        ({"names": []}, r"TrainImagelist\.txt holds no entries"),
        ({"names": ["a.jpg", "", "b.jpg"]}, r"TrainImagelist\.txt line 2 names no image"),
        ({"names": ["a.jpg", "..\\b.jpg", "b.jpg"]}, r"line 2 names '\.\./b\.jpg', which is outside"),
    ],
)
def test_bad_files(tmp_path, options, words):
    write(tmp_path, **options)
    with pytest.raises(TagspreadError, match=words):
        read_nus(tmp_path, "train")


def test_wrong_folder_or_split(tmp_path):
    with pytest.raises(TagspreadError, match=r"neither ImageList/TrainImagelist\.txt nor formatted_train_images\.npy"):
        read_nus(tmp_path, "train")
    with pytest.raises(TagspreadError, match="split is 'trian'; it must be one of 'train', 'val', 'test'"):
        read_nus(tmp_path, "trian")
