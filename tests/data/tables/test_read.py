import csv
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError
from tests.data.conftest import LONG, WIDE

PATHS = tuple(Path("images") / name for name in ("a.jpg", "sub/b.jpg", "c.jpg"))


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
    assert read("file,sea,sand\na.jpg,True,False\nb.jpg,false,TRUE\nc.jpg,,true\n").y.tolist() == [
        [1, 0],
        [0, 1],
        [-1, 1],
    ]


def test_a_column_of_sentences_is_refused_before_its_matrix_is_made(read):
    many = "".join(f"{k}.jpg,sentence {k}\n" for k in range(17_000))
    with pytest.raises(TagspreadError, match=r"17,000 different tags for 17,000 images.*not sentences"):
        read("image,tags\n" + many)
    assert read("image,tags\n" + many[: 100 * 17]).y.shape[0] > 90  # a small table may have such a column


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
def test_tables_saved_by_spreadsheets(read, text, change):
    plain, changed = read(text), read(change(text.encode()))
    assert (changed.paths, changed.classes) == (plain.paths, plain.classes)
    np.testing.assert_array_equal(changed.y, plain.y)


@pytest.mark.parametrize("column", ["tags", "Labels", " TAG ", "label"])
def test_names_of_the_tag_column(read, column):
    assert read(f"file,{column}\na.jpg,x|y\n").classes == ("x", "y")


def test_quotes_delimiters_and_unicode(read):
    table = read('file,tags\n"a, b.jpg","mer, côte|砂"\n"say ""hi"".jpg",砂|| 砂 |\n')
    assert table.paths == (Path("images/a, b.jpg"), Path('images/say "hi".jpg'))
    assert table.classes == ("mer, côte", "砂")
    assert table.y.tolist() == [[1, 1], [0, 1]]
    assert read("file,tags\na.jpg,x;y|z\n", delimiter=";").classes == ("x", "y|z")
    assert read('file,tags\na.jpg,"x,y"\n', delimiter=",").classes == ("x", "y")
    assert read("file,tags\n/elsewhere/a.jpg,x\n", allow_outside=True).paths == (Path("/elsewhere/a.jpg"),)
    assert read("datei,été\na.jpg,1\n").classes == ("été",)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.text("abc é砂'\"|\n\r,;", min_size=1, max_size=4), max_size=4), min_size=1, max_size=5))
def test_any_tags_round_trip(tmp_path_factory, rows):
    file = tmp_path_factory.mktemp("table") / "labels.csv"
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["file", "tags"])
        writer.writerows([f"{k}.jpg", "|".join(tags)] for k, tags in enumerate(rows))
    meant = [{part.strip() for tag in tags for part in tag.split("|")} - {""} for tags in rows]
    alike = any(mark in tag for tags in rows for tag in tags for mark in ";, ")
    if alike and not any("|" in "|".join(tags) for tags in rows):
        return  # see test_another_delimiter
    if not any(meant):
        with pytest.raises(TagspreadError, match="holds no tags"):
            read_table(file, "")
        return
    table = read_table(file, "")
    assert table.classes == tuple(sorted(set().union(*meant)))
    assert [{c for c, there in zip(table.classes, row, strict=True) if there} for row in table.y] == meant


def test_aligned():
    table = LabelTable((Path("a"), Path("b")), ("sea", "sand"), np.array([[1, 0], [-1, 1]], np.int8))
    found = table.aligned(("gull", "sand", "sea"), "test.csv")
    assert found.dtype == np.int8
    assert found.tolist() == [[-1, 0, 1], [-1, 1, -1]]  # no label of gulls is known
    np.testing.assert_array_equal(table.aligned(table.classes, "test.csv"), table.y)
    complete = LabelTable((Path("a"),), ("sea",), np.array([[1]], np.int8), unlisted=0)
    assert complete.aligned(("gull", "sea"), "test.csv").tolist() == [[0, 1]]  # a list of tags without a gull
    assert table.aligned(("sea", "sands"), "test.csv").tolist() == [[1, -1], [-1, -1]]  # sand is left out
    assert table.foreign(("sea", "sands")) == {"sand": 1}
    with pytest.raises(
        TagspreadError,
        match=r"test\.csv has none of the tags of the training labels \(but 'sea', 'sand'\); give labels of the same "
        r"tags\. Did you mean 'seas'\?",
    ):
        table.aligned(("seas", "gull"), "test.csv")
    unknown = LabelTable((Path("a"), Path("b")), ("sea",), np.array([[1], [-1]], np.int8), unlisted=0)
    assert unknown.aligned(("gull", "sea"), "test.csv").tolist() == [[0, 1], [-1, -1]]  # b has not been labeled


def test_no_such_file(tmp_path):
    with pytest.raises(TagspreadError, match=r"there is no file .*nowhere\.csv"):
        read_table(tmp_path / "nowhere.csv", tmp_path)
    with pytest.raises(TagspreadError, match=r".* cannot be read"):
        read_table(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty (0 bytes)"),
        ('"file,tags\na.jpg,sea"\n', "begins with a quoted text that contains line breaks"),
        ("\n\n", "has no rows below its header"),
        ("file,tags\n\n", "has no rows below its header"),
        ("file\na.jpg\n", "has one column; write the image and its tags into columns separated by commas"),
        ("file,tags\na.jpg,sea,sand\n", "line 2 has 3 cells, but the header has 2"),
        ("file,tags\n\n\na.jpg,sea\n\nb.jpg\n", "line 6 has 1 cells"),  # as an editor counts
        ('file,tags\na.jpg,"two\nlines"\nb.jpg\n', "line 4 has 1 cells"),
        (
            "image,tags\na.jpg,\"['sea', 'sand']\"\n",
            "line 2 holds the Python list \"['sea', 'sand']\"; write tags with a",
        ),
        ("file,sea\na.jpg,1\n\nb.jpg,maybe\n", "line 4, column 'sea' holds 'maybe'; write 1, 0 or nothing"),
        ("file,sea,sand\na.jpg,1,2\n", "line 2, column 'sand' holds '2'"),
        (
            "file,keywords\na.jpg,sea|sand\n",
            "column 'keywords' holds 'sea|sand'; write 1, 0 or nothing (unknown). If the",
        ),
        ("file,tags\na.jpg,\nb.jpg, | \n", "holds no tags"),
        ("file,tags\na.jpg,x\n ,sea\n", "line 3 names no image"),
        ("file,sea\n,1\n", "line 2 names no image"),
        (
            "file,sea\na.jpg,1\n\nb.jpg,1\n.//a.jpg,1\n",
            "line 5 repeats images/a.jpg of line 2; give each image one line",
        ),
        ("file,tags\n./,x\n", "line 2 names no image"),
        ("file,tags\nx.jpg,x\n../a.jpg,x\n", "line 3 names '../a.jpg', which is outside the image folder"),
        ("file,sea\nsub/../a.jpg,1\n", "line 2 names 'sub/../a.jpg', which is outside"),
        ("file,sea\n/etc/a.jpg,1\n", "line 2 names '/etc/a.jpg', which is outside"),
        ("file,sea\nC:\\a.jpg,1\n", "which is outside"),
        ("file,sea\n..\\a.jpg,1\n", "which is outside"),
        ("file,sea\n\\\\server\\a.jpg,1\n", "which is outside"),
        (
            "a.JPG,sea\nb.jpg,sand\n",
            "line 1 begins with the image name 'a.JPG', but the first line must hold the names",
        ),
        (b"PK\x03\x04....", "is a ZIP archive or an Excel workbook; unpack it, or save the sheet as CSV"),
        (b"\x1f\x8b....", "is compressed with gzip; decompress it first"),
        (b"PAR1....", "is a Parquet file; rename it so that its name ends in .parquet"),
        (b"\xff\xd8\xff\xe0", "is a JPEG image"),
        (b"file,tags\na.jpg,\0\0\n", "is a binary file, not a CSV file"),
        (
            "file,tags,width,author\na.jpg,x,640,me\n",
            "and other columns: 'width', 'author'; omit these with ignore=['width'",
        ),
        ("file,sea,width,by\na.jpg,1,640,me\n", "line 2, column 'width' holds '640'; write 1, 0"),
        ("file,sea,width,by\na.jpg,1,640,me\n", "ignore=['width', 'by']"),
        ("file,sea\na.jpg,1\na.jpg,0\n", "line 3 repeats images/a.jpg of line 2"),
        ("file,sea,sand, sea\na.jpg,1,0,1\n", "column 4 repeats the name 'sea' of an earlier column; give each"),
        ("file,sea,\na.jpg,1,0\n", "column 3 has no name"),
        (
            'file,tags\na.jpg,x\nb.jpg,"sea\nc.jpg,sand\n',
            "is not a CSV file in UTF-8 (unexpected end of data; after line",
        ),
        (b"file,tags\na.jpg,caf\xe9\n", "is not a CSV file in UTF-8 ('utf-8' codec"),
        ("file,tags\na.jpg,sea\n".encode("utf-16"), "is not a CSV file in UTF-8 but in UTF-16"),
    ],
)
def test_bad_input(read, text, words):
    with pytest.raises(TagspreadError, match=".*labels.csv.*" + re.escape(words)):
        read(text)


def same(one, other):
    assert tuple(one.paths) == tuple(other.paths)
    assert (one.classes, one.y.tolist()) == (other.classes, other.y.tolist())


def test_rows_of_one_image_are_merged(read):
    apart = read("file,tag\na.jpg,sea\na.jpg,sand\nsub/b.jpg,sea\n./a.jpg,gull\nsub//b.jpg,sea\n")
    assert [path.as_posix() for path in apart.paths] == ["images/a.jpg", "images/sub/b.jpg"]
    assert apart.classes == ("gull", "sand", "sea")
    assert apart.y.tolist() == [[1, 1, 1], [0, 0, 1]]
    together = read("file,tag\na.jpg,sea|sand|gull\nsub/b.jpg,sea\n")
    same(apart, together)


def test_more_rows_than_a_chunk(read):
    rows = [(f"{k % 20_000}.jpg", f"t{k % 7}") for k in range(30_000)]
    table = read("file,tag\n" + "".join(f"{name},{tag}\n" for name, tag in rows))
    assert len(table) == 20_000
    truth = {(name, tag) for name, tag in rows}
    found = {(table.paths[r].name, table.classes[c]) for r, c in np.argwhere(table.y == 1).tolist()}
    assert found == truth


def test_many_lines_of_one_image(read):
    table = read("file,tag\n" + "a.jpg,x|y\n" * 40_000 + "b.jpg,y\n")  # more tags than a counter holds
    assert table.y.tolist() == [[1, 1], [0, 1]]


def test_a_column_of_sentences(read, monkeypatch):
    monkeypatch.setattr("tagspread.data.tables.layouts.MOST_TAGS", 3)
    with pytest.raises(TagspreadError, match="line 5: more than 3 different tags"):
        read("file,tags\n" + "".join(f"{k}.jpg,t{k}\n" for k in range(5)))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("text", [LONG, WIDE])
def test_separators(read, separator, text):
    same(read(text.replace(",", separator)), read(text))


def test_separators_inside_cells(read):
    assert read("file,a;b;c\nx.jpg,1\n").classes == ("a;b;c",)
    assert read("file;tags\nx.jpg;a, b|c\n").classes == ("a, b", "c")
    assert read('"fi\nle",tags\nx.jpg,"a;b|c"\n').classes == ("a;b", "c")


@pytest.mark.parametrize("name", ["labels.tsv", "LABELS.TXT", "labels"])
def test_suffixes(tmp_path, name):
    (tmp_path / name).write_text("file\ttags\na, b.jpg\tsea|sand\n")
    table = read_table(tmp_path / name, "")
    assert (table.paths, table.classes) == ((Path("a, b.jpg"),), ("sand", "sea"))


def test_other_suffixes(tmp_path):
    (tmp_path / "labels.xlsx").write_bytes(b"PK")
    with pytest.raises(
        TagspreadError, match=r"ends in \.xlsx; save the table as one of \.csv, \.tsv, \.txt, \.parquet"
    ):
        read_table(tmp_path / "labels.xlsx", "")


@pytest.mark.parametrize(
    ("cells", "other"),
    [
        (["a,b"], ","),
        (["tench, Tinca tinca", "goldfish, Carassius auratus"], ","),  # names with a comma
        (["sea sand", "sea gull", "sand gull", "gull sea"], " "),
    ],
)
def test_a_delimiter_in_doubt(read, cells, other):
    text = "file,tags\n" + "".join(f'{k}.jpg,"{cell}"\n' for k, cell in enumerate(cells))
    lists = [cell for cell in cells if other in cell]
    words = f"{len(lists)} of the first {len(cells)} contain '{other}', such as '{lists[0]}'"
    with pytest.raises(TagspreadError, match=f"no cell of tags contains the delimiter '[|]', but {words}"):
        read(text)
    assert all(other not in name for name in read(text, delimiter=other).classes)
    assert read(text, delimiter=None).classes == tuple(sorted(set(cells)))


@pytest.mark.parametrize(
    ("cells", "other"),
    [
        (["a;b", "b;c", "a"], ";"),
        (["a;b", "c;d", "e"], ";"),  # no tag occurs twice, but hardly any name contains a semicolon
        (["a,b", "b, c", "a"], ","),
        (["b", "a", "a", "a; b", "a"], ";"),  # few lists, but their tags occur alone in other cells
    ],
)
def test_a_delimiter_without_doubt(read, cells, other):
    table = read("file,tags\n" + "".join(f'{k}.jpg,"{cell}"\n' for k, cell in enumerate(cells)))
    tags = [{part.strip() for part in cell.split(other)} for cell in cells]
    assert table.classes == tuple(sorted(set().union(*tags)))
    assert [{c for c, there in zip(table.classes, row, strict=True) if there} for row in table.y] == tags
    (note,) = table.notes
    joined = sum(other in cell for cell in cells)
    assert f"labels.csv are separated by '{other}' (in {joined} of the first {len(cells)} cells)" in str(note)
    assert table.found_options == {"fallback_delimiter": other}


def test_the_delimiter_of_a_similar_table(read):
    """A cell in doubt is read as the other table was; a table that shows its own delimiter keeps it."""
    few = 'file,tags\na.jpg,"a,b"\n'
    with pytest.raises(TagspreadError, match="but 1 of the first 1 contain ','"):
        read(few)
    assert read(few, fallback_delimiter=",").classes == ("a", "b")
    for own in ("file,tags\na.jpg,a|b\n", "file,tags\na.jpg,a;b\nb.jpg,b;c\n"):
        assert read(own, fallback_delimiter=",").classes == read(own).classes


def test_a_delimiter_that_changes_within_a_table(read):
    text = "file,tags\n" + "".join(f"{k}.jpg,a;b\n{k}x.jpg,a\n" for k in range(500))
    assert read(text + "y.jpg,b;c\n").classes == ("a", "b", "c")
    with pytest.raises(TagspreadError, match=r"line 1002 holds 'b[|]c', but the tags above are separated by ';'"):
        read(text + "y.jpg,b|c\n")
    assert read(text + "y.jpg,b|c\n", delimiter=";").classes == ("a", "b", "b|c")


def test_tags_of_two_words(read):
    few = "file,tags\na.jpg,rock; roll\nb.jpg,sea\nc.jpg,sand\n"  # no tag is called rock
    assert read(few).classes == ("rock; roll", "sand", "sea")
    assert read("file,tag\na.jpg,traffic light\nb.jpg,teddy bear\n").classes == ("teddy bear", "traffic light")
    with pytest.raises(TagspreadError, match="delimiter is empty"):
        read(LONG, delimiter="")
