import csv
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tagspread.data.table import LabelTable, read_table
from tagspread.errors import TagspreadError

LONG = "file,tags\na.jpg,sea|sand\nsub/b.jpg,sand\nc.jpg,\n"
WIDE = "file,sea,sand\na.jpg,1,1\nsub/b.jpg,0,1\nc.jpg,,-1\n"


@pytest.fixture
def read(tmp_path):
    def make(text, **options):
        file = tmp_path / "labels.csv"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_table(file, "pictures", **options)

    return make


PATHS = tuple(Path("pictures") / name for name in ("a.jpg", "sub/b.jpg", "c.jpg"))


def test_long(read):
    table = read(LONG)
    assert table.paths == PATHS
    assert table.classes == ("sand", "sea")  # sorted
    assert table.y.dtype == np.int8
    assert table.y.tolist() == [[1, 1], [1, 0], [0, 0]]  # a tag that is not listed is absent


def test_wide(read):
    table = read(WIDE)
    assert table.paths == PATHS
    assert table.classes == ("sea", "sand")  # as in the file
    assert table.y.dtype == np.int8
    assert table.y.tolist() == [[1, 1], [0, 1], [-1, -1]]  # blank is unknown
    assert read("file,sea\na.jpg, 1.0\nb.jpg,0.0 \n").y.tolist() == [[1], [0]]


@pytest.mark.parametrize("text", [LONG, WIDE])
@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"\xef\xbb\xbf" + text,  # a BOM, as Excel writes it
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"),
        lambda text: text.replace(b"\n", b"\n\n"),
        lambda text: text.rstrip(b"\n"),
        lambda text: text.replace(b",", b" , "),
        lambda text: text.replace(b"a.jpg", b'"a.jpg"').replace(b"sea", b'"sea"').replace(b'"sea"|sand', b'"sea|sand"'),
    ],
)
def test_what_spreadsheets_make_of_it(read, text, change):
    plain, changed = read(text), read(change(text.encode()))
    assert (changed.paths, changed.classes) == (plain.paths, plain.classes)
    np.testing.assert_array_equal(changed.y, plain.y)


@pytest.mark.parametrize("column", ["tags", "Labels", " TAG ", "label"])
def test_names_of_the_tag_column(read, column):
    assert read(f"file,{column}\na.jpg,x|y\n").classes == ("x", "y")


def test_quotes_delimiters_and_unicode(read):
    table = read('file,tags\n"a, b.jpg","mer, côte|砂"\n"say ""hi"".jpg",砂|| 砂 |\n')
    assert table.paths == (Path("pictures/a, b.jpg"), Path('pictures/say "hi".jpg'))
    assert table.classes == ("mer, côte", "砂")
    assert table.y.tolist() == [[1, 1], [0, 1]]
    assert read("file,tags\na.jpg,x;y|z\n", delimiter=";").classes == ("x", "y|z")
    assert read('file,tags\na.jpg,"x,y"\n', delimiter=",").classes == ("x", "y")
    assert read("file,tags\n/elsewhere/a.jpg,x\n").paths == (Path("/elsewhere/a.jpg"),)
    assert read("datei,été\na.jpg,1\n").classes == ("été",)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.text("abc é砂'\"|\n\r,;", min_size=1, max_size=4), max_size=4), min_size=1, max_size=5))
def test_any_tags_come_back(tmp_path_factory, rows):
    file = tmp_path_factory.mktemp("table") / "labels.csv"
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["file", "tags"])
        writer.writerows([f"{k}.jpg", "|".join(tags)] for k, tags in enumerate(rows))
    meant = [{part.strip() for tag in tags for part in tag.split("|")} - {""} for tags in rows]
    if not any(meant):
        with pytest.raises(TagspreadError, match="names no tag at all"):
            read_table(file, "")
        return
    table = read_table(file, "")
    assert table.classes == tuple(sorted(set().union(*meant)))
    assert [{c for c, there in zip(table.classes, row, strict=True) if there} for row in table.y] == meant


def test_aligned():
    table = LabelTable((Path("a"), Path("b")), ("sea", "sand"), np.array([[1, 0], [-1, 1]], np.int8))
    found = table.aligned(("gull", "sand", "sea"), "test.csv")
    assert found.dtype == np.int8
    assert found.tolist() == [[-1, 0, 1], [-1, 1, -1]]  # nobody said anything about gulls
    np.testing.assert_array_equal(table.aligned(table.classes, "test.csv"), table.y)
    complete = LabelTable((Path("a"),), ("sea",), np.array([[1]], np.int8), unlisted=0)
    assert complete.aligned(("gull", "sea"), "test.csv").tolist() == [[0, 1]]  # a list of tags without a gull
    with pytest.raises(TagspreadError, match=r"test\.csv has the tag 'sand'.* do not\. Did you mean 'sands'\?"):
        table.aligned(("sea", "sands"), "test.csv")


def test_no_such_file(tmp_path):
    with pytest.raises(TagspreadError, match=r"--labels: there is no file .*nowhere\.csv"):
        read_table(tmp_path / "nowhere.csv", tmp_path)
    with pytest.raises(TagspreadError, match=r"--labels: .* cannot be read"):
        read_table(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no rows below its header"),
        ("file,tags\n\n", "has no rows below its header"),
        ("file;tags\na.jpg;sea\n", "has one column; give the picture and its tags, separated by commas"),
        ("file,tags\na.jpg,sea,sand\n", "line 2 has 3 cells, its header 2"),
        ("file,tags\n\n\na.jpg,sea\n\nb.jpg\n", "line 6 has 1 cells"),  # as an editor counts
        ('file,tags\na.jpg,"two\nlines"\nb.jpg\n', "line 4 has 1 cells"),
        ("file,sea\na.jpg,1\n\nb.jpg,yes\n", "line 4, column 'sea' holds 'yes'; write 1, 0 or nothing"),
        ("file,sea,sand\na.jpg,1,2\n", "line 2, column 'sand' holds '2'"),
        (
            "file,keywords\na.jpg,sea|sand\n",
            "column 'keywords' holds 'sea|sand'; write 1, 0 or nothing (unknown). For a",
        ),
        ("file,tags\na.jpg,\nb.jpg, | \n", "names no tag at all"),
        ("file,tags\na.jpg,x\n ,sea\n", "line 3 names no picture in column 'file'"),
        ("file,sea\n,1\n", "line 2 names no picture"),
        ("file,tag\na.jpg,sea\nb.jpg,x\n./a.jpg,sand\n", "line 4 names pictures/a.jpg again, after line 2; give each"),
        ("file,tag\na.jpg,sea\na.jpg,sand\n", "several tags joined by '|'"),
        ("file,sea\na.jpg,1\na.jpg,0\n", "line 3 names pictures/a.jpg again"),
        ("file,sea,sand, sea\na.jpg,1,0,1\n", "column 4 is called 'sea' as one before"),
        ("file,sea,\na.jpg,1,0\n", "column 3 has no name"),
        (
            'file,tags\na.jpg,x\nb.jpg,"sea\nc.jpg,sand\n',
            "is not a CSV file in UTF-8 (unexpected end of data; after line",
        ),
        (b"file,tags\na.jpg,caf\xe9\n", "is not a CSV file in UTF-8 ('utf-8' codec"),
        ("file,tags\na.jpg,sea\n".encode("utf-16"), "is not a CSV file in UTF-8"),
    ],
)
def test_bad_input(read, text, words):
    with pytest.raises(TagspreadError, match="--labels: .*labels.csv.*" + re.escape(words)):
        read(text)
