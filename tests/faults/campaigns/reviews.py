"""Reviews: damaged answers, scores and features that are kept beside a run, read by the commands that use them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from tests.faults.campaigns.harness import Case, Flaw, Result, command, contents
from tests.faults.campaigns.mutate import damaged, wrong_tensors, wrong_value
from tests.faults.campaigns.work import CPU
from tests.faults.campaigns.world import SMALL, World, copy_of

ANSWERS = "review/answers.sqlite"
CELLS = (
    None, 0, -1, 2**62, 1e308, "", "x", "x" * 100_000, "a\0b", "yes", "no", "unknown", "../../etc/passwd",
    "/etc/passwd", b"\xff",
    b"", b"x" * 10, "=1+1", "\U0001f600", "[/]", "1",
)  # fmt: skip
STATEMENTS = (
    "DROP TABLE answers", "DROP TABLE visits", "DROP TABLE draws", "DROP TABLE steps", "DROP INDEX answers_of_image",
    "ALTER TABLE answers RENAME COLUMN who TO whom", "ALTER TABLE answers ADD COLUMN more TEXT",
    "PRAGMA user_version=0",
    "PRAGMA user_version=2", "PRAGMA user_version=-1", "DELETE FROM draws", "DELETE FROM steps", "DELETE FROM visits",
    "DROP TABLE answers; CREATE VIEW answers AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT i AS id FROM n",
    "DROP TABLE visits; CREATE VIEW visits AS SELECT 'x' AS digest, 'x' AS who, 1 AS at, 1 AS seconds, 1 AS step, "
    "NULL AS undone_at",
    "CREATE TRIGGER t AFTER INSERT ON visits BEGIN DELETE FROM answers; END", "CREATE TABLE more (x)",
    "UPDATE draws SET position = position + 1000", "PRAGMA journal_mode=DELETE", "DROP TABLE tags", "DROP TABLE queue",
)  # fmt: skip


class Reviews:
    """``audit``, ``suggest``, ``review`` and ``train`` on a run whose answers or kept scores are damaged."""

    name = "reviews"
    count = 500
    quick = 8
    trains = True

    def __init__(self, world: World, number: int) -> None:
        del number
        self._world = world

    @property
    def _reviewed(self) -> Path:
        """A run with answers, a queue, scores and an index."""
        return self._world.once("reviewed", self._review)

    def _review(self, run: Path) -> None:
        copy_of(self._world.run, run)

        def job() -> None:
            in_this_process()
            from tagspread.review.answers import Answer, AnswerStore, Visit
            from tagspread.review.index import read_index
            from tagspread.review.prepare import prepare_index

            prepare_index(run, device="cpu", quiet=True)
            index = read_index(run)
            assert index is not None
            with AnswerStore.open(run, create=True) as store:
                for k, digest in enumerate(store.draws(index.run_id)[:5]):
                    at = index.digests.index(digest)
                    given = [
                        Answer(
                            digest,
                            index.names[at],
                            tag,
                            ("yes", "no", "unknown")[(k + i) % 3],
                            "ann",
                            1.0,
                            1.0,
                            "random",
                        )
                        for i, tag in enumerate(index.classes)
                    ]
                    store.record(given, f"batch-{k:04}", "ann", [Visit(digest, "ann", 1.0, 1.0)])
                store.add_tag("new", "bob")

        result = self._world.harness.process(job, 300)
        if result.code:
            raise RuntimeError(result.said)
        with sqlite3.connect(run / ANSWERS) as connection:  # one file, so that copies are whole
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @property
    def _cached(self) -> Path:
        """A folder of cached features."""
        return self._world.once("cached", self._cache)

    def _cache(self, folder: Path) -> None:
        result = self._world.harness.process(command(*self._head(self._world.top / "cached-run", folder)), 300)
        if result.code:
            raise RuntimeError(result.said)

    def _head(self, out: Path, cache: Path) -> tuple[object, ...]:
        images = self._world.images
        return (
            "train", images, "--labels", images / "labels.csv", "--test-labels", images / "test.csv", "--out", out,
            "--mode",
            "head", "--backbone", "small", "--weights", "none", "--image-size", "24", "--cache", cache, "-q", *CPU,
        )  # fmt: skip

    def case(self, rng: random.Random, folder: Path) -> Case:
        """Return one case."""
        kind = rng.choice((self._features, *(self._of_review,) * 5))
        return kind(rng, folder)

    def _of_review(self, rng: random.Random, folder: Path) -> Case:
        run = copy_of(self._reviewed, folder / "run")
        name, damage = rng.choice(
            (
                (ANSWERS, self._answers), (ANSWERS, self._answers), ("review/evidence.npz", self._arrays),
                ("review/index.npz", self._arrays), ("review/index.npz", self._arrays),
            )
        )  # fmt: skip
        words = damage(run / name, rng)
        images = self._world.images
        before = contents(images)
        answers = (run / ANSWERS).read_bytes() if (run / ANSWERS).is_file() else b""
        reading: dict[str, tuple[object, ...]] = {
            "audit": ("audit", run, *(("--json",) if rng.random() < 0.5 else ())),
            "suggest": ("suggest", run, "-o", folder / "next.csv", "-n", "5", *CPU),
            "export": ("review", run, "--export", folder / "labels.csv"),
            "review": ("review", run, "--port", "0", *CPU),
            "train": ("train", images, "--labels", images / "labels.csv", "--answers", run, "--out", folder / "out",
            *SMALL),
            "priors": (
                "train", images, "--labels", images / "labels.csv", "--answers", run, "--priors", "audit", "--out",
                folder / "out",
                *SMALL,
            ),
        }  # fmt: skip
        readers = {
            ANSWERS: ("audit", "suggest", "export", "review", "review", "train", "priors"),
            "review/evidence.npz": ("suggest",),
        }
        what = rng.choice(readers.get(name, ("review",)))

        def job() -> None:
            in_this_process()
            if what == "review":
                use_the_page()
            command(*reading[what])()

        def check(result: Result) -> Flaw | None:
            if contents(images) != before:
                return Flaw("lost", "an image or a table was changed")
            if result.code and answers and not (run / ANSWERS).is_file():
                return Flaw("lost", "the answers are gone")
            return None

        return Case(f"{name}: {words}; {what}", job, check)

    def _answers(self, file: Path, rng: random.Random) -> str:
        """Damage the answers: bytes, cells, tables, or the file as a whole."""
        kind = rng.choice(("bytes", "cell", "cell", "cell", "statement", "statement", "file"))
        if kind == "bytes":
            data, words = damaged(file.read_bytes(), rng)
            file.write_bytes(data)
            return words
        if kind == "file":
            words = rng.choice(("empty", "folder", "text", "other program", "cut", "loop", "log", "unwritable"))
            data = file.read_bytes()
            if words != "log" and words != "unwritable":
                file.unlink()
            if words == "empty":
                file.write_bytes(b"")
            elif words == "folder":
                file.mkdir()
            elif words == "text":
                file.write_text("image,tag\n" * 1000)
            elif words == "other program":
                with sqlite3.connect(file) as other:
                    other.execute("CREATE TABLE photos (x)")
            elif words == "cut":
                file.write_bytes(data[: rng.randrange(len(data))])
            elif words == "loop":
                file.symlink_to(file.name)
            elif words == "log":
                file.with_name(file.name + "-wal").write_bytes(rng.randbytes(5000))
            return words
        with sqlite3.connect(file) as connection:
            if kind == "statement":
                words = rng.choice(STATEMENTS)
                connection.executescript(words)
            else:
                table = rng.choice(("answers", "answers", "answers", "visits", "draws", "tags", "queue", "steps"))
                columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
                column, value = rng.choice(columns), rng.choice(CELLS)
                connection.execute("PRAGMA ignore_check_constraints=ON")
                words = f"{table}.{column} = {value!r:.40}"
                where = rng.choice(("", " WHERE rowid = 1"))
                with contextlib.suppress(sqlite3.IntegrityError):  # of the numbers of rows
                    connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?{where}", (value,))
        connection.close()
        return words

    def _arrays(self, file: Path, rng: random.Random) -> str:
        """Damage a file of arrays: bytes, facts, or the shape, type or values of an array."""
        if rng.random() < 0.2:
            data, words = damaged(file.read_bytes(), rng)
            file.write_bytes(data)
            return words
        with np.load(file) as opened:
            arrays: dict[str, Any] = dict(opened)
        facts = json.loads(arrays.pop("facts").tobytes())
        name = rng.choice((*arrays, "facts", "facts"))
        if name == "facts":
            sources, format_ = facts.get("sources"), facts.get("format")
            facts, words = wrong_value(facts, rng)
            if isinstance(facts, dict) and rng.random() < 0.8:
                facts |= {"sources": sources, "format": format_}
        else:
            array = arrays[name]
            odd: dict[str, Callable[[], Any]] = {
                "flat": array.ravel,
                "shorter": lambda: array[:-1],
                "longer": lambda: np.concatenate([array, array]),
                "empty": lambda: array[:0],
                "scalar": lambda: np.array(3),
                "text": lambda: array.astype("U10"),
                "negative": lambda: np.full(array.shape, -7, array.dtype if array.dtype != bool else np.int64),
                "huge": lambda: np.full(array.shape, 2**62),
                "nan": lambda: np.full(array.shape, np.nan),
                "narrow": lambda: array[..., :-1],
                "objects": lambda: array.astype(object),
                "complex": lambda: array.astype(complex),
                "cube": lambda: array[..., None],
            }
            kind = rng.choice((*odd, "missing"))
            words = f"{name}: {kind}"
            if kind == "missing":
                del arrays[name]
            else:
                arrays[name] = odd[kind]()
        written = io.BytesIO()
        np.savez(written, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays)
        file.write_bytes(written.getvalue())
        return words

    def _features(self, rng: random.Random, folder: Path) -> Case:
        """Damage cached features, then train a head with them; whatever is damaged is computed again."""
        cache = Path(shutil.copytree(self._cached, folder / "cache"))
        file = rng.choice(sorted(path for path in cache.rglob("*") if path.is_file() and path.stat().st_size))
        data = file.read_bytes()
        if file.suffix == ".safetensors" and rng.random() < 0.7:
            data, words = wrong_tensors(data, rng)
        else:
            data, words = damaged(data, rng)
        if rng.random() < 0.05:
            file.unlink()
            file.mkdir()
        else:
            file.write_bytes(data)
        before, right = contents(self._world.images), (self._world.top / "cached-run/model.safetensors").read_bytes()

        def check(result: Result) -> Flaw | None:
            if contents(self._world.images) != before:
                return Flaw("lost", "an image or a table was changed")
            # pixels have no checksum: the folder of --cache is one's own
            if (
                file.suffix == ".safetensors"
                and not result.code
                and (folder / "out/model.safetensors").read_bytes() != right
            ):
                return Flaw("lost", "the model is not that of undamaged features")
            return None

        name = f"features {file.relative_to(cache)}: {words}"
        return Case(name, command(*self._head(folder / "out", cache)), check)


class _Now:
    """Runs what a pool of processes would run, at once and here."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> _Now:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, job: Callable[..., object], *words: Any, **more: Any) -> _Now:
        job(*words, **more)
        return self

    def result(self) -> None: ...


def in_this_process() -> None:
    """Prepare reviews in this process: to start another one takes seconds."""
    from tagspread.review import prepare

    setattr(prepare, "ProcessPoolExecutor", _Now)  # noqa: B010  # not one of its exports


def use_the_page() -> None:
    """In place of serving the page, ask for all that the page asks for."""
    import uvicorn

    def run(self: Any, sockets: Any = None) -> None:
        asyncio.run(_visit(self.config.app, sockets[0].getsockname()[1]))

    uvicorn.Server.run = run  # type: ignore[method-assign]


async def _visit(guard: Any, port: int) -> None:
    host = f"127.0.0.1:{port}"

    async def ask(path: str, **values: Any) -> dict[str, Any]:
        """Send a request, with values a POST; return the JSON of the answer."""
        content, path = json.dumps({"page": "12345678", "who": "eve"} | values).encode(), f"/{guard._token}{path}"
        path, _, query = path.partition("?")
        headers = {
            "host": host, "origin": f"http://{host}", "content-type": "application/json",
            "content-length": str(len(content)),
        }  # fmt: skip
        scope = {
            "type": "http", "method": "POST" if values else "GET", "path": path, "raw_path": path.encode(),
            "query_string": query.encode(), "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
            "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", port), "client": ("127.0.0.1", 1),
            "root_path": "",
        }  # fmt: skip
        said = bytearray()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            said.extend(message.get("body", b""))

        await guard(scope, receive, send)
        found = json.loads(said) if said.startswith(b"{") else {}
        return found if isinstance(found, dict) else {}

    await ask("/")
    tags = (await ask("/api/overview")).get("tags", [])
    items = (await ask("/api/next", count=3)).get("items", [])
    for item in items:
        for size in ("small", "large"):
            await ask(f"/image/{item['image']}/{size}")
        await ask(f"/api/item/{item['image']}")
    for tag in tags[:2]:
        await ask(f"/api/examples?tag={quote(tag, safe='')}")
        await ask("/api/grid", count=3, tag=tag, side="missed")
    given = [{"image": item["image"], "tag": tag, "answer": "yes"} for item in items for tag in tags[:1]]
    await ask("/api/answers", batch="abcdefgh", answers=given, visited=[item["image"] for item in items], seconds=1)
    await ask("/api/undo", batch="abcdefgh")
    await ask("/api/next", count=3, status="conflict")
