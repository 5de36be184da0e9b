import gc
import json
import re
from pathlib import Path

import numpy as np
import pytest

from tagspread.data.datasets.coco import read_coco
from tagspread.errors import TagspreadError


def image(number):
    return {"license": 3, "file_name": f"COCO_{number:012}.jpg", "height": 480, "width": 640, "id": number}


def instance(number, image, category, **more):
    outline = {"segmentation": [[510.66, 423.01, 511.72], [1, 2e-3, -3]], "area": 702.1, "iscrowd": 0}
    return (
        outline
        | {"image_id": image, "bbox": [473.07, 395.93, 38.65, 28.67], "category_id": category, "id": number}
        | more
    )


def index():
    crowd = {"iscrowd": 1, "segmentation": {"counts": [272, 2, 4], "size": [240, 320]}}
    return {
        "info": {"description": "COCO 2014 Dataset", "year": 2014},
        "images": [image(k) for k in (9, 100, 10, 57)],
        "licenses": [{"id": 1, "name": "some license", "url": "http://"}],
        "annotations": [
            instance(1, 9, 90),
            instance(2, 9, 90),
            instance(3, 100, 1),
            instance(900100000004, 10, 13, **crowd),
            instance(5, 10, 1, segmentation=[]),
        ],
        "categories": [
            {"supercategory": "indoor", "id": 90, "name": "toothbrush"},
            {"supercategory": "person", "id": 1, "name": "person"},
            {"supercategory": "outdoor", "id": 13, "name": "stop sign"},
        ],
    }


@pytest.fixture
def read(tmp_path):
    def make(content, **options):
        file = tmp_path / "instances_train2014.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return read_coco(file, "train2014", **options)

    return make


def test_a_small_index(read):
    table = read(index())
    assert table.classes == ("person", "stop sign", "toothbrush")  # by number, not contiguous
    assert [path.name for path in table.paths] == [f"COCO_{k:012}.jpg" for k in (10, 100, 9)]  # sorted as text
    assert table.paths[0].parent == Path("train2014")
    assert table.y.dtype == np.int8
    assert table.y.tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 1]]  # the crowd counts
    assert gc.isenabled()


def test_images_without_annotation(read):
    table = read(index(), keep_empty=True)
    assert [path.name for path in table.paths] == [f"COCO_{k:012}.jpg" for k in (10, 100, 57, 9)]
    assert table.y[2].tolist() == [0, 0, 0]
    assert read(index() | {"annotations": []}, keep_empty=True).y.tolist() == [[0, 0, 0]] * 4
    with pytest.raises(TagspreadError, match="has no annotated images"):
        read(index() | {"annotations": []})


@pytest.mark.parametrize("options", [{"indent": 1}, {"separators": (",", ":")}, {"sort_keys": True}])
def test_any_json_layout(read, options):
    assert read(json.dumps(index(), **options)) == read(index())


@pytest.mark.parametrize("key", ["segmentation", "id"])
def test_outlines_at_either_end_of_an_entry(read, key):
    changed = index()
    changed["annotations"] = [entry | {key: entry.pop(key)} for entry in changed["annotations"]]
    changed["annotations"][0]["note"] = 'say "segmentation": [1], and ]'
    assert read(changed) == read(index())


def change(**lists):
    """Return an index with entries appended to its lists."""
    return {key: value + lists.get(key, []) if isinstance(value, list) else value for key, value in index().items()}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not valid JSON"),
        (json.dumps(index())[:-50], "is the download complete"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "has no list 'images'"),
        ({"images": [], "categories": []}, "has no list 'annotations'"),
        (change(annotations=[instance(77, 8, 1)]), "entry 5, names the image 8, which the file does not list"),
        (change(annotations=[instance(77, 9, 2)]), "names the category 2"),
        (
            change(annotations=[{"id": 77, "image_id": 9, "caption": "a beach"}]),
            "id 77 has no image_id or no category_id",
        ),
        (change(annotations=[3]), "annotations, entry 5, 3 has no image_id"),
        (change(images=[{"id": 7}]), "images, entry 4, id 7 has no id or no file_name"),
        (change(images=[image(9) | {"file_name": "x.jpg"}]), "gives the id 9 to COCO_000000000009.jpg and to x.jpg"),
        (
            change(images=[image(7) | {"file_name": "../x.jpg"}], annotations=[instance(1, 7, 1)]),
            "image 7 names '../x",
        ),
        (change(categories=[{"id": 2}]), "categories, id 2 has no integer id or no name"),
        (change(categories=[{"id": "2", "name": "x"}]), "id '2' has no integer id"),
        (change(categories=[{"id": 2, "name": "person"}]), "'person' twice"),
    ],
)
def test_bad_input(read, content, words):
    with pytest.raises(TagspreadError, match=re.escape(words)):
        read(content)


def test_no_such_file(tmp_path):
    with pytest.raises(TagspreadError, match="there is no file"):
        read_coco(tmp_path / "instances.json", tmp_path)
    with pytest.raises(TagspreadError, match="cannot be read"):
        read_coco(tmp_path, tmp_path)
