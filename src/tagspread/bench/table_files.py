"""Write benchmark tables as Markdown, CSV and HTML (``table.md``, ``table.csv``, ``table.html``)."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from tagspread.bench.literature import source_notes
from tagspread.bench.notes import PROTOCOLS, machine_notes, marks_in, protocol_words
from tagspread.bench.records import Record
from tagspread.bench.results import write_file
from tagspread.bench.table_parts import MISSING, Table
from tagspread.data.datasets import find_dataset

TABLES = ("table.md", "table.csv", "table.html")


CHARTS = {
    "proportions": "Class proportions: labeled set against unlabeled set",
    "pseudo-labels": "Quality of the pseudo-labels by epoch",
    "eta": "Test mAP by the reliable interval",
    "intervals": "Intervals of the class proportions by number of labeled images",
}  # by the names of the files


def write_tables(folder: Path, dataset: str, tables: Sequence[Table], records: Sequence[Record]) -> list[str]:
    """Write the tables in all formats, in HTML with the charts of the folder; return notes for the user."""
    notes = [*machine_notes(records), *source_notes(marks_in(tables))]
    texts = {TABLES[0]: markdown(dataset, tables, notes), TABLES[1]: comma_separated(tables)}
    messages = []
    page = html(dataset, tables, notes, inline_charts(folder))
    if page is None:
        messages.append(
            "jinja2 is not installed, so table.html is not written; install it and run again with --tables-only"
        )
    else:
        texts[TABLES[2]] = page
    for name, text in texts.items():
        write_file(folder / name, text)
    return [f"wrote {', '.join(str(folder / name) for name in texts)}", *messages]


def markdown(dataset: str, tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Return all tables as Markdown."""
    parts = [f"# {find_dataset(dataset).title}: test mAP in percent\n"]
    brackets = "in square brackets: published value and difference to it; " if marks_in(tables) else ""
    parts.append(
        f"Mean ± standard deviation over seeds; **bold**: highest value of a column; {brackets}{MISSING}: not run.\n"
    )
    for protocol in PROTOCOLS:
        parts.append(f"## Protocol: {protocol}\n\n{protocol_words(protocol, tables)}\n")
        for table in (table for table in tables if table.protocol == protocol):
            parts.append(f"### {table.title}\n\n{_markdown_table(table)}{_relative_table(table)}")
            parts.append("".join(f"- {note}\n" for note in table.notes))
    parts.append("## Sources\n\n" + "".join(f"- {note}\n" for note in notes))
    return "\n".join(part for part in parts if part)


def _markdown_table(table: Table) -> str:
    lines = ["| method | " + " | ".join(f"p = {share:g}" for share in table.shares) + " |"]
    lines.append("|---|" + "---|" * len(table.shares))
    for row in table.rows:
        cells = []
        for entry in row.entries:
            measured = f"**{entry.text()}**" if entry.best else entry.text()
            cells.append(measured + (f" [{entry.published_text()}]" if entry.published else ""))
        lines.append(f"| {row.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _relative_table(table: Table) -> str:
    """Return the table of gains and shares, with a line that explains it; empty if there is nothing to show."""
    if not table.relative:
        return ""
    lines = ["| method | " + " | ".join(f"p = {share:g}" for share in table.shares) + " |"]
    lines.append("|---|" + "---|" * len(table.shares))
    lines += [f"| {row.name} | " + " | ".join(e.relative_text() for e in row.entries) + " |" for row in table.rows]
    return f"\n{table.relative.capitalize()} ({table.baseline}):\n\n" + "\n".join(lines) + "\n"


def comma_separated(tables: Sequence[Table]) -> str:
    """Return all tables as CSV with one line per cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ("protocol", "preset", "backbone", "image_size", "weights", "setup", "method", "variant", "p", "mean", "std",
         "n", "n_wanted", "failed", "published", "gap", "best", "tie", "gain", "share")
    )  # fmt: skip
    for table in tables:
        setup = [table.setup[name] for name in ("preset", "backbone", "image_size", "weights", "id")]
        for row in table.rows:
            for share, entry in zip(table.shares, row.entries, strict=True):
                values = (entry.mean, entry.std, entry.published and entry.published.value, entry.gap, entry.gain)
                mean, std, literature, gap, gain = ("" if value is None else f"{value:.3f}" for value in values)
                part = "" if entry.share is None else f"{entry.share:.4f}"
                writer.writerow(
                    (table.protocol, *setup, row.plain_method, row.variant, f"{share:g}", mean, std, len(entry.values),
                     entry.wanted, entry.failed, literature, gap, int(entry.best), int(entry.tie), gain, part)
                )  # fmt: skip
    return text.getvalue()


def inline_charts(folder: Path) -> list[tuple[str, str]]:
    """Return title and data URI of each chart in a folder."""
    files = [(title, folder / f"{name}.svg") for name, title in CHARTS.items()]
    return [
        (title, f"data:image/svg+xml;base64,{base64.b64encode(file.read_bytes()).decode('ascii')}")
        for title, file in files
        if file.is_file()
    ]


def html(
    dataset: str, tables: Sequence[Table], notes: Sequence[str], charts: Sequence[tuple[str, str]] = ()
) -> str | None:
    """Return all tables and charts as a self-contained HTML page; None if jinja2 is not installed."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        return None
    source = resources.files("tagspread.bench").joinpath("table.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    by_protocol = [
        (protocol, protocol_words(protocol, tables), [table for table in tables if table.protocol == protocol])
        for protocol in PROTOCOLS
    ]
    flags = {
        "published": bool(marks_in(tables)),
        "ties": any(entry.tie for table in tables for row in table.rows for entry in row.entries),
    }
    page = environment.from_string(source)
    return (
        page.render(dataset=find_dataset(dataset).title, protocols=by_protocol, notes=notes, charts=charts, **flags)
        + "\n"
    )
