import os
import pickle
import socket

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from torchvision.models import ResNet50_Weights

from tagspread.errors import TagspreadError
from tagspread.vision import weights as module
from tagspread.vision.backbones import build_network
from tagspread.vision.weights import read_weights, timm_download, without_classifier

TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "a.count": torch.tensor([4])}


def same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=0, rtol=0)


def test_safetensors(tmp_path):
    file = tmp_path / "net.safetensors"
    save_file(TENSORS, file)
    plain = read_weights(file)
    same(plain.tensors, TENSORS)
    assert plain[1:] == (None, None, "net.safetensors")
    save_file(TENSORS, file, {"mean": "0.5 0.5 0.25", "std": "0.5, 0.5, 1", "source": "made here"})
    assert read_weights(str(file))[1:] == ((0.5, 0.5, 0.25), (0.5, 0.5, 1.0), "net.safetensors (made here)")


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_single(tmp_path, half):
    file = tmp_path / "net.safetensors"
    save_file({name: value.to(half) if value.is_floating_point() else value for name, value in TENSORS.items()}, file)
    same(read_weights(file).tensors, TENSORS)
    torch.save({"w": torch.ones(2, dtype=half)}, tmp_path / "net.pth")
    same(read_weights(tmp_path / "net.pth").tensors, {"w": torch.ones(2)})


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: {"state_dict": t, "epoch": 3}])
@pytest.mark.parametrize("name", ["net.pth", "net.pt", "net.bin"])
def test_torch_files(tmp_path, wrap, name):
    torch.save(wrap(TENSORS), tmp_path / name)
    found = read_weights(tmp_path / name)
    same(found.tensors, TENSORS)
    assert found[1:] == (None, None, name)  # not stated: the network's own are used


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)  # what a malicious file would do


@pytest.mark.parametrize("kind", ["pickle", "torch", "torch in a dictionary", "old torch"])
def test_no_code_in_a_file_is_run(tmp_path, kind):
    file, sprung = tmp_path / "net.pth", tmp_path / "sprung"
    if kind == "pickle":
        file.write_bytes(pickle.dumps(Trap(sprung)))
    elif kind == "torch":
        torch.save(Trap(sprung), file)
    elif kind == "old torch":
        torch.save(TENSORS | {"trap": Trap(sprung)}, file, _use_new_zipfile_serialization=False)
    else:
        torch.save(TENSORS | {"trap": Trap(sprung)}, file)
    with pytest.raises(TagspreadError, match=r"net\.pth does not hold plain tensors; give a \.safetensors file"):
        read_weights(file)
    assert not sprung.exists()
    if kind == "pickle":
        pickle.loads(file.read_bytes())  # the trap works
        assert sprung.exists()


def write_bytes(content):
    return lambda file: file.write_bytes(content)


def cut_short(save, size):
    def write(file):
        save(TENSORS, file)
        os.truncate(file, size)

    return write


def about(**metadata):
    return lambda file: save_file(TENSORS, file, metadata)


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("no.safetensors", lambda file: None, r"there is no file .*no\.safetensors; give a"),
        ("folder.pth", lambda file: file.mkdir(), "there is no file"),
        ("a.safetensors", write_bytes(b"not tensors at all"), "is not a readable safetensors file .*download it again"),
        ("a.safetensors", write_bytes(b""), "is not a readable safetensors file"),
        ("a.safetensors", cut_short(save_file, 150), "is not a readable safetensors file"),
        ("a.pth", write_bytes(b""), "does not hold plain tensors"),
        ("a.pth", write_bytes(b"not tensors at all"), "does not hold plain tensors"),
        ("a.pth", cut_short(torch.save, 700), "does not hold plain tensors"),
        ("a.pth", lambda file: torch.save([torch.ones(1)], file), "does not hold a dict of tensors; save model"),
        ("a.pth", lambda file: torch.save(torch.ones(1), file), "does not hold a dict of tensors"),
        ("a.pth", lambda file: torch.save({}, file), "does not hold a dict of tensors"),
        ("a.pth", lambda file: torch.save({"epoch": 3}, file), "does not hold a dict of tensors"),
        ("a.pth", lambda file: torch.save({"state_dict": 3}, file), "does not hold a dict of tensors"),
        ("a.safetensors", about(mean="0.5"), "has mean '0.5'; write three numbers"),
        ("a.safetensors", about(mean="a b c"), "has mean 'a b c'"),
        ("a.safetensors", about(mean="0 0 nan"), "has mean '0 0 nan'"),
        ("a.safetensors", about(mean="0 0 0", std="1 1 0"), "has std '1 1 0'"),
        ("a.safetensors", about(std="1 1 1 1"), "has std '1 1 1 1'"),
    ],
)
def test_bad_input(tmp_path, name, write, words):
    write(tmp_path / name)
    with pytest.raises(TagspreadError, match=words) as caught:
        read_weights(tmp_path / name)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # without the library's traceback
    assert "\n" not in str(caught.value)


def test_only_the_classifier_is_left_behind():
    tensors = dict.fromkeys(["conv.weight", "head.norm.weight", "head.fc.weight", "head_dist.bias", "heads.0.weight"])
    tensors |= dict.fromkeys(["fc.weight", "fc2.weight", "classifier.bias", "layer4.fc.bias", "last_linear.weight"])
    found = without_classifier(tensors, ["conv.weight", "head.norm.weight"])  # type: ignore[arg-type]
    assert list(found) == ["conv.weight", "head.norm.weight", "fc2.weight", "layer4.fc.bias"]


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Make name resolution fail; return the list of requested names."""
    asked = []

    def unreachable(host, *_, **__):
        asked.append(host)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return asked


def check_no_download(call, name, reason):
    with pytest.raises(TagspreadError, match=f"the pretrained weights of {name} could not be downloaded") as caught:
        call()
    message = str(caught.value)
    for part in (reason, "weights=FILE", "weights='none'", "backbone='tf_efficientnet_lite0'"):
        assert part in message
    assert "\n" not in message
    assert len(message) < 400
    assert caught.value.__suppress_context__  # no stack of the client's own errors


def test_offline_timm_is_asked_once_and_not_again(offline):
    check_no_download(lambda: build_network("test_resnet", 2), "test_resnet", "(")
    assert offline == ["huggingface.co"]  # one lookup, no retries
    assert constants.HF_HUB_OFFLINE is False  # the client's setting is restored


def test_offline_resnet50(offline):
    check_no_download(lambda: build_network("resnet50", 2), "resnet50", "name resolution")
    assert len(offline) == 1


@pytest.mark.parametrize("error", [OSError("no route to host\nat all"), TimeoutError(), RuntimeError("invalid hash")])
def test_downloads_that_fail(offline, monkeypatch, error):
    def fail(*_, **__):
        raise error

    reason = (str(error) or "TimeoutError").splitlines()[0]
    monkeypatch.setattr(timm, "create_model", fail)
    check_no_download(lambda: build_network("test_resnet", 2), "test_resnet", f"({reason})")
    monkeypatch.undo()
    monkeypatch.setattr(type(ResNet50_Weights.IMAGENET1K_V1), "get_state_dict", fail)
    check_no_download(module.torchvision_resnet50, "resnet50", f"({reason})")


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("reachable", [False, True])
def test_the_hub_is_offline_only_while_it_has_to_be(monkeypatch, before, reachable):
    def look(*_, **__):
        if not reachable:
            raise OSError
        return []

    def create(name, **options):
        assert (name, options) == ("test_resnet", {"pretrained": True, "num_classes": 0})
        seen.append(constants.HF_HUB_OFFLINE)
        return torch.nn.Identity()

    seen: list[bool] = []
    monkeypatch.setattr(socket, "getaddrinfo", look)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", before)
    monkeypatch.setattr(timm, "create_model", create)
    assert isinstance(timm_download("test_resnet"), torch.nn.Identity)
    assert seen == [before or not reachable]
    assert constants.HF_HUB_OFFLINE is before
