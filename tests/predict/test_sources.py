from pathlib import Path

import pytest

from tagspread.predict.sources import find_sources


@pytest.fixture
def top(tmp_path):
    for name in ("b.jpg", "a.png", "sub/c.jpg"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(b"x")
    return tmp_path


def test_a_folder_names_images_as_its_table_does(top):
    found = find_sources([top / "photos"])
    assert found.names == ["a.png", "b.jpg", "sub/c.jpg"]
    assert found.paths == [top / "photos" / name for name in found.names]


def test_files_and_folders_together_are_called_as_given(top):
    found = find_sources([top / "photos" / "b.jpg", top / "photos" / "sub"])
    assert found.names == [str(top / "photos/b.jpg"), str(top / "photos/sub/c.jpg")]
    assert list(map(str, found.paths)) == found.names


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.txt", "photos/b.jpg\n\n  photos/a.png \n"),
        ("list.csv", "image\nphotos/b.jpg\nphotos/a.png\n"),
        ("list.csv", "photos/b.jpg\nphotos/a.png\n"),
        ("list.csv", "who,image,tags\nme,photos/b.jpg,x\nme,photos/a.png,y|z\n"),
        ("list.csv", "who;image\nme;photos/b.jpg\nme;photos/a.png\n"),
        ("list.tsv", "\ufeffwho\timage\nme\tphotos/b.jpg\n\nyou\tphotos/a.png\n"),
    ],
)
def test_lists(top, name, text):
    (top / name).write_text(text, encoding="utf-8")
    found = find_sources([top / name])
    assert found.names == ["photos/b.jpg", "photos/a.png"]
    assert found.paths == [top / "photos/b.jpg", top / "photos/a.png"]


def test_absolute_paths_in_a_list_stay(top):
    (top / "list.txt").write_text(str(top / "photos" / "b.jpg"))
    assert find_sources([top / "list.txt"]).paths == [top / "photos" / "b.jpg"]


def test_what_holds_no_image_is_refused(top):
    (top / "empty").mkdir()
    (top / "list.csv").write_text("a,b\n1,2\n")
    (top / "none.csv").write_text("")
    (top / "none.txt").write_text("\n")
    (top / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    for given, words in [
        ("empty", "holds no image"),
        ("list.csv", "no column of image paths"),
        ("none.csv", "no column of image paths"),
        ("none.txt", "holds no image"),
        ("bytes.csv", "cannot be read as a list"),
        ("missing.txt", "there is no file"),
        ("missing", "there is no folder or file"),
        ("photos/missing.jpg", "there is no folder or file"),
    ]:
        with pytest.raises(ValueError, match=words):
            find_sources([top / given])
    assert find_sources([Path(top / "photos")]).names


def test_web_addresses_are_refused(top):
    (top / "list.txt").write_text("photos/b.jpg\nhttps://example.com/a.jpg\n")
    (top / "list.csv").write_text("image\nhttps://example.com/a.jpg\n")
    for given, where in (("list.txt", "line 2"), ("list.csv", "row 2")):
        with pytest.raises(ValueError, match=f"{where} names the web address 'https://example.com/a.jpg'"):
            find_sources([top / given])
    with pytest.raises(ValueError, match="download the images first"):
        find_sources([Path("https://example.com/a.jpg")])


def test_what_is_left_out_is_said(top):
    (top / "photos" / "d.nef").write_bytes(b"x")
    assert "1 .nef" in find_sources([top / "photos"]).notes[0]
    assert "1 .nef" in find_sources([top / "photos", top / "photos" / "sub"]).notes[0]
    (top / "raw").mkdir()
    (top / "raw" / "d.nef").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"raw holds no image \(1 image file below .*raw cannot be decoded"):
        find_sources([top / "raw"])
