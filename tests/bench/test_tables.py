"""Benchmark tables: means and spreads, best entries, ties, missing cells, published values."""

import base64
import csv
import io
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagspread.bench.grid import PAPER_METHODS
from tagspread.bench.literature import published
from tagspread.bench.notes import PROTOCOLS, machine_notes, protocol_words
from tagspread.bench.table_files import comma_separated, html, markdown, write_tables
from tagspread.bench.table_parts import MISSING, Entry, signed
from tagspread.bench.tables import build_tables
from tagspread.data.datasets import DATASETS
from tagspread.data.datasets.published import CAP_PAPER, DICAP_PAPER, SHARES

SETUP = {
    "id": "abc",
    "weights_name": "net.safetensors",
    "weights": "0123456789ab",
    "preset": "paper",
    "image_size": 224,
}
SETUP |= {"backbone": "resnet50_v1", "data": {}, "settings": {}, "asked": {}}


def cell(method, p, seed, **more):
    usual = {
        "key": f"{method}-p{p}-s{seed}-{more.get('variant', '')}",
        "dataset": "voc",
        "method": method,
        "p": p,
        "seed": seed,
    }
    return usual | {"variant": "", "options": {}, "setup": SETUP} | more


def done(method, p, seed, honest, parity=None, **more):
    figures = {"status": "done", "honest": honest, "parity": honest if parity is None else parity}
    return cell(method, p, seed, **figures, machine="X", wall_seconds=60.0, tagspread="0", torch="2", **more)


def rows_of(table):
    return {row.name: [entry.text() for entry in row.entries] for row in table.rows}


def test_gains_are_paired_by_seed_and_shares_refer_to_all_labels():
    records = [done("bce", 0.05, seed, value) for seed, value in ((1, 0.60), (2, 0.64))]
    records += [done("asl", 0.05, 1, 0.50), done("bce", 0.99, 1, 0.80)]
    records += [done("cap", 0.05, seed, value) for seed, value in ((2, 0.66), (3, 0.99))]
    table = build_tables("voc", records, [])[0]
    entries = {row.name: row.entries for row in table.rows}
    assert entries["CAP"][0].gain == pytest.approx(2.0)  # seed 2 only
    assert entries["CAP"][0].share == pytest.approx((0.66 + 0.99) / 2 / 0.8)
    assert entries["BCE"][0].gain is None
    assert entries["BCE"][0].share == pytest.approx(0.62 / 0.8)
    assert entries["ASL"][0].gain == pytest.approx(-10.0)
    assert (table.baseline, entries["CAP"][1].relative_text()) == ("BCE", MISSING)
    text = markdown("voc", [table], [])
    assert f"| CAP | +2.00, 103.1 % | {MISSING} |" in text
    assert "Gain over the labeled images alone and share of what all labels give (BCE):" in text
    line = next(line for line in csv.DictReader(io.StringIO(comma_separated([table]))) if line["method"] == "cap")
    assert (float(line["gain"]), float(line["share"])) == pytest.approx((2.0, 1.03125), abs=1e-4)
    assert "+2.00, 103.1 %" in (html("voc", [table], []) or "")
    assert build_tables("voc", records[4:], [])[0].relative == ""  # without a method that ignores the unlabeled set


def test_means_spreads_and_protocols():
    records = [done("cap", 0.05, seed, value, value + 0.01) for seed, value in ((1, 0.70), (2, 0.72), (3, 0.77))]
    honest, parity = build_tables("voc", records, [])
    values = np.array([70, 72, 77])
    assert rows_of(honest) == {"CAP": [f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"]}
    assert parity.rows[0].entries[0].mean == pytest.approx(values.mean() + 1)
    assert honest.rows[0].entries[0].gap == pytest.approx(values.mean() - 76.16)
    assert (honest.protocol, parity.protocol) == ("honest", "parity")


def test_missing_failed_and_incomplete_cells_are_shown_as_such():
    planned = [cell(m, p, s) for m in ("asl", "iat", "cap") for p in (0.05, 0.1) for s in (1, 2)]
    records = [done("cap", 0.05, 1, 0.7), done("cap", 0.05, 2, 0.7), done("cap", 0.1, 1, 0.8)]
    records.append(cell("iat", 0.05, 1, status="failed", message="it broke\nbadly"))
    table = build_tables("voc", records, planned)[0]
    assert rows_of(table) == {
        "ASL": [MISSING, MISSING],
        "IAT": ["failed", MISSING],
        "CAP": ["70.00 ± 0.00", "80.00 (n = 1)"],
    }
    assert table.notes == ["failed: iat, p = 0.05, seed 1: it broke"]


def test_best_is_marked_and_ties_are_said():
    records = [done("cap", 0.05, s, v) for s, v in ((1, 0.70), (2, 0.72))]  # 71 ± 1.41
    records += [done("iat", 0.05, s, 0.70) for s in (1, 2)] + [done("bce", 0.05, s, 0.60) for s in (1, 2)]
    table = build_tables("voc", records, [])[0]
    marks = {row.name: (row.entries[0].best, row.entries[0].tie) for row in table.rows}
    assert marks == {"BCE": (False, False), "IAT": (False, True), "CAP": (True, False)}
    assert table.notes == ["p = 0.05: CAP is highest, tied within one standard deviation (1.41) with IAT."]


def test_where_a_later_method_is_best_the_papers_own_are_judged_too():
    values = {"dicap": 0.8, "cap": 0.71, "iat": 0.70}
    records = [done(m, 0.05, s, v + s / 100) for m, v in values.items() for s in (1, 2)]
    table = build_tables("voc", records, [])[0]
    assert [row.name for row in table.rows if row.entries[0].best] == ["DiCaP"]
    assert not any(row.entries[0].tie for row in table.rows)
    assert "p = 0.05: DiCaP is highest by more than" in table.notes[0]
    assert table.notes[1].endswith(
        "methods of the CAP paper: CAP is highest by more than one standard deviation (0.71)."
    )


def test_without_a_spread_no_tie_is_claimed():
    table = build_tables("voc", [done("cap", 0.05, 1, 0.70), done("iat", 0.05, 1, 0.6999)], [])[0]
    assert "with one seed only" in table.notes[0]
    clear = [done(m, 0.05, s, v + s / 1000) for m, v in (("cap", 0.7), ("iat", 0.5)) for s in (1, 2)]
    assert "by more than one standard deviation (0.07)" in build_tables("voc", clear, [])[0].notes[0]


def test_rows_come_in_the_papers_order_and_variants_apart():
    records = [done(m, 0.05, 1, 0.5) for m in ("mat", "cap", "bce", "iat")]
    records.append(done("cap", 0.05, 1, 0.6, variant="keep_pos=0.8"))
    tables = build_tables("voc", records, [])
    assert [row.name for row in tables[1].rows] == ["CAP", "CAP, keep_pos=0.8"]
    assert [row.name for row in tables[0].rows] == ["BCE", "IAT", "CAP", "MAT"]
    assert tables[0].rows[2].entries[0].published == (76.16, "")


def test_variants_stand_beside_the_method_as_it_is_in_the_same_splits():
    records = [done("cap", p, seed, 0.5 + seed / 10) for p in (0.05, 0.1) for seed in (1, 2, 3)]
    records += [done("cap", 0.05, 2, 0.6, variant="keep_pos=0.8"), done("iat", 0.05, 2, 0.9)]
    table = build_tables("voc", records, [])[1]
    assert rows_of(table) == {"CAP": ["70.00"], "CAP, keep_pos=0.8": ["60.00"]}
    assert [entry.published for row in table.rows for entry in row.entries] == [None, None]
    assert table.notes == ["p = 0.05: CAP is highest, with one seed only, so the spread and ties are unknown."]


def test_who_looks_equal_is_marked_equally():
    records = [
        done(m, 0.05, s, v + s / 100) for m, v in (("cap", 0.70001), ("iat", 0.7), ("bce", 0.69)) for s in (1, 2)
    ]
    assert [row.entries[0].best for row in build_tables("voc", records, [])[0].rows] == [False, True, True]


def test_equals_by_one_seed_are_named_together():
    table = build_tables("voc", [done(m, 0.05, 1, v) for m, v in (("cap", 0.7), ("iat", 0.7), ("bce", 0.6))], [])[0]
    assert table.notes[0].startswith("p = 0.05: IAT and CAP are highest, with one seed only")


def test_one_reason_is_said_once():
    cells = [cell("iat", p, s, status="failed", message="no\nluck") for p in (0.05, 0.1) for s in (1, 2)][:3]
    cells += [cell("plc", 0.05, 1, status="failed", message="no")]
    assert build_tables("voc", cells, [])[0].notes == [
        "failed: iat, p = 0.05, seeds 1, 2; p = 0.1, seed 1: no", "failed: plc, p = 0.05, seed 1: no",
    ]  # fmt: skip


def test_heads_have_one_figure():
    frozen = SETUP | {"settings": {"mode": "head"}}
    tables = build_tables("voc", [done("cap", 0.05, 1, 0.7, setup=frozen)], [])
    assert all("both protocols give the same value" in protocol_words(protocol, tables) for protocol in PROTOCOLS)


def test_setups_and_data_sets_are_not_mixed():
    other = done("cap", 0.05, 1, 0.8, setup=SETUP | {"id": "other", "preset": "default"}) | {"key": "other"}
    elsewhere = done("cap", 0.05, 1, 0.4) | {"dataset": "coco", "key": "elsewhere"}
    tables = build_tables("voc", [done("cap", 0.05, 1, 0.7), other, elsewhere], [])
    assert [(t.setup["preset"], t.rows[0].entries[0].values) for t in tables if t.protocol == "honest"] == [
        ("paper", [70.0]),
        ("default", [80.0]),
    ]


def test_settings_of_a_methods_own_are_said_below_the_table():
    own = {"batch": 128, "normalize": "weights"}
    records = [done("drml", 0.05, seed, 0.5, own=own) for seed in (1, 2)] + [done("cap", 0.05, 1, 0.7, own={})]
    assert build_tables("voc", records, [])[0].notes[1:] == [
        "DRML uses its own settings: batch=128, normalize=weights."
    ]


def test_methods_of_one_name_in_two_folders_are_told_apart():
    records = [done(f"/{place}/rule.py", 0.05, seed, 0.7) for place in "ab" for seed in (1, 2)]
    records += [done("/a/rule.py", 0.1, seed, 0.7 + seed / 100) for seed in (1, 2)] + [done("cap", 0.1, 1, 0.5)]
    table = build_tables("voc", records, [])[0]
    assert {row.name for row in table.rows} == {"CAP", "/a/rule.py", "/b/rule.py"}
    missing = next(row for row in table.rows if row.name == "/b/rule.py").entries[1]
    assert (missing.text(), missing.tie) == (MISSING, False)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=6))
def test_entry_agrees_with_numpy(values):
    entry = Entry(values, len(values), None)
    assert entry.mean == pytest.approx(np.mean(values))
    assert entry.std == pytest.approx(np.std(values, ddof=1), abs=1e-9)


def test_published_figures_are_whole():
    tables = [(name, table) for name, dataset in DATASETS.items() for table in dataset.published]
    assert {name for name, _ in tables} == {"voc", "coco", "nus"}
    for name, table in tables:
        assert table.paper in (CAP_PAPER, DICAP_PAPER)
        assert table.shares == SHARES
        for values in table.rows.values():
            assert len(values) == len(SHARES)
            assert all(value is None or 30 < value < 90 for value in values)
        if table.paper == CAP_PAPER:
            assert set(table.rows) <= set(PAPER_METHODS)
            assert all(max(table.rows, key=lambda method: table.rows[method][k] or 0) == "cap" for k in range(4)), name
    assert set(DATASETS["voc"].published[0].rows) == set(PAPER_METHODS)
    assert published("nus", "cap", 0.2) == (51.06, "")
    assert published("coco", "d2l", 0.1) == (73.06, "†")
    assert published("nus", "bce", 0.1) is None
    assert published("voc", "cap", 0.07) is None
    assert published("demo", "cap", 0.05) is None


def some_tables():
    records = [done("cap", 0.05, s, 0.7 + s / 100) for s in (1, 2)] + [done("bce", 0.05, 1, 0.6)]
    return build_tables("voc", records, [cell("bce", 0.05, 2), cell("bce", 0.1, 1)]), records


def test_markdown_has_the_paper_beside_each_cell():
    text = markdown("voc", some_tables()[0], ["a note"])
    assert f"| CAP | **71.50 ± 0.71** [76.16, {signed(-4.66)}] | {MISSING} [82.16] |" in text
    assert f"| BCE | 60.00 (n = 1) [67.95, {signed(-7.95)}] | {MISSING} [75.35] |" in text
    assert text.count("## Protocol") == 2
    assert "- a note" in text


def test_only_what_is_in_the_tables_is_explained(tmp_path):
    marks = ("published", "difference to", "†", "≈")
    for dataset, methods, there in (
        ("demo", ("cap", "bce"), ()),
        ("voc", ("cap", "bce"), ("published", "difference to")),
        ("voc", ("cap", "dicap"), ("published", "difference to", "†")),
    ):
        records = [done(method, 0.05, 1, 0.6 + k / 10) | {"dataset": dataset} for k, method in enumerate(methods)]
        write_tables(tmp_path, dataset, build_tables(dataset, records, []), records)
        for name in ("table.md", "table.html"):
            text = re.sub(r"(?i)published code.*", "", (tmp_path / name).read_text())
            assert tuple(mark for mark in marks if mark in text.lower()) == there, (dataset, name)
    tied = [done(method, 0.05, seed, 0.6 + seed / 10) for method in ("cap", "bce") for seed in (1, 2)]
    assert "≈: within" in str(html("voc", build_tables("voc", tied, []), []))


def test_charts_are_inside_the_page(tmp_path):
    drawing = "<svg xmlns='http://www.w3.org/2000/svg'/>"
    (tmp_path / "eta.svg").write_text(drawing)
    records = [done("cap", 0.05, 1, 0.6)]
    write_tables(tmp_path, "demo", build_tables("demo", records, []), records)
    text = (tmp_path / "table.html").read_text()
    (source,) = re.findall(
        r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="Test mAP by the reliable interval">', text
    )
    assert base64.b64decode(source).decode() == drawing


def test_csv_is_one_line_per_cell():
    lines = list(csv.DictReader(io.StringIO(comma_separated(some_tables()[0]))))
    assert len(lines) == 2 * 2 * 2
    first = lines[0]
    assert (first["method"], first["mean"], first["std"], first["n"], first["n_wanted"]) == (
        "bce",
        "60.000",
        "",
        "1",
        "2",
    )
    assert lines[2]["gap"] == "-4.660"
    assert lines[1]["mean"] == ""
    mine = [done("/home/me/rule.py:Rule", 0.05, 1, 0.7, variant=variant) for variant in ("", "a=1")]
    assert {row["method"] for row in csv.DictReader(io.StringIO(comma_separated(build_tables("voc", mine, []))))} == {
        "rule.py:Rule"
    }


def test_page_needs_nothing_else_and_escapes_what_it_is_given():
    tables, _ = some_tables()
    tables[0].rows[0].name = "<script>alert(1)</script>"
    page = html("voc", tables, ["5 < 6"])
    assert page is not None
    assert "<script>" not in page
    assert "5 &lt; 6" in page
    assert not re.search(r"(src|href)=|url\(|@import", page)
    assert "viewport" in page
    assert "prefers-color-scheme: dark" in page
    assert page.count("<table") == len(tables)


def test_without_jinja_the_other_two_are_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    tables, records = some_tables()
    said = write_tables(tmp_path, "voc", tables, records)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["table.csv", "table.md"]
    assert "jinja2 is not installed" in said[-1]


def test_machines_are_named_with_their_time():
    records = some_tables()[1]
    assert machine_notes(records) == ["Measured on X: 3 cells, 3.0 minutes in total (tagspread 0, torch 2)."]
    records += [done("iat", 0.05, 1, 0.6) | {"machine": "Y"}, done("bce", 0.05, 2, 0.6) | {"machine": "Y"}]
    assert [note.partition(",")[0] for note in machine_notes(records)] == [
        "Measured on X: 3 cells (BCE",
        "Measured on Y: 2 cells (BCE",
    ]


def test_published_figures_add_up():
    """Sums of the columns of tables 1 and 2 of the CAP paper, added up apart from the package."""
    columns = {
        "voc": (953.64, 1032.15, 1056.13, 1071.13),
        "coco": (768.71, 831.42, 861.23, 878.62),
        "nus": (413.57, 452.93, 474.67, 485.71),
    }
    for name, expected in columns.items():
        (table,) = [table for table in DATASETS[name].published if table.paper == CAP_PAPER]
        found = [sum(values[k] or 0.0 for values in table.rows.values()) for k in range(len(SHARES))]
        assert found == pytest.approx(expected, abs=1e-6), name
