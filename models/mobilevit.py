"""MobileViT-S in torch, for ImageNet and for CIFAR.

Mehta & Rastegari, "MobileViT: Light-weight, General-purpose, and Mobile-friendly Vision Transformer" (2021), Table 4
and Figure 1. Feature maps are cut into 2x2 patches by a reshape, with no interpolation: their sides must be even at all
three transformers, which they are for images of sides that are multiples of 64.

The form for CIFAR keeps the resolution in the stem and in the first stage that would halve it: a 32x32 image reaches
the transformers as 16x16, 8x8 and 4x4; with the strides of the form for ImageNet, it would end as a single pixel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sift_onnx.models.attention import attend
from sift_onnx.models.mobilenetv2 import InvertedResidual, convolution, initialize
from sift_onnx.models.sizes import check_size, scaled

__all__ = ["MobileVit", "MobileVitBlock"]

STEM = 16
STAGES = (32, 64, 96, 128, 160)
LAST = 640
# Features per position, and layers, of the transformers in the last three stages.
TRANSFORMERS = ((144, 2), (192, 4), (240, 3))
HEADS = 4
EXPANSION = 4
PATCH = 2


class TransformerLayer(nn.Module):
    """Attention and two linear layers, each after a layer normalization and with a shortcut: ``[N, T, size]``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.norm1 = nn.LayerNorm(size)
        self.qkv = nn.Linear(size, 3 * size)
        self.proj = nn.Linear(size, size)
        self.norm2 = nn.LayerNorm(size)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.SiLU(), nn.Linear(2 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).split(self.size, dim=-1)
        x = x + self.proj(attend(qkv[0], qkv[1], qkv[2], HEADS, self.size // HEADS))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class MobileVitBlock(nn.Module):
    """Convolutions, a transformer over patches, and their fusion: ``[N, channels, size, size]`` in and out.

    The transformer relates the positions that have the same place in their 2x2 patches: there are four sequences of
    ``(size / 2) ** 2`` positions for each image.
    """

    def __init__(self, channels: int, features: int, depth: int, size: int) -> None:
        super().__init__()
        self.features, self.patches = features, size // PATCH
        self.local = nn.Sequential(
            convolution(channels, channels, 3, nn.SiLU), nn.Conv2d(channels, features, 1, bias=False)
        )
        self.transformer = nn.Sequential(*(TransformerLayer(features) for _ in range(depth)), nn.LayerNorm(features))
        self.projection = convolution(features, channels, 1, nn.SiLU)
        self.fusion = convolution(2 * channels, channels, 3, nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        n, d = self.patches, self.features
        unfolded = self.local(x).reshape(-1, d, n, PATCH, n, PATCH).permute(0, 3, 5, 2, 4, 1).reshape(-1, n * n, d)
        mixed = self.transformer(unfolded).reshape(-1, PATCH, PATCH, n, n, d)
        folded = mixed.permute(0, 5, 3, 1, 4, 2).reshape(-1, d, n * PATCH, n * PATCH)
        fused: Tensor = self.fusion(torch.cat((x, self.projection(folded)), dim=1))
        return fused


class MobileVit(nn.Module):
    """MobileViT-S: images ``[N, 3, image_size, image_size]`` to class scores ``[N, num_classes]``.

    5.6 million parameters at 1000 classes.

    Args:
        width: factor on the channels and features of every layer.
        num_classes: class scores per image.
        image_size: rows, and columns, of an image; a multiple of 64, or of 16 with ``small_images``.
        small_images: keep the resolution in the stem and in the second stage.

    Raises:
        UsageError: a size is out of range.
    """

    def __init__(
        self, width: float = 1.0, num_classes: int = 1000, *, image_size: int = 256, small_images: bool = False
    ) -> None:
        super().__init__()
        check_size("num_classes", num_classes)
        stem, *widths = (scaled(channels, width, "channels of a layer") for channels in (STEM, *STAGES))
        stride = 1 if small_images else 2
        self.stem = convolution(3, stem, 3, nn.SiLU, stride=stride)
        self.stage1 = _mobile(stem, widths[0], 1)
        self.stage2 = nn.Sequential(
            _mobile(widths[0], widths[1], stride), *(_mobile(widths[1], widths[1], 1) for _ in range(2))
        )
        size = image_size // stride**2
        stages = []
        for inputs, outputs, (features, depth) in zip(widths[1:], widths[2:], TRANSFORMERS, strict=False):
            size //= 2
            head_size = scaled(features // HEADS, width, "features of a head")
            stages.append(
                nn.Sequential(_mobile(inputs, outputs, 2), MobileVitBlock(outputs, HEADS * head_size, depth, size))
            )
        self.stage3, self.stage4, self.stage5 = stages
        last = scaled(LAST, width, "channels of the last layer")
        self.head = convolution(widths[-1], last, 1, nn.SiLU)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(last, num_classes)
        initialize(self, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.stage1(self.stem(x)))
        x = self.head(self.stage5(self.stage4(self.stage3(x))))
        logits: Tensor = self.classifier(torch.flatten(self.avgpool(x), 1))
        return logits


def _mobile(inputs: int, outputs: int, stride: int) -> InvertedResidual:
    return InvertedResidual(inputs, outputs, stride, EXPANSION, nn.SiLU)
