"""results.jsonl: no result is lost by kills, power failures or full disks."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tagspread.bench.results import Results
from tagspread.errors import TagspreadError


def record(key, **more):
    return {"key": key, "status": "done", **more}


def test_newest_record_of_a_cell_counts_and_keeps_its_place(tmp_path):
    results = Results(tmp_path / "new" / "folder")
    for line in (record("a", value=1), record("b"), record("a", value=2)):
        results.append(line)
    assert results.read() == [record("a", value=2), record("b")]


def test_no_file_is_no_result(tmp_path):
    assert Results(tmp_path).read() == []
    assert Results(tmp_path).planned() == []


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_line_cut_off_is_dropped_and_the_next_one_is_whole(tmp_path, cut):
    results = Results(tmp_path)
    results.append(record("a", text="ä" * 10))
    results.append(record("b", text="ö" * 10))
    whole = results.file.read_bytes()
    results.file.write_bytes(whole[: -cut - 1])
    assert [line["key"] for line in results.read()] == ["a"]
    results.append(record("c"))
    assert [line["key"] for line in results.read()] == ["a", "c"]
    assert all(json.loads(line) for line in results.file.read_text("utf-8").splitlines())


def test_whole_line_without_its_end_is_kept(tmp_path):
    results = Results(tmp_path)
    results.append(record("a"))
    results.file.write_bytes(results.file.read_bytes().rstrip(b"\n"))
    results.append(record("b"))
    assert [line["key"] for line in results.read()] == ["a", "b"]


@pytest.mark.parametrize("bad", ["{", "[1, 2]", '{"key": 1}'])
def test_damaged_line_in_the_middle_is_named(tmp_path, bad):
    results = Results(tmp_path)
    results.file.write_text(json.dumps(record("a")) + f"\n{bad}\n" + json.dumps(record("b")) + "\n")
    with pytest.raises(TagspreadError, match="line 2 is not a result"):
        results.read()


def test_several_writers_lose_nothing(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: Results(tmp_path).append(record(f"{k}", text="x" * 5000)), range(40)))
    assert {line["key"] for line in Results(tmp_path).read()} == {str(k) for k in range(40)}


def test_a_later_failure_takes_no_figure_back(tmp_path):
    results = Results(tmp_path)
    for key, status in (("a", "done"), ("a", "failed"), ("b", "failed"), ("b", "done")):
        results.append(record(key) | {"status": status})
    assert [line["status"] for line in results.read()] == ["done", "done"]


def test_figures_that_are_no_numbers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        Results(tmp_path).append(record("a", value=float("nan")))


def test_plan_grows_and_is_kept(tmp_path):
    results = Results(tmp_path)
    same = {"dataset": "voc", "method": "cap", "variant": "", "seed": 1, "setup": {"id": "x"}}
    results.plan([same | {"key": "a", "p": 0.1}])
    results.plan([same | {"key": "b", "p": 0.2}, same | {"key": "a", "p": 0.1}])
    assert [cell["key"] for cell in results.planned()] == ["a", "b"]
    results.plan_file.write_text("{")
    with pytest.raises(TagspreadError, match=r"grid\.json cannot be read"):
        results.planned()


def test_folder_that_cannot_be_written_to_is_said(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TagspreadError, match="cannot be written to"):
        Results(tmp_path / "file" / "below").append(record("a"))
    assert (tmp_path / "file").read_text() == "mine"
