"""The grid: order, names, one warm-up for all, going on, stopping in time."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from tagspread.bench import work as work_module
from tagspread.bench.cells import machine_name
from tagspread.bench.grid import PAPER_METHODS, Grid, in_order, starts_from_warmup
from tagspread.bench.results import Results
from tagspread.bench.work import GridRun, QuietBar
from tagspread.errors import TagspreadError
from tagspread.methods import METHODS
from tagspread.train.config import TrainConfig
from tests.bench.conftest import Listener


def voc(**changes):
    usual = {"dataset": "voc", "methods": ("topk", "cap"), "settings": {"weights": "none"}}
    return Grid(**(usual | changes))


def test_paper_methods_are_all_there_and_come_first():
    everything = in_order(["all"])
    assert everything[: len(PAPER_METHODS)] == PAPER_METHODS
    assert set(everything) == set(METHODS)
    assert in_order(["cap", "bce", "cap"]) == ("bce", "cap")


def test_cells_come_by_share_and_seed_with_the_warm_up_first():
    cells = voc(shares=(0.1, 0.05), seeds=(2, 1)).cells()
    found = [(cell.p, cell.config.seed, cell.config.method) for cell in cells]
    expected = [(p, s, m) for p in (0.05, 0.1) for s in (2, 1) for m in ("asl", "topk", "cap")]
    assert found == expected


def test_no_warm_up_where_nobody_starts_from_one():
    assert [c.config.method for c in voc(methods=("bce",), shares=(0.1,), seeds=(1,)).cells()] == ["bce"]
    fitted = voc(methods=("cap",), preset="default", shares=(0.1,), seeds=(1,)).cells()
    assert [c.config.method for c in fitted] == ["cap"]


def test_a_warm_up_with_another_loss_is_not_shared():
    cells = voc(shares=(0.1,), seeds=(1,), settings={"weights": "none", "loss": "bce"}).cells()
    assert [c.config.method for c in cells] == ["topk", "cap"]


def test_who_sets_labelled_pictures_apart_has_a_warm_up_of_its_own():
    config = voc(methods=("mat",)).config
    common = config("asl", 2)  # whatever its seed
    assert starts_from_warmup(config("mat", 1), common)
    assert not starts_from_warmup(config("mat", 1, {"apart": 0.2}), common)


def test_a_method_that_needs_another_warm_up_has_its_own(ask, bench, tmp_path):
    rule = tmp_path / "rule.py"
    rule.write_text(
        "from tagspread.methods import get_method\n"
        "class Rule(type(get_method('topk'))):\n"
        "    recipe = {'warmup_epochs': 2, 'lr': 0.002}\n"
    )
    request = ask(methods=(f"{rule}:Rule",))
    request.settings.pop("warmup_epochs")
    assert [cell.config.method for cell in request.grid({}).cells()] == [f"{rule}:Rule"]
    assert bench(request)[0] == 0
    [record] = Results(request.out).read()
    assert record["own"] == {"warmup_epochs": 2, "lr": 0.002}
    assert record["curves"]["stage"].count("warmup") == 2


def test_a_study_on_a_frozen_network_says_all_options():
    options = {"keep_pos": 1.0, "keep_neg": 1.0}
    frozen = voc(methods=("cap",), preset="default", settings={"weights": "none", "mode": "head"})
    assert frozen.config("cap", 1, options).method_options == options  # or it would choose them by itself
    assert voc(methods=("cap",)).config("cap", 1, options).method_options == {}


def test_recipe_is_the_paper_codes_and_what_is_asked_for_wins():
    config = voc().config("cap", 1)
    assert (config.batch, config.epochs, config.schedule_epochs, config.warm_start_from) == (32, 28, 40, "raw")
    assert Grid("nus", ("cap",)).config("cap", 1).warm_start_from == "ema"
    assert Grid("coco", ("cap",)).config("cap", 1).batch == 64
    asked = voc(settings={"epochs": 60, "batch": 16}).config("cap", 1)
    assert (asked.batch, asked.epochs, asked.schedule_epochs) == (16, 60, None)
    assert voc(preset="default").config("cap", 1).batch == TrainConfig().batch


def test_a_methods_own_recipe_counts_but_does_not_make_another_table():
    cells = {c.config.method: c for c in voc(methods=("cap", "drml"), shares=(0.1,), seeds=(1,)).cells()}
    assert cells["drml"].config.epochs == METHODS["drml"].recipe["epochs"]
    assert cells["drml"].setup == cells["cap"].setup


def test_key_is_of_the_work_and_not_of_the_place(tmp_path):
    def key(**changes):
        return voc(methods=("cap",), shares=(0.1,), seeds=(1,), **changes).cells()[-1].key

    about = {"source": "here", "mean": "0.5 0.5 0.5", "std": "0.2 0.2 0.2"}
    one, two = torch.ones(2, 3), torch.ones(3, 2)
    files = [({"w": one}, about), ({"w": one}, about), ({"w": two}, about), ({"v": one}, about),
             ({"w": one}, about | {"mean": "0.4 0.4 0.4"})]  # fmt: skip
    for number, (tensors, metadata) in enumerate(files):
        save_file(tensors, tmp_path / f"{number}.safetensors", metadata)
    again = tmp_path / "1.safetensors"  # safetensors writes its remarks in any order
    header, data = again.read_bytes()[8:].split(b"}}", 1)[0] + b"}}", again.read_bytes()[-24:]
    turned = json.loads(header)
    turned["__metadata__"] = dict(reversed(turned["__metadata__"].items()))
    header = json.dumps(turned).encode()
    again.write_bytes(len(header).to_bytes(8, "little") + header + data)
    keys = [key(settings={"weights": str(tmp_path / f"{number}.safetensors")}) for number in range(len(files))]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    different = [
        key(), key(preset="default"), key(settings={"weights": "none", "image_size": 256}), key(facts={"canvases": 5}),
        key(settings={"weights": "none", "method_options": {"keep_pos": 0.9}}),
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    # an option that is as it usually is makes no other cell
    usual = voc(methods=(), variants=(("cap", {"keep_pos": 1.0, "keep_neg": 1.0}),), shares=(0.1,), seeds=(1,))
    assert usual.cells()[-1].key == key()


def test_a_method_takes_the_options_it_has_and_the_others_stay_as_they_are():
    asked = {"method_options": {"keep_pos": 0.9, "threshold": 0.7}, "weights": "none"}
    for preset in ("paper", "default"):
        usual = voc(preset=preset, shares=(0.1,), seeds=(1,), methods=("topk", "iat", "cap")).cells()
        cells = voc(preset=preset, shares=(0.1,), seeds=(1,), methods=("topk", "iat", "cap"), settings=asked).cells()
        options = {cell.config.method: cell.options for cell in cells}
        assert (options["iat"], options["cap"]) == ({"threshold": 0.7}, {"keep_pos": 0.9})
        one = voc(preset=preset, methods=("cap", "iat"), settings=asked | {"method_options": {"threshold": 0.7}})
        by_preset = {cell.config.method: cell.config.method_options for cell in usual}
        assert one.config("cap", 1).method_options == by_preset["cap"]
        assert one.config("asl", 1).method_options == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("capp",)}, "Did you mean 'cap'"),
        ({"shares": (5.0,)}, "between 0 and 1"),
        ({"shares": (0.0,)}, "between 0 and 1"),
        ({"settings": {"epoch": 3}}, "no setting 'epoch'"),
        ({"settings": {"weights": "/no/such/file"}}, "there is no file /no/such/file"),
        ({"preset": "papr"}, "paper"),
        ({"seeds": (-1,)}, "seed is -1"),
        (
            {"settings": {"method_options": {"kep_pos": 0.9}}},
            "no method of this grid has an option 'kep_pos'",
        ),
        ({"settings": {"method_options": {"keep_pos": 9}}}, "keep_pos is 9"),
        ({"settings": {"method_options": 3}}, "method_options"),
        ({"settings": {"bogus": 3}}, r"no setting 'bogus'\. There are .*epochs"),
    ],
)
def test_bad_grids_are_refused_before_anything_is_read(changes, message):
    with pytest.raises(TagspreadError, match=message):
        voc(**changes).cells()


def test_warm_up_is_trained_once_and_its_heirs_are_what_they_would_be_alone(ask, bench, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(QuietBar, "step", lambda self, epoch, *progress: trained.append(epoch))
    failed, _ = bench(ask(methods=("topk", "cap")))
    assert failed == 0
    records = {r["method"]: r for r in Results(tmp_path / "out").read()}
    assert list(records) == ["asl", "topk", "cap"]
    assert trained.count(0) == 1  # one step makes the warm-up's only epoch: 24 labelled canvases

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


def test_killed_within_a_cell_goes_on_there(ask, bench, tmp_path, monkeypatch):
    request = ask({"epochs": 3}, methods=("cap",))
    bench(ask({"epochs": 3}, methods=("cap",), out=tmp_path / "whole"))

    def kill(self, epoch, seen, total):
        if epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(QuietBar, "step", kill)
    with pytest.raises(KeyboardInterrupt):
        bench(request)
    assert [r["method"] for r in Results(request.out).read()] == ["asl"]
    _, said = bench(replace(request, dry_run=True))
    assert [text.rpartition(": ")[2] for text in said.lines[:2]] == ["done", "begun"]
    assert said.lines[2] == "2 cells, 1 of them settled, 1 to run, nobody knows yet how long that takes"

    epochs = []
    monkeypatch.setattr(QuietBar, "step", lambda self, epoch, *progress: epochs.append(epoch))
    failed, said = bench(request)
    assert (failed, len(said.cells), min(epochs)) == (0, 1, 2)
    whole, resumed = (Results(out).read()[-1] for out in (tmp_path / "whole", request.out))
    assert resumed["curves"]["test_map_raw"] == whole["curves"]["test_map_raw"]
    assert resumed["curves"]["test_map_ema"] == whole["curves"]["test_map_ema"]


def test_cell_begun_with_weights_that_lay_elsewhere_is_begun_anew(ask, bench, monkeypatch):
    request = ask(methods=("cap",))

    def kill(self, epoch, seen, total):
        if epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(QuietBar, "step", kill)
    with pytest.raises(KeyboardInterrupt):
        bench(request)
    for file in request.out.glob("cells/*/config.json"):
        facts = json.loads(file.read_text())
        facts["settings"]["weights"] = "/elsewhere/net.safetensors"
        file.write_text(json.dumps(facts))
    epochs = []
    monkeypatch.setattr(QuietBar, "step", lambda self, epoch, *progress: epochs.append(epoch))
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
    def broken(self, scores, labelled, state):
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
    """Time that passes only when a cell is run."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.mark.parametrize(("minutes", "run"), [(0, 0), (1, 1), (2.5, 2), (100, 4)])
def test_budget_starts_no_cell_that_would_not_end(ask, tmp_path, monkeypatch, minutes, run):
    clock = Clock()
    monkeypatch.setattr(work_module, "time", clock)

    def train(cell, problem, folder, **_):
        clock.now += 60.0
        return cell.identity() | {
            "status": "done", "wall_seconds": 60.0, "machine": machine_name(torch.device("cpu")),
            "honest": 0.5, "parity": 0.5, "uses_pile": False,
        }  # fmt: skip

    monkeypatch.setattr(work_module, "run_cell", train)
    request = ask(methods=("bce",), seeds=(1, 2, 3, 4))
    cells = request.grid({}).cells()
    listener = Listener()
    work = GridRun(request.out, torch.device("cpu"), listener, 60 * minutes, began=clock.monotonic())
    assert work.run(cells, lambda p, seed: None) == 4 - run  # type: ignore[arg-type, return-value]
    assert len(Results(request.out).read()) == run
    if run < 4:
        assert "left for another time" in listener.lines[-1]
