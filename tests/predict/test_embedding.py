"""``tagspread embed``: features of images for other tools."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tagspread.cli import app
from tagspread.errors import TagspreadError
from tagspread.predict.embedding import embed_images, write_features


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(5):
        Image.fromarray(rng.integers(0, 255, (40, 30, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    (folder / "broken.jpg").write_bytes(b"no image")
    return folder


def test_the_command_writes_names_and_features(images, tmp_path):
    arguments = ["embed", str(images), "-o", str(tmp_path / "f.npz"), "--backbone", "small", "--image-size", "32"]
    done = CliRunner().invoke(app, [*arguments, "--weights", "none"])
    assert done.exit_code == 0, done.output
    assert "5 images, 128 features each; 1 unreadable image left out" in done.output
    found = np.load(tmp_path / "f.npz")
    assert [name.rpartition("/")[2] for name in found["images"]] == [f"{i}.png" for i in range(5)]
    assert found["features"].shape == (5, 128)
    assert str(found["backbone"]) == "small"
    again = CliRunner().invoke(app, [*arguments, "--weights", "none"])
    assert isinstance(again.exception, TagspreadError)
    assert "exists; choose another name" in str(again.exception)
    assert CliRunner().invoke(app, [*arguments, "--weights", "none", "--overwrite"]).exit_code == 0


def test_a_mirrored_image_has_the_same_features():
    image = np.random.default_rng(1).integers(0, 255, (1, 24, 24, 3), dtype=np.uint8)

    def look(array, **more):
        torch.manual_seed(0)
        return embed_images(array, backbone="small", weights="none", image_size=24, **more).features

    np.testing.assert_allclose(look(image), look(image[:, :, ::-1].copy()), atol=1e-5)
    alone = look(image, mirror=False)
    np.testing.assert_allclose(look(image), (alone + look(image[:, :, ::-1].copy(), mirror=False)) / 2, atol=1e-5)


def test_bad_input(images, tmp_path):
    how: dict[str, Any] = {"backbone": "small", "weights": "none"}
    with pytest.raises(TagspreadError, match=r"no image could be read \(the first is .*broken.jpg"):
        embed_images([images / "broken.jpg"], **how)
    found = embed_images(images, image_size=16, **how)
    with pytest.raises(TagspreadError, match=r"does not end in \.npz"):
        write_features(found, tmp_path / "f.csv", "small")
    (tmp_path / "file").write_text("")
    with pytest.raises(TagspreadError, match="cannot be written"):
        write_features(found, tmp_path / "file" / "f.npz", "small")
