import numpy as np
import pandas as pd
import pytest

from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError
from tests.data.conftest import LONG, WIDE


def same(one, other):
    assert tuple(one.paths) == tuple(other.paths)
    assert (one.classes, one.y.tolist()) == (other.classes, other.y.tolist())


def test_finding_columns(read):
    text = "id,width,keywords,file\n1,640,sea|sand,a.jpg\n2,480,sand,b.JPG\n"
    long = read(text, tags_column="keywords", ignore="all")
    assert [path.name for path in long.paths] == ["a.jpg", "b.JPG"]
    assert long.y.tolist() == [[1, 1], [1, 0]]
    same(read(text, tags_column="keywords", image_column="file", ignore=["id", "width"]), long)
    same(read("keywords,file\nsea|sand,a.jpg\nsand,b.JPG\n", layout="long"), long)
    wide = read(",width,file,sea,sand\n0,640,a.jpg,1,\n1,480,b.jpg,0,1\n", ignore="all")
    assert (wide.classes, wide.y.tolist()) == (("sea", "sand"), [[1, -1], [0, 1]])
    assert read("file,label,sea\na.jpg,1,0\n").classes == ("label", "sea")  # a tag that is called "label"
    assert read("file,tags\na.jpg,1\nb.jpg,0\n").classes == ("0", "1")
    assert read("file,tags\na.jpg,1\nb.jpg,0\n", layout="wide").classes == ("tags",)
    assert read("file,sea,by\na.jpg,1,me\n", ignore="by").classes == ("sea",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"image_column": "flie"},
            "image_column: .*no column 'flie'; its columns are 'file', 'sea', 'sand'. Did you mean 'file'",
        ),
        ({"tags_column": "x"}, "tags_column: .*no column 'x'"),
        ({"ignore": ["width"]}, "ignore: .*no column 'width'"),
        ({"layout": "long"}, "cannot tell which column holds the tags \\('sea', 'sand'\\)"),
        ({"layout": "lnog"}, "layout is 'lnog'.*Did you mean 'long'"),
        ({"layout": "wide", "tags_column": "sea"}, "tags_column is 'sea', but layout is 'wide'"),
        ({"ignore": ["sea", "sand"]}, "has no column besides the image column 'file'"),
    ],
)
def test_wrong_options(read, options, words):
    with pytest.raises(TagspreadError, match=words):
        read(WIDE, **options)


def test_no_class_column_left(read):
    with pytest.raises(TagspreadError, match="has no column of 1, 0 and blanks"):
        read("file,by\na.jpg,me\n", ignore="all")


def test_blank_rows_as_spreadsheets_leave_them(read):
    same(read(LONG + ",\n , \n  \n"), read(LONG))


def test_absolute_paths_into_the_folder(tmp_path):
    (tmp_path / "labels.csv").write_text(f"file,tags\n{tmp_path}/images/sub/a.jpg,x\nsub/a.jpg,y\n")
    table = read_table(tmp_path / "labels.csv", tmp_path / "images")
    assert (table.paths, table.y.tolist()) == ((tmp_path / "images/sub/a.jpg",), [[1, 1]])


def test_parquet(tmp_path, monkeypatch):
    pd = pytest.importorskip("pandas")
    file = tmp_path / "labels.parquet"
    file.write_bytes(b"file,tags")
    with pytest.raises(TagspreadError, match="is not a Parquet file"):
        read_table(file, "")
    file.write_bytes(b"PAR1")
    frames = [
        pd.DataFrame({"file": ["a.jpg", "b.jpg"], "tags": [np.array(["x", "y"]), None]}),
        pd.DataFrame({"file": ["a.jpg", "../b.jpg"], "x": [True, False]}),
    ]
    monkeypatch.setattr(pd, "read_parquet", lambda _: frames.pop(0))  # works without pyarrow
    assert read_table(file, "").y.tolist() == [[1, 1], [0, 0]]
    with pytest.raises(TagspreadError, match=r"labels\.parquet row 1 names '\.\./b\.jpg'"):
        read_table(file, "")

    def fails(_):
        raise ImportError

    monkeypatch.setattr(pd, "read_parquet", fails)
    with pytest.raises(TagspreadError, match="pip install pyarrow"):
        read_table(file, "")


def test_a_real_parquet_file(tmp_path):
    """Read lists of tags, text with a delimiter, and columns with missing values."""
    names = ["a.jpg", "b.jpg"]
    for column, frame in {
        "lists": pd.DataFrame({"image": names, "tags": [["sea", "sand"], []]}),
        "text": pd.DataFrame({"image": names, "tags": ["sea|sand", ""]}),
    }.items():
        frame.to_parquet(tmp_path / f"{column}.parquet")
        table = read_table(tmp_path / f"{column}.parquet", tmp_path)
        assert table.classes == ("sand", "sea")
        assert table.y.tolist() == [[1, 1], [0, 0]]
    pd.DataFrame({"image": names, "sea": [1, None], "sand": [0.0, 1.0]}).to_parquet(tmp_path / "wide.parquet")
    table = read_table(tmp_path / "wide.parquet", tmp_path)
    assert table.y.tolist() == [[1, 0], [-1, 1]]
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(TagspreadError, match=r"broken\.parquet cannot be read as Parquet"):
        read_table(tmp_path / "broken.parquet", tmp_path)


def test_an_index_with_a_name_is_a_column():
    frame = pd.DataFrame({"image": ["a.jpg", "b.jpg"], "cat": [1, 0]}).set_index("image")
    table = LabelTable.from_frame(frame)
    assert ([path.name for path in table.paths], table.classes, table.y.tolist()) == (
        ["a.jpg", "b.jpg"],
        ("cat",),
        [[1], [0]],
    )
