"""MobileNetV2 in torch, for ImageNet and for CIFAR.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (2018), Table 2. Parameters carry the names
that checkpoints in circulation use: ``features.0.0``, ``features.2.conv.0.0``, ``classifier.1``.

The form for CIFAR differs in the stride of the stem alone, which is 1: the last feature map of a 32x32 image is 2x2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sift_onnx.errors import UsageError
from sift_onnx.models.sizes import MAX_SIZE, check_size

__all__ = ["InvertedResidual", "MobileNetV2", "convolution", "initialize"]

# Expansion, channels, blocks and stride of each stage.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
STEM = 32
LAST = 1280


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    activation: type[nn.Module],
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> nn.Sequential:
    """A convolution that keeps the resolution up to its stride, batch normalization, and an activation."""
    padding = dilation * (kernel - 1) // 2
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation=dilation, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        activation(),
    )


def initialize(module: nn.Module, std: float) -> None:
    """Draw convolutions after Kaiming He (fan-out), and linear layers from a normal distribution of ``std``."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out")
        elif isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=std)
            nn.init.zeros_(part.bias)


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution and linear projection.

    ``[N, inputs, H, W] -> [N, outputs, H/stride, W/stride]``, with a shortcut where the two shapes are the same.
    Without an expansion (a factor of 1) there is no first convolution.
    """

    def __init__(
        self, inputs: int, outputs: int, stride: int, expansion: int, activation: type[nn.Module] = nn.ReLU6
    ) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers = [] if expansion == 1 else [convolution(inputs, hidden, 1, activation)]
        self.conv = nn.Sequential(
            *layers,
            convolution(hidden, hidden, 3, activation, stride=stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.has_shortcut else out


class MobileNetV2(nn.Module):
    """MobileNetV2: images ``[N, 3, H, W]`` to class scores ``[N, num_classes]``.

    3,504,872 parameters at 1000 classes, 1,968,680 of them left at half the width.

    Args:
        width: the width multiplier of the paper: channels are multiplied by it and rounded to a multiple of 8; a factor
            below 1 leaves the last convolution (1280 channels) as it is.
        num_classes: class scores per image.
        stem_stride: stride of the first convolution.

    Raises:
        UsageError: a size is out of range.
    """

    def __init__(self, width: float = 1.0, num_classes: int = 1000, *, stem_stride: int = 2) -> None:
        super().__init__()
        if not math.isfinite(width) or not 0 < width <= MAX_SIZE / LAST:
            raise UsageError(f"width {width} is out of range; it multiplies the {STEM} channels of the stem")
        check_size("num_classes", num_classes)
        inputs, last = _channels(STEM, width), _channels(LAST, max(1.0, width))
        layers: list[nn.Module] = [convolution(3, inputs, 3, nn.ReLU6, stride=stem_stride)]
        for expansion, channels, depth, stride in STAGES:
            outputs = _channels(channels, width)
            for block in range(depth):
                layers.append(InvertedResidual(inputs, outputs, stride if block == 0 else 1, expansion))
                inputs = outputs
        layers.append(convolution(inputs, last, 1, nn.ReLU6))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, num_classes))
        initialize(self, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
        return logits


def _channels(channels: int, width: float) -> int:
    """The nearest multiple of 8, at least 8; the next one where that takes more than a tenth away (Sandler's rule)."""
    wanted = channels * width
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8
