import contextlib
import errno
import os
import tracemalloc
from pathlib import Path

import pytest

from tagspread.data.images.find import find_images, list_folder
from tagspread.data.images.formats import DECODABLE
from tagspread.data.images.paths import RealPaths, real_path
from tagspread.errors import TagspreadError


def write(top, *names):
    for name in names:
        file = top / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    return top


def found(top):
    return [path.relative_to(top).as_posix() for path in find_images(top)]


def test_all_images_below_a_folder_sorted(tmp_path):
    write(tmp_path, "b.jpg", "a.PNG", "sub/deeper/c.JPeG", "sub/a.jpg", "sub-1/z.webp", "été/砂.jpg", "two.dots.jpg")
    write(tmp_path, "notes.txt", "jpg", "a.jpg.part", "sub/labels.csv", "no_suffix")
    expected = ["a.PNG", "b.jpg", "sub/a.jpg", "sub/deeper/c.JPeG", "sub-1/z.webp", "two.dots.jpg", "été/砂.jpg"]
    assert found(tmp_path) == expected
    assert find_images(str(tmp_path)) == sorted(find_images(tmp_path))


def test_every_suffix(tmp_path):
    write(tmp_path, *(f"{k}{suffix}" for k, suffix in enumerate(DECODABLE)))
    write(tmp_path, *(f"upper {k}{suffix.upper()}" for k, suffix in enumerate(DECODABLE)))
    assert len(found(tmp_path)) == 2 * len(DECODABLE)


def test_hidden_files_and_folders_are_left_out(tmp_path):
    top = write(tmp_path / ".images", "a.jpg", "._a.jpg", ".b.jpg", ".thumbnails/a.jpg", "sub/.trash/deep/c.jpg")
    assert found(top) == ["a.jpg"]  # but the folder itself may be hidden


def test_real_paths_of_many_files_are_those_of_each(tmp_path):
    top = write(tmp_path / "images", "a.png", "sub/b.png")
    (tmp_path / "link").symlink_to(top)
    (top / "again.png").symlink_to(top / "sub" / "b.png")
    (top / "loop").symlink_to(top / "loop")
    names = [
        "a.png",
        "sub/b.png",
        "sub/../a.png",
        "again.png",
        "loop",
        "loop/x.png",
        "missing/c.png",
        "sub/..",
        "sub/.",
        "",
    ]
    real_paths = RealPaths()
    for path in (folder / name for folder in (top, tmp_path / "link", Path("relative")) for name in names):
        assert real_paths(path) == real_path(path), path


def test_links(tmp_path):
    top = write(tmp_path / "images", "sub/a.jpg")
    elsewhere = write(tmp_path / "elsewhere", "b.jpg", "c.jpg")
    (top / "sub" / "loop").symlink_to(top)
    (top / "loop.jpg").symlink_to(top)  # a folder with the suffix of an image
    (top / "link.jpg").symlink_to(elsewhere / "b.jpg")
    (top / "folder").symlink_to(elsewhere)
    assert found(top) == ["link.jpg", "sub/a.jpg"]
    (tmp_path / "top").symlink_to(top)
    assert found(tmp_path / "top") == ["link.jpg", "sub/a.jpg"]  # the folder itself may be a link


def test_a_folder_named_like_an_image_and_an_empty_folder(tmp_path):
    write(tmp_path, "album.jpg/a.jpg")
    (tmp_path / "empty").mkdir()
    assert found(tmp_path) == ["album.jpg/a.jpg"]
    assert find_images(tmp_path / "empty") == []


@pytest.mark.parametrize("name", ["nowhere", "file.jpg"])
def test_bad_input(tmp_path, name):
    write(tmp_path, "file.jpg")
    with pytest.raises(TagspreadError, match=f"{name} is not a folder; give the folder with the images"):
        find_images(tmp_path / name)


def test_what_is_left_out_is_listed(tmp_path, monkeypatch):
    write(tmp_path, "a.jpg", "raw/b.NEF", "raw/c.nef", "d.svg", "locked/e.jpg", "f.txt", "linked/g.jpg")
    (tmp_path / "link").symlink_to(tmp_path / "linked")
    scandir = os.scandir

    def refuses(path):
        if os.path.basename(path) == "locked":  # noqa: PTH119
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("tagspread.data.images.find.os.scandir", refuses)
    listing = list_folder(tmp_path)
    assert [path.name for path in listing.images] == ["a.jpg", "g.jpg"]
    assert listing.notes() == [
        f"1 folder below {tmp_path} cannot be read, so the images in there are missing: locked (permission denied)",
        f"3 image files below {tmp_path} cannot be decoded here and are left out (2 .nef, 1 .svg: convert them to JPEG "
        "or PNG)",
        "1 link to a folder is not followed: link",
    ]
    monkeypatch.setattr("tagspread.data.images.find.os.scandir", lambda path: refuses("locked"))
    with pytest.raises(TagspreadError, match=r"cannot be read \(Permission denied\)"):
        list_folder(tmp_path)


def test_links_that_loop_are_files(tmp_path):
    (tmp_path / "a.jpg").symlink_to(tmp_path / "b.jpg")
    (tmp_path / "b.jpg").symlink_to(tmp_path / "a.jpg")
    (tmp_path / "c.jpg").symlink_to(tmp_path / "nowhere")
    assert found(tmp_path) == ["a.jpg", "b.jpg", "c.jpg"]  # decoding them gives the reason
    assert [real_path(path) for path in find_images(tmp_path)]


def test_many_files_need_little_memory(tmp_path, monkeypatch):
    """A path object takes about half a kilobyte; the listing takes the bytes of the names and of their ends."""

    class Entry:
        def __init__(self, name):
            self.name = name

        def is_dir(self, *, follow_symlinks=True):
            return len(self.name) == 3

        def is_symlink(self):
            return False

    def scandir(path):
        names = (f"{k:03}" for k in range(100))
        if len(Path(path).name) == 3:
            names = (f"{n:04}.{'txt' if n % 10 == 9 else 'jpg'}" for n in reversed(range(1000)))
        return contextlib.nullcontext(map(Entry, names))

    monkeypatch.setattr("tagspread.data.images.find.os.scandir", scandir)
    tracemalloc.start()
    images = find_images(tmp_path / "..")
    taken, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(images) == 90_000
    assert (images[0], images[-1]) == (tmp_path / ".." / "000/0000.jpg", tmp_path / ".." / "099/0998.jpg")
    assert images.names == sorted(images.names)
    assert taken < 30 * len(images)
    assert most < 60 * len(images)
