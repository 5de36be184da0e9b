import json
import re

import pytest

from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError


@pytest.fixture
def read(tmp_path):
    def make(content, name="metadata.jsonl", **options):
        text = content if isinstance(content, str) else "".join(json.dumps(entry) + "\n" for entry in content)
        (tmp_path / name).write_text(text)
        return read_table(tmp_path, tmp_path, **options)

    return make


def names(table):
    return [path.name for path in table.paths]


def test_lists(read, tmp_path):
    table = read([{"file_name": "sub/a.jpg", "labels": ["sea", "sand"]}, {"file_name": "b.jpg", "labels": []}])
    assert table.paths == (tmp_path / "sub/a.jpg", tmp_path / "b.jpg")
    assert (table.classes, table.y.tolist()) == (("sand", "sea"), [[1, 1], [0, 0]])
    more = [{"text": "a beach", "file_name": "a.jpg", "things": [3, 12]}, {"file_name": "b.jpg", "text": None}]
    table = read(more, tags_column="things", ignore=["text"])
    assert (names(table), table.classes, table.y.tolist()) == (["a.jpg", "b.jpg"], ("12", "3"), [[1, 1], [0, 0]])
    assert read([{"file_name": "a.jpg", "tags": "x|y"}]).classes == ("x", "y")
    assert read([{"file_name": "a.jpg", "tags": "x, y"}], delimiter=None).classes == ("x, y",)


def test_columns(read):
    table = read([{"file_name": "a.jpg", "sea": 1, "sand": None}, {"file_name": "b.jpg", "sea": False, "gull": True}])
    assert (table.classes, table.y.tolist()) == (("sea", "sand", "gull"), [[1, -1, -1], [0, -1, 1]])
    table = read([{"file_name": "a.jpg", "text": "a beach", "sea": 1}], ignore="all")
    assert table.classes == ("sea",)


def test_image_key(read):
    entries = [{"mask": "m.png", "file_name": "a.jpg", "tags": ["x"]}]
    assert names(read(entries, ignore="mask")) == ["a.jpg"]
    assert names(read(entries, image_column="mask", ignore="file_name")) == ["m.png"]
    entries = [{"tags": ["x"], "file": "a.jpg"}]
    assert names(read(entries)) == ["a.jpg"]
    with pytest.raises(TagspreadError, match="no column 'file_name'; its columns are 'tags', 'file'"):
        read(entries, image_column="file_name")


def test_paths_are_relative_to_the_folder_of_a_metadata_file(tmp_path):
    (tmp_path / "photos" / "train").mkdir(parents=True)
    file = tmp_path / "photos" / "train" / "metadata.jsonl"
    file.write_text('{"file_name": "a.jpg", "tags": ["x"]}\n')
    for labels in (file, file.parent):
        for images in (tmp_path / "photos", file.parent):
            assert read_table(labels, images).paths == (file.with_name("a.jpg"),)
    assert read_table(file, tmp_path / "others").paths == (tmp_path / "others" / "a.jpg",)
    other = file.rename(file.with_name("labels.jsonl"))  # only paths in a metadata file are relative to its folder
    assert read_table(other, tmp_path / "photos").paths == (tmp_path / "photos" / "a.jpg",)


def test_csv(read):
    table = read("labels,file_name\nsea|sand,a.jpg\nsea,b.jpg\n", "metadata.csv")
    assert (names(table), table.y.tolist()) == (["a.jpg", "b.jpg"], [[1, 1], [0, 1]])
    assert read("file_name,text,sea\na.jpg,hm,1\n", "metadata.csv", ignore="all").classes == ("sea",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "metadata.jsonl is empty (0 bytes)"),
        ("\n\n", "has no lines"),
        ('{"file_name": "a.jpg", "tags": ["x"]}\n\n{"file_name":\n', "metadata.jsonl line 3 is not valid JSON"),
        ("[]\n", "line 1 is not a JSON object"),
        ([{"file_name": "a.jpg", "tags": ["x"]}, {"tags": ["x"]}], "line 2 names no image"),
        ([{"file_name": "/etc/a.jpg", "tags": ["x"]}], "line 1 names '/etc/a.jpg', which is outside"),
        ([{"file_name": "a.jpg", "tags": {"bbox": []}}], "line 1 holds {'bbox': []}; write a list of tags"),
        ([{"file_name": "a.jpg", "tags": [["x"]]}], "line 1 holds [['x']]"),
        ([{"file_name": "a.jpg", "text": "a beach"}], "line 1, column 'text' holds 'a beach'"),
        ([{"file_name": "a.jpg", "text": "a beach", "tags": ["x"]}], "and other columns: 'text'"),
        ([{"file_name": "a.jpg", "sea": 1}, {"file_name": "./a.jpg", "sea": 1}], "line 2 repeats"),
    ],
)
def test_bad_input(read, content, words):
    with pytest.raises(TagspreadError, match=re.escape(words)):
        read(content)


def test_no_or_two_files(read, tmp_path):
    with pytest.raises(TagspreadError, match=r"has none of metadata\.csv, metadata\.jsonl, metadata\.parquet"):
        read_table(tmp_path, tmp_path)
    read([{"file_name": "a.jpg", "tags": ["x"]}])
    with pytest.raises(TagspreadError, match=r"has metadata\.csv and metadata\.jsonl; give the file"):
        read("file_name,tags\n", "metadata.csv")
    (tmp_path / "metadata.csv").unlink()
    (tmp_path / "metadata.jsonl").write_bytes(b'{"file_name": "caf\xe9.jpg"}')
    with pytest.raises(TagspreadError, match="is not in UTF-8"):
        read_table(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", '{"image": "a.jpg", "tags": %s}' % ("[" * 100_000 + "]" * 100_000), "line 1 .*nested too deeply"),
        ("a.jsonl", '{"image": "a.jpg", "tags": %s}' % ("1" * 5000), "line 1 .*too many digits"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", '[{"annotations": [], "data": %s}]' % ("1" * 5000), "too many digits"),
        ("a.json", '[{"annotation_id": 1, "image": "a.jpg", "tags": %s}]' % ("[" * 900 + "]" * 900), "too deeply"),
        ("a.json", '[{"annotation_id": 1, "image": "a.jpg", "tags": "%s"}]' % ("[" * 100_000), "task 1 .*too deeply"),
        ("a.csv", "annotation_id,annotator,lead_time,image,tags\n1,1,1,a.jpg,[%s]" % ("1" * 5000), "line 2 .*digits"),
    ],
)  # fmt: skip
def test_what_python_refuses_to_parse(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(TagspreadError, match=words):
        read_table(tmp_path / name, tmp_path)
