import re
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from tagspread.errors import TagspreadError
from tagspread.vision import backbones
from tagspread.vision.backbones import TagNet, build_network
from tagspread.vision.weights import IMAGENET_MEAN, IMAGENET_STD, Weights

TINY = "test_resnet"  # timm's own network for tests, half a million parameters


def images(count=2, side=32, seed=0):
    return torch.randint(
        0, 256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def normalized(x, mean, std):
    """Apply the formula in double precision."""
    return (x.double() / 255 - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(std).view(1, 3, 1, 1)


def wake(network):
    """Randomize all scales, so that every branch matters: timm initializes each block's last scale to 0."""
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1)
            module.running_mean.uniform_(-0.1, 0.1)  # type: ignore[union-attr]
    return network


def check_prepared(network, mean, std, x=None):
    x = images() if x is None else x
    found = network.prepare(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), normalized(x, mean, std), atol=1e-6, rtol=1e-6)


def outputs(network, x=None):
    network.eval()
    with torch.no_grad():
        return network(images() if x is None else x)


@pytest.fixture(scope="module")
def donor():
    """Save a timm network with its classifier, as users have it."""
    torch.manual_seed(3)
    return wake(timm.create_model(TINY, pretrained=False, num_classes=7)).eval()


@pytest.mark.parametrize("head", ["linear", "ml_decoder"])
@pytest.mark.parametrize("name", ["small", TINY])
def test_images_to_logits(name, head):
    network = build_network(name, 5, weights="none", head=head)
    assert isinstance(network, TagNet)
    found = outputs(network, images(3))
    assert found.shape == (3, 5)
    assert found.dtype == torch.float32
    assert found.isfinite().all()
    network.train()(images(3)).sum().backward()
    missing = [name for name, parameter in network.named_parameters() if parameter.grad is None]
    assert missing == []


@pytest.mark.parametrize("head", ["linear", "ml_decoder"])
@pytest.mark.parametrize(
    "name",
    [
        "test_convnext",  # has a norm below its classifier
        "test_vit",  # tokens instead of a map
        "test_mambaout",  # channels last, and pooled features wider than the map's
        "mobilenetv3_small_050",  # pooled features wider than the map's
    ],
)
def test_other_families(tmp_path, name, head):
    torch.manual_seed(0)
    donor: Any = timm.create_model(name, pretrained=False).eval()
    save_file(donor.state_dict(), tmp_path / "net.safetensors")
    network = build_network(name, 4, weights=str(tmp_path / "net.safetensors"), head=head).eval()
    x = images(1, donor.pretrained_cfg["input_size"][-1])
    assert outputs(network, x).shape == (1, 4)
    with torch.no_grad():
        donor.reset_classifier(0)
        torch.testing.assert_close(network.features(x), donor(network.prepare(x)))


@pytest.mark.parametrize(
    ("name", "normalize", "mean", "std"),
    [
        ("small", "weights", (0.5,) * 3, (0.5,) * 3),
        ("small", "none", (0.0,) * 3, (1.0,) * 3),
        ("small", "imagenet", IMAGENET_MEAN, IMAGENET_STD),
        (TINY, "weights", (0.5,) * 3, (0.5,) * 3),  # timm's normalization for this network
        ("resnet18", "weights", IMAGENET_MEAN, IMAGENET_STD),
        (TINY, "none", (0.0,) * 3, (1.0,) * 3),
    ],
)
def test_normalization(name, normalize, mean, std):
    network = build_network(name, 2, weights="none", normalize=normalize)
    check_prepared(network, mean, std)
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    check_prepared(network, mean, std, every)


def test_weights_and_normalization_from_a_file(tmp_path, donor):
    file = tmp_path / "net.safetensors"
    half = {name: t.half() if t.is_floating_point() else t for name, t in donor.state_dict().items()}
    assert "fc.weight" in half
    save_file(half, file, {"mean": "0.5 0.5 0.5", "std": "0.5 0.5 0.25"})
    network = build_network(TINY, 3, weights=str(file))
    check_prepared(network, (0.5,) * 3, (0.5, 0.5, 0.25))
    for name, value in network.backbone.state_dict().items():
        torch.testing.assert_close(value, half[name].to(value.dtype), atol=0, rtol=0)
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())
    check_prepared(build_network(TINY, 3, weights=str(file), normalize="imagenet"), IMAGENET_MEAN, IMAGENET_STD)


def test_features_are_the_donors(tmp_path, donor):
    torch.save(donor.state_dict(), tmp_path / "net.pth")
    network = build_network(TINY, 3, weights=str(tmp_path / "net.pth")).eval()
    x = images()
    with torch.no_grad():
        expected = donor.forward_head(donor.forward_features(network.prepare(x)), pre_logits=True)
        torch.testing.assert_close(network.features(x), expected)
        torch.testing.assert_close(network(x), expected @ network.head.weight.T + network.head.bias)


def test_counters_of_old_files_may_be_missing(tmp_path, donor):
    tensors = {name: t for name, t in donor.state_dict().items() if "num_batches" not in name}
    torch.save({"state_dict": tensors}, tmp_path / "old.pth")
    build_network(TINY, 3, weights=str(tmp_path / "old.pth"))


@pytest.mark.parametrize(
    ("kinds", "counts"),
    [
        (["missing"], "2 tensors missing, 0 unknown, 0 of another shape (such as 'bn1.running_mean')"),
        (["unknown"], "0 tensors missing, 1 unknown, 0 of another shape (such as 'layer9.weight')"),
        (["shape"], "0 tensors missing, 0 unknown, 1 of another shape (such as 'bn1.bias')"),
        (["missing", "unknown", "shape"], "2 tensors missing, 1 unknown, 1 of another shape"),
    ],
)
def test_weights_that_do_not_fit(tmp_path, donor, kinds, counts):
    state = dict(donor.state_dict())
    if "missing" in kinds:
        del state["bn1.running_mean"], state["bn1.running_var"]
    if "unknown" in kinds:
        state["layer9.weight"] = torch.ones(1)
    if "shape" in kinds:
        state["bn1.bias"] = torch.ones(1)
    torch.save(state, tmp_path / "net.pth")
    with pytest.raises(TagspreadError, match=re.escape(f"the weights of net.pth do not fit {TINY}: {counts}")):
        build_network(TINY, 3, weights=str(tmp_path / "net.pth"))


def test_weights_of_another_network(tmp_path):
    save_file(timm.create_model("test_vit", pretrained=False).state_dict(), tmp_path / "vit.safetensors")
    with pytest.raises(TagspreadError, match=r"do not fit test_resnet: \d\d+ tensors missing, \d\d+ unknown, 0 of an"):
        build_network(TINY, 3, weights=str(tmp_path / "vit.safetensors"))


def test_the_first_resnet50_has_its_strides_in_the_first_convolution(tmp_path):
    first, later = (build_network(name, 3, weights="none").backbone for name in ("resnet50_v1", "resnet50"))
    for stage in ("layer2", "layer3", "layer4"):
        for network, strides in ((first, (2, 1)), (later, (1, 2))):
            found = [network.get_submodule(f"{stage}.0.conv{k}").stride for k in (1, 2)]
            assert found == [(s, s) for s in strides]
    assert first.get_submodule("layer1.0.conv1").stride == first.get_submodule("layer2.1.conv1").stride == (1, 1)
    assert {k: v.shape for k, v in first.state_dict().items()} == {k: v.shape for k, v in later.state_dict().items()}
    # the same weights are two different networks, with maps of the same size
    first.load_state_dict(wake(later).state_dict())
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        one, other = (network.eval().forward_features(x) for network in (first, later))  # type: ignore[operator]
    assert one.shape == other.shape == (1, 2048, 2, 2)
    assert not torch.allclose(one, other)


def test_resnet50_takes_torchvisions_weights(monkeypatch):
    from torchvision.models import resnet50

    torch.manual_seed(1)
    theirs = wake(resnet50(weights=None)).eval()
    monkeypatch.setattr(backbones, "torchvision_resnet50", lambda: Weights(dict(theirs.state_dict())))
    network = build_network("resnet50", 3).eval()
    theirs.fc = torch.nn.Identity()
    x = images(1, 64)
    with torch.no_grad():
        torch.testing.assert_close(network.features(x), theirs(network.prepare(x)))


def test_timms_own_weights_bring_their_normalization(monkeypatch):
    downloaded = timm.create_model("test_vit", pretrained=False, num_classes=0)  # timm's normalization: 0.5
    monkeypatch.setattr(backbones, "timm_download", {"test_vit": downloaded, "test_vit.r160_in1k": downloaded}.get)
    for name in ("test_vit", "test_vit.r160_in1k"):
        network = build_network(name, 3)
        assert network.backbone is downloaded
        check_prepared(network, (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize("head", ["linear", "ml_decoder"])
def test_a_saved_network_is_the_same_network(tmp_path, donor, head):
    save_file(donor.state_dict(), tmp_path / "net.safetensors", {"mean": "0.1 0.2 0.3", "std": "0.4 0.5 0.6"})
    network = build_network(TINY, 3, weights=str(tmp_path / "net.safetensors"), head=head)
    torch.save(network.state_dict(), tmp_path / "trained.pth")
    again = build_network(TINY, 3, weights="none", head=head)
    assert not torch.equal(outputs(again), outputs(network))
    again.load_state_dict(torch.load(tmp_path / "trained.pth", weights_only=True))
    assert torch.equal(outputs(again), outputs(network))  # normalization included
    assert {"scale", "shift"} <= set(dict(network.named_buffers()))


def test_small_needs_no_download():
    torch.manual_seed(0)
    network = build_network("small", 2)
    torch.manual_seed(0)
    assert torch.equal(outputs(network), outputs(build_network("small", 2, weights="none")))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: build_network("resnet5O", 2),
            "no backbone 'resnet5O'; use 'small', 'resnet50_v1' or any timm name, su",
        ),
        (lambda: build_network("resnet50_v2", 2), "such as .*resnet50_v1"),
        (lambda: build_network("smal", 2), "such as .*small"),
        (lambda: build_network("###", 2), r"or any timm name\.$"),
        (lambda: build_network("", 2), "no backbone ''"),
        (lambda: build_network("test_resnet.no_such_tag", 2, weights="none"), "no backbone 'test_resnet.no_such_tag'"),
        (lambda: build_network("small", 2, head="mldecoder"), "head is 'mldecoder'.*Did you mean 'ml_decoder'"),
        (
            lambda: build_network("small", 2, normalize="no"),
            "normalize is 'no'; it must be one of 'weights', 'imagenet'",
        ),
        (lambda: build_network("small", 2, weights="net.pth"), "'small' has no pretrained weights; .* give 'none'"),
        (
            lambda: build_network("resnet50_v1", 2),
            "resnet50_v1 has no weights to download; give a file with weights=FILE",
        ),
        (lambda: build_network(TINY, 2, weights="nowhere.pth"), r"there is no file nowhere\.pth"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(TagspreadError, match=words):
        call()
