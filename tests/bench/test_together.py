"""Several processes at one grid: cells are shared, nobody takes a file from under another."""

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tagspread.bench.run import run_bench
from tagspread.bench.runner import GridRunner
from tagspread.files import SharedLock, hold_lock
from tests.bench.conftest import Listener


def keys(out, method):
    return [cell["key"] for cell in json.loads((out / "grid.json").read_text())["cells"].values()
            if cell["method"] == method]  # fmt: skip


@pytest.fixture
def planned(ask, bench):
    """A grid of three cells, of which none was run."""
    request = ask(methods=("asl", "bce", "cap"))
    bench(ask(methods=("asl", "bce", "cap"), budget=0.0))
    assert not (request.out / "results.jsonl").exists()
    return request


def finished(out):
    lines = (out / "results.jsonl").read_text().splitlines() if (out / "results.jsonl").exists() else []
    return [json.loads(line)["method"] for line in lines]


@pytest.fixture
def beside(planned, monkeypatch):
    """Run the grid while another process holds a method's cell, and does something when this one waits for it."""
    monkeypatch.setattr("tagspread.bench.run.write_charts", lambda *_: [])

    def run(method, then):
        (key,) = keys(planned.out, method)
        with ExitStack() as other:
            other.enter_context(hold_lock(planned.out / "cells" / f".{key}.lock"))

            class Waited(Listener):
                def note(self, text):
                    super().note(text)
                    if text == f"{key}: waiting for another process that is running it":
                        then(key)
                        other.close()

            listener = Waited()
            return run_bench(planned, listener), listener

    return run


def test_a_cell_that_another_process_is_at_is_seen_to_last(planned, beside):
    waited: list[str] = []
    failed, listener = beside("bce", waited.append)
    assert (failed, waited) == (0, keys(planned.out, "bce"))
    assert finished(planned.out) == ["asl", "cap", "bce"]
    assert listener.lines.index(f"{waited[0]}: waiting for another process that is running it") > 1


def test_what_the_other_process_finished_is_not_run_again(planned, beside):
    """The other fails, and this one believes it."""

    def fail(key):
        done = json.loads((planned.out / "results.jsonl").read_text().splitlines()[0])
        record = done | {"key": key, "method": "bce", "status": "failed", "message": "no luck"}
        with (planned.out / "results.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    listener = beside("bce", fail)[1]
    assert finished(planned.out) == ["asl", "cap", "bce"]
    assert not any("bce" in line for line in listener.cells)


def test_what_failed_elsewhere_while_this_one_was_busy_is_not_run_again(planned, bench, monkeypatch):
    (key,) = keys(planned.out, "bce")
    run_one = GridRunner._run_one

    def meanwhile(self, cell, dataset):
        record = run_one(self, cell, dataset)
        if cell.config.method == "asl":
            self.results.append(record | {"key": key, "method": "bce", "status": "failed", "message": "no luck"})
        return record

    monkeypatch.setattr(GridRunner, "_run_one", meanwhile)
    assert bench(planned)[0] == 1
    assert finished(planned.out) == ["asl", "bce", "cap"]
    monkeypatch.undo()
    bench(replace(planned, retry_failed=True))
    assert finished(planned.out) == ["asl", "bce", "cap", "bce"]


@pytest.mark.parametrize("still_needed", [False, True])
def test_a_warm_up_stays_as_long_as_any_process_needs_it(planned, bench, still_needed):
    (key,) = keys(planned.out, "asl")
    with ExitStack() as other:
        if still_needed:
            other.callback(SharedLock(planned.out / "cells" / f".{key}.needed").close)
        bench(planned)
    kept = planned.out / "cells" / key / "checkpoint" / "state.safetensors"
    assert kept.exists() == still_needed


def test_two_processes_choose_thresholds_and_share_the_cells(tmp_path):
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "tagspread",
        "bench",
        "demo",
        "--study",
        "thresholds",
        "--seeds",
        "1",
        "--p",
        "0.2",
    ]
    command += ["--canvases", "120", "--set", "warmup_epochs=3", "--set", "epochs=2", "--set", "batch=32"]
    both = [subprocess.Popen([*command, "--out", str(out)], stdout=-1, stderr=-2, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted(finished(out)) == ["asl", "iat", "plc"]
    assert sum("thresholds chosen on" in text for text in said) == 1
    assert not list(out.glob("cells/*/model.safetensors"))
