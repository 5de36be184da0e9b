import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tagspread.data.images.paths import Paths, PathsWriter
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError


def table(rows, classes=("sea", "sand"), unlisted=-1):
    return LabelTable(
        [Path(name) for name in rows], classes, np.array(list(rows.values())).reshape(-1, len(classes)), unlisted
    )


def test_conversion_of_arguments():
    one = LabelTable(["a.jpg"], ["sea", "sand"], [[True, False]])  # type: ignore[list-item,arg-type]
    assert (one.paths, one.classes, len(one)) == ((Path("a.jpg"),), ("sea", "sand"), 1)
    assert one.y.dtype == np.int8
    assert one == table({"a.jpg": [1.0, 0.0]})
    assert one != table({"a.jpg": [1, 0]}, unlisted=0)
    assert one != "table"
    assert table({"a": [1, 0], "b": [-1, -1], "c": [-1, 0]}).labeled.tolist() == [True, False, True]
    assert len(table({})) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((["a"], ["x"], np.zeros((2, 1))), "y has shape (2, 1) for 1 images and 1 classes"),
        ((["a"], ["x"], np.zeros(1)), "y has shape (1,)"),
        ((["a"], ["x"], np.array([["1"]])), "y holds <U1"),
        ((["a", "b"], ["x", "y"], np.array([[0, 0], [0, 2]])), "y holds 2 for b and 'y'; write 1, 0 or -1"),
        ((["a"], ["x"], np.array([[np.nan]])), "y holds nan for a and 'x'"),
        ((["a"], ["x"], np.array([[0.5]])), "y holds 0.5"),
        ((["a"], ["x", "x"], np.zeros((1, 2))), "classes holds 'x' twice"),
        ((["a"], [" x"], np.zeros((1, 1))), "classes holds ' x'"),
        ((["a"], [""], np.zeros((1, 1))), "classes holds ''"),
        ((["a"], [3], np.zeros((1, 1))), "classes holds 3"),
        ((["a"], ["x"], np.zeros((1, 1)), 1), "unlisted is 1"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(TagspreadError, match=re.escape(words)):
        LabelTable(*arguments)


def test_compact_paths():
    writer = PathsWriter()
    for name in ("a.jpg", "été/砂.jpg", "/else/b.jpg", "\udcff.jpg"):
        writer.add(name)
    assert writer.firsts() is None
    paths = writer.paths(Path("top"))
    meant = (Path("top/a.jpg"), Path("top/été/砂.jpg"), Path("/else/b.jpg"), Path("top/\udcff.jpg"))
    assert paths == meant
    assert meant == paths
    assert paths != meant[:3]
    assert paths == list(meant)
    assert list(paths) == list(meant)
    assert (paths[-1], paths[1:], paths[::2], len(paths)) == (meant[-1], meant[1:], meant[::2], 4)
    assert paths.take(np.array([2, 0, 0])) == (meant[2], meant[0], meant[0])
    assert repr(paths) == "Paths(4 below 'top')"
    with pytest.raises(IndexError):
        paths[4]
    with pytest.raises(TypeError):
        hash(paths)


@given(st.lists(st.sampled_from(["a", "b", "c", "d", "aa"]), max_size=12))
def test_repeated_names(names):
    writer = PathsWriter()
    for name in names:
        writer.add(name)
    first = writer.firsts()
    if len(set(names)) == len(names):
        assert first is None
    else:
        assert first is not None
        assert first.tolist() == [names.index(name) for name in names]


def test_equal_hashes_are_not_equal_names(monkeypatch):
    monkeypatch.setattr("tagspread.data.tables.image_names.hash", lambda _: 7, raising=False)
    writer = PathsWriter()
    for name in ("a", "b", "c"):
        writer.add(name)
    assert writer.firsts() is None
    writer.add("b")
    first = writer.firsts()
    assert first is not None
    assert first.tolist() == [0, 1, 2, 1]


def test_select(tmp_path):
    whole = table({"a": [1, 0], "b": [0, 1], "c": [-1, -1]}, unlisted=0)
    assert whole.select([2, 0]) == table({"c": [-1, -1], "a": [1, 0]}, unlisted=0)
    assert whole.select([-1]) == whole.select(np.array([False, False, True]))
    assert len(whole.select([])) == 0
    (tmp_path / "labels.csv").write_text("file,tags\na,x\nb,y\nc,x|y\n")
    read = read_table(tmp_path / "labels.csv", "top").select([2, 1])
    assert isinstance(read.paths, Paths)
    assert tuple(read.paths) == (Path("top/c"), Path("top/b"))
    assert (read.y.tolist(), read.unlisted) == ([[1, 1], [0, 1]], 0)
    for rows, words in [
        ([3], "from 3 to 3, but the table has 3 rows"),
        ([-4], "from -4"),
        ([0.5], "float64"),
        ([True], "bool"),
    ]:
        with pytest.raises(TagspreadError, match=words):
            whole.select(rows)


def test_merge():
    one, other = table({"a": [1, 0], "b": [-1, 1]}), table({"c": [1, 0], "b": [-1, 1]}, ("gull", "sand"), unlisted=0)
    both = one.merge(other)
    assert both.classes == ("sea", "sand", "gull")
    assert [str(path) for path in both.paths] == ["a", "b", "c"]
    # b: its second row lists all its tags, so sea is absent
    assert both.y.tolist() == [[1, 0, -1], [0, 1, -1], [0, 0, 1]]
    assert both.unlisted == -1
    assert one.merge(one) == one
    assert table({"a": [1, -1]}).merge(table({"a": [-1, 0]})) == table({"a": [1, 0]})
    with pytest.raises(
        TagspreadError, match=r"b: 'sand' is 1 in one table and 0 in the other \(1 conflicting labels in total\)"
    ):
        one.merge(table({"c": [1, 1], "b": [-1, 0]}))
    twice = LabelTable([Path("x"), Path("y"), Path("x")], ("sea", "sand"), np.zeros((3, 2)))
    for first, second in ((one, twice), (twice, one)):
        with pytest.raises(TagspreadError, match="x is in the same table twice"):
            first.merge(second)


def test_write(tmp_path):
    file = tmp_path / "labels.csv"
    whole = table({"top/a, b.jpg": [1, 0], "top/sub/b.jpg": [-1, 1]})
    whole.write(file, "top")
    assert file.read_text() == 'image,sea,sand\n"a, b.jpg",1,0\nsub/b.jpg,,1\n'
    assert read_table(file, "top") == whole
    with pytest.raises(TagspreadError, match=r"labels\.csv exists"):
        whole.write(file, "top")
    for wrong, where, words in [
        (whole, {"images": "elsewhere"}, "is not below elsewhere"),
        (table({" a": [1, 1]}), {}, "begins or ends with a blank"),
        (table({"a": [1]}, ("Tags",)), {}, "the only class is 'Tags'"),
    ]:
        with pytest.raises(TagspreadError, match=words):
            wrong.write(tmp_path / "new.csv", **where)
    assert not (tmp_path / "new.csv").exists()
    with pytest.raises(TagspreadError, match="cannot be written"):
        whole.write(tmp_path / "nowhere" / "labels.csv")


WORD = st.text("abAB é砂'\"|\n,;\t._-", min_size=1, max_size=5).map(str.strip).filter(bool)
NAME = WORD.filter(lambda word: word.strip(".") != "").map(lambda word: f"{word}.jpg")


@st.composite
def tables(draw):
    names = draw(st.lists(NAME, min_size=1, max_size=5, unique_by=Path))
    classes = draw(st.lists(WORD | st.sampled_from(["tags", "label", "image", "x.jpg"]), max_size=4, unique=True))
    classes = [*classes, "last"]
    size = len(names) * len(classes)
    cells = draw(st.lists(st.sampled_from([1, 0, -1]), min_size=size, max_size=size))
    return table(dict(zip(names, np.reshape(cells, (len(names), -1)).tolist(), strict=True)), tuple(classes))


@settings(max_examples=60, deadline=None)
@given(tables())
def test_write_and_read_round_trip(tmp_path_factory, whole):
    file = tmp_path_factory.mktemp("table") / "labels.csv"
    whole.write(file)
    assert read_table(file, "") == whole


@settings(max_examples=40, deadline=None)
@given(tables())
def test_frames_round_trip(whole):
    pytest.importorskip("pandas")
    assert LabelTable.from_frame(whole.to_frame("the image"), "the image") == whole


def test_frames():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"path": ["a.jpg", "/b.jpg"], "tags": [["x", 3], "y|x"], "size": [1.5, 2.0]})
    found = LabelTable.from_frame(frame, ignore=["size"])
    assert (found.paths, found.classes) == ((Path("a.jpg"), Path("/b.jpg")), ("3", "x", "y"))
    assert found.y.tolist() == [[1, 1, 0], [0, 1, 1]]
    wide = pd.DataFrame({"path": ["a.jpg", "b.jpg"], "x": [True, None], 7: [0.0, float("nan")], "z": [1, -1]})
    found = LabelTable.from_frame(wide, "path", images="top")
    assert (found.classes, found.y.tolist()) == (("x", "7", "z"), [[1, 0, 1], [-1, -1, -1]])
    assert found.paths[0] == Path("top/a.jpg")
    assert found.to_frame().isna().sum().to_dict() == {"image": 0, "x": 1, "7": 1, "z": 1}
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (frame, {"ignore": ["size"], "images": "top"}, "frame row 1 names '/b.jpg', which is outside"),
        (frame, {}, "and other columns: 'size'"),
        (wide.assign(x=[2, float("inf")]), {}, "frame row 0, column 'x' holds '2'"),
        (wide.iloc[:0], {}, "frame has no rows"),
        (wide[["path"]], {}, "frame has 1 column; it needs"),
        (pd.concat([wide, wide]), {}, "frame row 2 repeats a.jpg of row 0; give each image one row"),
    ]
    for bad, options, words in cases:
        with pytest.raises(TagspreadError, match=words):
            LabelTable.from_frame(bad, None, **options)
    with pytest.raises(TagspreadError, match="a class is called 'image'"):
        table({"a": [1]}, ("image",)).to_frame()


def test_without_pandas(tmp_path):
    (tmp_path / "labels.csv").write_text("file,tags\na,x\n")
    code = "import sys; sys.modules['pandas'] = None\n"
    code += "from tagspread.data.tables.read import read_table\n"
    code += "table = read_table('labels.csv', ''); print(table.classes)\n"
    code += "try: table.to_frame()\nexcept ValueError as error: print(error)"
    said = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["('x',)", "this needs pandas, which is not installed; run: pip install pandas"]
