"""Check a data set before training: every error, warning and note at once, by file, row and tag."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from tagspread.aliases import Progress
from tagspread.data.check.images import Inventory, check_copies, check_files, take_inventory
from tagspread.data.check.labels import check_labels, class_facts
from tagspread.data.check.report import CheckReport, Finding, render
from tagspread.data.tables.given_options import GivenOptions
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError
from tagspread.progress import Watcher


def check_dataset(
    images: str | Path,
    labels: LabelTable | None,
    test: LabelTable | None = None,
    *,
    near: int = 4,
    progress: Progress | None = None,
) -> CheckReport:
    """Read every image and every label once, and report all findings together.

    Args:
        images: the folder of images, tagged and unlabeled.
        labels: tags of some of them; None if they cannot be read: then only the images are checked.
        test: tags of those to evaluate on.
        near: images whose 64-bit fingerprints differ by at most so many bits, and whose colors agree, count as the
            same image.
        progress: called with (done, total) images.

    Returns:
        The findings, the classes with their proportions, and counts; ``report.ok`` says whether training can start.
    """
    inventory = take_inventory(Path(images), labels, test, progress)
    findings = [*check_files(inventory)]
    if labels is None:
        return CheckReport(tuple(findings), (), inventory.counts)
    facts = class_facts(labels, len(inventory.unlabeled))
    copies, copied = check_copies(inventory, near)
    findings += [*copies, *check_labels(labels, test, facts, inventory.show), *_check_unlabeled(inventory)]
    return CheckReport(tuple(findings), facts, inventory.counts | copied)


def run_check(
    images: str | Path,
    labels_file: str | Path,
    test_file: str | Path | None = None,
    as_json: bool = False,
    console: Console | None = None,
    *,
    table_options: GivenOptions | None = None,
) -> int:
    """Check a folder and its tables, print what was found, and return the exit code.

    It is 0 if training can start, 1 if something must be fixed, 2 if a table cannot be read, as with all bad input.
    Such a table is one of the findings. The images are checked all the same, but not what depends on the labels.
    """
    console, options = console or Console(), (table_options or GivenOptions()).to_dict()
    unreadable: list[Finding] = []
    tables: list[LabelTable | None] = []
    for file in (labels_file, test_file):
        if file is not None and not Path(file).exists():  # a mistyped path says nothing about the data
            raise TagspreadError(f"there is no file {file}.")
        try:
            tables.append(None if file is None else read_table(file, images, **options))
        except TagspreadError as error:
            unreadable.append(Finding("error", "table", error.on_command_line))
            tables.append(None)
    labels, test = (None, None) if unreadable else tables
    watcher = Watcher(quiet=as_json, console=console)
    try:
        report = check_dataset(images, labels, test, progress=watcher.decoding)
    finally:
        watcher.close()
    report = CheckReport((*unreadable, *report.findings), report.classes, report.counts)
    if as_json:
        console.print(json.dumps(report.to_dict(), indent=2), highlight=False, markup=False, soft_wrap=True)
    else:
        render(report, console)
    return 2 if unreadable else 0 if report.ok else 1


def _check_unlabeled(inventory: Inventory) -> Iterator[Finding]:
    unlabeled, labeled = len(inventory.unlabeled), inventory.counts["labeled"]
    if not unlabeled:
        yield Finding(
            "warning",
            "no_unlabeled",
            "Every image is labeled; with no unlabeled images, train with --method asl.",
        )
    elif unlabeled < labeled:
        message = (
            f"There are fewer unlabeled images ({unlabeled:,}) than labeled ones ({labeled:,}): expect little gain."
        )
        yield Finding("note", "small_unlabeled", message)
