"""Measure the circle: from 50 answers in the review to a retrained head and its comparison with the run before.

    python benchmarks/circle.py IMAGES LABELS TRUTH --work DIR --backbone tf_efficientnet_lite0

IMAGES is a folder of images, LABELS a table of the labeled ones, and TRUTH a table with the tags of all images, which
gives the answers. The first run trains a head on the frozen network and caches the features in DIR; this is done once.
Then, each in a process of its own, as a person would start it:

prepare  what the first ``tagspread review RUN`` does before the page opens, with cached features
retrain  ``tagspread train ... --answers RUN --priors audit --compare RUN``, from start to its comparison

Prints the wall clock and the CPU time of both, with --threads threads. On a machine that does other things, the CPU
time is the figure to go by.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tagspread.data.tables.read import read_table
from tagspread.review.answers import AnswerStore
from tagspread.review.index import Index, fresh_index
from tagspread.review.session import Given, Review


def timed(name: str, command: list[str], threads: int) -> dict[str, Any]:
    """Run a command; return its wall clock and CPU time, and the verdict that it prints."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": str(threads),
    }  # fmt: skip
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, check=False, text=True, capture_output=True, env=environment)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stderr)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = [line for line in done.stdout.splitlines() if "a difference of" in line]
    return {"step": name, "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "said": said}


def answer(run: Path, index: Index, truth: dict[str, set[str]], count: int) -> None:
    """Answer all tags of the first images of the queue, as the page does."""
    with AnswerStore.open(run, create=True) as store:
        review = Review(run, index, store)
        for k, item in enumerate(review.next("benchmark-page", count)):
            tags = truth[str(item["name"])]
            given = [Given(item["image"], tag, "yes" if tag in tags else "no") for tag in index.classes]
            review.record("benchmark", f"benchmark-{k:04}", given, [item["image"]], seconds=3.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("truth", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs and the cache; kept")
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--answers", type=int, default=50, help="images to answer, with all their tags")
    parser.add_argument("--short", action="store_true", help="retrain with a quarter of the cross-validation")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    first, second = arguments.work / "run", arguments.work / "run2"
    tagspread = [sys.executable, "-m", "tagspread"]
    train = [*tagspread, "train", str(arguments.images), "--labels", str(arguments.labels), "--mode", "head",
             "--backbone", arguments.backbone, "--cache", str(arguments.work / "cache")]  # fmt: skip
    results: list[dict[str, Any]] = []
    if not (first / "metrics.json").exists():
        shutil.rmtree(first, ignore_errors=True)
        results.append(timed("first run", [*train, "--test-share", "0.3", "--out", str(first)], arguments.threads))
    for folder in (first / "review", second):
        shutil.rmtree(folder, ignore_errors=True)
    prepare = "import sys, pathlib; from tagspread.review.prepare import prepare_index; "
    prepare += "prepare_index(pathlib.Path(sys.argv[1]), quiet=True)"
    results.append(timed("prepare", [sys.executable, "-c", prepare, str(first)], arguments.threads))
    if (index := fresh_index(first)) is None:
        raise SystemExit("the index is not up to date")
    table = read_table(arguments.truth, arguments.images)
    names = [path.absolute().relative_to(arguments.images.absolute()).as_posix() for path in table.paths]
    truth = {
        name: {tag for tag, value in zip(table.classes, row, strict=True) if value == 1}
        for name, row in zip(names, table.y.tolist(), strict=True)
    }
    answer(first, index, truth, arguments.answers)
    options = ["--answers", str(first), "--priors", "audit", "--compare", str(first), "--out", str(second)]
    options += ["--set", "search=short"] if arguments.short else []
    results.append(timed("retrain", [*train, *options], arguments.threads))
    results.append({"images": len(names), "answers": arguments.answers, "threads": arguments.threads})
    for line in results:
        print(json.dumps(line), flush=True)
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(line) + "\n" for line in results))


if __name__ == "__main__":
    main()
