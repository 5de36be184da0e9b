"""Run the examples of CONTRIBUTING.md: write their files, register them as described, and use them in a grid."""

import importlib.util
import re
import sys
import textwrap
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

from tagspread.bench.run import Request, run_bench
from tagspread.data.datasets import DATASETS
from tagspread.methods import METHODS, Labeled, get_method
from tagspread.progress import Watcher

PAGE = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Import the file of a section's example and register it as the section describes."""

    def load(title, registry):
        section = re.search(rf"^## {title}\n(.*?)^## ", PAGE, re.M | re.S)
        assert section is not None
        blocks = re.findall(r"^   ```python\n(.*?)^   ```", section[1], re.M | re.S)
        file_text, entry = map(textwrap.dedent, blocks)
        name = re.match(r"# src/tagspread/[\w/]+/(\w+)\.py\n", file_text)
        assert name is not None
        file = tmp_path / f"{name[1]}.py"
        file.write_text(file_text)
        spec = importlib.util.spec_from_file_location(f"contributed_{name[1]}", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        spec.loader.exec_module(module)
        exec(compile(entry, "entry", "exec"), {**vars(module), **registry})

    with mock.patch.dict(METHODS), mock.patch.dict(DATASETS):
        yield load


def grid(request, folder):
    """Run the cells and return the lines of the table."""
    assert run_bench(request, Watcher(quiet=True)) == 0
    return (folder / "table.csv").read_text().splitlines()


def test_add_a_method(example, tmp_path):
    before = set(METHODS)
    example("Add a method", {"METHODS": METHODS})
    (name,) = set(METHODS) - before
    method = get_method(name)
    labeled = Labeled(torch.tensor([[1, 0], [0, 0]]), ("cat", "dog"))
    scores = torch.tensor([[3.0, -3.0], [0.1, -0.1]])
    assert method.targets(scores, labeled, {}).labels.tolist() == [[1, 0], [-1, -1]]
    settings = {"warmup_epochs": 2, "epochs": 2}
    request = Request(
        "demo", tmp_path / "out", methods=(name,), seeds=(1,), settings=settings, canvases=100, device="cpu"
    )
    assert any(f",{name}," in line for line in grid(request, tmp_path / "out"))


def test_add_a_dataset(example, tmp_path):
    before = set(DATASETS)
    example("Add a dataset", {"DATASETS": DATASETS})
    (name,) = set(DATASETS) - before
    dataset = DATASETS[name]
    root, rng = tmp_path / "data", np.random.default_rng(0)
    (root / "images").mkdir(parents=True)
    for part, count in (("train", 40), ("test", 20)):
        rows = [f"{part}{k:02}.png,{'sea|sand' if k % 2 else 'sea' if k % 4 else ''}" for k in range(count)]
        (root / f"{part}.csv").write_text("\n".join(["image,tags", *rows]))
        for k in range(count):
            pixels = rng.integers(0, 255, (24, 24, 3), np.uint8)
            Image.fromarray(pixels).save(root / "images" / f"{part}{k:02}.png")
    settings = {
        "backbone": "small", "weights": "none", "image_size": 24, "warmup_epochs": 1, "epochs": 1, "batch": 8,
        "warmup_batch": 8,
    }  # fmt: skip
    request = Request(
        name, tmp_path / "out", root=root, methods=("cap",), shares=(0.2,), seeds=(1,), settings=settings, device="cpu"
    )
    lines = grid(request, tmp_path / "out")
    published = next(table.value("cap", 0.2) for table in dataset.published)
    assert any(",cap," in line and f",{published:.3f}," in line for line in lines), lines
    assert (tmp_path / "out" / "table.md").read_text().startswith(f"# {dataset.title}: ")
