"""Running a grid: common warm-up, resuming, interrupts, failures, time budget."""

import json
from dataclasses import replace

import pytest
import torch

from tagspread.bench import runner as runner_module
from tagspread.bench.cells import machine_name
from tagspread.bench.results import Results
from tagspread.bench.runner import GridRunner, QuietBar
from tagspread.bench.table_parts import MISSING
from tagspread.methods import METHODS
from tests.bench.conftest import Listener


def test_warm_up_is_trained_once_and_its_heirs_are_what_they_would_be_alone(ask, bench, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(QuietBar, "epoch_step", lambda self, epoch, *progress: trained.append(epoch))
    failed, _ = bench(ask(methods=("topk", "cap")))
    assert failed == 0
    records = {r["method"]: r for r in Results(tmp_path / "out").read()}
    assert list(records) == ["asl", "topk", "cap"]
    assert trained.count(0) == 1  # one step makes the warm-up's only epoch: 24 labeled canvases

    monkeypatch.setattr(METHODS["cap"], "shares_warmup", False)
    bench(ask(methods=("cap",), out=tmp_path / "alone"))
    [alone] = Results(tmp_path / "alone").read()
    assert alone["curves"]["test_map_ema"] == records["cap"]["curves"]["test_map_ema"]
    assert "pseudo_OF1" in alone["curves"]


def test_finished_cells_are_never_run_again_and_their_models_are_gone(ask, bench, tmp_path):
    bench(ask())
    before = Results(tmp_path / "out").file.read_bytes()
    failed, said = bench(ask())
    assert (failed, said.cells) == (0, [])
    assert Results(tmp_path / "out").file.read_bytes() == before
    assert not list((tmp_path / "out").rglob("*.safetensors"))
    assert len(list((tmp_path / "out" / "cells").glob("*/log.jsonl"))) == 2


def test_method_added_later_gets_its_warm_up_again_and_no_second_line(ask, bench, tmp_path):
    bench(ask())
    failed, said = bench(ask(methods=("topk", "cap"), keep_models=True))
    assert failed == 0
    assert len(said.cells) == 1
    assert any("trained again" in text for text in said.lines)
    assert [r["method"] for r in Results(tmp_path / "out").read()] == ["asl", "cap", "topk"]
    lines = Results(tmp_path / "out").file.read_text().splitlines()
    assert len(lines) == 3
    assert len(list((tmp_path / "out").rglob("model.safetensors"))) == 2  # the warm-up's and Top-k's


def test_killed_within_a_cell_goes_on_there(ask, bench, stop_at, tmp_path, monkeypatch):
    request = ask({"epochs": 3}, methods=("cap",))
    bench(ask({"epochs": 3}, methods=("cap",), out=tmp_path / "whole"))
    stop_at(2)
    with pytest.raises(KeyboardInterrupt):
        bench(request)
    assert [r["method"] for r in Results(request.out).read()] == ["asl"]
    table = (request.out / "table.md").read_text()
    assert f"| CAP | {MISSING} |" in table
    assert f"| ASL | {MISSING} |" not in table  # a grid that was stopped shows what it has
    _, said = bench(replace(request, dry_run=True))
    assert [text.rpartition(": ")[2] for text in said.lines[:2]] == ["done", "interrupted"]
    assert said.lines[2] == "2 cells: 1 finished, 1 to run; no time estimate yet"

    epochs = []
    monkeypatch.setattr(QuietBar, "epoch_step", lambda self, epoch, *progress: epochs.append(epoch))
    failed, said = bench(request)
    assert (failed, len(said.cells), min(epochs)) == (0, 1, 2)
    whole, resumed = (Results(out).read()[-1] for out in (tmp_path / "whole", request.out))
    assert resumed["curves"]["test_map_raw"] == whole["curves"]["test_map_raw"]
    assert resumed["curves"]["test_map_ema"] == whole["curves"]["test_map_ema"]


def test_cell_begun_with_weights_that_lay_elsewhere_is_begun_anew(ask, bench, stop_at, monkeypatch):
    request = ask(methods=("cap",))
    stop_at(2)
    with pytest.raises(KeyboardInterrupt):
        bench(request)
    for file in request.out.glob("cells/*/config.json"):
        facts = json.loads(file.read_text())
        facts["settings"]["weights"] = "/elsewhere/net.safetensors"
        file.write_text(json.dumps(facts))
    epochs = []
    monkeypatch.setattr(QuietBar, "epoch_step", lambda self, epoch, *progress: epochs.append(epoch))
    failed, said = bench(request)
    assert (failed, sorted(set(epochs))) == (0, [0, 1, 2])
    assert any("trained again" in text for text in said.lines)


def test_killed_before_the_run_had_begun(ask, bench):
    request = ask(methods=("bce",))
    _, said = bench(ask(methods=("bce",), dry_run=True))
    key = said.lines[0].partition(":")[0]
    (request.out / "cells" / key / "checkpoint").mkdir(parents=True)
    assert bench(request)[0] == 0


def test_failing_cell_is_written_down_and_the_grid_goes_on(ask, bench, tmp_path, monkeypatch):
    def broken(self, scores, labeled, state):
        raise RuntimeError("the rule is broken\nat length")

    monkeypatch.setattr(METHODS["topk"], "targets", broken)
    request = ask(methods=("topk", "cap"))
    failed, said = bench(request)
    assert failed == 1
    assert ["failed: RuntimeError: the rule is broken" in text for text in said.cells] == [False, True, False]
    records = {r["method"]: r for r in Results(request.out).read()}
    assert records["topk"]["message"] == "RuntimeError: the rule is broken\nat length"
    assert "failed: topk, p = 0.2, seed 1: RuntimeError: the rule is broken" in (request.out / "table.md").read_text()

    monkeypatch.undo()
    failed, said = bench(request)
    assert (failed, said.cells) == (1, [])
    assert any("--retry-failed" in text for text in said.lines)
    failed, said = bench(ask(methods=("topk", "cap"), retry_failed=True))
    assert (failed, len(said.cells)) == (0, 1)
    assert not any("--retry-failed" in text for text in said.lines)


class Clock:
    """A clock that advances only when a cell is run."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.mark.parametrize(("minutes", "run"), [(0, 0), (1, 1), (2.5, 2), (100, 4)])
def test_budget_starts_no_cell_that_would_not_end(ask, tmp_path, monkeypatch, minutes, run):
    clock = Clock()
    monkeypatch.setattr(runner_module, "time", clock)

    def train(cell, dataset, folder, options, **_):
        clock.now += 60.0
        return cell.identity() | {
            "status": "done", "wall_seconds": 60.0, "machine": machine_name(torch.device("cpu")),
            "honest": 0.5, "parity": 0.5, "uses_unlabeled": False,
        }  # fmt: skip

    monkeypatch.setattr(runner_module, "run_cell", train)
    request = ask(methods=("bce",), seeds=(1, 2, 3, 4))
    cells = request.grid({}).cells()
    listener = Listener()
    work = GridRunner(request.out, torch.device("cpu"), listener, 60 * minutes, began=clock.monotonic())
    assert work.run(cells, lambda p, seed: None) == 4 - run  # type: ignore[arg-type, return-value]
    assert len(Results(request.out).read()) == run
    if run < 4:
        assert "run again to continue" in listener.lines[-1]


def test_a_method_that_trains_in_its_own_way_tells_nothing_of_how_long_the_others_take(ask):
    request = ask(methods=("topk", "cap", "drml"))
    cells = {cell.config.method: cell for cell in request.grid({}).cells()}
    work = GridRunner(request.out, torch.device("cpu"), Listener())

    def took(seconds, method):
        done = {"status": "done", "wall_seconds": seconds, "machine": machine_name(torch.device("cpu"))}
        work.records[method] = cells[method].identity() | done | {"uses_unlabeled": True}

    took(5000.0, "drml")
    assert work.expected_seconds(cells["cap"]) is None
    assert work.expected_seconds(cells["drml"]) == 5000.0
    took(20.0, "topk")
    assert work.expected_seconds(cells["cap"]) == 20.0
