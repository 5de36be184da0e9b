"""Atomic file writes and file locks, used by the whole package.

A file is written under a temporary name in the same folder, flushed to disk, and renamed. If the process is killed or
the disk is full, the old file or the new file remains, never a partial one. A temporary name contains a hash of the
host name, the process ID, and random digits. Two writers therefore never share a temporary file, and the leftovers of
a killed process can be recognized and removed (:func:`remove_stale`).

Several files that belong together, in a folder that may also hold files of the user, have a manifest. The manifest is
removed first and written last (:func:`swap_files`); readers reject the set while the manifest is missing. During the
replacement, hard links in the subfolder ``previous`` keep the old set complete (:func:`keep_copies`). Whole folders are
not swapped: not every system can swap two names in one step, and the user's files would move along.

A lock is a file that the kernel unlocks when the process that holds it dies (:func:`hold_lock`, :class:`SharedLock`).
The holder writes its process ID, host and activity into the file, so that other processes can report who holds it.
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
except ImportError:  # a system without file locks: every attempt to lock succeeds
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
PREVIOUS = "previous"
FOREIGN_MAX_AGE = 24 * 3600  # seconds; an older temporary file from another machine counts as stale
MAX_NAME_BYTES = 120  # bytes of the file name that a temporary name repeats; file systems allow 255 in total
_TEMPORARY = re.compile(r"\..+\.(?P<host>[0-9a-f]{6})-(?P<pid>\d+)-[0-9a-f]{8}\.tmp", re.DOTALL)
_HOST = hashlib.sha256(platform.node().encode("utf-8", "surrogateescape")).hexdigest()[:6]
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_in_use: set[str] = set()  # temporary paths that this process is writing to


class Remedy(NamedTuple):
    """The advice in the error message for a file that cannot be written.

    Attributes:
        words: the advice, used as the end of the message.
        options: the options that ``words`` mentions, see :class:`~tagspread.errors.TagspreadError`.
    """

    words: str
    options: Mapping[str, object] = MappingProxyType({})


DEFAULT_REMEDY = Remedy("free disk space there or choose another location")


# --- one file ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def atomic_file(file: str | Path, *, remedy: Remedy = DEFAULT_REMEDY) -> Iterator[IO[bytes]]:
    """Open a binary file for writing; rename it to its final name when the block ends, remove it if the block raises.

    Args:
        file: the file to write. An existing file keeps its permissions; a symbolic link is replaced, not followed.
        remedy: the advice in the error message if the file cannot be written.
    """
    target = Path(file)
    _remove_dead(target)
    temporary = _temporary(target)
    with _cleaned(temporary), _reported(target, temporary, remedy):
        # O_EXCL: fail if the temporary name exists, so that a link planted there is never followed
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _BINARY, 0o666)
        with os.fdopen(descriptor, "wb") as opened:
            mode = _mode(target, descriptor)
            yield cast(IO[bytes], opened)
            opened.flush()
            _finish(descriptor, mode)
        _take_name(temporary, target)


@contextlib.contextmanager
def atomic_path(file: str | Path, *, remedy: Remedy = DEFAULT_REMEDY) -> Iterator[Path]:
    """Yield a temporary path for a library that opens files itself; rename the result when the block ends.

    The path is in its own temporary folder, because some libraries create more files next to it. The arguments are
    those of :func:`atomic_file`.
    """
    target = Path(file)
    _remove_dead(target)
    folder = _temporary(target)
    with _cleaned(folder), _reported(target, folder, remedy):
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
def atomic_text(
    file: str | Path, *, errors: str = "surrogateescape", remedy: Remedy = DEFAULT_REMEDY
) -> Iterator[IO[str]]:
    """Open a UTF-8 text file for writing, like :func:`atomic_file`; file names that are not UTF-8 keep their bytes."""
    with atomic_file(file, remedy=remedy) as opened:
        text = io.TextIOWrapper(opened, encoding="utf-8", errors=errors, newline="", write_through=True)
        try:
            yield text
        finally:
            text.detach()


def write_text(
    file: str | Path, text: str, *, errors: str = "surrogateescape", remedy: Remedy = DEFAULT_REMEDY
) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_text(file, errors=errors, remedy=remedy) as opened:
        opened.write(text)


def write_json(file: str | Path, values: Any, *, indent: int = 2, remedy: Remedy = DEFAULT_REMEDY) -> None:
    """Write a JSON file atomically."""
    write_text(file, json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False) + "\n", remedy=remedy)


def write_csv(
    file: str | Path,
    header: Iterable[object],
    rows: Iterable[Iterable[object]],
    *,
    remedy: Remedy = DEFAULT_REMEDY,
) -> None:
    """Write a CSV file atomically, row by row."""
    with atomic_text(file, remedy=remedy) as opened:
        writer = csv.writer(_Lines(opened), lineterminator="\r\n")  # quotes cells that contain \r or \n
        writer.writerow(header)
        writer.writerows(rows)


class _Lines:
    """File wrapper that ends each line of a ``csv.writer`` with a line feed only."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, line: str) -> None:
        self._file.write(line.removesuffix("\r\n") + "\n")


def write_tensors(
    file: str | Path,
    tensors: Mapping[str, Tensor],
    metadata: dict[str, str] | None = None,
    *,
    remedy: Remedy = DEFAULT_REMEDY,
) -> None:
    """Write a safetensors file atomically."""
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
    """Create a temporary folder in ``parent`` and remove it after the block (after a kill: :func:`remove_stale`)."""
    folder = new_temporary_folder(parent, name)
    with _cleaned(folder):
        yield folder


def new_temporary_folder(parent: str | Path, name: str) -> Path:
    """Create a temporary folder, which the caller removes with :func:`remove_temporary`."""
    folder = _temporary(Path(parent) / name)
    folder.mkdir()
    _in_use.add(str(folder))
    return folder


def remove_temporary(path: Path) -> None:
    """Remove a temporary file or folder if it exists."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    _in_use.discard(str(path))


_BINARY = getattr(os, "O_BINARY", 0)


def _temporary(target: Path) -> Path:
    name = os.fsdecode(os.fsencode(target.name)[:MAX_NAME_BYTES])
    return target.with_name(f".{name}.{_HOST}-{os.getpid()}-{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def _cleaned(temporary: Path) -> Iterator[None]:
    _in_use.add(str(temporary))
    try:
        yield
    finally:
        if os.path.lexists(temporary):
            remove_temporary(temporary)
        _in_use.discard(str(temporary))


@contextlib.contextmanager
def _reported(target: Path, temporary: Path, remedy: Remedy) -> Iterator[None]:
    """Turn an OSError of the file being written into a TagspreadError; errors of other files pass unchanged."""
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
    """Return the permissions of the existing file, or the system's defaults for a new file."""
    try:
        mode = target.lstat().st_mode
        if stat.S_ISREG(mode):
            return stat.S_IMODE(mode)
    except OSError:
        pass
    return stat.S_IMODE(os.fstat(descriptor).st_mode)


def _finish(descriptor: int, mode: int) -> None:
    """Set the permissions, which a library may have changed, and flush the file to disk."""
    if hasattr(os, "fchmod") and stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
        with contextlib.suppress(OSError):  # some file systems have no permissions
            os.fchmod(descriptor, mode)
    os.fsync(descriptor)


def _take_name(temporary: Path, target: Path) -> None:
    os.replace(temporary, target)  # noqa: PTH105 - the only module that renames
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, on systems that support it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# --- a folder ---------------------------------------------------------------------------------------------------------


def is_temporary(name: str) -> bool:
    """Return whether a file name is a temporary name made by this module.

    >>> is_temporary(".tags.csv.0a1b2c-123-89abcdef.tmp"), is_temporary(".notes.tmp")
    (True, False)
    """
    return _TEMPORARY.fullmatch(name) is not None


def remove_stale(folder: Path) -> None:
    """Remove the temporary files of killed writers from a folder; the caller must hold the folder's lock."""
    for entry, host, pid in _temporaries(folder):
        if _is_dead(entry, host, pid) or (host != _HOST and _age(entry) > FOREIGN_MAX_AGE):
            remove_temporary(entry)


def _remove_dead(target: Path) -> None:
    """Remove temporary files that killed processes of this machine left for the same target file."""
    prefix = os.fsdecode(os.fsencode(target.name)[:MAX_NAME_BYTES])
    for entry, host, pid in _temporaries(target.parent):
        if entry.name.startswith(f".{prefix}.{host}-") and _is_dead(entry, host, pid):
            remove_temporary(entry)


def _temporaries(folder: Path) -> list[tuple[Path, str, int]]:
    try:
        hidden = [entry for entry in folder.iterdir() if entry.name[0] == "."]
    except OSError:
        return []
    matches = [(entry, _TEMPORARY.fullmatch(entry.name)) for entry in hidden]
    return [(entry, match["host"], int(match["pid"])) for entry, match in matches if match]


def _age(entry: Path) -> float:
    with contextlib.suppress(OSError):
        return time.time() - entry.lstat().st_mtime
    return 0.0


def _is_dead(entry: Path, host: str, pid: int) -> bool:
    """Return whether the process that made a temporary file has ended; False if it ran on another machine."""
    if host != _HOST:
        return False
    if pid == os.getpid():  # an earlier process may have had the same ID
        return str(entry) not in _in_use
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def refuse_special(file: Path) -> None:
    """Raise for a pipe or a device: it may have no end, and what is read from it cannot be read again."""
    try:
        mode = file.stat().st_mode
    except (OSError, ValueError):
        return  # whoever opens it says why
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device"
        raise TagspreadError(f"{file} is {kind}, not a file; save its contents in a file first.")


def check_writable(folder: Path) -> None:
    """Raise OSError if no file can be created in a folder."""
    probe = _temporary(folder / "probe")
    with _cleaned(probe):
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666))


def can_link(folder: Path) -> bool:
    """Return whether the folder's file system supports hard links."""
    probe, link = (_temporary(folder / "probe") for _ in range(2))
    with _cleaned(probe), _cleaned(link):
        try:
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666))
            os.link(probe, link)
        except (OSError, AttributeError):
            return False
        return True


def keep_copies(folder: Path, names: Sequence[str], into: Path) -> None:
    """Hard-link files of a folder into another folder; copy them where hard links are not supported.

    Args:
        folder: the folder that holds the files.
        names: file names relative to ``folder``, the manifest last. Missing files are skipped.
        into: the destination, created if it does not exist. Its set is incomplete until the manifest is there.
    """
    into.mkdir(exist_ok=True)
    for name in names:
        source, copy = folder / name, into / name
        if not source.is_file():
            continue
        copy.parent.mkdir(exist_ok=True)
        link = _temporary(copy)
        try:
            with _cleaned(link):
                os.link(source, link)
                os.replace(link, copy)  # noqa: PTH105
        except (OSError, AttributeError):
            with source.open("rb") as opened, atomic_file(copy) as written:
                shutil.copyfileobj(opened, written)
    sync_folder(into)


def move_into(file: Path, target: Path) -> None:
    """Move a file that is already flushed to disk, replacing the target; both must be on the same file system."""
    _take_name(file, target)


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove files in the given order (callers put the manifest first), then subfolders that became empty."""
    folders = {folder}
    for name in names:
        (folder / name).unlink(missing_ok=True)
        folders.add((folder / name).parent)
    for empty in sorted(folders - {folder}, reverse=True):
        with contextlib.suppress(OSError):  # missing, or it holds files of the user
            empty.rmdir()


def swap_files(staged: Path, folder: Path, names: Sequence[str]) -> None:
    """Move a set of files into a folder, replacing an older set of the same names.

    Until the new manifest is in place, the old set stays complete in the subfolder ``previous``.

    Args:
        staged: the folder with the new files, on the same file system.
        folder: the destination; it may also hold other files, which stay.
        names: all file names of the set, the manifest last.
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
    """Remove the named files, and no others, from the subfolder ``previous``; the manifest, named last, goes first."""
    if (folder / PREVIOUS).is_dir():
        remove_files(folder / PREVIOUS, reversed(names))
        with contextlib.suppress(OSError):  # it holds files of the user
            (folder / PREVIOUS).rmdir()


# --- the lock ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def hold_lock(file: Path, *, wait: bool = True, doing: str = "is in use") -> Iterator[bool]:
    """Hold an exclusive lock during the block; yield whether it was acquired.

    Args:
        file: the lock file. It exists only while a process holds the lock, or after the holder was killed.
        wait: if True, wait until the lock is free; if False, yield False when another process holds it.
        doing: the holder's activity, such as "is being trained", for the error message of other processes.
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
                file.unlink()  # before unlocking: a process that waits for this file sees that it is gone and retries
        os.close(descriptor)


@contextlib.contextmanager
def refuse_others(file: Path, what: object, doing: str, remedy: str) -> Iterator[None]:
    """Hold an exclusive lock during the block; raise a TagspreadError if another process holds it.

    Args:
        file: the lock file, as in :func:`hold_lock`.
        what: the locked thing, which starts the error message.
        doing: this process's activity, such as "is being trained", as in :func:`hold_lock`.
        remedy: the advice at the end of the error message.
    """
    with hold_lock(file, wait=False, doing=doing) as acquired:
        if not acquired:
            raise TagspreadError(f"{what} {_holder(file)}; wait for it, or {remedy}.")
        yield


def lock_of(file: Path) -> Path:
    """Return the path of the lock file for a single file, in the same folder."""
    return file.with_name(f".{os.fsdecode(os.fsencode(file.name)[:MAX_NAME_BYTES])}{LOCK}")


def check_unlocked(file: Path, what: object, remedy: str) -> None:
    """Raise like :func:`refuse_others` if another process holds the lock; create no file if there is none."""
    if file.exists():
        with refuse_others(file, what, "is in use", remedy):
            pass


class SharedLock:
    """A lock that several processes hold at the same time; the last one to release it removes the file.

    Args:
        file: the lock file, as in :func:`hold_lock`.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._descriptor: int | None = _open_lock(file, shared=True, wait=True)

    @contextlib.contextmanager
    def release(self) -> Iterator[bool]:
        """Release the lock after the block; yield whether no other process holds it or can acquire it meanwhile."""
        try:
            is_last = self._descriptor is not None and _lock(self._descriptor, shared=False, wait=False)
            yield is_last
            if is_last and self._descriptor is not None and _is_file(self._descriptor, self.file):
                with contextlib.suppress(OSError):
                    self.file.unlink()
        finally:
            self.close()

    def close(self) -> None:
        """Release the lock without checking for other holders."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open_lock(file: Path, *, shared: bool, wait: bool) -> int | None:
    """Return the descriptor of the locked file, or None if another process holds it and ``wait`` is False."""
    file.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o666)
        except PermissionError:  # the file of another user, who may hold the lock
            descriptor = os.open(file, os.O_RDONLY | _NO_LINK)
        if not _lock(descriptor, shared=shared, wait=wait):
            os.close(descriptor)
            return None
        if fcntl is None or _is_file(descriptor, file):
            return descriptor
        os.close(descriptor)  # the holder removed it; another process may hold a new file by now


def _lock(descriptor: int, *, shared: bool, wait: bool) -> bool:
    """Lock an open file until it is closed; return False if another process holds the lock."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # some network file systems have no locks; go ahead without one
        pass
    return True


def _is_file(descriptor: int, file: Path) -> bool:
    """Return whether the path still refers to the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except OSError:
        return False


def _sign(descriptor: int, doing: str) -> None:
    """Write the holder's process, host, start time, activity and command into the lock file."""
    holder = {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        "doing": doing,
        "command": " ".join(sys.argv),
    }
    with contextlib.suppress(OSError):  # on a full disk, the lock is held but not signed
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(holder).encode())


def _holder(file: Path) -> str:
    """Return the activity, process, host and start time of a lock's holder, as the predicate of a sentence."""
    try:
        holder = json.loads(file.read_text(encoding="utf-8"))
        return f"{holder['doing']} by process {holder['pid']} on host {holder['host']} (since {holder['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "is in use by another process"
