"""Answers of reviewers, kept in an SQLite file beside the run: ``RUN/review/answers.sqlite``.

An answer says whether an image has a tag: yes, no, or unknown. Each answer is on the disk before the reviewer sees it
as saved (write-ahead log, ``synchronous=FULL``), so that killing the server loses nothing. Answers are only added: a
later answer of the same image and tag replaces the earlier one, and undoing an answer marks it, so that the earlier one
counts again. Images are identified by the digest that the run recorded, not by their names.

Class frequencies are estimated on an unbiased sample of the images. For it, the store keeps the order in which images
are drawn at random (``draws``), and which images a reviewer has finished (``visits``). The sample is the longest
beginning of the draws that was finished, whatever strategy queued its images: taking the answers of the strategy
``random`` only would omit the drawn images that another strategy had queued before.

This module imports neither torch nor NumPy, because the server must stay small.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from tagspread.errors import TagspreadError, check_choice

FOLDER, FILE = "review", "answers.sqlite"
FORMAT = 1  # PRAGMA user_version; raise it whenever the schema changes
NOT_UTF8 = "Could not decode to UTF-8"  # SQLite has no error of its own for it
BUSY_SECONDS = 10.0  # how long a write waits for another process

YesNo = Literal["yes", "no", "unknown"]
ANSWERS: tuple[YesNo, ...] = get_args(YesNo)
LABELS: dict[YesNo, int] = {"yes": 1, "no": 0, "unknown": -1}  # of a label table
VISIT_COLUMNS = "digest, who, at, seconds"
COLUMNS = "digest, image, tag, answer, who, at, seconds, source"  # in the order of the fields of an Answer
_T = TypeVar("_T")
_Execute: TypeAlias = Callable[..., sqlite3.Cursor]

SCHEMA = """
CREATE TABLE steps (id INTEGER PRIMARY KEY, batch TEXT NOT NULL UNIQUE, who TEXT NOT NULL, undone_at REAL);
CREATE INDEX steps_of_person ON steps (who, id) WHERE undone_at IS NULL;
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
    step INTEGER NOT NULL,
    undone_at REAL
);
CREATE INDEX answers_of_image ON answers (digest, tag, id) WHERE undone_at IS NULL;
CREATE INDEX answers_of_step ON answers (step);
CREATE TABLE visits (digest TEXT NOT NULL, who TEXT NOT NULL, at REAL NOT NULL, seconds REAL NOT NULL,
    step INTEGER NOT NULL, undone_at REAL);
CREATE INDEX visits_of_step ON visits (step);
CREATE TABLE draws (run TEXT NOT NULL, position INTEGER NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (run, position),
    UNIQUE (run, digest));
CREATE TABLE tags (name TEXT PRIMARY KEY, who TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE leases (digest TEXT PRIMARY KEY, holder TEXT NOT NULL, expires REAL NOT NULL);
CREATE TABLE queue (run TEXT NOT NULL, position INTEGER NOT NULL, digest TEXT NOT NULL, row INTEGER NOT NULL,
    strategy TEXT NOT NULL, tags TEXT NOT NULL, PRIMARY KEY (run, position), UNIQUE (run, digest));
"""


class StoreError(TagspreadError):
    """Raised when the file of the answers cannot be written or read; trying again may help."""


class Answer(NamedTuple):
    """What a person said about one image and one tag.

    Attributes:
        digest: digest of the image file, as in ``split.csv``.
        image: name of the image in the run.
        tag: the tag.
        answer: ``yes``, ``no`` or ``unknown``.
        who: name of the person.
        when: time of the answer, in seconds since 1970.
        seconds: how long the answer took; the time of a step is shared by its answers.
        source: strategy by which the image was queued; ``grid`` for answers in the grid of a tag, and ``open`` for an
            image that was chosen by hand. It is no proof of a random draw, see :meth:`AnswerStore.random_sample`.
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


class Visit(NamedTuple):
    """An image that a person has finished or skipped.

    Attributes:
        digest: digest of the image.
        who: name of the person.
        when: time of the visit, in seconds since 1970.
        seconds: how long it took.
    """

    digest: str
    who: str
    when: float
    seconds: float


class Step(NamedTuple):
    """What a reviewer did at once, and undoes at once."""

    answers: list[Answer]
    visits: list[Visit]


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
        execute("PRAGMA trusted_schema=OFF")
        (version,) = execute("PRAGMA user_version").fetchone()
        if version == 0 and _schema_of(self._connection):
            raise TagspreadError(
                f"{self.file} was not written by tagspread review; move it elsewhere, or restore the answers."
            )
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
        if _schema_of(self._connection) != _own_schema():  # a view or a trigger could do anything
            raise StoreError(f"{self.file} is damaged (its tables were changed); restore it from a copy.")

    def __enter__(self) -> AnswerStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._connection.close()

    # --- answers ------------------------------------------------------------------------------------------------------

    def record(self, answers: Sequence[Answer], batch: str, who: str = "", visits: Sequence[Visit] = ()) -> bool:
        """Write a step to the disk, completely or not at all; return False if it was recorded before.

        Args:
            answers: the answers of one step of a reviewer, which are undone together.
            batch: random identifier of the step, so that sending it twice records it once.
            who: the person; by default as in the answers.
            visits: the images that the step finishes.
        """
        for answer in answers:
            check_choice("answer", answer.answer, ANSWERS)
        person = who or (answers[0].who if answers else visits[0].who)
        with self._reported(), self._transaction() as execute:
            step = execute("INSERT OR IGNORE INTO steps (batch, who) VALUES (?, ?)", (batch, person))
            if not step.rowcount:
                return False
            for answer in answers:
                values = (answer.digest, _bytes(answer.image), *answer[2:], step.lastrowid)
                execute(f"INSERT INTO answers ({COLUMNS}, step) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
            for visit in visits:
                execute(f"INSERT INTO visits ({VISIT_COLUMNS}, step) VALUES (?, ?, ?, ?, ?)", (*visit, step.lastrowid))
            return True

    def undo(self, who: str, batch: str | None = None) -> Step | None:
        """Undo a person's last step, or the given one; return what was undone, None if there is nothing to undo."""
        which = "who = ? AND undone_at IS NULL" + (" AND batch = ?" if batch is not None else "")
        with self._reported(), self._transaction() as execute:
            last = execute(
                f"SELECT id FROM steps WHERE {which} ORDER BY id DESC LIMIT 1",
                (who,) if batch is None else (who, batch),
            ).fetchone()
            if last is None:
                return None
            undone = Step(
                [_answer(row) for row in execute(f"SELECT {COLUMNS} FROM answers WHERE step = ? ORDER BY id", last)],
                [_visit(row) for row in execute(f"SELECT {VISIT_COLUMNS} FROM visits WHERE step = ?", last)],
            )
            for table, column in (("steps", "id"), ("answers", "step"), ("visits", "step")):
                execute(f"UPDATE {table} SET undone_at = ? WHERE {column} = ?", (time.time(), *last))
            return undone

    def answers(self, digest: str | None = None) -> list[Answer]:
        """Return the answer that counts of each image and tag: the latest that was not undone.

        Args:
            digest: of one image; of all images by default.
        """
        latest = "SELECT max(id) FROM answers WHERE undone_at IS NULL"
        which = " AND digest = ?" if digest is not None else ""
        return self._select(
            f"SELECT {COLUMNS} FROM answers WHERE id IN ({latest}{which} GROUP BY digest, tag) ORDER BY id",
            () if digest is None else (digest,),
            make=_answer,
        )

    def history(self, digest: str | None = None) -> list[Answer]:
        """Return all answers that were not undone, in the order in which they were given.

        Args:
            digest: of one image; of all images by default.
        """
        return self._select(
            f"SELECT {COLUMNS} FROM answers WHERE undone_at IS NULL{' AND digest = ?' if digest else ''} ORDER BY id",
            (digest,) if digest else (),
            make=_answer,
        )

    def conflicts(self, digest: str | None = None) -> list[Conflict]:
        """Return the answers on which two people disagree.

        Args:
            digest: of one image; of all images by default.
        """
        last: dict[tuple[str, str], dict[str, Answer]] = {}
        for answer in self.history(digest):
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
        return self._select("SELECT name FROM tags ORDER BY at, name", make=_text)

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
        query = "SELECT row, strategy, tags FROM queue WHERE run = ? ORDER BY position"
        return self._select(query, (run_id,), make=_queued)

    # --- the random sample --------------------------------------------------------------------------------------------

    def set_draws(self, run_id: str, digests: Iterable[str]) -> None:
        """Keep the order in which images of a run are drawn at random; an order that was kept before stays."""
        with self._reported(), self._transaction() as execute:
            if not execute("SELECT 1 FROM draws WHERE run = ? LIMIT 1", (run_id,)).fetchone():
                for position, digest in enumerate(digests):
                    execute("INSERT OR IGNORE INTO draws VALUES (?, ?, ?)", (run_id, position, digest))

    def draws(self, run_id: str) -> list[str]:
        """Return the digests of a run's images in the order in which they are drawn at random."""
        return self._select("SELECT digest FROM draws WHERE run = ? ORDER BY position", (run_id,), make=_text)

    def visited(self) -> set[str]:
        """Return the digests of the images that were finished or skipped."""
        return set(self._select("SELECT DISTINCT digest FROM visits WHERE undone_at IS NULL", make=_text))

    def random_sample(self, run_id: str) -> list[str]:
        """Return the images of the unbiased sample: the draws in order, up to the first that was not visited.

        An image that a reviewer skipped is in the sample, without answers.
        """
        visited = self.visited()
        return list(itertools.takewhile(visited.__contains__, self.draws(run_id)))

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
        query = "SELECT digest FROM leases WHERE holder <> ? AND expires >= ?"
        return set(self._select(query, (holder, time.time()), make=_text))

    def release(self, holder: str | None = None) -> None:
        """Give back all images that a page holds; of all pages if None, when a server starts."""
        with self._reported(), self._transaction() as execute:
            execute("DELETE FROM leases WHERE holder = ? OR ? IS NULL", (holder, holder))

    # --- SQLite -------------------------------------------------------------------------------------------------------

    def _select(self, query: str, values: Sequence[object] = (), *, make: Callable[[tuple[Any, ...]], _T]) -> list[_T]:
        with self._lock, self._reported():
            return [make(row) for row in self._connection.execute(query, values)]

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
            if isinstance(error, sqlite3.OperationalError) and NOT_UTF8 not in str(error):
                raise StoreError(
                    f"{self.file} cannot be written or read ({error}); free disk space or check its permissions, then "
                    "try again. Answers saved before are kept."
                ) from None
            raise StoreError(f"{self.file} is damaged ({error}); restore it from a copy, or move it away.") from None


def _schema_of(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the statements that made the tables and indexes of a file, by name."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {name: " ".join(sql.split()) for name, sql in rows}


@functools.cache
def _own_schema() -> dict[str, str]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        return _schema_of(connection)


def _answer(row: tuple[Any, ...]) -> Answer:
    digest, image, tag, answer, who, at, seconds, source = row
    are_texts = all(isinstance(text, str) for text in (digest, tag, who, source)) and isinstance(image, bytes)
    if not are_texts or not _are_times(at, seconds) or answer not in ANSWERS:
        raise sqlite3.DataError(f"an answer is {str(row)[:200]}")
    return Answer(digest, image.decode("utf-8", "surrogateescape"), tag, answer, who, at, seconds, source)


def _visit(row: tuple[Any, ...]) -> Visit:
    digest, who, at, seconds = row
    if not isinstance(digest, str) or not isinstance(who, str) or not _are_times(at, seconds):
        raise sqlite3.DataError(f"a visit is {str(row)[:200]}")
    return Visit(digest, who, at, seconds)


def _queued(row: tuple[Any, ...]) -> Queued:
    number, strategy, text = row
    try:
        tags = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        tags = None
    if not isinstance(number, int) or not isinstance(strategy, str) or not isinstance(tags, list):
        raise sqlite3.DataError(f"an entry of the queue is {str(row)[:200]}")
    if not all(isinstance(tag, str) for tag in tags):
        raise sqlite3.DataError(f"an entry of the queue has the tags {text[:200]}")
    return Queued(number, strategy, tuple(tags))


def _text(row: tuple[Any, ...]) -> str:
    if not isinstance(row[0], str):
        raise sqlite3.DataError(f"{str(row[0])[:200]} is no text")
    return row[0]


def _are_times(*values: object) -> bool:
    return all(isinstance(value, float | int) for value in values)


def _bytes(name: str) -> bytes:
    """Return the bytes of a file name, which need not be UTF-8."""
    return name.encode("utf-8", "surrogateescape")
