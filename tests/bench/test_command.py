"""Run ``tagspread bench``: options, dry run, resuming and errors."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from tagspread.bench.checks import check_labeled
from tagspread.bench.datasets import BenchmarkData
from tagspread.bench.grid import Grid
from tagspread.bench.results import Results
from tagspread.cli import app
from tagspread.data.split import paper_split
from tagspread.errors import TagspreadError

QUICK = ["--canvases", "120", "--set", "warmup_epochs=1", "--set", "epochs=2", "--set", "batch=32", "--device", "cpu"]


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_whole_command_in_small_and_a_second_call_runs_nothing(tmp_path):
    call = ["demo", "--methods", "topk", "cap", "--p", "0.1", "0.2", "--seeds", "1", *QUICK, "--out", tmp_path]
    first = bench(*call)
    assert first.exit_code == 0, first.output
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(line["method"], line["p"]) for line in lines] == [
        (m, p) for p in (0.1, 0.2) for m in ("asl", "topk", "cap")
    ]
    for line in lines:
        assert 0 < line["honest"] <= line["parity"] <= 1
        assert line["machine"].startswith("CPU")
    names = {file.name for file in tmp_path.iterdir()}
    assert {"table.md", "table.csv", "table.html", "proportions.png", "pseudo-labels.svg", "intervals.png"} <= names

    before = (tmp_path / "results.jsonl").read_bytes()
    (tmp_path / "table.md").unlink()
    second = bench(*call)
    assert "6 cells: 6 finished, 0 to run" in second.output
    assert (tmp_path / "results.jsonl").read_bytes() == before
    assert (tmp_path / "table.md").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["demo", "--p", "0.1", "0.2", "--methods", "bce", "asl"],
        ["demo", "--p", "0.1,0.2", "--methods", "bce,asl"],
        ["demo", "--p", "0.1", "--p", "0.2", "--methods", "bce", "--methods", "asl"],
        ["--p", "0.1", "0.2", "--methods", "bce", "asl", "demo"],
        ["--methods", "asl bce", "demo", "--p", "0.2 0.1"],
    ],
)
def test_many_values_in_all_ways_of_writing(tmp_path, words):
    result = bench(*words, "--seeds", "1", "2", "--dry-run", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert [line.partition("-s")[0] for line in result.output.splitlines() if "-s1-" in line] == [
        f"demo-paper-{method}-p{p}" for p in (0.1, 0.2) for method in ("asl", "bce")
    ]
    assert "8 cells" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo", "--p", "many"], "--p many: give numbers, such as --p 0.05 0.1."),
        (["demo", "--seeds", "5000000000"], "seed is 5000000000; give a whole number below"),
        (["demo", "--seeds", "1.5"], "--seeds 1.5: give whole numbers"),
        (["demo", "--methods", "capp"], "Did you mean 'cap'"),
        (["vox"], "dataset is 'vox'"),
        (["voc"], "--root DIR"),
        (["voc", "--root", "/no/such/folder"], "--root: there is no folder /no/such/folder."),
        (
            ["voc", "--root", "."],
            "is not a voc folder because it has no ImageSets/Main; it must hold `ImageSets/Main/{class}_train.txt`",
        ),
        (["coco", "--root", "."], "is not a coco folder because it has no annotations/instances_train2014.json"),
        (["nus", "--root", "."], "has no ImageList/TrainImagelist.txt and no formatted_train_images.npy"),
        (["demo", "--root", "."], "draws its own images"),
        (["demo", "--methods", ""], "--methods has no value; write, for example, --methods cap topk."),
        (["demo", "--seeds", "--quiet"], "--seeds has no value; write"),
        (
            ["demo", "--p", "0.001", "--canvases", "200"],
            "selects none of the 200 training images; give at least 0.005.",
        ),
        (["demo", "--p", "0.0085", "--canvases", "117"], "training images; give at least 0.008548."),
        (["demo", "--backbone", "resnet51x"], "there is no backbone 'resnet51x'"),
        (["demo", "--backbone", "resnet51x", "--dry-run"], "there is no backbone 'resnet51x'"),
        (["demo", "--set", "method=cap"], "use --methods instead"),
        (["demo", "--set", "seed=3"], "use --seeds instead"),
        (["demo", "--study", "etta"], "--study is 'etta'"),
        (["demo", "--tables-only", "--out", "/no/such/folder"], "holds no results of demo"),
    ],
)
def test_bad_input_is_one_clear_sentence(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = bench(*words)
    assert isinstance(result.exception, TagspreadError)
    assert message in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_the_folder_of_another_grid_is_left_alone(tmp_path):
    cell = {"key": "k", "dataset": "voc", "method": "cap", "variant": "", "p": 0.1, "seed": 1, "setup": {"id": "x"}}
    Results(tmp_path).plan([cell])
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for more in ([], ["--tables-only"], ["--dry-run"]):
        result = bench("demo", *QUICK, "--out", tmp_path, *more)
        assert isinstance(result.exception, TagspreadError)
        assert "holds a grid on voc; choose another" in str(result.exception)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_other_data_of_the_same_kind_are_refused(tmp_path, monkeypatch):
    roots = [tmp_path / name for name in ("one", "other")]
    for k, root in enumerate(roots):
        (root / "JPEGImages").mkdir(parents=True)
        (root / "ImageSets" / "Main").mkdir(parents=True)
        for row in range(30):
            Image.new("RGB", (16, 16), (8 * row, 0, 0)).save(root / "JPEGImages" / f"p{row:02}.jpg")
        for split, rows in (("train", range(20)), ("val", range(20, 30))):
            lines = [f"p{row:02} {1 if row % (k + 2) else -1}\n" for row in rows]
            (root / "ImageSets" / "Main" / f"cat_{split}.txt").write_text("".join(lines))
    words = ["--methods", "cap", "--backbone", "small", "--weights", "none", "--budget", "0", "--out", tmp_path / "out"]
    monkeypatch.setattr("tagspread.bench.run.write_all", lambda *_: None)
    monkeypatch.setattr("tagspread.bench.run._study_labels", lambda *_: None)
    for root in (roots[0], roots[0]):
        assert bench("voc", "--root", root, *words).exit_code == 0
    result = bench("voc", "--root", roots[1], *words)
    assert f"holds a grid on other images or labels than those of {roots[1]}" in str(result.exception)


@pytest.mark.parametrize("rows", [117, 200, 1200, 5717, 82081])
def test_the_least_share_is_enough(rows):
    source = BenchmarkData("voc", np.zeros((rows, 1)), ("a",), rows, [])
    with pytest.raises(TagspreadError) as refused:
        check_labeled(Grid("voc", ("cap",), (0.5 / rows,)), source)
    least = float(re.findall(r"at least (.*)\.$", str(refused.value))[0])
    assert len(paper_split(rows, least)[0]) == 1


def test_another_number_of_canvases_is_refused(tmp_path):
    words = ["demo", "--methods", "bce", "--seeds", "1", "--budget", "0", "--out", tmp_path]
    assert bench(*words, "--canvases", "120").exit_code == 0
    assert "on another number of canvases" in str(bench(*words, "--canvases", "130").exception)


def test_a_stopped_grid_shows_what_it_has_and_says_how_to_go_on(stop_at, tmp_path, monkeypatch):
    words = ["demo", "--methods", "cap", "--p", "0.2", "--seeds", "1", *QUICK, "--out", tmp_path / "out"]
    stop_at(1)  # of CAP, after the warm-up's only one
    result = bench(*words)
    assert result.exit_code == 130
    assert "stopped; finished cells are kept. Run the same command again to resume." in result.output
    assert {"table.md", "table.html", "table.csv", "proportions.svg"} <= {
        file.name for file in (tmp_path / "out").iterdir()
    }
    monkeypatch.undo()
    assert bench(*words).exit_code == 0
    assert len(Results(tmp_path / "out").read()) == 2


def test_a_file_is_no_folder_for_a_grid(tmp_path):
    (tmp_path / "mine").write_text("hello")
    assert "mine is a file; choose a folder" in str(bench("demo", "--out", tmp_path / "mine").exception)
    assert (tmp_path / "mine").read_text() == "hello"


def test_weights_of_another_network_are_one_message_and_leave_nothing(tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "w.safetensors")
    weights = ["--backbone", "resnet50_v1", "--weights", tmp_path / "w.safetensors"]
    result = bench("demo", *QUICK, *weights, "--out", tmp_path / "out")
    assert isinstance(result.exception, TagspreadError)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["[]", '{"foo": 1}', '{"cells": [1]}', "{"])
def test_a_damaged_plan_is_named(tmp_path, text):
    (tmp_path / "grid.json").write_text(text)
    message = str(bench("demo", "--out", tmp_path).exception)
    assert re.search(
        r"grid\.json cannot be read \((it was not written by tagspread bench|Expecting .*)\); delete it", message
    )


def test_the_folder_of_a_run_is_left_alone(tmp_path):
    (tmp_path / "config.json").write_text('{"tagspread": "0.1.0"}')
    result = bench("demo", "--methods", "asl", "--out", tmp_path)
    assert "is a run folder" in str(result.exception)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_study_of_the_interval_is_eleven_cells_with_its_warm_up(tmp_path):
    result = bench("demo", "--study", "eta", "--p", "0.2", "--seeds", "1", "--dry-run", "--out", tmp_path)
    assert "11 cells" in result.output


def test_works_without_pandas_matplotlib_and_jinja(tmp_path):
    """Without jinja2 and matplotlib, training works, and --tables-only writes tables and charts later."""
    code = (
        "import sys\n"
        "for name in ('pandas', 'matplotlib', 'jinja2'): sys.modules[name] = None\n"
        f"sys.argv = ['tagspread', 'bench', 'demo', '--methods', 'bce', '--p', '0.2', '--seeds', '1', *{QUICK!r},"
        f" '--out', {str(tmp_path)!r}]\n"
        "from tagspread.cli import main\nmain()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "jinja2 is not installed" in result.stdout
    assert "matplotlib is not installed" in result.stdout
    assert not (tmp_path / "table.html").exists()
    later = bench("demo", "--tables-only", "--out", tmp_path)
    assert later.exit_code == 0, later.output
    assert {"table.html", "proportions.png"} <= {file.name for file in tmp_path.iterdir()}


def test_files_that_no_grid_has_made_are_left_alone(ask, bench):
    request = ask()
    request.out.mkdir()
    for name in ("table.csv", "proportions.png", "thresholds.json"):
        (request.out / name).write_text("mine")
        with pytest.raises(TagspreadError, match=f"holds {name}, which would be overwritten, but no grid"):
            bench(request)
        assert [file.name for file in request.out.iterdir()] == [name]
        (request.out / name).unlink()


def test_tables_are_not_emptied(ask, bench):
    request = ask(methods=("asl",))
    bench(request)
    before = (request.out / "table.md").read_text()
    results = request.out / "results.jsonl"
    results.rename(request.out / "elsewhere")
    with pytest.raises(TagspreadError, match="holds no results of demo"):
        bench(ask(methods=("asl",), tables_only=True))
    assert (request.out / "table.md").read_text() == before
    results.write_bytes((request.out / "elsewhere").read_bytes() * 2)
    results.write_bytes(results.read_bytes()[:-100])
    said = bench(ask(methods=("asl",), tables_only=True))[1].lines
    assert "is incomplete, so its cell counts as not run" in said[0]
    assert (request.out / "table.md").read_text() == before
