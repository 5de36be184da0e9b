"""Image names that differ from the file in case, separator or suffix."""

import unicodedata
from pathlib import Path

import pytest

from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError

FILES = ("holiday/IMG_1.jpg", "IMG_2.JPG", "beach.png", "beach.webp", "two.jpg", "Two.jpg", "caf\u00e9.jpg", "v1.2.jpg")


@pytest.fixture
def folder(tmp_path):
    top = tmp_path / "photos"
    for name in FILES:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()
    return top


def read(folder, *rows, header="image,tags"):
    file = folder.parent / "labels.csv"
    file.write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    return read_table(file, folder)


def names(table, folder):
    return [path.relative_to(folder).as_posix() for path in table.paths]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("holiday\\IMG_1.jpg", "holiday/IMG_1.jpg"),
        ("Holiday\\img_1.JPG", "holiday/IMG_1.jpg"),
        ("holiday/IMG_1", "holiday/IMG_1.jpg"),
        ("IMG_2.jpg", "IMG_2.JPG"),
        ("img_2", "IMG_2.JPG"),
        ("v1.2", "v1.2.jpg"),
        (unicodedata.normalize("NFD", "caf\u00e9.jpg"), "caf\u00e9.jpg"),
    ],
)
def test_the_only_file_that_matches_is_used(folder, name, file):
    table = read(folder, f"{name},sea", "beach.png,sand")
    assert names(table, folder) == [file, "beach.png"]
    assert table.y.tolist() == [[0, 1], [1, 0]]
    (note,) = table.notes
    assert "1 name of" in str(note)
    assert str(note).endswith(f"{name} is {file}")


@pytest.mark.parametrize("name", ["beach", "TWO.jpg", "img_2.png", "nothing.jpg", "IMG_1.jpg"])
def test_other_names_stay(folder, name):
    """Several files match, or a suffix or a folder would have to be guessed."""
    table = read(folder, f"{name},sea", "beach.png,sand")
    assert names(table, folder) == [name, "beach.png"]
    kinds = {note.kind for note in table.notes}
    assert kinds == ({"ambiguous_names"} if name in ("beach", "TWO.jpg") else set())


def test_existing_names_are_never_changed(folder):
    (folder / "holiday\\IMG_1.jpg").touch()  # a valid name on this system
    table = read(folder, "holiday\\IMG_1.jpg,sea", "two.jpg,sea", "Two.jpg,sand")
    assert names(table, folder) == ["holiday\\IMG_1.jpg", "two.jpg", "Two.jpg"]
    assert table.notes == ()


def test_rows_of_one_file_are_merged(folder):
    table = read(folder, "IMG_2.JPG,sea", "img_2.jpg,sand", "beach.png,dune")
    assert names(table, folder) == ["IMG_2.JPG", "beach.png"]
    assert table.y.tolist() == [[0, 1, 1], [1, 0, 0]]
    wide = read(folder, "img_2,1,", "IMG_2.JPG,,0", header="image,sea,sand")
    assert (names(wide, folder), wide.y.tolist()) == (["IMG_2.JPG"], [[1, 0]])
    with pytest.raises(TagspreadError, match=r"names one file twice, as 'img_2' and 'IMG_2\.JPG' .* labels of sand"):
        read(folder, "img_2,1,1", "IMG_2.JPG,1,0", header="image,sea,sand")


def test_a_folder_that_does_not_exist(tmp_path):
    (tmp_path / "labels.csv").write_text("image,tags\nA\\b,sea\n")
    assert tuple(read_table(tmp_path / "labels.csv", tmp_path / "none").paths) == (tmp_path / "none" / "A\\b",)
    assert Path("A\\b").name == "A\\b"
