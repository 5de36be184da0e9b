r"""Classification heads: linear head and ML-Decoder, from features to one logit per class.

``LinearHead`` takes the pooled features. ``MLDecoder`` (Ridnik et al., 2023) has one query per class that attends to
the whole feature map, which gives each class its own embedding:

.. math:: E = \mathrm{FF}(\mathrm{Attention}(Q, F, F)), \qquad z_k = w_k \cdot E_k + b_k

Logits are computed in full precision, whatever precision the backbone uses. bfloat16 has only 128 numbers between 4 and
8, so thousands of images would share their scores, and their ranking would be lost.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn


def full_precision(features: Tensor) -> AbstractContextManager[object]:
    """Return a context that disables autocast; it does nothing where autocast is off, as in an export."""
    kind = features.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


class LinearHead(nn.Linear):
    """Linear classification head on pooled features."""

    wants_map = False

    def forward(self, features: Tensor) -> Tensor:
        """Return one logit per class."""
        with full_precision(features):
            return super().forward(features.to(self.weight.dtype))


class MLDecoder(nn.Module):
    """ML-Decoder head: one fixed query per class attends to the feature map.

    The feature map is B x C x H x W, or a transformer's B x H x W x C or B x N x C.
    """

    wants_map = True

    def __init__(self, channels: int, classes: int, embedding: int = 768, heads: int = 8, hidden: int = 2048) -> None:
        super().__init__()
        self.channels = channels
        self.project = nn.Sequential(nn.Linear(channels, embedding), nn.ReLU())
        self.queries = nn.Parameter(torch.randn(classes, embedding))
        self.norm_query, self.norm_attended, self.norm_out = (nn.LayerNorm(embedding) for _ in range(3))
        self.attention = nn.MultiheadAttention(embedding, heads, dropout=0.1, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(embedding, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, embedding)
        )
        self.weight = nn.Parameter(torch.empty(classes, embedding))
        self.bias = nn.Parameter(torch.zeros(classes))
        nn.init.xavier_normal_(self.weight)

    def embed(self, features: Tensor) -> Tensor:
        """Return one embedding per image and class (B x classes x embedding)."""
        convolutional = features.ndim == 4 and features.shape[1] == self.channels
        tokens = self.project(features.flatten(2).transpose(1, 2) if convolutional else features.flatten(1, -2))
        query = self.norm_query(self.queries).expand(features.shape[0], -1, -1)  # len() would be traced as a constant
        attended = self.norm_attended(query + self.attention(query, tokens, tokens, need_weights=False)[0])
        return self.norm_out(attended + self.feed_forward(attended))  # type: ignore[no-any-return]

    def forward(self, features: Tensor) -> Tensor:
        """Return one logit per class."""
        return (self.embed(features) * self.weight).sum(-1) + self.bias
