"""The experiment is built once, and a network built before its data are known is the one that would have been."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tagspread.data.images.store import TensorStore
from tagspread.methods import METHODS, get_method
from tagspread.run import checkpoint
from tagspread.train import preflight
from tagspread.train.dataset import Dataset
from tagspread.train.experiment import plan_stages
from tagspread.train.preflight import prepare, seeded_backbone
from tagspread.train.trainer import RunOptions, run_training
from tagspread.vision import backbones
from tagspread.vision.backbones import build_network

CPU = torch.device("cpu")


@pytest.mark.parametrize(("method", "head"), [("cap", "linear"), ("cap", "ml_decoder"), ("d2l", "linear")])
def test_a_backbone_built_early_leaves_network_and_random_numbers_as_they_would_be(method, head, dataset, tiny):
    config = tiny(method=method, head=head, seed=5)
    early = prepare(dataset, config, CPU, backbone=seeded_backbone(config))
    torch.rand(7)  # whatever happens in between
    late = prepare(dataset, config, CPU)
    torch.manual_seed(5)
    network = get_method(method).network(
        build_network("small", len(dataset.classes), weights="none", head=head, normalize=config.normalize)
    )
    expected, after = network.state_dict(), torch.rand(3)
    for experiment in (early, late):
        found = experiment.network.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())
        experiment.seed()
        assert torch.equal(torch.rand(3), after)


def test_the_caller_s_random_numbers_are_left_alone(dataset, tiny):
    before = torch.random.get_rng_state()
    prepare(dataset, tiny(), CPU, backbone=seeded_backbone(tiny()))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("method", ["cap", "drml"])
def test_network_method_and_stages_are_built_once(method, dataset, tiny, silent, tmp_path, monkeypatch):
    built = []

    def counting(name, original):
        def call(*arguments, **options):
            built.append(name)
            return original(*arguments, **options)

        return call

    for module, name in ((preflight, "get_method"), (preflight, "plan_stages"), (backbones, "_backbone")):
        monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    config = tiny(method=method, warmup_epochs=0, epochs=1)
    run_training(dataset, config, tmp_path / "run", watcher=silent, backbone=seeded_backbone(config))
    assert sorted(built) == ["_backbone", "get_method", "plan_stages"]


@pytest.mark.parametrize(
    ("share", "labeled", "warmup"), [(0.003, 1, 1), (0.05, 4, 16), (0.1, 8, 32), (0.15, 12, 48), (0.2, 16, 64)]
)
def test_batches_of_the_published_code(share, labeled, warmup, tiny):
    n, total = round(share * 5717), 5717  # VOC 2012 train
    rows = np.arange(total)
    data = Dataset(
        TensorStore(np.zeros((total, 1, 1, 1), np.uint8), CPU),
        np.zeros((total, 1), np.int8),
        ("a",),
        labeled=rows[:n],
        unlabeled=rows[n:],
    )
    first, main = plan_stages(data, tiny(batch=64, warmup_batch=None, batch_labeled=None), METHODS["cap"]())
    assert (first.batch_labeled, first.batch_unlabeled, first.steps) == (warmup, 0, -(-n // warmup))
    assert (main.batch_labeled, main.batch_unlabeled) == (labeled, 64 - labeled)
    assert main.steps == -(-(total - n) // (64 - labeled))


def test_the_experiment_says_where_training_stands(dataset, tiny):
    experiment = prepare(dataset, tiny(warmup_epochs=2, epochs=3), CPU)
    assert experiment.stages == plan_stages(dataset, experiment.config, METHODS["cap"]())
    assert [experiment.labeled(epoch).epoch for epoch in range(5)] == [0, 0, 0, 1, 2]
    assert experiment.labeled().epochs == 3
    assert experiment.labeled().unlabeled_size == len(dataset.unlabeled)


def test_a_checkpoint_of_an_older_version_is_refused_in_a_sentence(dataset, tiny, silent, tmp_path):
    run = run_training(dataset, tiny(epochs=1), tmp_path / "run", watcher=silent)
    file = run.path / "checkpoint" / "state.safetensors"
    with safe_open(file, framework="pt") as opened:
        facts = json.loads(opened.metadata()["tagspread"])
    assert facts["format"] == checkpoint.FORMAT
    save_file({}, file, metadata={"tagspread": json.dumps(facts | {"format": 1})})
    with pytest.raises(ValueError, match=r"written by an older version of tagspread \(format 1, .*overwrite=True"):
        run_training(dataset, tiny(epochs=1), run.path, RunOptions(resume=True), watcher=silent)
