"""Options: every option of every command with odd values; paths that are odd, missing, or of another kind."""

from __future__ import annotations

import os
import random
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.faults.campaigns.harness import Case, Flaw, Result, command, contents
from tests.faults.campaigns.work import CPU
from tests.faults.campaigns.world import SMALL, World, copy_of

NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "2.5",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "1e-320",
    "9" * 30,
    "9" * 5000,
    "0x10",
    "1_0",
    "1,5",
)
TEXTS = (
    "", " ", "x", "X" * 5000, "a\nb", "\udcff", "\u202e", "\U0001f600", "[bold]", "[/]", "[red]x", "%s%n", "{0}",
    "=1+1",
    "auto", "all", "none", "cpu", "cuda:99", "cuda:x", "mps", "precision:0.9", "precision:2", "precision:nan", "fbeta:",
    "fbeta:-1", "fbeta:1e308", "match", "f1:", "evil.py:Rule", "evil.py", ":", "evil.py:", "os:system", "resnet50",
    "a=b", "=", "\x1b[2J", "None", "null", "true", "[]", "{}", "\\", "|", "||", ",", "\t", "\x7f",
)  # fmt: skip
PATHS = (
    ".", "/", "..", "~", "/dev/null", "/dev/full", "/dev/zero", "/dev/stdin", "/proc/self/mem", "/nonexistent/a/b",
    "/etc/passwd", "http://127.0.0.1:9/x.csv", "s3://bucket/x", "file:///etc/passwd", "x" * 300, "x/" * 3000, "con",
)  # fmt: skip
OWN_PATHS = (  # below the folder of the case
    "images", "images/labels.csv", "images/p00.png", "images/test.csv", "run", "run/config.json", "run/labels.json",
    "pipe",
    "loop", "empty.csv", "empty", "new.csv", "new.parquet", "new.jsonl", "new.onnx", "new.json", "new.html", "new",
    "a\nb.csv",
    "\udcff.csv", "-x.csv", "[bold].csv", "secret", "secret/x.csv", "run/split.csv", "run/model.safetensors",
)  # fmt: skip
LONG = ("--epochs", "--warmup-epochs", "--canvases", "--samples", "--budget")  # any number is a fair wish
HOSTS = ("", "x", "256.1.1.1", "::1", "[::1]", "127.0.0.1", "localhost", "\udcff", "a b", "x" * 300, "\u00e9.example")
SKIPPED = ("bench", "demo")  # have too much to do
EVIL = "import pathlib\npathlib.Path({canary!r}).write_text('executed')\n"
SETTINGS = (
    "epochs", "lr", "ema_decay", "weight_decay", "batch", "image_size", "seed", "method", "method_options", "mode",
    "flip",
    "warmup_epochs", "weights", "backbone", "selection", "workers", "x", "", "lr.x", "__class__", "held_out",
    "stop_after",
)  # fmt: skip


class Options:
    """A command with one to three odd options or paths: it refuses them with one message, or works."""

    name = "options"
    count = 700
    quick = 10
    trains = True

    def __init__(self, world: World, number: int) -> None:
        del number
        self._world = world

    @cached_property
    def _commands(self) -> dict[str, list[Any]]:
        """The options of each command, as it declares them."""
        import typer

        from tagspread.cli import app

        group: Any = typer.main.get_command(app)
        return {name: found.params for name, found in sorted(group.commands.items()) if name not in SKIPPED}

    def case(self, rng: random.Random, folder: Path) -> Case:
        """Return one case."""
        self._begin(folder)
        name = rng.choice(sorted(self._commands))
        words: list[object] = list(self._usual(name, folder))
        done = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            if rng.random() < 0.25:  # a path among the arguments
                if not (places := [k for k, word in enumerate(words) if isinstance(word, Path)]):
                    continue
                at = rng.choice(places)
                words[at] = self._path(rng, folder)
                done.append(f"{words[at]!s:.60}")
                continue
            options = [
                param for param in self._commands[name] if param.opts[0].startswith("-") and param.name != "help"
            ]
            if not options:
                continue
            param = rng.choice(options)
            words.append(param.opts[0])
            done.append(param.opts[0])
            if not getattr(param, "is_flag", False):
                words.append(self._value(rng, folder, param.opts[0], _kind(param), str(param.metavar)))
                done[-1] += f" {words[-1]!s:.60}"
        before = contents(self._world.images)
        kept = contents(folder / "images") | {"secret": (folder / "secret/own.txt").read_text()}

        def job() -> None:
            os.chdir(folder / "cwd")
            _serve_nothing()
            command(name, *words)()

        def check(result: Result) -> Flaw | None:
            if contents(self._world.images) != before:
                return Flaw("lost", "an image or a table was changed")
            now = contents(folder / "images") | {"secret": (folder / "secret/own.txt").read_text()}
            overwrites = "--overwrite" in words
            gone = [file for file, digest in kept.items() if now.get(file) != digest]
            if gone and not (overwrites and all(file.endswith(".csv") for file in gone)):
                return Flaw("lost", f"{gone[0]} was changed or is gone")
            return None

        codes = (1, 2) if name == "check" else (2,)
        return Case(f"{name} {'; '.join(done)}".encode(errors="backslashreplace").decode(), job, check, codes=codes)

    def _begin(self, folder: Path) -> None:
        """Make the files that odd paths name."""
        shutil.copytree(self._world.images, folder / "images")
        copy_of(self._world.run, folder / "run")
        for name in ("empty", "secret", "cwd"):
            (folder / name).mkdir()
        (folder / "secret/own.txt").write_text("mine")
        (folder / "cwd/evil.py").write_text(EVIL.format(canary=str(self._world.harness.canary)))
        (folder / "empty.csv").write_bytes(b"")
        (folder / "loop").symlink_to("loop")
        os.mkfifo(folder / "pipe")

    def _path(self, rng: random.Random, folder: Path) -> object:
        name = rng.choice((*PATHS, *OWN_PATHS, *OWN_PATHS))
        return folder / name if name in OWN_PATHS else name

    def _value(self, rng: random.Random, folder: Path, option: str, kind: str, metavar: str) -> object:
        """Return an odd value of the kind that the option expects, or of another kind."""
        if option == "--set":
            value = rng.choice((*NUMBERS[:-4], *TEXTS, "true", '"x"', "[1]", '{"a": 1}', "[" * 5000))
            name = rng.choice(SETTINGS)
            return f"{name}={value}" if name not in ("epochs", "warmup_epochs") else f"{name}={rng.choice(TEXTS)}"
        if option in LONG:
            return rng.choice(("0", "-1", "1", "nan", "1.5", "x", ""))
        if option == "--host":
            return rng.choice(HOSTS)
        if kind == "path" or metavar in ("FILE", "DIR", "RUN") or rng.random() < 0.15:
            return self._path(rng, folder)
        return rng.choice(NUMBERS if kind == "number" else (*NUMBERS[:4], *TEXTS))

    def _usual(self, name: str, folder: Path) -> tuple[object, ...]:
        """Return arguments with which the command works."""
        images, run = folder / "images", folder / "run"
        tables = ("--labels", images / "labels.csv")
        tested = ("--labels", images / "test.csv")
        return {
            "check": (images, *tables),
            "train": (images, *tables, "--out", folder / "out", *SMALL),
            "embed": (images / "p00.png", "-o", folder / "f.npz", "--backbone", "small", "--weights", "none",
            "--image-size", "24", *CPU),
            "predict": (run, images, "-o", folder / "tags.csv", *CPU),
            "evaluate": (run, *tested, *CPU),
            "compare": (run, run, *tested, *CPU),
            "thresholds": (run, *tested, *CPU),
            "report": (run, "-o", folder / "report.html", *CPU),
            "review": (run, "--export", folder / "labels.csv"),
            "export": (run, "--hub", folder / "hub"),
            "pseudo-labels": (run, "--label-studio", folder / "tasks.json"),
            "suggest": (run, "-o", folder / "next.csv", *CPU),
            "audit": (run,),
        }.get(name, ())  # fmt: skip


def _kind(param: Any) -> str:
    """Return what an option takes, in one word; versions of Typer keep it in different places."""
    words = f"{vars(param).get('type_descriptor')} {vars(param).get('type')}".lower()
    return (
        "path" if "path" in words else "number" if "int" in words.split("'") or "float" in words.split("'") else "text"
    )


def _serve_nothing() -> None:
    """Let the server of the review end at once, and prepare in this process."""
    import uvicorn

    from tests.faults.campaigns.reviews import in_this_process

    in_this_process()
    uvicorn.Server.run = lambda *_, **__: None  # type: ignore[method-assign]
