"""For methods that train a head of their own on what a frozen network sees: images become features, once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tagspread.data.images.store import TensorStore
from tagspread.progress import Watcher
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.train.features import forget_others, kept_features
from tagspread.vision.backbones import TagNet
from tagspread.vision.dual_relation import DualRelation


class FeatureNet(TagNet):
    """The head of a network, fed with its features."""

    def __init__(self, network: TagNet) -> None:
        nn.Module.__init__(self)
        self.backbone, self.head = nn.Identity(), network.head
        self.register_buffer("scale", network.scale)
        self.register_buffer("shift", network.shift)

    def prepare(self, images: Tensor) -> Tensor:
        """Leave features as they are."""
        return images


def on_features(
    network: TagNet, dataset: Dataset, config: TrainConfig, device: torch.device, kept: Path, watcher: Watcher
) -> Dataset:
    """Return the dataset with features of the plain view for images; center and scale the head by the labeled.

    The features are kept in the folder ``kept``, and found there again.
    """
    seen, file = kept_features(kept, network, dataset, np.arange(len(dataset.store)), config, device, watcher)
    forget_others([file])
    if isinstance(head := network.head, DualRelation):
        labeled = seen[torch.from_numpy(dataset.labeled).to(device)]
        head.center.copy_(labeled.mean(0))
        spread = labeled.std(0, correction=0)  # a feature that is silent in all of them may speak in the unlabeled set
        head.spread.copy_(torch.where(spread > 1e-6, spread, 1.0))
    return replace(dataset, store=TensorStore(seen, device), identity=dataset.fingerprint())


def whole_model(network: nn.Module, student: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the network with the head that was trained, whether or not the rest was frozen."""
    return {k: v for k, v in network.state_dict().items() if k.startswith("backbone.")} | student.state_dict()
