"""DeepLabV3+ on ResNet-18 in torch: semantic segmentation.

Chen et al., "Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation" (2018): output stride
16 (the last stage of the backbone has dilation 2 in place of its stride), atrous spatial pyramid pooling at rates 6, 12
and 18 with image pooling, and a decoder that adds low-level features of stride 4. Atrous and decoder convolutions are
depthwise separable. The pyramid and the decoder have 128 channels, and the low-level features 12, as in the toolbox
that the paper trains with (App. B.3.3).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sift_onnx.models.mobilenetv2 import convolution
from sift_onnx.models.resnet import BASE_WIDTH, Backbone, BasicBlock, initialize_residual
from sift_onnx.models.sizes import check_size, scaled

__all__ = ["DeepLabV3Plus", "deeplabv3plus_resnet18"]

CHANNELS = 128
LOW_LEVEL = 12
RATES = (6, 12, 18)


def _separable(inputs: int, outputs: int, dilation: int = 1) -> nn.Sequential:
    return nn.Sequential(
        convolution(inputs, inputs, 3, nn.ReLU, dilation=dilation, groups=inputs),
        convolution(inputs, outputs, 1, nn.ReLU),
    )


class AtrousPyramid(nn.Module):
    """Atrous spatial pyramid pooling: ``[N, inputs, H, W] -> [N, channels, H, W]``."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.point = convolution(inputs, channels, 1, nn.ReLU)
        self.atrous = nn.ModuleList(_separable(inputs, channels, rate) for rate in RATES)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), convolution(inputs, channels, 1, nn.ReLU))
        self.project = convolution((2 + len(RATES)) * channels, channels, 1, nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        # Resizing one pixel, by whatever interpolation, repeats it.
        image = functional.interpolate(self.pool(x), size=x.shape[-2:], mode="nearest")
        branches = [self.point(x), *(branch(x) for branch in self.atrous), image]
        out: Tensor = self.project(torch.cat(branches, dim=1))
        return out


class DeepLabV3Plus(nn.Module):
    """DeepLabV3+: images ``[N, 3, H, W]`` to class scores ``[N, num_classes, H, W]``, ``H`` and ``W`` multiples of 16.

    Args:
        num_classes: class scores per pixel.
        base_width: channels of the first stage of the backbone.
        channels: of the atrous pyramid and of the decoder.
        low_level: channels that the features of stride 4 are reduced to.

    Raises:
        UsageError: a size is out of range.
    """

    def __init__(self, *, num_classes: int, base_width: int, channels: int, low_level: int) -> None:
        super().__init__()
        check_size("num_classes", num_classes)
        self.backbone = Backbone(BasicBlock, (2, 2, 2, 2), base_width=base_width, dilate_last=True)
        self.pyramid = AtrousPyramid(self.backbone.widths[3], channels)
        self.low_level = convolution(self.backbone.widths[0], low_level, 1, nn.ReLU)
        self.decoder = nn.Sequential(_separable(channels + low_level, channels), _separable(channels, channels))
        self.classifier = nn.Conv2d(channels, num_classes, 1)
        initialize_residual(self, zero_init_residual=False)
        nn.init.normal_(self.classifier.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        c2, _, _, c5 = self.backbone(x)
        coarse = functional.interpolate(self.pyramid(c5), scale_factor=4.0, mode="bilinear")
        logits = self.classifier(self.decoder(torch.cat((coarse, self.low_level(c2)), dim=1)))
        return functional.interpolate(logits, scale_factor=4.0, mode="bilinear")


def deeplabv3plus_resnet18(width: float = 1.0, num_classes: int = 19) -> DeepLabV3Plus:
    """DeepLabV3+ on ResNet-18: 11,645,551 parameters at 19 classes; ``width`` multiplies all channels."""
    return DeepLabV3Plus(
        num_classes=num_classes,
        base_width=scaled(BASE_WIDTH, width, "channels of the first stage"),
        channels=scaled(CHANNELS, width, "channels of the pyramid"),
        low_level=scaled(LOW_LEVEL, width, "channels of low-level features"),
    )
