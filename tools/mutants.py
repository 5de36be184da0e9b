"""Mutation test: change one token of the source at random, run the tests, and count the changes they notice.

    python tools/mutants.py --count 60 --seed 1 --out mutants.csv

A mutant changes one operator (``<`` to ``<=``, ``+`` to ``-``, ``and`` to ``or``, ...), one number (n to n + 1) or one
truth value, in a copy of the source. The tests of its room run first; the whole suite runs if they all pass. A mutant
that no test notices is listed with its line: either a test is missing, or the change makes no difference.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {  # tests of a room, nearest first
    "core": ["core", "methods", "linear"],
    "methods": ["methods", "train"],
    "train": ["train", "predict"],
    "data": ["data", "train"],
    "linear": ["linear", "test_estimator.py"],
    "predict": ["predict", "report"],
    "vision": ["vision", "train"],
}
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
            for item in child if isinstance(child, list) else [child]:
                if isinstance(item, ast.AST):
                    yield from walk(item)

    for number, (start, end), new in walk(ast.parse(text)):
        yield Mutant(file, number, start, end, new)


def is_noticed(mutant: Mutant, whole: bool) -> tuple[bool, str]:
    """Apply a mutant to a copy of the source, run the tests, and return whether one failed, with its name."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        file = Path(folder) / mutant.file.relative_to(ROOT)
        data = file.read_bytes()
        file.write_bytes(data[: mutant.start] + mutant.new.encode() + data[mutant.end :])
        environment = os.environ | {"PYTHONPATH": str(Path(folder) / "src"), "OMP_NUM_THREADS": "1"}
        room = mutant.file.relative_to(ROOT / "src" / "tagspread").parts[0]
        rounds = [[f"tests/{name}"] for name in ROOMS[room]] + ([["tests"]] if whole else [])
        for tests in rounds:
            call = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
            try:
                done = subprocess.run(
                    call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1800
                )
            except subprocess.TimeoutExpired:
                return True, "timeout"
            if done.returncode:
                failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return True, (failed or ["interrupted"])[0][:120]
    return False, ""


def main() -> None:
    """Draw mutants, test them side by side, and print how many were noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--whole", action="store_true", help="run the whole suite on what the room's tests miss")
    parser.add_argument("--out", type=Path, help="CSV file for the result of each mutant")
    options = parser.parse_args()
    files = [file for room in ROOMS for file in sorted((ROOT / "src" / "tagspread" / room).rglob("*.py"))]
    drawn = random.Random(options.seed).sample([mutant for file in files for mutant in mutants_of(file)], options.count)
    lines: list[tuple[str, str, str, bool, str, str]] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda mutant: is_noticed(mutant, options.whole), drawn)
        for mutant, (noticed, by) in zip(drawn, results, strict=True):
            text = mutant.file.read_text(encoding="utf-8").splitlines()[mutant.line - 1].strip()
            old = mutant.file.read_bytes()[mutant.start : mutant.end].decode()
            where = f"{mutant.file.relative_to(ROOT)}:{mutant.line}"
            print(f"{'noticed' if noticed else 'MISSED'}  {where}  {old} -> {mutant.new}  {text[:90]}", flush=True)
            lines.append((where, old, mutant.new, noticed, by, text))
    print(f"{sum(line[3] for line in lines)} of {len(lines)} mutants noticed")
    if options.out:
        with options.out.open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows([("where", "old", "new", "noticed", "by", "line"), *lines])


if __name__ == "__main__":
    main()
