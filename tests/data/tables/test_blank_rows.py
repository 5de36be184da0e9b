"""Rows without a tag: negative, unlabeled, or a question; marks such as x, and words such as yes and no."""

import numpy as np
import pytest

from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.read import read_table, read_with_errors
from tagspread.errors import TagspreadError


def long_table(tagged, blank, cell=""):
    rows = [f"t{k}.jpg,{'sea' if k % 2 else 'sea|sand'}" for k in range(tagged)]
    return "\n".join(["file,tags", *rows, *(f"b{k}.jpg,{cell}" for k in range(blank)), ""])


def test_a_few_are_negative_and_said(read):
    table = read(long_table(60, 4))
    assert table.y[60:].tolist() == [[0, 0]] * 4
    (note,) = table.notes
    assert note.level == "warning"
    assert "4 of 64 images in" in note.text
    assert "count as images without any of the tags; if nobody has tagged them yet, give --blank unlabeled" in note.text
    assert read(long_table(60, 0)).notes == ()


@pytest.mark.parametrize("cell", ["", "  ", "|"])
def test_many_are_a_question(read, cell):
    text = long_table(20, 80, cell)
    with pytest.raises(TagspreadError) as caught:
        read(text)
    message = caught.value.on_command_line
    assert "80 of 100 images (80 %) have no tag" in message
    assert "--blank unlabeled" in message
    assert "--blank negative" in message
    assert "blank='unlabeled'" in str(caught.value)
    assert read(text, blank="negative").y[20:].tolist() == [[0, 0]] * 80
    unlabeled = read(text, blank="unlabeled")
    assert unlabeled.y[20:].tolist() == [[-1, -1]] * 80
    assert unlabeled.y[:20].tolist() == read(text, blank="negative").y[:20].tolist()
    assert "80 of 100 images in" in str(unlabeled.notes[0])


def test_where_the_question_begins(read):
    with pytest.raises(TagspreadError, match="5 of 50 images"):
        read(long_table(45, 5))
    assert read(long_table(46, 5)).y[46:].tolist() == [[0, 0]] * 5  # less than a tenth
    assert read(long_table(4, 4)).y[4:].tolist() == [[0, 0]] * 4  # fewer than five


def test_an_image_is_blank_only_if_no_row_gives_it_a_tag(read):
    text = "file,tags\n" + "".join(f"{k}.jpg,\n{k}.jpg,sea|sand\n" for k in range(10)) + "x.jpg,sea\n"
    assert read(text).y.tolist() == [[1, 1]] * 10 + [[0, 1]]


def test_lists_and_frames(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"file": [f"{k}.jpg" for k in range(10)], "tags": [["a"], ["b"], *[[]] * 4, *[None] * 4]})
    with pytest.raises(TagspreadError, match=r"frame: 8 of 10 images .* give blank='unlabeled'"):
        LabelTable.from_frame(frame)
    assert LabelTable.from_frame(frame, blank="unlabeled").labeled.sum() == 2
    (tmp_path / "t.jsonl").write_text(
        '{"file": "a.jpg", "tags": ["x"]}\n' + "".join(f'{{"file": "{k}.jpg", "tags": []}}\n' for k in range(6))
    )
    assert read_table(tmp_path / "t.jsonl", "", blank="negative").y.tolist() == [[1]] + [[0]] * 6


def test_wrong_meaning(read):
    with pytest.raises(TagspreadError, match="blank is 'skip'; it must be one of 'unlabeled', 'negative'"):
        read(long_table(3, 1), blank="skip")


@pytest.mark.parametrize(
    ("yes", "no"), [("yes", "no"), ("Ja", "NEIN"), ("✓", "✗"), ("x", "n"), ("Y", "N"), ("1", "no")]
)
def test_words(read, yes, no):
    table = read(f"file,sea,sand\na.jpg,{yes}, {no} \nb.jpg,{no},\nc.jpg,,\n")
    assert table.y.tolist() == [[1, 0], [0, -1], [-1, -1]]  # blank is unknown where the table also says no
    assert table.notes == ()


@pytest.mark.parametrize("mark", ["x", "X", "✓", "✔", "yes", "ja"])
def test_marks_of_present_tags_only(read, mark):
    table = read(f"file,sea,sand\na.jpg,{mark},\nb.jpg,,{mark}\nc.jpg,,\n")
    assert table.y.tolist() == [[1, 0], [0, 1], [0, 0]]
    assert "blank cells of a row with a tag count as absent" in str(table.notes[0])
    many = f"file,sea,sand\na.jpg,{mark},\nb.jpg,,{mark}\n" + "".join(f"{k}.jpg,,\n" for k in range(6))
    with pytest.raises(TagspreadError, match=r"6 of 8 images \(75 %\) have no tag"):
        read(many)
    assert read(many, blank="unlabeled").y.tolist() == [[1, 0], [0, 1]] + [[-1, -1]] * 6
    assert read(many, blank="negative").y.tolist() == [[1, 0], [0, 1]] + [[0, 0]] * 6


def test_blank_cells_beside_1_are_unknown_unless_the_user_says(read):
    text = "file,sea,sand\na.jpg,1,\nb.jpg,,1\nc.jpg,,\n"
    table = read(text)
    assert table.y.tolist() == [[1, -1], [-1, 1], [-1, -1]]
    assert (table.notes[0].level, table.notes[0].kind) == ("warning", "no_negatives")
    assert read(text, blank="unlabeled").y.tolist() == [[1, 0], [0, 1], [-1, -1]]
    assert read(text, blank="negative").y.tolist() == [[1, 0], [0, 1], [0, 0]]


def test_blank_cells_of_a_table_that_says_0_stay_unknown(read):
    text = "file,sea,sand\na.jpg,1,0\nb.jpg,,1\nc.jpg,,\n"
    for blank, last in ((None, [-1, -1]), ("unlabeled", [-1, -1]), ("negative", [0, 0])):
        assert read(text, blank=blank).y.tolist() == [[1, 0], [-1, 1], last]


def test_a_tag_column_of_marks_is_a_list_of_tags(read):
    assert read("file,tags\na.jpg,x\nb.jpg,y\n").classes == ("x", "y")
    with pytest.raises(TagspreadError, match="has lists of tags in column 'tags' and other columns: 'by'"):
        read("file,tags,by\na.jpg,x,me\nb.jpg,y,you\n")
    assert read("file,label,sea\na.jpg,yes,no\nb.jpg,no,yes\n").classes == ("label", "sea")


def test_images_listed_again_with_other_tags(read):
    text = "file,tags\na.jpg,sea|sand\nb.jpg,sea\na.jpg,dune\nb.jpg,sea\nc.jpg,sea\nc.jpg,dune\n"
    table = read(text)
    (note,) = table.notes
    assert (note.level, note.kind) == ("warning", "different_rows")
    assert sorted(note.places) == ["a.jpg (lines 2 and 4)", "c.jpg (lines 6 and 7)"]  # b.jpg: the same tags
    assert table.y.sum(axis=1).tolist() == [3, 1, 2]
    one_tag_per_row = "file,tag\na.jpg,sea\na.jpg,sand\nb.jpg,sea\na.jpg,dune\n"
    assert read(one_tag_per_row).notes == ()


def test_rows_with_errors_are_collected(tmp_path):
    file = tmp_path / "labels.csv"
    numbers = "".join(f"{k}.jpg,1,{k + 100}\n" for k in range(50))
    file.write_text(f"file,sea,width\n../a.jpg,1,0\n{numbers}b.jpg,1\n")
    table, errors = read_with_errors(file, tmp_path)
    assert table is not None
    assert len(table) == 50
    assert (table.y[:, 0] == 1).all()
    assert (table.y[:, 1] == -1).all()
    messages = [str(error) for error in errors]
    assert len(messages) == 3
    assert "line 2 names '../a.jpg'" in messages[0]
    assert "line 3, column 'width' holds '100'" in messages[1]
    assert messages[1].endswith("(And 49 more rows like this.)")
    assert "line 53 has 2 cells" in messages[2]
    with pytest.raises(TagspreadError, match="line 2 names"):
        read_table(file, tmp_path)
    file.write_text("file\na.jpg\n")
    assert read_with_errors(file, tmp_path)[0] is None


def test_an_unlabeled_row_stays_unlabeled_with_other_classes(read):
    table = read(long_table(20, 80), blank="unlabeled")
    assert np.array_equal(table.aligned(("gull", "sea"), "t")[20:], np.full((80, 2), -1))
    assert np.array_equal(table.select(np.arange(20, 100)).y, np.full((80, 2), -1))
