"""Records in tables: one cell per position, one version of a method per row."""

from typing import Any

import pytest

from tagspread.bench import run as run_module
from tagspread.bench.grid import Grid
from tagspread.bench.records import current
from tagspread.bench.results import Results
from tagspread.bench.run import Request, write_all
from tagspread.bench.table_parts import MISSING
from tagspread.bench.tables import build_tables
from tests.bench.conftest import Listener
from tests.bench.test_tables import cell, done, rows_of


def test_an_edited_method_takes_the_place_of_what_it_was(tmp_path):
    mine = "my_rule.py:MyRule"
    old, new = done(mine, 0.05, 1, 0.3, key="old"), done(mine, 0.05, 1, 0.7, key="new")
    plans = Results(tmp_path)
    plans.plan([cell(mine, 0.05, 1, key="old")])
    plans.plan([cell(mine, 0.05, 1, key="new")])
    for records, text in (([old, new], "70.00"), ([new, old], "70.00"), ([old], MISSING)):
        assert rows_of(build_tables("voc", records, plans.planned())[0]) == {mine: [text]}
    plans.plan([cell(mine, 0.05, 1, key="old")])  # it was edited back
    assert rows_of(build_tables("voc", [old, new], plans.planned())[0]) == {mine: ["30.00"]}


@pytest.mark.parametrize(("method", "name"), [("my_rule.py:MyRule", "my_rule.py:MyRule"), ("drml", "DRML")])
@pytest.mark.parametrize("is_planned", [True, False])
def test_a_row_is_of_one_version_of_a_method(method, name, is_planned, tmp_path):
    """Cells run before the method's file or settings changed are not part of the new row."""
    plans = Results(tmp_path)
    old = {(p, seed): {"key": f"{p}-{seed}-old", "version": "old"} for p in (0.05, 0.1) for seed in (1, 2)}
    new: Any = {"key": "0.05-1-new", "version": "new", "options": {"keep": 0.5}}  # a preset's, which make no variant
    if is_planned:
        plans.plan([cell(method, p, seed, **facts) for (p, seed), facts in old.items()])
        plans.plan([cell(method, 0.05, 1, **new), cell("cap", 0.05, 1)])
    records = [done(method, p, seed, 0.3, **facts) for (p, seed), facts in old.items()]
    records += [done(method, 0.05, 1, 0.7, **new), done("cap", 0.05, 1, 0.5)]
    assert rows_of(build_tables("voc", records, plans.planned())[0]) == {"CAP": ["50.00"], name: ["70.00"]}


def test_what_was_asked_for_and_is_done_is_shown():
    """A release that gives a method one more option changes no key, so the cell is not run again."""
    planned, records = [cell("cap", 0.05, 1, version="now")], [done("cap", 0.05, 1, 0.6, version="before")]
    assert rows_of(build_tables("voc", records, planned)[0]) == {"CAP": ["60.00"]}


def test_older_records_are_told_apart_by_their_keys(tmp_path):
    """Older records have no version; cells run before the method was edited are not part of the row."""
    mine, plans = "rule.py", Results(tmp_path)
    plans.plan([cell(mine, 0.05, seed, key=f"s{seed}-old") for seed in (1, 2)])
    records = [done(mine, 0.05, seed, 0.3, key=f"s{seed}-old") for seed in (1, 2)]
    plans.plan([cell(mine, 0.05, 1, key="s1-old", version="v1")])  # asked for again, as it was
    assert rows_of(build_tables("voc", records, plans.planned())[0]) == {mine: ["30.00 ± 0.00"]}
    plans.plan([cell(mine, 0.05, 1, key="s1-new", version="v2")])
    records.append(done(mine, 0.05, 1, 0.7, key="s1-new", version="v2"))
    assert rows_of(build_tables("voc", records, plans.planned())[0]) == {mine: ["70.00"]}


def test_chosen_thresholds_of_one_version_are_one_row():
    iat = [("s1-a", "now", 0.7), ("s2-b", "now", 0.8), ("s3-c", "before", 0.1)]
    records = [
        done("iat", 0.05, seed, value, key=key, version=version, variant="by labels", options={"threshold": value})
        for seed, (key, version, value) in enumerate(iat, start=1)
    ]
    assert [r["key"] for r in current(records, records[:2])] == ["s1-a", "s2-b"]
    waiting = [cell("iat", 0.05, seed, key=f"x{seed}-threshold", version=version, variant="by labels")
               for seed, version in ((4, "before"), (5, "now"))]  # fmt: skip
    assert [r["key"] for r in current(records, waiting)] == ["s1-a", "s2-b"]


@pytest.mark.parametrize("saved", [False, True])
def test_a_file_that_is_edited_while_it_runs_changes_nothing_of_the_cell(tmp_path, saved):
    rule = tmp_path / "rule.py"
    rule.write_text("from tagspread.methods import METHODS\nclass Rule(METHODS['topk']):\n    pass\n")
    [_, one] = Grid("demo", (f"{rule}:Rule",), (0.1,), (1,)).cells()
    before = one.identity()
    if saved:
        rule.write_text(rule.read_text() + "# later\n")
    assert one.identity() == before


def test_figures_and_notes_are_of_the_same_cells_as_the_tables(tmp_path, monkeypatch):
    results = Results(tmp_path)
    monkeypatch.setattr(run_module, "write_charts", lambda out, records, study: [f"drew {len(records)}"])
    results.plan([cell("cap", 0.05, 1, key="new", version="new")])
    for key, value in (("old", 0.3), ("new", 0.9)):
        results.append(done("cap", 0.05, 1, value, key=key, version=key))
    listener = Listener()
    write_all(Request("voc", tmp_path), listener)
    assert listener.lines[-1] == "drew 1"
    assert "Measured on X: 1 cell, 1.0 minutes" in (tmp_path / "table.md").read_text()
