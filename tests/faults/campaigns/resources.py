"""Resources: full disks, little memory, closed and full output, folders that cannot be written, odd environments."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.campaigns.faults import ERRORS, Operations, fail
from tests.faults.campaigns.harness import Case, Flaw, Result, command, contents
from tests.faults.campaigns.work import CPU, WORKS, Aftermath
from tests.faults.campaigns.world import World

MANY = 200_000
ODD_NAMES = ("caf\u00e9 \U0001f600.png", "=1+1.png", "a\nb.png", "-x.png", "[bold].png")


class Resources:
    """A command runs where something is missing; it ends well or with one message, and a second try works."""

    name = "resources"
    count = 300
    quick = 8
    trains = True

    def __init__(self, world: World, number: int) -> None:
        del number
        self._world, self._aftermath = world, Aftermath(world)

    def case(self, rng: random.Random, folder: Path) -> Case:
        """Return one case."""
        kinds: tuple[Callable[[random.Random, Path], Case], ...] = (
            self._failing,
            self._failing,
            self._failing,
            self._short_files,
            self._little_memory,
            self._few_files,
            self._output,
            self._output,
            self._environment,
            self._clock,
            self._ascii,
        )
        if rng.random() < 0.02:
            return self._locale(rng, folder)
        return rng.choice(kinds)(rng, folder)

    def _work(
        self, rng: random.Random, top: Path, words: str, before: Callable[[], None], codes: tuple[int, ...] = (2,)
    ) -> Case:
        """Return a case that runs a command after ``before`` in the same process."""
        work = rng.choice(WORKS)
        self._aftermath.new(work)
        work.begin(self._world, top)
        inputs = contents(self._world.images)

        def job() -> None:
            before()
            command(*work.words(self._world, top))()

        def check(result: Result) -> Flaw | None:
            del result
            return self._aftermath.check(work, top, inputs)

        return Case(f"{work.name}: {words}", job, check, codes=codes)

    def _failing(self, rng: random.Random, folder: Path) -> Case:
        """Let an operation on a file fail, once or from there on: a full or read-only disk."""
        number, at, lasting = rng.choice(ERRORS), rng.randrange(rng.choice((3, 10, 60))), rng.random() < 0.7
        top = folder / "work"
        words = f"{os.strerror(number)} {'from' if lasting else 'at'} operation {at}"
        return self._work(rng, top, words, lambda: Operations(top, at, fail(number), lasting).start())

    def _short_files(self, rng: random.Random, folder: Path) -> Case:
        """Let no file become larger than some bytes."""
        most = rng.choice((0, 1, 100, 5000, 20_000, 100_000))

        def limit() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

        return self._work(rng, folder / "work", f"files of at most {most} bytes", limit)

    def _little_memory(self, rng: random.Random, folder: Path) -> Case:
        """Give little memory beyond what the process has."""
        more = rng.choice((0, 1, 5, 20, 60, 150, 400)) * 2**20

        def limit() -> None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + more
            resource.setrlimit(resource.RLIMIT_AS, (most, most))

        return self._work(rng, folder / "work", f"{more // 2**20} MB more memory", limit)

    def _few_files(self, rng: random.Random, folder: Path) -> Case:
        """Let few files be open at a time."""
        most = rng.choice((6, 8, 10, 12, 16, 24))
        return self._work(
            rng, folder / "work", f"{most} open files", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        )

    def _output(self, rng: random.Random, folder: Path) -> Case:
        """Print into a full disk, a closed file or a pipe that nobody reads."""
        kind, numbers = rng.choice(("full", "closed", "unread")), rng.choice(((1,), (1,), (2,), (1, 2)))

        def spoil() -> None:
            for number in numbers:
                if kind == "full":
                    os.dup2(os.open("/dev/full", os.O_WRONLY), number)
                elif kind == "closed":
                    os.close(number)
                else:
                    reading, writing = os.pipe()
                    os.close(reading)
                    os.dup2(writing, number)
            names = {1: "stdout", 2: "stderr"}
            for number in numbers:
                closed = kind == "closed"
                setattr(sys, names[number], None if closed else open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115

        # what is said about it cannot be seen where it is the errors that cannot be printed
        case = self._work(rng, folder / "work", f"{kind} output {numbers}", spoil, codes=(2, 141))
        case.silent = 2 in numbers or kind == "unread"
        return case

    def _environment(self, rng: random.Random, folder: Path) -> Case:
        """Take the home folder, the folder for temporary files or the terminal away."""
        choices: tuple[dict[str, str | None], ...] = (
            {"HOME": None},
            {"HOME": "/nonexistent"},
            {"HOME": "/dev/null"},
            {"TMPDIR": "/nonexistent"},
            {"TERM": "dumb"},
            {"COLUMNS": "1"},
            {"COLUMNS": "x"},
            {"TERM": None},
            {"NO_COLOR": "1"},
            {"XDG_CACHE_HOME": "/nonexistent/cache"},
            {"SOURCE_DATE_EPOCH": "x"},
            {"PATH": ""},
            {"LANG": "xx_YY"},
            {"FORCE_COLOR": "1"},
            {"OMP_NUM_THREADS": "x"},
        )
        changes = rng.choice(choices)

        def change() -> None:
            for name, value in changes.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

        return self._work(rng, folder / "work", f"environment {changes}", change)

    def _clock(self, rng: random.Random, folder: Path) -> Case:
        """Let the clock go backwards, stand, or be far in the past or future."""
        step, start = rng.choice((-3600.0, -0.001, 0.0, 1e6)), rng.choice((0.0, time.time(), 4e9))

        def change() -> None:
            now = [start]

            def wrong_time() -> float:
                now[0] = max(0.0, now[0] + step)
                return now[0]

            time.time = wrong_time
            time.time_ns = lambda: int(wrong_time() * 1e9)

        return self._work(rng, folder / "work", f"clock at {start:.0f}, steps of {step}", change)

    def _ascii(self, rng: random.Random, folder: Path) -> Case:
        """Print ASCII only, about images with odd names."""
        images = folder / "images"
        images.mkdir()
        for source, name in zip(sorted(self._world.images.glob("*.png")), ODD_NAMES, strict=False):
            shutil.copy(source, images / name)
        (images / "broken \u00e9.png").write_bytes(b"x")
        labels = folder / "labels.csv"
        labels.write_text(f"image,tags\n{ODD_NAMES[0]},caf\u00e9\n-x.png,\U0001f600|=2\n", encoding="utf-8")
        words = rng.choice(
            (
                ("check", images, "--labels", labels),
                ("predict", self._world.run, images, *CPU),
                ("--help",),
                ("predict", self._world.run, images, "-o", folder / "t.csv", *CPU),
                ("train", "--help"),
                ("methods",),
                ("train", images, "--labels", labels, "--out", folder / "caf\u00e9"),
                ("report", folder / "caf\u00e9"),
            )
        )
        encoding = rng.choice(("ascii", "latin-1", "cp1252", "cp437"))

        def job() -> None:
            sys.stdout, sys.stderr = (
                open(number, "w", encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
                for number, errors in ((1, "strict"), (2, "backslashreplace"))
            )
            command(*words)()

        return Case(f"{encoding} output: {' '.join(map(str, words[:1]))}", job, codes=(1, 2))

    def _locale(self, rng: random.Random, folder: Path) -> Case:
        """Start the program in the C locale."""
        more = rng.choice(
            ({"LC_ALL": "C", "PYTHONUTF8": "0"}, {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"})
        )
        words = rng.choice(
            (
                ("check", self._world.images, "--labels", self._world.images / "labels.csv"),
                ("--help",),
                ("predict", self._world.run, self._world.images, "-o", folder / "t.csv"),
            )
        )
        environment = {
            name: value for name, value in os.environ.items() if name not in ("LC_ALL", "LANG", "HOME")
        } | more

        def job() -> None:
            done = subprocess.run([sys.executable, "-m", "tagspread", *map(str, words)], env=environment, check=False)
            sys.exit(done.returncode)

        return Case(f"{more}: {words[0]}", job, seconds=60)
