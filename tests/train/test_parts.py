"""The loop's parts on their own: samplers, EMA, optimizer and schedule, configuration, feed."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from tagspread.data.images.store import TensorStore
from tagspread.progress import epoch_line
from tagspread.run.checkpoint import optimizer_tensors, restore_optimizer, save_checkpoint
from tagspread.train import batches as feed
from tagspread.train.batches import LABELED, UNLABELED, stream, training_batches
from tagspread.train.config import PRESETS, TrainConfig, make_config
from tagspread.train.preflight import prepare
from tagspread.train.scoring import resolve_precision, score
from tagspread.train.student import EMA, make_optimizer, make_schedule, train_mode
from tagspread.train.training import Training
from tagspread.vision.augment import Views
from tagspread.vision.backbones import TagNet, build_network
from tagspread.vision.patches import PatchNet
from tests.train.conftest import make_dataset


@given(size=st.integers(1, 12), cuts=st.lists(st.integers(0, 30), min_size=1, max_size=5), seed=st.integers(0, 5))
def test_a_stream_read_in_pieces_is_the_stream(size, cuts, seed):
    rows = np.arange(100, 100 + size)
    whole = stream(rows, 0, sum(cuts), seed, UNLABELED)
    starts = np.cumsum([0, *cuts])
    pieces = [stream(rows, int(at), n, seed, UNLABELED) for at, n in zip(starts, cuts, strict=False)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    for at in range(0, sum(cuts) - size + 1, size):  # each pass shows every row once
        assert sorted(whole[at : at + size]) == list(rows)


def test_streams_and_passes_differ():
    rows = np.arange(50)
    one = stream(rows, 0, 100, 1, UNLABELED)
    assert (one[:50] != one[50:]).any()
    assert (one != stream(rows, 0, 100, 1, LABELED)).any()
    assert (one != stream(rows, 0, 100, 2, UNLABELED)).any()


def test_ema_is_the_average_of_what_it_saw():
    student = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    for warmup in (False, True):
        ema = EMA(student, decay=0.9, warmup=warmup)
        expected = {k: v.double().clone() for k, v in student.state_dict().items()}
        for t in range(5):
            with torch.no_grad():
                for value in student.state_dict().values():
                    value.copy_(torch.rand(value.shape) * 5)
            decay = min(0.9, (1 + t) / (10 + t)) if warmup else 0.9
            for name, value in student.state_dict().items():
                expected[name] = decay * expected[name] + (1 - decay) * value.double()
            ema.update()
        for name, value in ema.model.state_dict().items():
            if value.is_floating_point():
                torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-6)
            else:
                assert value == student.state_dict()[name]  # a counter is copied, not averaged
        ema.restart()
        assert all((v == student.state_dict()[k]).all() for k, v in ema.model.state_dict().items())
    assert not any(p.requires_grad for p in ema.model.parameters())


def test_one_cycle():
    """Made for 40 epochs: 4e-6 at the start, 1e-4 after a fifth, 3.09e-5 after 28."""
    network = build_network("small", 2, weights="none")
    optimizer = make_optimizer(network, TrainConfig(lr=1e-4))
    per_epoch = 181
    schedule = make_schedule(optimizer, 40 * per_epoch)
    rates = []
    for _ in range(28 * per_epoch):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(4e-6)
    assert max(rates) == pytest.approx(1e-4, rel=1e-4)
    assert np.argmax(rates) / per_epoch == pytest.approx(8, abs=0.05)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(3.09e-5, rel=5e-3)
    assert optimizer.param_groups[0]["betas"][0] == pytest.approx(0.919, abs=0.01)  # momentum is cycled, too


def test_optimizer_groups():
    network = build_network("small", 2, weights="none")
    config = TrainConfig(lr=1e-3, lr_head=1e-2, weight_decay=0.5, decay_all=False)
    groups = make_optimizer(network, config).param_groups
    assert {(g["lr"], g["weight_decay"]) for g in groups} == {(1e-3, 0.5), (1e-3, 0.0), (1e-2, 0.5), (1e-2, 0.0)}
    assert all(p.ndim > 1 for g in groups if g["weight_decay"] for p in g["params"])
    assert sum(len(g["params"]) for g in groups) == len(list(network.parameters()))
    everything = make_optimizer(network, TrainConfig(weight_decay=0.5)).param_groups
    assert {g["weight_decay"] for g in everything} == {0.5}


def test_frozen_batch_norm_keeps_its_statistics():
    network = build_network("small", 2, weights="none")
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    for mode, moves in (("frozen", False), ("batch", True)):
        train_mode(network, mode)
        before = {k: v.clone() for k, v in network.state_dict().items() if "running" in k}
        network(images)
        assert any((v != network.state_dict()[k]).any() for k, v in before.items()) == moves


def test_scoring_is_repeatable_and_averages_mirror_images():
    network = build_network("small", 2, weights="none")
    store = TensorStore(torch.randint(0, 256, (7, 3, 16, 16), dtype=torch.uint8), "cpu")
    rows, cpu = np.array([5, 0, 3, 3, 6]), torch.device("cpu")
    plain = score(network, store, rows, device=cpu, batch=2)
    torch.testing.assert_close(plain, score(network, store, rows, device=cpu, batch=100))
    torch.testing.assert_close(plain[2], plain[3])
    both = score(network, store, rows, device=cpu, flips=True)
    with torch.inference_mode():
        items = store.batch(rows)
        torch.testing.assert_close(both, (network(items) + network(items.flip(-1))) / 2)
    assert not plain.requires_grad


def test_feed_gives_the_views_of_each_row_whatever_the_chunk(monkeypatch):
    store = TensorStore(torch.randint(0, 256, (20, 3, 12, 12), dtype=torch.uint8), "cpu")
    views = Views(3, True, 0.5, ("Invert", "TranslateX"))
    steps = np.arange(18).reshape(6, 3)
    network = build_network("small", 3, weights="none")
    expected = views.strong(store.batch(np.arange(18)), np.arange(18), 4).reshape(6, 3, 3, 12, 12)
    for size in (1, 6, 7, 1000):
        monkeypatch.setattr(feed, "ITEMS_PER_CHUNK", size)
        got = torch.stack(list(training_batches(network, store, views, steps, 4, cutout=True)))
        assert (got == expected).all()
    for few in (1, 432 * 9, 432 * 10):  # bytes: of less than one step, of three, of a little more
        monkeypatch.setattr(feed, "BYTES_PER_CHUNK", few)
        got = torch.stack(list(training_batches(network, store, views, steps, 4, cutout=True)))
        assert (got == expected).all()
    features = TensorStore(torch.rand(20, 5), "cpu")  # no images: no views
    got = torch.stack(list(training_batches(network, features, views, steps, 4, cutout=True)))
    assert (got == features.batch(np.arange(18)).reshape(6, 3, 5)).all()


def test_views_are_made_of_fewer_images_at_a_time_where_they_are_large_or_many(monkeypatch):
    """What a network of patches is shown is five times as large."""
    store = TensorStore(torch.zeros((30, 3, 8, 8), dtype=torch.uint8), "cpu")
    views, steps = Views(3, False, 0.5, ("Invert",)), np.arange(30).reshape(10, 3)
    network = build_network("small", 3, weights="none")
    monkeypatch.setattr(feed, "BYTES_PER_CHUNK", 3 * 3 * 8 * 8 * 5)  # five steps of whole images
    for shown, at_once in ((network, [15, 15]), (PatchNet.of(copy.deepcopy(network)), [3] * 10)):
        asked: list[int] = []

        class Watched(TensorStore):
            def batch(self, rows, asked=asked):
                asked.append(len(rows))
                return super().batch(rows)

        watched = Watched(store.items, "cpu")
        assert len(list(training_batches(shown, watched, views, steps, 0, cutout=False))) == 10
        assert asked == at_once


def test_what_auto_precision_means(monkeypatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [resolve_precision(cpu, p) for p in ("auto", "bf16", "fp32")] == ["fp32", "bf16", "fp32"]
    for native in (True, False):  # others would imitate it, slowly

        def supported(including_emulation=True, native=native):
            return native or including_emulation

        monkeypatch.setattr("torch.cuda.is_bf16_supported", supported)
        assert resolve_precision(gpu, "auto") == ("bf16" if native else "fp32")


def test_presets():
    assert set(PRESETS) == {"paper", "default"}
    paper, default = make_config("paper"), make_config("default")
    assert (paper.warmup_epochs, paper.epochs, paper.loss, paper.lr, paper.ema_decay) == (12, 28, "asl", 1e-4, 0.9997)
    assert (paper.normalize, paper.batch_norm, paper.method_options) == ("none", "batch", {})
    assert default.method_options == {"keep_pos": 0.6, "keep_neg": 0.98}
    assert make_config("default", method="iat").method_options == {}
    assert TrainConfig.from_dict(default.to_dict()) == default


def test_epoch_line_without_evaluation():
    line = {"epoch": 0, "stage": "warmup", "loss": 2.0, "seconds": 1.0, "img_per_s": 10.0}
    assert epoch_line(line) == "epoch 1 warmup | loss 2 | 1.0 s, 10 img/s"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": -1}, "epochs is -1"),
        ({"batch": 0}, "batch is 0"),
        ({"batch": 2.5}, "batch is 2.5"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0"),
        ({"selection": "best"}, "selection is 'best'; it must be one of 'last', 'held_out', 'test_best'"),
        ({"loss": "mse"}, "loss is 'mse'"),
        ({"schedule_epochs": 3}, r"schedule_epochs is 3, less than epochs \(28\)"),
        ({"ephocs": 3}, "there is no setting 'ephocs'. Did you mean 'epochs'"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        make_config("paper", **settings)


def test_restored_moments_lie_in_memory_as_their_parameters_do(tmp_path):
    def stepped():
        torch.manual_seed(0)
        layer = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(layer.parameters(), fused=True)  # refuses moments that lie otherwise
        layer(torch.ones(1, 3, 5, 5)).sum().backward()
        optimizer.step()
        return layer, optimizer

    layer, optimizer = stepped()
    groups = [{"lr": group["lr"]} for group in optimizer.param_groups]
    save_checkpoint(tmp_path / "c.safetensors", optimizer_tensors(optimizer), {})  # which stores rows after rows
    again, resumed = stepped()
    restore_optimizer(resumed, load_file(tmp_path / "c.safetensors"), groups)
    assert (
        resumed.state[again.weight]["exp_avg"].stride() == again.weight.stride() != again.weight.contiguous().stride()
    )
    for one, other in ((layer, optimizer), (again, resumed)):
        one(torch.ones(1, 3, 5, 5)).sum().backward()
        other.step()
    torch.testing.assert_close(again.weight, layer.weight)


def test_what_the_default_preset_leaves_to_the_network_and_to_you():
    assert make_config(backbone="resnet50_v1").image_size == 288
    assert make_config(backbone="vit_tiny_patch16_224").image_size == 224  # can have no other
    assert make_config(image_size=96).image_size == 96
    assert make_config("paper").image_size == 224
    assert (make_config().lr, make_config().lr_head) == (3e-5, 1e-4)
    assert make_config(lr=1e-3).lr_head is None  # one rate given is the rate of all
    assert make_config(lr=1e-3, lr_head=1e-2).lr_head == 1e-2


def counted(forward, sizes):
    def counts(self, images):
        sizes.append(len(images))
        return forward(self, images)

    return counts


def test_a_step_in_parts_is_the_step_of_the_whole_batch(monkeypatch):
    """On a CPU, a few images at a time; unlabeled rows keep their places, and ignored entries stay ignored."""
    dataset = make_dataset(train=60, test=10, labeled=20)
    sizes: list[int] = []
    config = make_config(
        backbone="test_resnet", weights="none", image_size=24, batch=40, batch_labeled=13, epochs=1, lr=0.1
    )
    images = dataset.store.batch(np.arange(40)).float()
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.integers(-1, 2, (40, 10))).float()
    places = torch.from_numpy(rng.permutation(40)[:27])
    trained = {}
    for most in (10**9, 7):
        monkeypatch.setattr("tagspread.data.modality.CPU_BATCH", most)
        monkeypatch.setattr("tagspread.data.modality.CPU_PIXELS", 10**9)
        experiment = prepare(dataset, config, torch.device("cpu"))
        forward = TagNet.forward
        monkeypatch.setattr(TagNet, "forward", counted(forward, sizes))
        training = Training(experiment, Path("unused"))
        training.student.begin_stage(experiment.stages[-1])
        loss = training.student.step(images, labels, torch.ones_like(labels), places)
        trained[most] = {"loss": loss, **training.student.network.state_dict()}
        monkeypatch.setattr(TagNet, "forward", forward)
    assert sizes == [40, 7, 7, 7, 7, 7, 5]
    for name, value in trained[7].items():
        torch.testing.assert_close(value, trained[10**9][name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "settings", [{"batch_norm": "batch"}, {"reduction": "mean_mean"}, {"method": "dicap"}, {"method": "freematch"}]
)
def test_a_step_is_of_the_whole_batch_where_rows_depend_on_each_other(settings):
    dataset = make_dataset(train=60, test=10, labeled=20)
    config = make_config(backbone="small", weights="none", image_size=24, epochs=1, start="warmup", **settings)
    training = Training(prepare(dataset, config, torch.device("cpu")), Path("unused"))
    assert training.student._images_at_once is None
