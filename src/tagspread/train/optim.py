"""Optimizer and learning rate schedule: AdamW with separate rates for backbone and head, and one cycle."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from tagspread.train.config import TrainConfig
from tagspread.vision.backbones import TagNet


def make_optimizer(network: TagNet, config: TrainConfig) -> torch.optim.AdamW:
    """Return AdamW over the parameters of backbone and head, each with its own learning rate."""
    groups: list[dict[str, Any]] = []
    for part, lr in (
        (network.backbone, config.lr),
        (network.head, config.lr if config.lr_head is None else config.lr_head),
    ):
        parameters = [p for p in part.parameters() if p.requires_grad]
        # vectors are biases and weights of norm layers, for which weight decay is no regularization
        decayed = [p for p in parameters if config.decay_all or p.ndim > 1]
        not_decayed = [p for p in parameters if not (config.decay_all or p.ndim > 1)]
        groups += [
            {"params": group, "lr": lr, "weight_decay": decay}
            for group, decay in ((decayed, config.weight_decay), (not_decayed, 0.0))
            if group
        ]
    on_gpu = next(network.parameters()).is_cuda
    return torch.optim.AdamW(groups, fused=True if on_gpu else None)


def make_schedule(optimizer: torch.optim.Optimizer, steps: int) -> OneCycleLR:
    """Return a one-cycle schedule over ``steps``: the rate rises in the first fifth, then falls along a cosine.

    A cycle has at least ten steps; fewer steps use its beginning only.
    """
    peaks = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, max_lr=peaks, total_steps=max(steps, 10), pct_start=0.2)


def train_mode(network: nn.Module, batch_norm: str) -> None:
    """Switch to training mode; with ``batch_norm="frozen"``, batch norm keeps its running statistics."""
    network.train()
    if batch_norm == "frozen":
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
