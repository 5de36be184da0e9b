"""Fixtures for export tests: an image folder with a quickly trained run, and untrained runs of any network."""

import csv
import json

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import tagspread as ts
from tagspread.data.datasets.digits import CLASSES, digit_canvases
from tagspread.export import onnx as exporting
from tagspread.methods import get_method
from tagspread.run.artifact import artifact_facts
from tagspread.vision.backbones import build_network


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """100 images of several sizes: 40 tagged in labels.csv, 40 in test.csv, the rest unlabeled."""
    top = tmp_path_factory.mktemp("images")
    drawn = digit_canvases(100, 1, seed=0)[0]
    for i, canvas in enumerate(drawn.images):
        image = Image.fromarray(canvas.transpose(1, 2, 0))
        image.resize((24 + 3 * (i % 20), 24 + 2 * (i % 7))).save(top / f"p{i:03}.png")
    for name, rows in (("labels.csv", range(40)), ("test.csv", range(40, 80))):
        with (top / name).open("w", newline="") as opened:
            tags = ["|".join(name for name, on in zip(CLASSES, row, strict=True) if on) for row in drawn.y]
            csv.writer(opened).writerows([("image", "tags"), *((f"p{i:03}.png", tags[i]) for i in rows)])
    return top


@pytest.fixture(scope="session")
def run(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return ts.train(
        folder, folder / "labels.csv", out, test_labels=folder / "test.csv", backbone="small", weights="none",
        image_size=24, batch=32, lr=0.003, warmup_epochs=6, epochs=1, preset="paper", device="cpu", quiet=True,
    ).path  # fmt: skip


@pytest.fixture(scope="session")
def untrained(tmp_path_factory):
    """Return a function that writes a finished run of an untrained network."""

    def make(backbone="small", head="linear", method="cap", size=32, classes=("a", "b", "c"), **facts):
        torch.manual_seed(0)  # so that the same network comes every time
        network = build_network(backbone, len(classes), weights="none", head=head, normalize="imagenet")
        network = get_method(method).network(network)
        path = tmp_path_factory.mktemp("untrained")
        tensors = {name: value.contiguous() for name, value in network.state_dict().items()}
        save_file(tensors, path / "ema.safetensors")
        settings = {"backbone": backbone, "head": head, "method": method, "method_options": {}}
        known = artifact_facts(classes, settings, network, (3, size, size), path / "ema.safetensors")
        known["thresholds"] = [0.5] * len(classes)
        known["calibration"] = {"slope": [2.0] * len(classes), "intercept": [-0.5] * len(classes)}
        (path / "labels.json").write_text(json.dumps(known | facts))
        return path

    return make


@pytest.fixture(scope="session")
def graph(untrained):
    """The ONNX graph of a small untrained run, exported once because it takes seconds."""
    return exporting._graph(ts.load(untrained(), device="cpu"))


@pytest.fixture
def ready(monkeypatch, graph):
    """Replace every export by that graph."""
    monkeypatch.setattr(exporting, "_graph", lambda tagger: graph)
