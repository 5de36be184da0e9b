"""Label Studio exports: all formats, and damaged files."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from tagspread.data.tables.read import read_table


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    for name in ("a b.jpg", "c.jpg", "sub/a b.jpg", "sub/d.jpg"):
        Image.new("RGB", (8, 8)).save(folder / name)
    return folder


def task(image, *answers, key="image", **more):
    """Return a task of the JSON export: ``answers`` are lists of ticked tags, or None for a skipped annotation."""
    annotations = [
        {"id": 1, "was_cancelled": tags is None, "result": [result(tags)] if tags else []} for tags in answers
    ]
    return {"id": 7, "data": {key: image}, "annotations": annotations, "predictions": [], **more}


def result(tags, name="tags"):
    return {"id": "x", "from_name": name, "to_name": "image", "type": "choices", "value": {"choices": tags}}


def read(tmp_path, tasks, images, name="export.json", **options):
    file = tmp_path / name
    file.write_text(tasks if isinstance(tasks, str) else json.dumps(tasks))
    return read_table(file, images, **options)


def as_dict(table, images):
    return {path.relative_to(images).as_posix(): row.tolist() for path, row in zip(table.paths, table.y, strict=True)}


def test_json(tmp_path, images):
    tasks = [
        task("/data/local-files/?d=a%20b.jpg", ["sea", "sand"]),
        task("/data/local-files/?d=photos/sub/a%20b.jpg", []),  # annotated, without tags
        task("https://example.com/images/c.jpg?x=1", ["sea"], None),  # the second annotation was skipped
        task("/data/upload/3/0a1b2c3d-d.jpg"),  # no annotation
    ]
    table = read(tmp_path, tasks, images)
    assert table.classes == ("sand", "sea")
    assert as_dict(table, images) == {"a b.jpg": [1, 1], "sub/a b.jpg": [0, 0], "c.jpg": [0, 1]}
    assert table.unlisted == 0


def test_uploaded_files_have_a_prefix(tmp_path, images):
    (images / "d.jpg").write_bytes((images / "c.jpg").read_bytes())
    table = read(tmp_path, [task("/data/upload/3/0a1b2c3d-d.jpg", ["sea"])], images)
    assert as_dict(table, images) == {"d.jpg": [1]}


def test_missing_images_keep_their_address(tmp_path, images):
    table = read(tmp_path, [task("/data/local-files/?d=gone/e.jpg", ["sea"])], images)
    assert as_dict(table, images) == {"gone/e.jpg": [1]}


def test_the_name_written_by_tagspread_wins_over_the_address(tmp_path, images):
    one = task("/data/local-files/?d=c.jpg", ["sea"])
    one["data"]["file_name"] = "sub/d.jpg"
    assert as_dict(read(tmp_path, [one], images), images) == {"sub/d.jpg": [1]}


def test_labels_on_which_annotators_disagree_are_unknown(tmp_path, images):
    table = read(tmp_path, [task("c.jpg", ["sea", "sand"], ["sea"]), task("a b.jpg", ["sky"], ["sky"])], images)
    assert as_dict(table, images) == {"c.jpg": [-1, 1, 0], "a b.jpg": [0, 0, 1]}


def test_several_questions_need_tags_column(tmp_path, images):
    one = task("c.jpg", ["sea"])
    one["annotations"][0]["result"].append(result(["blurred"], name="quality"))
    one["annotations"][0]["result"].append({"type": "rectanglelabels", "from_name": "box", "value": {}})
    with pytest.raises(ValueError, match=r"task 1 has answers to several questions \(tags, quality\)"):
        read(tmp_path, [one], images)
    assert read(tmp_path, [one], images, tags_column="quality").classes == ("blurred",)


ROWS = [
    {"image": "/data/local-files/?d=c.jpg", "tags": "sea", "was_cancelled": False},
    {"image": "/data/local-files/?d=a%20b.jpg", "tags": {"choices": ["sand", "sea"]}, "was_cancelled": False},
    {"image": "/data/local-files/?d=sub/d.jpg", "was_cancelled": False},  # nothing ticked
    {"image": "/data/local-files/?d=sub/a%20b.jpg", "tags": "sky", "was_cancelled": True},
]
OTHERS = {"annotation_id": 1, "annotator": 2, "created_at": "now", "updated_at": "now", "lead_time": 3.5, "id": 9}
EXPECTED = {"c.jpg": [0, 1], "a b.jpg": [1, 1], "sub/d.jpg": [0, 0]}


def test_json_min(tmp_path, images):
    table = read(tmp_path, [row | OTHERS for row in ROWS], images)
    assert as_dict(table, images) == EXPECTED


def write_csv(file, rows, separator=","):
    names = sorted({key for row in rows for key in row})
    with file.open("w", newline="", encoding="utf8") as opened:
        writer = csv.DictWriter(opened, names, quoting=csv.QUOTE_NONNUMERIC, delimiter=separator)
        writer.writeheader()
        for row in rows:
            writer.writerow({k: json.dumps(v) if isinstance(v, dict) else v for k, v in row.items()})


@pytest.mark.parametrize(("name", "separator"), [("export.csv", ","), ("export.tsv", "\t")])
def test_csv_and_tsv(tmp_path, images, name, separator):
    write_csv(tmp_path / name, [row | OTHERS for row in ROWS], separator)
    table = read_table(tmp_path / name, images)
    assert as_dict(table, images) == EXPECTED


def test_csv_with_a_column_too_many(tmp_path, images):
    write_csv(tmp_path / "e.csv", [{"image": "c.jpg", "choice": "sea", "place": "Rome"} | OTHERS])
    with pytest.raises(
        ValueError, match=r"cannot tell which column holds the tags \('choice', 'place'\); name it with tags_column"
    ):
        read_table(tmp_path / "e.csv", images)
    for options in ({"tags_column": "choice"}, {"ignore": ["place"]}):
        assert read_table(tmp_path / "e.csv", images, **options).classes == ("sea",)
    with pytest.raises(ValueError, match="has no column 'tag'"):
        read_table(tmp_path / "e.csv", images, tags_column="tag")


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ("{", "is not valid JSON"),
        ({"images": [], "annotations": []}, "is not a list of tasks"),
        ([1], "is not a list of tasks"),
        ([], "holds no annotations"),
        ([{"data": {"image": "c.jpg"}, "predictions": []}], "holds no annotations; import it into Label Studio"),
        ([task("c.jpg")], "holds no submitted annotation"),
        ([task("c.jpg", [])], "holds no tags"),
        (
            [task("c.jpg", ["sea"], data={"text": "hello"})],
            "task 1 names no image; name the column of images with image_column",
        ),
        ([task("c.jpg", ["sea"], data=None)], "task 1 does not have the format of Label Studio"),
        ([task("c.jpg", ["sea"], annotations=[3])], "task 1 does not have the format of Label Studio"),
        ([task("../c.jpg", ["sea"], data={"file_name": "../c.jpg"})], "is outside the image folder"),
        ([task("c.jpg", ["sea"]), task("c.jpg", [{"odd": 1}])], "task 2 holds .*odd.* instead of choices"),
    ],
)
def test_bad_exports(tmp_path, images, tasks, words):
    with pytest.raises(ValueError, match=words):
        read(tmp_path, tasks, images)


def test_not_utf8(tmp_path, images):
    (tmp_path / "e.json").write_bytes('[{"ü": 1}]'.encode("latin-1"))
    with pytest.raises(ValueError, match="not in UTF-8"):
        read_table(tmp_path / "e.json", images)


def test_a_similar_table_is_not_read_as_an_export(tmp_path, images):
    (tmp_path / "l.csv").write_text("id,image,tags\n1,c.jpg,sea\n")
    table = read_table(tmp_path / "l.csv", images, ignore="all")
    assert table.classes == ("sea",)
    assert np.array_equal(table.y, [[1]])


def test_the_pseudo_labels_of_a_run_raise(tmp_path, images):
    (tmp_path / "pseudo_labels.csv").write_text("image,tag,target,score,rank,flips\nc.jpg,sea,1,0.9,1,0\n")
    with pytest.raises(ValueError, match="holds the pseudo-labels of a run, not labels given by people"):
        read_table(tmp_path / "pseudo_labels.csv", images, ignore="all")
