"""Check a dataset before training: report every error, warning and note by file, row and tag."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from tagspread.aliases import Progress
from tagspread.data.check.images import Inventory, check_copies, check_files, check_listing, take_inventory
from tagspread.data.check.labels import check_labels, class_facts
from tagspread.data.check.report import LABELS, TEST, CheckReport, Finding, Place, render
from tagspread.data.check.sample import check_sample
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.options import GivenOptions
from tagspread.data.tables.read import read_with_errors
from tagspread.errors import TagspreadError
from tagspread.progress import Output, Watcher


def check_dataset(
    images: str | Path,
    labels: LabelTable | None,
    test: LabelTable | None = None,
    *,
    near: int = 4,
    progress: Progress | None = None,
) -> CheckReport:
    """Read every image and every label once, and report all problems together.

    Args:
        images: the folder with all images, labeled and unlabeled.
        labels: the labels of some images; None if they cannot be read, then only the images are checked.
        test: the labels of the test images.
        near: number of bits by which the 64-bit fingerprints of two copies of one image may differ; their colors
            must agree too.
        progress: called with (done, total) images.

    Returns:
        The findings, the class frequencies and the image counts; ``report.ok`` tells whether training can start.
    """
    inventory = take_inventory(Path(images), labels, test, progress)
    findings = [*check_files(inventory), *check_listing(inventory.listing), *_check_reading(labels, test)]
    if labels is None:
        return CheckReport(tuple(findings), (), inventory.counts)
    facts = class_facts(labels, len(inventory.unlabeled))
    copies, copied = check_copies(inventory, near)
    findings += [*copies, *check_labels(labels, test, facts, inventory.show), *_check_unlabeled(inventory)]
    findings += check_sample(inventory)
    return CheckReport(tuple(findings), facts, inventory.counts | copied)


def run_check(
    images: str | Path,
    labels_file: str | Path,
    test_file: str | Path | None = None,
    as_json: bool = False,
    console: Console | None = None,
    *,
    table_options: GivenOptions | None = None,
    estimate: Callable[[CheckReport], str] | None = None,
) -> int:
    """Check a folder of images and its label tables, print the report, and return the exit code.

    The exit code is 0 if training can start, 1 if there are errors, and 2 if a table or some of its rows cannot be
    read. These are findings like others: everything that can be read is still checked.

    Args:
        images: the folder of images.
        labels_file: the label table.
        test_file: the label table of the test images.
        as_json: print JSON.
        console: where to print.
        table_options: options for reading the tables.
        estimate: returns how long training would take, printed at the end if training can start.
    """
    console, options = console or Output(), (table_options or GivenOptions()).to_dict()
    unreadable: list[Finding] = []
    tables: list[LabelTable | None] = [None, None]
    for place, file in enumerate((labels_file, test_file)):
        if file is None:
            continue
        if not Path(file).exists():  # a mistyped path is no problem of the data
            raise TagspreadError(f"there is no file {file}.")
        tables[place], errors = read_with_errors(file, images, **options)
        options = ({} if tables[0] is None else tables[0].found_options) | options
        unreadable += [Finding("error", "table", error.on_command_line) for error in errors]
    labels, test = tables
    watcher = Watcher(quiet=as_json, console=console)
    try:
        report = check_dataset(images, labels, test, progress=watcher.begin("decoding"))
    finally:
        watcher.close()
    undecided = any("--blank unlabeled" in finding.message for finding in unreadable)
    # what rows without a tag mean must be said first: nothing is said about how they count
    findings = [finding for finding in report.findings if not (undecided and finding.kind == "unknown_rows")]
    report = CheckReport((*unreadable, *findings), report.classes, report.counts)
    if as_json:
        console.print(json.dumps(report.to_dict(), indent=2), highlight=False, markup=False, soft_wrap=True)
    else:
        render(report, console)
        if estimate is not None and report.ok and not unreadable:
            console.print(estimate(report), highlight=False, markup=False, soft_wrap=True)
    return 2 if unreadable else 0 if report.ok else 1


def _check_reading(labels: LabelTable | None, test: LabelTable | None) -> Iterator[Finding]:
    """Yield what reading the tables decided and found."""
    for name, table in ((LABELS, labels), (TEST, test)):
        for note in () if table is None else table.notes:
            if (note.level, note.kind) == ("note", "blank_rows"):
                continue  # another finding names these rows
            places = tuple(Place(remark=place, table=name) for place in note.places)
            yield Finding(note.level, note.kind, f"{note.text[:1].upper()}{note.text[1:]}.", places)


def _check_unlabeled(inventory: Inventory) -> Iterator[Finding]:
    unlabeled, labeled = len(inventory.unlabeled), inventory.counts["labeled"]
    if not unlabeled:
        yield Finding(
            "warning",
            "no_unlabeled",
            "Every image is labeled; without unlabeled images, train with --method asl.",
        )
    elif unlabeled < labeled:
        message = (
            f"There are fewer unlabeled images ({unlabeled:,}) than labeled ones ({labeled:,}): "
            "expect little gain from them."
        )
        yield Finding("note", "small_unlabeled", message)
