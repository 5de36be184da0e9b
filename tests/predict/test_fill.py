import csv
import shutil

import numpy as np
import pytest

from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError
from tagspread.predict.fill import fill_table


def rows_of(file, separator=","):
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.reader(opened, delimiter=separator))


@pytest.fixture
def few(folder, tmp_path):
    """A small folder of its own: p000 to p009 and the broken image."""
    top = tmp_path / "few"
    top.mkdir()
    for name in ("broken.png", *(f"p{i:03}.png" for i in range(10))):
        shutil.copy(folder / name, top / name)
    return top


def test_wide_gaps_are_filled_and_nothing_else(tagger, few, tmp_path, drawn):
    header = ["who", "3", "image", "0", "hat", "1"]
    rows = [
        ["me", "1", "p000.png", "", "1", "0"],
        ["you", " 0 ", "p001.png", "1", "", "1"],
        ["me", "", "p002.png", "-1", "", ""],
        ["me", "", "broken.png", "", "", ""],
    ]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(map(",".join, [header, *rows])) + "\n")
    done = fill_table(tagger, table, few, tmp_path / "out.csv", options={"ignore": ["who"]})
    found = rows_of(tmp_path / "out.csv")
    said = tagger.predict(few)
    chosen = {name.split("/")[-1]: row for name, row in zip(said.images, said.chosen.astype(int), strict=True)}

    def cell(name, tag):
        return str(chosen[name][tagger.classes.index(tag)])

    assert found[0] == header
    assert found[1] == ["me", "1", "p000.png", cell("p000.png", "0"), "1", "0"]
    assert found[2] == rows[1]
    assert found[3] == ["me", cell("p002.png", "3"), "p002.png", cell("p002.png", "0"), "", cell("p002.png", "1")]
    assert found[4] == rows[3]
    assert [row[2] for row in found[5:]] == [f"p{i:03}.png" for i in range(3, 10)]
    assert found[5] == ["", cell("p003.png", "3"), "p003.png", cell("p003.png", "0"), "", cell("p003.png", "1")]
    assert (done.cells, done.rows, done.broken) == (4, 7, 1)
    assert done.unknown == ("hat",)
    assert done.unlisted == ("2", "4", "5", "6", "7", "8", "9")
    again = read_table(tmp_path / "out.csv", few, ignore=["who"])
    assert (again.y[:, [0, 1, 3]] >= 0).all(axis=1).sum() == 10


def test_a_table_of_other_images_is_refused(tagger, few, tmp_path):
    (tmp_path / "t.csv").write_text("image,tags\nholiday.jpg,beach\n")
    with pytest.raises(TagspreadError, match=r"none of the 1 images in .*t\.csv is in .*holiday\.jpg"):
        fill_table(tagger, tmp_path / "t.csv", few, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_images_outside_the_folder_are_filled_where_that_is_allowed(tagger, few, tmp_path):
    inside = tmp_path / "in"
    inside.mkdir()
    (tmp_path / "t.csv").write_text("image,0\n../few/p000.png,\n")
    done = fill_table(tagger, tmp_path / "t.csv", inside, tmp_path / "out.csv", options={"allow_outside": True})
    assert done.cells == 1


def test_long_tables_get_rows_and_keep_theirs(tagger, few, tmp_path):
    table = tmp_path / "t.csv"
    text = 'image;tags;note\r\np000.png;hat/0;"a;b"\r\np001.png;;x\r\n'
    table.write_bytes(b"\xef\xbb\xbf" + text.encode())
    options = {"delimiter": "/", "ignore": ["note"]}
    done = fill_table(tagger, table, few, tmp_path / "out.csv", options=options)
    raw = (tmp_path / "out.csv").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf" + text.encode())
    said = tagger.predict(few)
    tags = dict(zip((name.split("/")[-1] for name in said.images), said.tags, strict=True))
    lines = raw.decode("utf-8-sig").split("\r\n")
    assert lines[3:-1] == [f"p{i:03}.png;{'/'.join(tags[f'p{i:03}.png'])};" for i in range(2, 10)]
    assert (done.cells, done.rows, done.broken) == (0, 8, 1)
    done = fill_table(tagger, table, few, tmp_path / "blank.csv", options=options | {"blank": "unlabeled"})
    assert rows_of(tmp_path / "blank.csv", ";")[2] == ["p001.png", "/".join(tags["p001.png"]), "x"]
    assert done.cells == 1


def test_lists_of_tags_that_are_joined_in_another_way_are_refused(tagger, few, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text('image,tags\np000.png,3\np001.png,"3,0"\n')
    with pytest.raises(TagspreadError, match="'3,0' is not a tag of the run, but its parts between ',' are"):
        fill_table(tagger, table, few, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    table.write_text("image,tags\np000.png,3\np001.png,3;0\n")
    done = fill_table(tagger, table, few, tmp_path / "out.csv", top=2)
    assert "tags in" in done.notes[0]
    assert "are separated by ';'" in done.notes[0]
    tags = dict(rows_of(tmp_path / "out.csv"))
    assert (tags["p000.png"], tags["p001.png"]) == ("3", "3;0")
    assert tags["p002.png"].count(";") == 1


def test_thresholds_and_top_go_through(tagger, few, tmp_path):
    table = tmp_path / "t.tsv"
    table.write_text("image\t0\t1\np000.png\t1\t\n")
    fill_table(tagger, table, few, tmp_path / "all.tsv", threshold=0.0)
    assert all(row[1:] == ["1", "1"] for row in rows_of(tmp_path / "all.tsv", "\t")[1:])
    seen = []
    fill_table(tagger, table, few, tmp_path / "none.tsv", threshold=1.0, progress=lambda *at: seen.append(at))
    assert np.array([row[1:] for row in rows_of(tmp_path / "none.tsv", "\t")[2:]]).tolist() == [["0", "0"]] * 9
    assert seen[-1] == (11, 11)


def test_bad_calls_are_refused_and_nothing_is_lost(tagger, few, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("image,0\np000.png,\n")
    kept = table.read_bytes()

    def refused(words, given=table, out=tmp_path / "out.csv", **options):
        with pytest.raises(ValueError, match=words):
            fill_table(tagger, given, few, out, **options)
        assert table.read_bytes() == kept
        assert not (tmp_path / "out.csv").exists()

    refused("exists; choose another name", out=table)
    refused("is the table to fill", out=table, overwrite=True)
    refused("has no supported suffix; use one of .csv", out=tmp_path / "out.parquet")
    refused("there is no file", given=tmp_path / "none.csv")
    refused("its suffix must be one of .csv", given=tmp_path / "none.parquet")
    for text, words in [
        ("image,hat\np000.png,\n", "no column of the table is a tag of the run"),
        ("image,0\n", "no rows below its header"),
        ("image,0\np000.png,,1\n", "line 2 has 3 cells, but the header line has 2"),
        ("image,0\n../p000.png,\n", "is outside the image folder"),
        ("", "is empty"),
    ]:
        other = tmp_path / "other.csv"
        other.write_text(text)
        refused(words, given=other)


def test_rows_without_a_tag_are_filled_if_they_are_unlabeled(tagger, few, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("image,tags\np000.png,3|0\np001.png,\n")
    done = fill_table(tagger, table, few, tmp_path / "kept.csv", top=1)
    assert rows_of(tmp_path / "kept.csv")[2] == ["p001.png", ""]
    assert done.notes == (f"1 row of {table} has no tag and is unchanged; to fill in predictions there, give --blank "
                          "unlabeled",)  # fmt: skip
    table.write_text("image,tags\np000.png,3|0\n" + "".join(f"p{k:03}.png,\n" for k in range(1, 8)))
    with pytest.raises(TagspreadError, match=r"7 of 8 images \(88 %\) have no tag"):
        fill_table(tagger, table, few, tmp_path / "out.csv")
    done = fill_table(tagger, table, few, tmp_path / "out.csv", options={"blank": "unlabeled"}, top=1)
    assert done.cells == 7
    assert all(len(tags) == 1 for _, tags in rows_of(tmp_path / "out.csv")[2:9])
    done = fill_table(tagger, table, few, tmp_path / "none.csv", options={"blank": "negative"}, top=1)
    assert done.cells == 0
    assert [tags for _, tags in rows_of(tmp_path / "none.csv")[2:9]] == [""] * 7


def test_the_words_of_the_table_are_used(tagger, few, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("image,0,1\np000.png,yes,no\np001.png,,no\n")
    fill_table(tagger, table, few, tmp_path / "one.csv", threshold=0.0)
    assert rows_of(tmp_path / "one.csv")[2] == ["p001.png", "yes", "no"]
    fill_table(tagger, table, few, tmp_path / "none.csv", threshold=1.0)
    assert rows_of(tmp_path / "none.csv")[2] == ["p001.png", "no", "no"]
    table.write_text("image,0,1\np000.png,x,\np001.png,,\n")
    options = {"blank": "unlabeled"}
    fill_table(tagger, table, few, tmp_path / "marks.csv", options=options, threshold=0.0)
    assert rows_of(tmp_path / "marks.csv")[1:3] == [
        ["p000.png", "x", ""],
        ["p001.png", "x", "x"],
    ]  # absent stays absent


def test_names_in_other_writing_are_not_added_again(tagger, few, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("image,0\nP000.PNG,\np001,1\n")
    done = fill_table(tagger, table, few, tmp_path / "out.csv")
    names = [row[0] for row in rows_of(tmp_path / "out.csv")[1:]]
    assert names[:2] == ["P000.PNG", "p001"]
    assert not {"p000.png", "p001.png"} & set(names)
    assert done.cells == 1
