"""Planning a grid: order and keys of cells, common warm-ups, refused options."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tagspread.bench.grid import PAPER_METHODS, Grid, in_order, starts_from_warmup
from tagspread.bench.results import Results
from tagspread.errors import TagspreadError
from tagspread.methods import METHODS
from tagspread.train.config import TrainConfig


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


def test_who_sets_labeled_images_apart_has_a_warm_up_of_its_own():
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
        ({"settings": {"bogus": 3}}, r"no setting 'bogus'\. The settings are .*epochs"),
    ],
)
def test_bad_grids_are_refused_before_anything_is_read(changes, message):
    with pytest.raises(TagspreadError, match=message):
        voc(**changes).cells()
