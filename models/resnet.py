"""Residual networks in torch: ResNet-18, 34 and 50, for ImageNet and for CIFAR.

The blocks are those of He et al., "Deep Residual Learning for Image Recognition" (2015), with the stride of a
down-sampling bottleneck in its 3x3 convolution ("v1.5", the variant of the recipe that the paper's App. B.2 follows).
Parameters carry the names that checkpoints in circulation use: ``conv1``, ``bn1``, ``layer1.0.conv1``,
``layer2.0.downsample.0``, ``fc``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sift_onnx.errors import UsageError
from sift_onnx.models.sizes import check_size, scaled

__all__ = [
    "BASE_WIDTH",
    "Backbone",
    "BasicBlock",
    "Bottleneck",
    "ResNet",
    "conv1x1",
    "initialize_residual",
    "resnet18",
    "resnet34",
    "resnet50",
]

BASE_WIDTH = 64


def _conv3x3(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=dilation, dilation=dilation, bias=False)


def conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """A 1x1 convolution without a bias."""
    return nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """What brings the shortcut to the shape of the residual, or None where it has that shape already."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: ``[N, inputs, H, W] -> [N, width, H/stride, W/stride]``."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, width, stride, dilation)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3x3(width, width, dilation=dilation)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _projection(inputs, width, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        residual = self.relu(self.bn1(self.conv1(x)))
        residual = self.bn2(self.conv2(residual))
        shortcut = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(residual + shortcut)
        return out


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut: ``[N, inputs, H, W] -> [N, 4*width, H/stride, W/stride]``."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = conv1x1(inputs, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2: nn.Module = _conv3x3(width, width, stride, dilation)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv1x1(width, outputs)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _projection(inputs, outputs, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        residual = self.relu(self.bn1(self.conv1(x)))
        residual = self.relu(self.bn2(self.conv2(residual)))
        residual = self.bn3(self.conv3(residual))
        shortcut = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(residual + shortcut)
        return out


def _stage(
    block: type[BasicBlock | Bottleneck], inputs: int, width: int, depth: int, stride: int, dilation: int = 1
) -> nn.Sequential:
    """``depth`` blocks of one width, the first of which takes the stride."""
    outputs = width * block.expansion
    rest = [block(outputs, width, dilation=dilation) for _ in range(depth - 1)]
    return nn.Sequential(block(inputs, width, stride, dilation), *rest)


class Backbone(nn.Module):
    """The stem and the stages of a residual network, which classifiers, detectors and segmenters have in common.

    Weights are as torch makes them until :func:`initialize_residual` is called.

    Args:
        block: the residual block.
        depths: blocks of each of the four stages; stage ``i`` has ``base_width * 2**i`` channels, times
            ``block.expansion`` at its output.
        base_width: channels of the stem and of the first stage.
        stem: ``"imagenet"`` (7x7 convolution of stride 2, then 3x3 max-pooling of stride 2: the first stage sees
            H/4 x W/4) or ``"cifar"`` (3x3 convolution of stride 1 and no pooling: it sees H x W).
        dilate_last: let the last stage keep the resolution of the one before it, with 3x3 convolutions of dilation 2.

    Attributes:
        widths: channels of the outputs of the four stages.

    Raises:
        UsageError: a size is out of range, or the stem is unknown.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        base_width: int = BASE_WIDTH,
        stem: str = "imagenet",
        dilate_last: bool = False,
    ) -> None:
        super().__init__()
        check_size("base_width", base_width)
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(3, base_width, kernel_size=7, stride=2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        elif stem == "cifar":
            self.conv1 = _conv3x3(3, base_width)
            self.maxpool = nn.Identity()
        else:
            raise UsageError(f"stem must be 'imagenet' or 'cifar', not {stem!r}")
        self.bn1 = nn.BatchNorm2d(base_width)
        self.relu = nn.ReLU(inplace=True)
        widths = [base_width * 2**stage for stage in range(4)]
        self.widths = [width * block.expansion for width in widths]
        last_stride, last_dilation = (1, 2) if dilate_last else (2, 1)
        self.layer1 = _stage(block, base_width, widths[0], depths[0], stride=1)
        self.layer2 = _stage(block, self.widths[0], widths[1], depths[1], stride=2)
        self.layer3 = _stage(block, self.widths[1], widths[2], depths[2], stride=2)
        self.layer4 = _stage(block, self.widths[2], widths[3], depths[3], last_stride, last_dilation)

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The outputs of the four stages, of stride 4, 8, 16 and 32 (or 16) with the stem for ImageNet."""
        c2 = self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        c3 = self.layer2(c2)
        c4 = self.layer3(c3)
        return c2, c3, c4, self.layer4(c4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.stages(x)


def initialize_residual(module: nn.Module, zero_init_residual: bool) -> None:
    """Draw convolutions after Kaiming He (fan-out, ReLU).

    Args:
        module: whose convolutions are all redrawn.
        zero_init_residual: start the scale of the last normalization of every residual branch at 0, so that each
            block begins as the identity (He et al., "Bag of Tricks", 2019; used in the paper, App. B.2).
    """
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        elif zero_init_residual and isinstance(part, BasicBlock | Bottleneck):
            last_norm = part.bn3 if isinstance(part, Bottleneck) else part.bn2
            nn.init.zeros_(last_norm.weight)


class ResNet(Backbone):
    """A residual network: images ``[N, 3, H, W]`` to class scores ``[N, num_classes]``.

    Args:
        block: the residual block.
        depths: blocks of each of the four stages.
        num_classes: class scores per image.
        base_width: channels of the stem and of the first stage.
        stem: ``"imagenet"`` or ``"cifar"``; see :class:`Backbone`.
        zero_init_residual: see :func:`initialize_residual`.

    Raises:
        UsageError: a size is out of range, or the stem is unknown.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        num_classes: int = 1000,
        base_width: int = BASE_WIDTH,
        stem: str = "imagenet",
        zero_init_residual: bool = True,
    ) -> None:
        super().__init__(block, depths, base_width=base_width, stem=stem)
        check_size("num_classes", num_classes)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(self.widths[3], num_classes)
        initialize_residual(self, zero_init_residual)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # scores instead of features
        logits: Tensor = self.fc(torch.flatten(self.avgpool(self.stages(x)[3]), 1))
        return logits


def _resnet(
    block: type[BasicBlock | Bottleneck],
    depths: tuple[int, int, int, int],
    width: float,
    num_classes: int,
    stem: str,
    zero_init_residual: bool,
) -> ResNet:
    return ResNet(
        block,
        depths,
        num_classes=num_classes,
        base_width=scaled(BASE_WIDTH, width, "channels of the first stage"),
        stem=stem,
        zero_init_residual=zero_init_residual,
    )


def resnet18(
    width: float = 1.0, num_classes: int = 1000, *, stem: str = "imagenet", zero_init_residual: bool = True
) -> ResNet:
    """ResNet-18: 11,689,512 parameters at 1000 classes; ``width`` multiplies the channels of every layer."""
    return _resnet(BasicBlock, (2, 2, 2, 2), width, num_classes, stem, zero_init_residual)


def resnet34(
    width: float = 1.0, num_classes: int = 1000, *, stem: str = "imagenet", zero_init_residual: bool = True
) -> ResNet:
    """ResNet-34: 21,797,672 parameters at 1000 classes; ``width`` multiplies the channels of every layer."""
    return _resnet(BasicBlock, (3, 4, 6, 3), width, num_classes, stem, zero_init_residual)


def resnet50(
    width: float = 1.0, num_classes: int = 1000, *, stem: str = "imagenet", zero_init_residual: bool = True
) -> ResNet:
    """ResNet-50: 25,557,032 parameters at 1000 classes; ``width`` multiplies the channels of every layer."""
    return _resnet(Bottleneck, (3, 4, 6, 3), width, num_classes, stem, zero_init_residual)
