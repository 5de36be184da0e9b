"""What training says about the labeled images: a random sample, or a selection."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tagspread.progress import Watcher
from tagspread.train.config import make_config
from tagspread.train.sample_check import sample_in_words
from tagspread.train.trainer import run_training
from tests.train.conftest import make_dataset


def selected(dataset, count=60):
    """Return the dataset with the images that carry most ink as the labeled ones."""
    rows = np.concatenate([dataset.labeled, dataset.unlabeled])
    ink = dataset.store.batch(rows).float().mean((1, 2, 3)).cpu().numpy()
    order = rows[np.argsort(-ink)]
    return replace(dataset, labeled=order[:count], unlabeled=order[count:])


def words_of(dataset, views=None):
    return sample_in_words(dataset, views) or ""


def test_random_labels_look_like_a_random_sample_and_selected_ones_do_not():
    dataset = make_dataset(train=260, labeled=60)
    assert "look like a random sample: a classifier on thumbnails" in words_of(dataset)
    words = words_of(selected(dataset))
    assert "are not a random sample" in words
    assert "tagspread audit" in words


def test_features_are_compared_where_they_are_given():
    dataset = make_dataset(train=260, labeled=60)
    views = torch.randn(2, 260, 5, generator=torch.Generator().manual_seed(0))
    assert "on the network's features cannot tell" in words_of(dataset, views)
    views[0, :60] += 1
    assert "on the network's features tells them" in words_of(dataset, views)
    few = replace(dataset, labeled=dataset.labeled[:10], unlabeled=dataset.unlabeled)
    assert sample_in_words(few, views[:, 50:]) is None


def test_training_says_it_once(tmp_path):
    notes = []

    class Listener(Watcher):
        def note(self, text):
            notes.append(text)

    dataset = make_dataset(train=160, labeled=60)
    settings: dict[str, Any] = {"backbone": "small", "weights": "none", "image_size": 24, "flip": False}
    for name, config in {
        "head": make_config(mode="head", **settings),
        "paper": make_config("paper", warmup_epochs=1, epochs=1, **settings),
        "labeled only": make_config("paper", method="asl", warmup_epochs=1, epochs=0, **settings),
    }.items():
        notes.clear()
        run_training(dataset, config, tmp_path / name, watcher=Listener())
        said = [note for note in notes if "random sample" in note]
        assert len(said) == (name != "labeled only"), name
        assert all(note.startswith("note: the labeled images") for note in said)
