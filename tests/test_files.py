"""Atomic file writes and locks. Locks belong to open files, so one process can act as two."""

import errno
import json
import os
import stat
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tagspread import files
from tagspread.errors import TagspreadError
from tagspread.files import (
    Remedy,
    SharedLock,
    atomic_file,
    atomic_path,
    check_unlocked,
    hold_lock,
    lock_of,
    refuse_others,
    refuse_special,
    remove_stale,
    swap_files,
    write_csv,
    write_json,
    write_tensors,
    write_text,
)


def write_by_path(file, content):
    with atomic_path(file) as path:
        path.write_bytes(content)


def write_opened(file, content):
    with atomic_file(file) as opened:
        opened.write(content)


WRITERS = [write_opened, write_by_path]


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


@pytest.mark.parametrize("write", WRITERS)
def test_a_new_file_is_as_the_system_makes_one_and_an_old_one_keeps_its_permissions(write, umask, tmp_path):
    file = tmp_path / "a.bin"
    write(file, b"one")
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask
    file.chmod(0o604)
    write(file, b"two")
    assert stat.S_IMODE(file.stat().st_mode) == 0o604
    assert file.read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_tensors_are_readable_by_others_too(umask, tmp_path):
    write_tensors(tmp_path / "a.safetensors", {"x": torch.arange(6).reshape(2, 3).T}, {"about": "it"})
    assert stat.S_IMODE((tmp_path / "a.safetensors").stat().st_mode) == 0o640
    assert load_file(tmp_path / "a.safetensors")["x"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("write", WRITERS)
def test_a_link_is_replaced_and_what_it_leads_to_is_not(write, tmp_path):
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "a.bin").symlink_to(tmp_path / "theirs")
    write(tmp_path / "a.bin", b"mine")
    assert not (tmp_path / "a.bin").is_symlink()
    assert (tmp_path / "theirs").read_bytes() == b"theirs"


@pytest.mark.parametrize("write", WRITERS)
def test_a_link_in_the_way_of_the_temporary_name_is_not_followed(write, tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda n: "0" * 2 * n)
    (tmp_path / "theirs").write_bytes(b"theirs")
    files._temporary(tmp_path / "a.bin").symlink_to(tmp_path / "theirs")
    monkeypatch.setattr(files, "_remove_dead", lambda target: None)
    with pytest.raises(TagspreadError, match=r"a.bin cannot be written \(File exists\)"):
        write(tmp_path / "a.bin", b"mine")
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert not (tmp_path / "a.bin").exists()


@pytest.mark.parametrize("write", WRITERS)
def test_trouble_leaves_the_old_file_and_says_what_to_do(write, tmp_path, monkeypatch):
    write(tmp_path / "a.bin", b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TagspreadError) as caught:
        write(tmp_path / "a.bin", b"new")
    assert str(caught.value) == (
        f"{tmp_path / 'a.bin'} cannot be written (No space left on device); "
        "free disk space there or choose another location."
    )
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.bin", b"old")]


def test_an_option_of_the_remedy_is_written_for_each_reader(tmp_path):
    with pytest.raises(TagspreadError) as caught:
        write_text(tmp_path / "nowhere" / "a", "x", remedy=Remedy("choose another @out", {"out": ...}))
    assert str(caught.value).endswith("(No such file or directory); choose another out.")
    assert caught.value.on_command_line.endswith("choose another --out.")


def test_trouble_with_another_file_is_left_as_it_is(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_file(tmp_path / "a"):
        (tmp_path / "other" / "b").read_bytes()
    assert not list(tmp_path.iterdir())


def test_what_raises_leaves_nothing(tmp_path):
    def library(path):
        path.write_bytes(b"half")
        path.with_name("beside").write_bytes(b"what a library leaves")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), atomic_path(tmp_path / "a") as path:
        library(path)
    assert not list(tmp_path.iterdir())


def test_names_of_files_stay_the_bytes_they_are(tmp_path):
    odd = os.fsdecode(b"\xff.jpg")
    write_csv(tmp_path / "a.csv", ["image"], [[odd]])
    assert (tmp_path / "a.csv").read_bytes() == b"image\n\xff.jpg\n"
    write_json(tmp_path / "a.json", {"ä": odd})
    assert (tmp_path / "a.json").read_bytes() == b'{\n  "\xc3\xa4": "\xff.jpg"\n}\n'
    longest = "ä" * 127
    write_text(tmp_path / longest, "x")
    assert (tmp_path / longest).read_text() == "x"
    with hold_lock(lock_of(tmp_path / longest)):
        pass


def test_two_writers_never_make_a_torn_file(tmp_path):
    file, size = tmp_path / "a.bin", 2**16
    write_opened(file, b"a" * size)
    done = threading.Event()
    trouble = []

    def write(letter):
        for _ in range(40):
            write_opened(file, letter * size)

    def read():
        while not done.is_set():
            if len(set(file.read_bytes())) != 1 or file.stat().st_size != size:
                trouble.append("torn")

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(letter,)) for letter in (b"b", b"c")]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert not trouble
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def dead_process():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def test_only_what_killed_writers_left_is_removed(tmp_path):
    host, dead = files._HOST, dead_process()
    gone = [f".a.csv.{host}-{dead}-01234567.tmp", f".b.csv.{host}-{dead}-01234567.tmp"]
    stays = [
        f".a.csv.{host}-{os.getppid()}-01234567.tmp",  # at work
        f".a.csv.{'0' * 6}-{dead}-01234567.tmp",  # another machine's
        ".notes.tmp", "a.csv.tmp", f"a.csv.{host}-{dead}-01234567.tmp",
    ]  # fmt: skip
    for name in (gone[1], *stays):
        (tmp_path / name).write_text("x")
    (tmp_path / gone[0]).mkdir()
    (tmp_path / gone[0] / "inside").write_text("x")
    write_text(tmp_path / "a.csv", "x")
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", gone[1], *stays}
    os.utime(tmp_path / stays[1], (0, 0))
    with atomic_file(tmp_path / "mine"):
        remove_stale(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "mine", stays[0], *stays[2:]}


def test_an_old_set_stays_whole_until_the_new_one_is_there(tmp_path, monkeypatch):
    folder, staged = tmp_path / "folder", tmp_path / "staged"
    names = ("weights", "card", "manifest")
    for place, text in ((folder, "old"), (staged, "new")):
        place.mkdir()
        for name in names:
            (place / name).write_text(text)
    (folder / "mine").write_text("mine")
    usual, seen = files.move_into, []

    def move(file, target):
        seen.append((folder / "manifest").exists())
        assert {(folder / "previous" / name).read_text() for name in names} == {"old"}
        usual(file, target)

    monkeypatch.setattr(files, "move_into", move)
    swap_files(staged, folder, names)
    assert seen == [False] * 3
    assert {path.name: path.read_text() for path in folder.iterdir()} == dict.fromkeys(names, "new") | {"mine": "mine"}


def test_one_at_a_time(tmp_path):
    file = tmp_path / "not" / "there" / ".lock"
    with hold_lock(file) as mine, hold_lock(file, wait=False) as other:
        assert mine
        assert not other
    with hold_lock(file, wait=False) as free:
        assert free
    assert not file.exists()


def test_who_is_refused_is_told_by_whom(tmp_path):
    file = tmp_path / ".lock"
    with hold_lock(file, doing="is being trained"):
        told = json.loads(file.read_text())
        words = (
            f"the run is being trained by process {os.getpid()} on host {told['host']} \\(since {told['since']}\\); "
        )
        with (
            pytest.raises(TagspreadError, match=f"^{words}wait for it, or go elsewhere\\.$"),
            refuse_others(file, "the run", "is in use", "go elsewhere"),
        ):
            pass
        file.write_text("")  # it has only just begun
        with pytest.raises(TagspreadError, match="the run is in use by another process; wait"):
            check_unlocked(file, "the run", "go elsewhere")
    check_unlocked(file, "the run", "go elsewhere")
    assert not file.exists()


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    file = tmp_path / ".lock"
    ready, child = os.pipe(), os.fork()
    if not child:
        with hold_lock(file):
            os.write(ready[1], b"x")
            os.kill(os.getpid(), 9)
    os.read(ready[0], 1)
    os.waitpid(child, 0)
    for end in ready:
        os.close(end)
    assert json.loads(file.read_text())["pid"] == child
    with hold_lock(file, wait=False) as mine:
        assert mine
        assert json.loads(file.read_text())["pid"] == os.getpid()
    assert not file.exists()


def test_nobody_is_let_in_with_a_file_that_is_gone(tmp_path):
    """A waiting process may lock a removed lock file while a third one holds the new file; it must retry."""
    file, order = tmp_path / ".lock", []
    counts = [0]

    def work():
        for _ in range(50):
            with hold_lock(file):
                counts[0] += 1
                order.append(counts[0])
                counts[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == [1] * 200
    assert not file.exists()


def test_the_last_one_to_let_go_is_told_so(tmp_path):
    first, second, third = (SharedLock(tmp_path / ".needed") for _ in range(3))
    with first.release() as last:
        assert not last
    second.close()
    with third.release() as last:
        assert last
    assert not (tmp_path / ".needed").exists()


@pytest.mark.parametrize("trouble", ["no module", "no locks on this drive"])
def test_everybody_goes_on_where_there_are_no_locks(tmp_path, monkeypatch, trouble):
    def refuse(*_):
        raise OSError(37, "No locks available")

    if trouble == "no module":
        monkeypatch.setattr(files, "fcntl", None)
    else:
        monkeypatch.setattr("fcntl.flock", refuse)
    with hold_lock(tmp_path / ".lock") as mine, hold_lock(tmp_path / ".lock", wait=False) as other:
        assert mine
        assert other
    with SharedLock(tmp_path / ".needed").release() as last:
        assert last


def test_pipes_and_devices_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "file.csv").write_text("x")
    with pytest.raises(TagspreadError, match=r"pipe.csv is a pipe, not a file; save its contents"):
        refuse_special(tmp_path / "pipe.csv")
    with pytest.raises(TagspreadError, match="/dev/zero is a device"):
        refuse_special(Path("/dev/zero"))
    for usual in ("file.csv", "missing.csv", ".", "a\0b"):
        refuse_special(tmp_path / usual)
