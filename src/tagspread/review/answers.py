"""Answers of reviewers, kept in an SQLite file beside the run: ``RUN/review/answers.sqlite``.

An answer says whether an image has a tag: yes, no, or unknown. Each answer is on the disk before the reviewer sees it
as saved (write-ahead log, ``synchronous=FULL``), so that killing the server loses nothing. Answers are only added: a
later answer of the same image and tag replaces the earlier one, and undoing an answer marks it, so that the earlier one
counts again. Images are identified by the digest that the run recorded, not by their names.

This module imports neither torch nor NumPy, because the server must stay small.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from tagspread.errors import TagspreadError, check_choice

FOLDER, FILE = "review", "answers.sqlite"
FORMAT = 1  # PRAGMA user_version; raise it whenever the schema changes
BUSY_SECONDS = 10.0  # how long a write waits for another process

YesNo = Literal["yes", "no", "unknown"]
ANSWERS: tuple[YesNo, ...] = get_args(YesNo)
LABELS: dict[YesNo, int] = {"yes": 1, "no": 0, "unknown": -1}  # of a label table
COLUMNS = "digest, image, tag, answer, who, at, seconds, source"  # in the order of the fields of an Answer
_Execute: TypeAlias = Callable[..., sqlite3.Cursor]

SCHEMA = """
CREATE TABLE answers (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL,
    image BLOB NOT NULL,
    tag TEXT NOT NULL,
    answer TEXT NOT NULL CHECK (answer IN ('yes', 'no', 'unknown')),
    who TEXT NOT NULL,
    at REAL NOT NULL,
    seconds REAL NOT NULL,
    source TEXT NOT NULL,
    batch TEXT NOT NULL,
    undone_at REAL
);
CREATE INDEX answers_of_image ON answers (digest, tag, id) WHERE undone_at IS NULL;
CREATE INDEX answers_of_batch ON answers (batch);
CREATE INDEX answers_of_person ON answers (who, id) WHERE undone_at IS NULL;
CREATE TABLE tags (name TEXT PRIMARY KEY, who TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE leases (digest TEXT PRIMARY KEY, holder TEXT NOT NULL, expires REAL NOT NULL);
CREATE TABLE queue (run TEXT NOT NULL, position INTEGER NOT NULL, digest TEXT NOT NULL, row INTEGER NOT NULL,
    strategy TEXT NOT NULL, tags TEXT NOT NULL, PRIMARY KEY (run, position), UNIQUE (run, digest));
"""


class Answer(NamedTuple):
    """What a person said about one image and one tag.

    Attributes:
        digest: digest of the image file, as in ``split.csv``.
        image: name of the image in the run.
        tag: the tag.
        answer: ``yes``, ``no`` or ``unknown``.
        who: name of the person.
        when: time of the answer, in seconds since 1970.
        seconds: how long the person looked at it.
        source: strategy by which the image was queued. The images of ``random`` are an unbiased sample of the queue's
            images; ``grid`` are answers in the grid of a tag, and ``open`` those of an image that was chosen by hand.
    """

    digest: str
    image: str
    tag: str
    answer: YesNo
    who: str
    when: float
    seconds: float
    source: str

    @property
    def label(self) -> int:
        """The answer as a label: 1, 0 or -1."""
        return LABELS[self.answer]


class Conflict(NamedTuple):
    """Two people who say different things about one image and tag; the later answer counts.

    Attributes:
        counts: the answer that counts.
        other: the last answer of the other person.
    """

    counts: Answer
    other: Answer


class Queued(NamedTuple):
    """An image to review.

    Attributes:
        row: row of the image in ``split.csv``.
        strategy: strategy that drew it; ``random`` for the unbiased sample.
        tags: tags to ask about first; empty for all.
    """

    row: int
    strategy: str
    tags: tuple[str, ...] = ()


def answers_file(run: str | PathLike[str]) -> Path:
    """Return the file that holds the answers of a run."""
    return Path(run) / FOLDER / FILE


def has_answers(run: str | PathLike[str]) -> bool:
    """Return whether a run was ever reviewed."""
    return answers_file(run).is_file()


class AnswerStore:
    """The answers of a run. Several threads, and several processes, may use one file at the same time.

    Args:
        connection: the open file.
        file: its path, for messages.
    """

    def __init__(self, connection: sqlite3.Connection, file: Path) -> None:
        self.file = file
        self._connection = connection
        self._lock = threading.RLock()

    @classmethod
    def open(cls, run: str | PathLike[str], *, create: bool = False) -> AnswerStore:
        """Open the answers of a run; close them with :meth:`close` or a ``with`` block.

        Args:
            run: folder of the run.
            create: create the file if it is missing; otherwise raise.
        """
        file = answers_file(run)
        if not file.exists() and not create:
            raise TagspreadError(
                f"{Path(run)} has no answers of reviewers ({FOLDER}/{FILE}); review it first: tagspread review {run}"
            )
        try:
            if create:
                file.parent.mkdir(exist_ok=True)
            connection = sqlite3.connect(file, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise TagspreadError(f"{file} cannot be opened ({error}); check the permissions of {run}.") from None
        store = cls(connection, file)
        try:
            with store._reported():
                store._prepare()
        except TagspreadError:
            connection.close()
            raise
        return store

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")  # a commit is on the disk, not only in memory, when it returns
        (version,) = execute("PRAGMA user_version").fetchone()
        if version == 0:
            with self._transaction():
                (version,) = execute("PRAGMA user_version").fetchone()  # another process may have created it meanwhile
                if version == 0:
                    for statement in SCHEMA.split(";"):
                        execute(statement)
                    execute(f"PRAGMA user_version={FORMAT}")
        elif version != FORMAT:
            raise TagspreadError(
                f"{self.file} was written by another version of tagspread (format {version}, not {FORMAT}); use that "
                "version."
            )

    def __enter__(self) -> AnswerStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._connection.close()

    # --- answers ------------------------------------------------------------------------------------------------------

    def record(self, answers: Sequence[Answer], batch: str) -> bool:
        """Write answers to the disk, all or none; return False if this batch was recorded before.

        Args:
            answers: the answers of one step of a reviewer, which are undone together.
            batch: random identifier of the step, so that sending it twice records it once.
        """
        for answer in answers:
            check_choice("answer", answer.answer, ANSWERS)
        with self._reported(), self._transaction() as execute:
            if execute("SELECT 1 FROM answers WHERE batch = ? LIMIT 1", (batch,)).fetchone():
                return False
            for answer in answers:
                values = (answer.digest, _bytes(answer.image), *answer[2:], batch)
                execute(f"INSERT INTO answers ({COLUMNS}, batch) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
            return True

    def undo(self, who: str, batch: str | None = None) -> list[Answer]:
        """Undo a person's last step, or the given one; return its answers (none if there is nothing to undo)."""
        with self._reported(), self._transaction() as execute:
            if batch is None:
                last = execute(
                    "SELECT batch FROM answers WHERE who = ? AND undone_at IS NULL ORDER BY id DESC LIMIT 1", (who,)
                ).fetchone()
                if last is None:
                    return []
                (batch,) = last
            where = "WHERE batch = ? AND who = ? AND undone_at IS NULL"
            undone = [
                _answer(row) for row in execute(f"SELECT {COLUMNS} FROM answers {where} ORDER BY id", (batch, who))
            ]
            execute(f"UPDATE answers SET undone_at = ? {where}", (time.time(), batch, who))
            return undone

    def answers(self, digest: str | None = None) -> list[Answer]:
        """Return the answer that counts of each image and tag: the latest that was not undone.

        Args:
            digest: of one image; of all images by default.
        """
        latest = "SELECT max(id) FROM answers WHERE undone_at IS NULL"
        which = " AND digest = ?" if digest is not None else ""
        rows = self._select(
            f"SELECT {COLUMNS} FROM answers WHERE id IN ({latest}{which} GROUP BY digest, tag) ORDER BY id",
            () if digest is None else (digest,),
        )
        return [_answer(row) for row in rows]

    def history(self) -> list[Answer]:
        """Return all answers that were not undone, in the order in which they were given."""
        rows = self._select(f"SELECT {COLUMNS} FROM answers WHERE undone_at IS NULL ORDER BY id")
        return [_answer(row) for row in rows]

    def conflicts(self) -> list[Conflict]:
        """Return the answers on which two people disagree."""
        last: dict[tuple[str, str], dict[str, Answer]] = {}
        for answer in self.history():
            of_people = last.setdefault((answer.digest, answer.tag), {})
            of_people.pop(answer.who, None)  # so that the latest answer comes last
            of_people[answer.who] = answer
        return [
            Conflict(counts, other)
            for *others, counts in (list(of_people.values()) for of_people in last.values())
            for other in others
            if {counts.answer, other.answer} == {"yes", "no"}
        ]

    # --- new tags -----------------------------------------------------------------------------------------------------

    def add_tag(self, name: str, who: str) -> None:
        """Add a tag that the run does not have; adding it twice changes nothing."""
        with self._reported(), self._transaction() as execute:
            execute("INSERT OR IGNORE INTO tags VALUES (?, ?, ?)", (name, who, time.time()))

    def added_tags(self) -> list[str]:
        """Return the tags that reviewers added, in order."""
        return [str(name) for (name,) in self._select("SELECT name FROM tags ORDER BY at, name")]

    # --- the queue ----------------------------------------------------------------------------------------------------

    def set_queue(self, run_id: str, queue: Iterable[tuple[str, Queued]]) -> None:
        """Replace the queue of a run: pairs of an image's digest and its entry. An image is queued once."""
        with self._reported(), self._transaction() as execute:
            execute("DELETE FROM queue WHERE run = ?", (run_id,))
            for position, (digest, queued) in enumerate(queue):
                execute(
                    "INSERT OR IGNORE INTO queue VALUES (?, ?, ?, ?, ?, ?)",
                    (run_id, position, digest, queued.row, queued.strategy, json.dumps(queued.tags)),
                )

    def queue(self, run_id: str) -> list[Queued]:
        """Return the queue of a run, in order."""
        rows = self._select("SELECT row, strategy, tags FROM queue WHERE run = ? ORDER BY position", (run_id,))
        return [Queued(row, strategy, tuple(json.loads(tags))) for row, strategy, tags in rows]

    # --- leases -------------------------------------------------------------------------------------------------------

    def lease(self, digests: Iterable[str], holder: str, seconds: float) -> list[str]:
        """Reserve images for one page, so that others get different ones; return those that are reserved now.

        Args:
            digests: the images wanted; those that another page holds are omitted.
            holder: identifier of the page.
            seconds: until the lease expires, unless it is renewed.
        """
        now = time.time()
        with self._reported(), self._transaction() as execute:
            held = []
            for digest in digests:
                done = execute(
                    "INSERT INTO leases VALUES (?1, ?2, ?3) "
                    "ON CONFLICT (digest) DO UPDATE SET holder = ?2, expires = ?3 WHERE holder = ?2 OR expires < ?4",
                    (digest, holder, now + seconds, now),
                )
                if done.rowcount:
                    held.append(digest)
            return held

    def leased_by_others(self, holder: str) -> set[str]:
        """Return the images that other pages hold now."""
        rows = self._select("SELECT digest FROM leases WHERE holder <> ? AND expires >= ?", (holder, time.time()))
        return {str(digest) for (digest,) in rows}

    def release(self, holder: str) -> None:
        """Give back all images that a page holds."""
        with self._reported(), self._transaction() as execute:
            execute("DELETE FROM leases WHERE holder = ?", (holder,))

    # --- SQLite -------------------------------------------------------------------------------------------------------

    def _select(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._reported():
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[_Execute]:
        """Run a block as one transaction; nothing of it is kept if the block or the commit raises."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn an error of SQLite, such as a full disk, into one message."""
        try:
            yield
        except sqlite3.Error as error:
            if isinstance(error, sqlite3.OperationalError):
                raise TagspreadError(
                    f"{self.file} cannot be written or read ({error}); free disk space or check its permissions, then "
                    "try again. Answers saved before are kept."
                ) from None
            raise TagspreadError(
                f"{self.file} is damaged ({error}); restore it from a copy, or move it away."
            ) from None


def _answer(row: tuple[Any, ...]) -> Answer:
    answer = Answer(*row)
    return answer._replace(image=bytes(row[1]).decode("utf-8", "surrogateescape"))


def _bytes(name: str) -> bytes:
    """Return the bytes of a file name, which need not be UTF-8."""
    return name.encode("utf-8", "surrogateescape")
