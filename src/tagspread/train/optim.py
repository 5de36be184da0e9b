"""AdamW and one cycle: two learning rates, weight decay where it belongs, a schedule of the right length."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from tagspread.train.config import TrainConfig
from tagspread.vision.backbones import TagNet


def make_optimizer(network: TagNet, config: TrainConfig) -> torch.optim.AdamW:
    """Return AdamW over the network's and the head's parameters, with their learning rates."""
    groups: list[dict[str, Any]] = []
    for part, lr in (
        (network.backbone, config.lr),
        (network.head, config.lr if config.lr_head is None else config.lr_head),
    ):
        parameters = [p for p in part.parameters() if p.requires_grad]
        # vectors are biases and norm layers; shrinking them regularizes nothing
        decayed = [p for p in parameters if config.decay_all or p.ndim > 1]
        spared = [p for p in parameters if not (config.decay_all or p.ndim > 1)]
        groups += [
            {"params": some, "lr": lr, "weight_decay": decay}
            for some, decay in ((decayed, config.weight_decay), (spared, 0.0))
            if some
        ]
    on_gpu = next(network.parameters()).is_cuda
    return torch.optim.AdamW(groups, fused=True if on_gpu else None)


def make_schedule(optimizer: torch.optim.Optimizer, steps: int) -> OneCycleLR:
    """Return one cycle over ``steps``: up in the first fifth, then down along a cosine.

    A cycle needs room to go up in: fewer than ten steps are the beginning of one of ten.
    """
    peaks = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, max_lr=peaks, total_steps=max(steps, 10), pct_start=0.2)


def train_mode(network: nn.Module, batch_norm: str) -> None:
    """Switch to training; with ``"frozen"`` the normalization keeps the statistics it has."""
    network.train()
    if batch_norm == "frozen":
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
