"""A small GPT and a small vision transformer, with normalizations before each part."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["Gpt", "VisionTransformer"]


class _Block(nn.Module):
    """Attention and two layers, each added to ``x [n, tokens, width]``."""

    def __init__(self, width: int, heads: int, mask: torch.Tensor | None) -> None:
        super().__init__()
        self.heads = heads
        self.register_buffer("mask", mask, persistent=False)
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, width = x.shape[1:]
        parted = self.qkv(self.norm1(x)).reshape(-1, tokens, 3, self.heads, width // self.heads)
        q, k, v = parted.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        if self.mask is not None:
            scores = scores + self.mask
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, tokens, width))
        y: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return y


class Gpt(nn.Module):
    """Logits ``[n, length, 256]`` of the next byte, from bytes ``[n, length]``."""

    def __init__(self, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        mask = torch.full((length, length), -1e4).triu(1)
        self.table, self.positions = nn.Embedding(256, width), nn.Parameter(torch.randn(1, length, width) * 0.02)
        self.blocks = nn.Sequential(*(_Block(width, heads, mask) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.table(x) + self.positions)))
        return logits


class VisionTransformer(nn.Module):
    """Logits ``[n, 10]`` of images ``[n, 1, 28, 28]``, in 16 patches."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.patches, self.positions = nn.Conv2d(1, width, 7, 7), nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.blocks = nn.Sequential(*(_Block(width, heads, None) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        logits: torch.Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return logits
