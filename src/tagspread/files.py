"""The one atomic writer and the one lock.

A file is written under a temporary name beside its own, flushed to the disk, and renamed. A process that is killed, or
a disk that is full, leaves the old file or the new one, never half of one. Temporary names hold the machine, the
process and random digits: writers do not meet, and what a killed process left is recognized as such
(:func:`remove_stale`).

Files that belong together in a folder that may also hold files of the user have a manifest, which is removed first and
written last (:func:`swap_files`): without it, none of them is accepted. Exchanging whole folders would need one step
that swaps two names, which not every system has, and would move the user's files along. Meanwhile hard links in the
folder ``previous`` keep the old set whole (:func:`keep_copies`).

A lock is a file that the kernel releases when its holder dies (:func:`hold_lock`, :class:`SharedLock`). The holder
writes into it who it is, so that whoever is refused learns by whom.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from tagspread.errors import TagspreadError

if TYPE_CHECKING:
    from torch import Tensor

try:
    import fcntl
except ImportError:  # a system without locks: everybody goes on
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
PREVIOUS = "previous"
FOREIGN = 24 * 3600  # seconds after which a temporary file of another machine is taken for left behind
LONGEST = 120  # bytes of a file's name that are repeated in a temporary one: a name has 255 at most
_TEMPORARY = re.compile(r"\..+\.(?P<host>[0-9a-f]{6})-(?P<pid>\d+)-[0-9a-f]{8}\.tmp", re.DOTALL)
_HOST = hashlib.sha256(platform.node().encode("utf-8", "surrogateescape")).hexdigest()[:6]
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_at_work: set[str] = set()  # temporary names that this process is writing to


class Remedy(NamedTuple):
    """What a user can do about a file that cannot be written.

    Attributes:
        words: the end of a sentence.
        options: those named in it, see :class:`~tagspread.errors.TagspreadError`.
    """

    words: str
    options: Mapping[str, object] = MappingProxyType({})


PLACE = Remedy("make room there, or give another place")


# --- one file ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def atomic_file(file: str | Path, *, remedy: Remedy = PLACE) -> Iterator[IO[bytes]]:
    """Open a file to write; it takes its name when the block ends, and nothing of it stays if the block raises.

    Args:
        file: the file. One that is there keeps its permissions; a link is replaced, not followed.
        remedy: what a user can do if it cannot be written.
    """
    target = Path(file)
    _remove_dead(target)
    temporary = _temporary(target)
    with _cleaned(temporary), _told(target, temporary, remedy):
        # exclusively: nothing that lies in the way, such as a link to another file, is written through
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _BINARY, 0o666)
        with os.fdopen(descriptor, "wb") as opened:
            mode = _mode(target, descriptor)
            yield cast(IO[bytes], opened)
            opened.flush()
            _finish(descriptor, mode)
        _take_name(temporary, target)


@contextlib.contextmanager
def atomic_path(file: str | Path, *, remedy: Remedy = PLACE) -> Iterator[Path]:
    """Yield a path for a library that opens files itself; what it wrote there takes the file's name afterwards.

    The path is in a folder of its own: some libraries write to further names beside it. Arguments are those of
    :func:`atomic_file`.
    """
    target = Path(file)
    _remove_dead(target)
    folder = _temporary(target)
    with _cleaned(folder), _told(target, folder, remedy):
        folder.mkdir(mode=0o700)
        inside = folder / target.name
        descriptor = os.open(inside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666)
        mode = _mode(target, descriptor)
        os.close(descriptor)
        yield inside
        descriptor = os.open(inside, os.O_RDWR | _NO_LINK)
        try:
            _finish(descriptor, mode)
        finally:
            os.close(descriptor)
        _take_name(inside, target)


@contextlib.contextmanager
def atomic_text(file: str | Path, *, errors: str = "surrogateescape", remedy: Remedy = PLACE) -> Iterator[IO[str]]:
    """Open a UTF-8 file to write as :func:`atomic_file` does; by default file names stay the bytes they are."""
    with atomic_file(file, remedy=remedy) as opened:
        text = io.TextIOWrapper(opened, encoding="utf-8", errors=errors, newline="", write_through=True)
        try:
            yield text
        finally:
            text.detach()


def write_text(file: str | Path, text: str, *, errors: str = "surrogateescape", remedy: Remedy = PLACE) -> None:
    """Write a UTF-8 file in one step."""
    with atomic_text(file, errors=errors, remedy=remedy) as opened:
        opened.write(text)


def write_json(file: str | Path, values: Any, *, indent: int = 2, remedy: Remedy = PLACE) -> None:
    """Write a JSON file in one step."""
    write_text(file, json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False) + "\n", remedy=remedy)


def write_csv(
    file: str | Path,
    header: Iterable[object],
    rows: Iterable[Iterable[object]],
    *,
    remedy: Remedy = PLACE,
) -> None:
    """Write a table row by row, in one step for whoever reads it."""
    with atomic_text(file, remedy=remedy) as opened:
        writer = csv.writer(_Lines(opened), lineterminator="\r\n")  # which quotes cells that hold either
        writer.writerow(header)
        writer.writerows(rows)


class _Lines:
    """Ends the lines of a ``csv.writer`` with a line feed alone."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, line: str) -> None:
        self._file.write(line.removesuffix("\r\n") + "\n")


def write_tensors(
    file: str | Path,
    tensors: Mapping[str, Tensor],
    metadata: dict[str, str] | None = None,
    *,
    remedy: Remedy = PLACE,
) -> None:
    """Write a safetensors file in one step."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    on_host = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with atomic_path(file, remedy=remedy) as path:
        try:
            save_file(on_host, path, metadata=metadata)
        except SafetensorError as error:
            raise _not_written(Path(file), error, remedy) from None


@contextlib.contextmanager
def temporary_folder(parent: str | Path, name: str) -> Iterator[Path]:
    """Make a folder below ``parent`` that is gone after the block, or with :func:`remove_stale` after a kill."""
    folder = new_temporary_folder(parent, name)
    with _cleaned(folder):
        yield folder


def new_temporary_folder(parent: str | Path, name: str) -> Path:
    """Make a folder that the caller removes with :func:`remove_temporary`."""
    folder = _temporary(Path(parent) / name)
    folder.mkdir()
    _at_work.add(str(folder))
    return folder


def remove_temporary(path: Path) -> None:
    """Remove a temporary file or folder, if it is there."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    _at_work.discard(str(path))


_BINARY = getattr(os, "O_BINARY", 0)


def _temporary(target: Path) -> Path:
    name = os.fsdecode(os.fsencode(target.name)[:LONGEST])
    return target.with_name(f".{name}.{_HOST}-{os.getpid()}-{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def _cleaned(temporary: Path) -> Iterator[None]:
    _at_work.add(str(temporary))
    try:
        yield
    finally:
        if os.path.lexists(temporary):
            remove_temporary(temporary)
        _at_work.discard(str(temporary))


@contextlib.contextmanager
def _told(target: Path, temporary: Path, remedy: Remedy) -> Iterator[None]:
    """Turn the trouble of writing into a sentence; the trouble of reading another file is left as it is."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith((str(temporary), str(target))):
            raise
        raise _not_written(target, error, remedy) from None


def _not_written(target: Path, error: Exception, remedy: Remedy) -> TagspreadError:
    reason = error.strerror or error if isinstance(error, OSError) else error
    return TagspreadError(f"{target} cannot be written ({reason}); {remedy.words}.", **remedy.options)


def _mode(target: Path, descriptor: int) -> int:
    """Return the permissions of the file that is there, or those that the system gives a new one."""
    try:
        found = target.lstat()
        if stat.S_ISREG(found.st_mode):
            return stat.S_IMODE(found.st_mode)
    except OSError:
        pass
    return stat.S_IMODE(os.fstat(descriptor).st_mode)


def _finish(descriptor: int, mode: int) -> None:
    """Set the permissions, which libraries may have changed, and wait until the bytes are on the disk."""
    if hasattr(os, "fchmod") and stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
        with contextlib.suppress(OSError):  # some drives know no permissions
            os.fchmod(descriptor, mode)
    os.fsync(descriptor)


def _take_name(temporary: Path, target: Path) -> None:
    os.replace(temporary, target)  # noqa: PTH105 - the one place
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system knows how to."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# --- a folder ---------------------------------------------------------------------------------------------------------


def is_temporary(name: str) -> bool:
    """Say whether a file's name is a temporary one of this module.

    >>> is_temporary(".tags.csv.0a1b2c-123-89abcdef.tmp"), is_temporary(".notes.tmp")
    (True, False)
    """
    return _TEMPORARY.fullmatch(name) is not None


def remove_stale(folder: Path) -> None:
    """Remove what killed writers left in a folder; to be called by whoever holds its lock."""
    for entry, host, pid in _temporaries(folder):
        if _is_dead(entry, host, pid) or (host != _HOST and _age(entry) > FOREIGN):
            remove_temporary(entry)


def _remove_dead(target: Path) -> None:
    """Remove what killed processes of this machine left of a file that is written now."""
    repeated = os.fsdecode(os.fsencode(target.name)[:LONGEST])
    for entry, host, pid in _temporaries(target.parent):
        if entry.name.startswith(f".{repeated}.{host}-") and _is_dead(entry, host, pid):
            remove_temporary(entry)


def _temporaries(folder: Path) -> list[tuple[Path, str, int]]:
    try:
        found = [(entry, _TEMPORARY.fullmatch(entry.name)) for entry in folder.iterdir() if entry.name[0] == "."]
    except OSError:
        return []
    return [(entry, match["host"], int(match["pid"])) for entry, match in found if match]


def _age(entry: Path) -> float:
    with contextlib.suppress(OSError):
        return time.time() - entry.lstat().st_mtime
    return 0.0


def _is_dead(entry: Path, host: str, pid: int) -> bool:
    """Say whether the process that made a temporary file is no more; that of another machine may be at work."""
    if host != _HOST:
        return False
    if pid == os.getpid():  # the number may be an earlier process's
        return str(entry) not in _at_work
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def check_writable(folder: Path) -> None:
    """Raise OSError unless files can be made in a folder."""
    probe = _temporary(folder / "probe")
    with _cleaned(probe):
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666))


def can_link(folder: Path) -> bool:
    """Say whether a file in a folder can have a second name, which takes no room."""
    probe, second = (_temporary(folder / "probe") for _ in range(2))
    with _cleaned(probe), _cleaned(second):
        try:
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666))
            os.link(probe, second)
        except (OSError, AttributeError):
            return False
        return True


def keep_copies(folder: Path, names: Sequence[str], into: Path) -> None:
    """Give files of a folder second names in another one: hard links, or copies where links are not possible.

    Args:
        folder: where they are.
        names: relative to it; the manifest is the last. Those that are not there are left out.
        into: made if it is not there. While it has no manifest, what is in it is not whole.
    """
    into.mkdir(exist_ok=True)
    for name in names:
        source, copy = folder / name, into / name
        if not source.is_file():
            continue
        copy.parent.mkdir(exist_ok=True)
        second = _temporary(copy)
        try:
            with _cleaned(second):
                os.link(source, second)
                os.replace(second, copy)  # noqa: PTH105
        except (OSError, AttributeError):
            with source.open("rb") as opened, atomic_file(copy) as written:
                shutil.copyfileobj(opened, written)
    sync_folder(into)


def move_into(file: Path, target: Path) -> None:
    """Move a file, which is on the disk, to where another may be; both are on one drive."""
    _take_name(file, target)


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove files in this order, so that the manifest is the first to go, then folders that are left empty."""
    folders = {folder}
    for name in names:
        (folder / name).unlink(missing_ok=True)
        folders.add((folder / name).parent)
    for empty in sorted(folders - {folder}, reverse=True):
        with contextlib.suppress(OSError):  # not there, or it holds something of the user's
            empty.rmdir()


def swap_files(staged: Path, folder: Path, names: Sequence[str]) -> None:
    """Put files that belong together into a folder where an older set of them may be.

    Until the new manifest is there, the old set is whole in the folder's ``previous``.

    Args:
        staged: where the new ones are, on the same drive.
        folder: may hold other files.
        names: of all of them; the manifest is the last.
    """
    manifest, previous = names[-1], folder / PREVIOUS
    if (folder / manifest).exists():
        remove_files(previous, reversed(names))
        keep_copies(folder, names, previous)
        (folder / manifest).unlink()
    for name in names:
        move_into(staged / name, folder / name)
    drop_previous(folder, names)


def drop_previous(folder: Path, names: Sequence[str]) -> None:
    """Remove these files, and nothing else, from a folder's ``previous``; the last, its manifest, goes first."""
    if (folder / PREVIOUS).is_dir():
        remove_files(folder / PREVIOUS, reversed(names))
        with contextlib.suppress(OSError):  # it holds something of the user's
            (folder / PREVIOUS).rmdir()


# --- the lock ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def hold_lock(file: Path, *, wait: bool = True, doing: str = "is in use") -> Iterator[bool]:
    """Hold a lock that no other process holds; yield whether it is held.

    Args:
        file: the lock; it is there only while somebody holds it, or was killed while holding it.
        wait: until the other one releases it; otherwise False is yielded while it does not.
        doing: what is done to the thing that is locked, for those who are refused.
    """
    descriptor = _open_lock(file, shared=False, wait=wait)
    if descriptor is None:
        yield False
        return
    try:
        _sign(descriptor, doing)
        yield True
    finally:
        if _is_file(descriptor, file):
            with contextlib.suppress(OSError):
                file.unlink()  # before it is released: who waits for this very file sees that it is gone, and retries
        os.close(descriptor)


@contextlib.contextmanager
def refuse_others(file: Path, what: object, doing: str, remedy: str) -> Iterator[None]:
    """Hold a lock, or raise with the name of the process that holds it.

    Args:
        file: as in :func:`hold_lock`.
        what: what is locked, the beginning of a sentence.
        doing: what is done to it, such as "is being trained".
        remedy: the end of the sentence.
    """
    with hold_lock(file, wait=False, doing=doing) as mine:
        if not mine:
            raise TagspreadError(f"{what} {_holder(file)}; wait for it, or {remedy}.")
        yield


def lock_of(file: Path) -> Path:
    """Return the lock of a single file, which lies beside it."""
    return file.with_name(f".{os.fsdecode(os.fsencode(file.name)[:LONGEST])}{LOCK}")


def check_unlocked(file: Path, what: object, remedy: str) -> None:
    """Raise as :func:`refuse_others` does, without writing anything where nobody holds the lock."""
    if file.exists():
        with refuse_others(file, what, "is in use", remedy):
            pass


class SharedLock:
    """A lock that several processes hold at once, until the last of them releases it.

    Args:
        file: as in :func:`hold_lock`.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._descriptor: int | None = _open_lock(file, shared=True, wait=True)

    @contextlib.contextmanager
    def release(self) -> Iterator[bool]:
        """Yield whether nobody else holds it; until the end of the block nobody begins to."""
        try:
            last = self._descriptor is not None and _lock(self._descriptor, shared=False, wait=False)
            yield last
            if last and self._descriptor is not None and _is_file(self._descriptor, self.file):
                with contextlib.suppress(OSError):
                    self.file.unlink()
        finally:
            self.close()

    def close(self) -> None:
        """Release it without asking for the others."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open_lock(file: Path, *, shared: bool, wait: bool) -> int | None:
    """Return an open and locked file; None if another process holds it and we do not wait."""
    file.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o666)
        except PermissionError:  # another user's, who may have it locked
            descriptor = os.open(file, os.O_RDONLY | _NO_LINK)
        if not _lock(descriptor, shared=shared, wait=wait):
            os.close(descriptor)
            return None
        if fcntl is None or _is_file(descriptor, file):
            return descriptor
        os.close(descriptor)  # its holder removed it, so that others may hold a new one by now


def _lock(descriptor: int, *, shared: bool, wait: bool) -> bool:
    """Lock an open file until it is closed; return False if another process has it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # some network drives know no locks; most users are alone there
        pass
    return True


def _is_file(descriptor: int, file: Path) -> bool:
    """Say whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except OSError:
        return False


def _sign(descriptor: int, doing: str) -> None:
    facts = {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        "doing": doing,
        "command": " ".join(sys.argv),
    }
    with contextlib.suppress(OSError):  # a full disk does not keep anybody from holding a lock
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(facts).encode())


def _holder(file: Path) -> str:
    """Return what the holder of a lock does, and who it is."""
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        return f"{facts['doing']} by process {facts['pid']} on host {facts['host']} (since {facts['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "is in use by another process"
