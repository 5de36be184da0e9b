import pytest

from tagspread.data.images.find import SUFFIXES, find_images
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
    write(tmp_path, *(f"{k}{suffix}" for k, suffix in enumerate(SUFFIXES)))
    write(tmp_path, *(f"upper {k}{suffix.upper()}" for k, suffix in enumerate(SUFFIXES)))
    assert len(found(tmp_path)) == 2 * len(SUFFIXES)


def test_hidden_files_and_folders_are_left_out(tmp_path):
    top = write(tmp_path / ".images", "a.jpg", "._a.jpg", ".b.jpg", ".thumbnails/a.jpg", "sub/.trash/deep/c.jpg")
    assert found(top) == ["a.jpg"]  # but the folder itself may be hidden


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


def test_a_hundred_thousand_files(tmp_path, monkeypatch):
    def walk(top):
        yield str(top), [f"{k:03}" for k in range(100)], []
        for k in reversed(range(100)):
            yield f"{top}/{k:03}", [], [f"{n:04}.{'txt' if n % 10 == 9 else 'jpg'}" for n in reversed(range(1000))]

    monkeypatch.setattr("tagspread.data.images.find.os.walk", walk)
    images = find_images(tmp_path)
    assert len(images) == 90_000
    assert (images[0], images[-1]) == (tmp_path / "000/0000.jpg", tmp_path / "099/0998.jpg")
    assert images == sorted(images)
