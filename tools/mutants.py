"""Mutation test: change one token of the source at random, run the tests, and count the changes they notice.

    python tools/mutants.py --count 60 --seed 1 --out mutants.csv

A mutant changes one operator (``<`` to ``<=``, ``+`` to ``-``, ``and`` to ``or``, ...), one number (n to n + 1) or one
truth value, in a copy of the source. The nearest tests run first: those that name its module. Then those of its room
run, unless ``--nearest`` is given; with ``--whole``, the whole suite. A mutant that no test notices is listed with its
line: either a test is missing, or the change makes no difference.

Tests run in a fork of this process, which has the large packages imported, so that a mutant costs little more than its
tests.
"""

from __future__ import annotations

import argparse
import ast
import csv
import importlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {  # tests of a room, nearest first
    "core": ["core", "methods", "linear"],
    "methods": ["methods", "train"],
    "train": ["train", "predict"],
    "data": ["data", "bench/test_tables.py", "train"],
    "linear": ["linear", "test_estimator.py"],
    "predict": ["predict", "report"],
    "vision": ["vision", "train"],
}
# imported before the forks
LARGE = (
    "torch", "torchvision", "timm", "numpy", "scipy.stats", "sklearn.linear_model", "pandas",
    "PIL.Image", "safetensors.torch", "pyarrow", "typer", "rich.console", "matplotlib",
)  # fmt: skip
MOST_TESTS = 6  # files that count as near
SLOW = ("faults", "bench", "docs")  # tests that are near only to their own room
# each operator and what replaces it
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
}


class Mutant(NamedTuple):
    """One changed token: ``text[start:end]`` of a file becomes ``new``."""

    file: Path
    line: int
    start: int
    end: int
    new: str


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Yield all mutants of a source file. Annotations, docstrings and messages are left alone."""
    text = file.read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    data = text.encode()

    def place(line: int, column: int) -> int:
        return starts[line - 1] + column

    def between(left: ast.expr, right: ast.expr, symbol: str) -> tuple[int, int] | None:
        """Find the operator between two operands."""
        start = place(left.end_lineno or 0, left.end_col_offset or 0)
        at = data.find(symbol.encode(), start, place(right.lineno, right.col_offset))
        return None if at < 0 else (at, at + len(symbol))

    def walk(node: ast.AST) -> Iterator[tuple[int, tuple[int, int], str]]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return
        found: tuple[int, int] | None = None
        new = ""
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            old, new = COMPARISONS[type(node.ops[0])]
            found = between(node.left, node.comparators[0], old)
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            old, new = OPERATORS[type(node.op)]
            found = between(node.left, node.right, old)
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            found = between(node.values[0], node.values[1], old)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            new = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
            found = place(node.lineno, node.col_offset), place(node.end_lineno or 0, node.end_col_offset or 0)
        if found is not None and isinstance(node, ast.expr):
            yield node.lineno, found, new
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            if isinstance(node, ast.keyword) and node.arg == "strict":
                continue  # zip(strict=...) makes no difference for what is correct
            for item in child if isinstance(child, list) else [child]:
                if isinstance(item, ast.AST):
                    yield from walk(item)

    for number, (start, end), new in walk(ast.parse(text)):
        yield Mutant(file, number, start, end, new)


def nearest_tests(file: Path) -> list[str]:
    """Return the tests that are called like a module or name it: those of its rooms first, at most ``MOST_TESTS``."""
    parts = file.relative_to(ROOT / "src" / "tagspread").with_suffix("").parts
    *packages, name = parts[:-1] if parts[-1] == "__init__" else parts
    package = ".".join(("tagspread", *packages))
    named = re.compile(rf"{package}\.{name}\b|from {package} import [^\n]*\b{name}\b")
    rooms = [test for room in ROOMS[parts[0]] for test in _files(room)]
    others = [test for test in _files("") if not set(SLOW) & set(test.parts) and test not in rooms]
    found = [test for test in rooms if name in test.stem]
    found += [test for test in rooms + others if test not in found and named.search(test.read_text(encoding="utf-8"))]
    return [str(test.relative_to(ROOT)) for test in found[:MOST_TESTS]] or [f"tests/{ROOMS[parts[0]][0]}"]


def _files(room: str) -> list[Path]:
    path = ROOT / "tests" / room
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))


def is_noticed(mutant: Mutant, options: argparse.Namespace) -> tuple[bool, str]:
    """Apply a mutant to a copy of the source, run the tests, and return whether one failed, with its name."""
    with tempfile.TemporaryDirectory(prefix="mutant-", dir=options.scratch) as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        file = Path(folder) / mutant.file.relative_to(ROOT)
        data = file.read_bytes()
        file.write_bytes(data[: mutant.start] + mutant.new.encode() + data[mutant.end :])
        room = mutant.file.relative_to(ROOT / "src" / "tagspread").parts[0]
        rounds = [[*nearest_tests(mutant.file), str(file)]]
        if not options.nearest:
            rounds += [[f"tests/{name}"] for name in ROOMS[room]] + ([["tests"]] if options.whole else [])
        for tests in rounds:
            if failed := run_tests(tests, Path(folder), options.seconds):
                return True, failed
    return False, ""


def run_tests(tests: list[str], folder: Path, seconds: float) -> str:
    """Run tests in a fork, on the source in a folder; return the first that fails, or an empty string."""
    output = folder / "output"
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setpgrp()  # so that its own processes can be ended with it
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.environ["PYTHONPATH"] = str(folder / "src")
            sys.path[:0] = [str(folder / "src"), str(ROOT)]
            os.chdir(ROOT)
            import pytest

            base = ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}", f"--basetemp={folder / 'tmp'}"]
            base += [
                "-x",
                "-q",
                "--tb=line",
                "-p",
                "no:cacheprovider",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
            ]
            code = int(pytest.main([*base, *tests]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            said = output.read_text(errors="replace")
            failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
            if status and not failed and os.waitstatus_to_exitcode(status) >= 0:
                raise RuntimeError(f"pytest cannot run {tests}: {said}")
            return "" if not status else (failed or ["crash"])[0][:120]
        time.sleep(0.2)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def main() -> None:
    """Draw mutants, test them side by side, and print how many were noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nearest", action="store_true", help="run only the tests that name the module")
    parser.add_argument("--whole", action="store_true", help="run the whole suite on what the room's tests miss")
    parser.add_argument("--only", action="append", default=[], help="number of a mutant to run, from 0; repeatable")
    parser.add_argument("--seconds", type=float, default=1800, help="time limit of the tests of a mutant")
    parser.add_argument("--scratch", type=Path, help="folder for the copies of the source")
    parser.add_argument("--out", type=Path, help="CSV file for the result of each mutant")
    options = parser.parse_args()
    files = [file for room in ROOMS for file in sorted((ROOT / "src" / "tagspread" / room).rglob("*.py"))]
    drawn = random.Random(options.seed).sample([mutant for file in files for mutant in mutants_of(file)], options.count)
    wanted = [int(number) for number in options.only] or range(len(drawn))
    for name in LARGE:
        importlib.import_module(name)
    lines: list[tuple[str, str, str, bool, str, str]] = []
    for number in wanted:
        mutant = drawn[number]
        noticed, by = is_noticed(mutant, options)
        text = mutant.file.read_text(encoding="utf-8").splitlines()[mutant.line - 1].strip()
        old = mutant.file.read_bytes()[mutant.start : mutant.end].decode()
        where = f"{mutant.file.relative_to(ROOT)}:{mutant.line}"
        verdict = "noticed" if noticed else "MISSED "
        print(f"{number:3} {verdict} {where}  {old} -> {mutant.new}  {text[:90]}  {by}", flush=True)
        lines.append((where, old, mutant.new, noticed, by, text))
    print(f"{sum(line[3] for line in lines)} of {len(lines)} mutants noticed")
    if options.out:
        with options.out.open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows([("where", "old", "new", "noticed", "by", "line"), *lines])


if __name__ == "__main__":
    main()
