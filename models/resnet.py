"""Residual networks in torch: ResNet-18, 34 and 50, for ImageNet and for CIFAR.

The blocks are those of He et al., "Deep Residual Learning for Image Recognition" (2015), with the stride of a
down-sampling bottleneck in its 3x3 convolution ("v1.5", the variant of the recipe that the paper's App. B.2 follows).
Parameters carry the names that checkpoints in circulation use: ``conv1``, ``bn1``, ``layer1.0.conv1``,
``layer2.0.downsample.0``, ``fc``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sift_onnx.errors import UsageError

__all__ = ["BasicBlock", "Bottleneck", "ResNet", "resnet18", "resnet34", "resnet50"]

BASE_WIDTH = 64
# Far beyond what fits anywhere; below it, sizes of tensors do not overflow.
MAX_SIZE = 1 << 20


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


def _conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """What brings the shortcut to the shape of the residual, or None where it has that shape already."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: ``[N, inputs, H, W] -> [N, width, H/stride, W/stride]``."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _projection(inputs, width, stride)
        self.relu = nn.ReLU(inplace=True)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The normalization that ends the residual branch."""
        return self.bn2

    def forward(self, x: Tensor) -> Tensor:
        residual = self.relu(self.bn1(self.conv1(x)))
        residual = self.bn2(self.conv2(residual))
        shortcut = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(residual + shortcut)
        return out


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut: ``[N, inputs, H, W] -> [N, 4*width, H/stride, W/stride]``."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv1x1(inputs, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv1x1(width, outputs)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _projection(inputs, outputs, stride)
        self.relu = nn.ReLU(inplace=True)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The normalization that ends the residual branch."""
        return self.bn3

    def forward(self, x: Tensor) -> Tensor:
        residual = self.relu(self.bn1(self.conv1(x)))
        residual = self.relu(self.bn2(self.conv2(residual)))
        residual = self.bn3(self.conv3(residual))
        shortcut = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(residual + shortcut)
        return out


def _stage(block: type[BasicBlock | Bottleneck], inputs: int, width: int, depth: int, stride: int) -> nn.Sequential:
    """``depth`` blocks of one width, the first of which takes the stride."""
    outputs = width * block.expansion
    rest = [block(outputs, width) for _ in range(depth - 1)]
    return nn.Sequential(block(inputs, width, stride), *rest)


class ResNet(nn.Module):
    """A residual network: images ``[N, 3, H, W]`` to class scores ``[N, num_classes]``.

    Args:
        block: the residual block.
        depths: blocks of each of the four stages; stage ``i`` has ``base_width * 2**i`` channels, times
            ``block.expansion`` at its output.
        num_classes: class scores per image.
        base_width: channels of the stem and of the first stage.
        stem: ``"imagenet"`` (7x7 convolution of stride 2, then 3x3 max-pooling of stride 2: the first stage sees
            H/4 x W/4) or ``"cifar"`` (3x3 convolution of stride 1 and no pooling: it sees H x W).
        zero_init_residual: start the scale of the last normalization of every residual branch at 0, so that each
            block begins as the identity (He et al., "Bag of Tricks", 2019; used in the paper, App. B.2). Convolutions
            are always initialized after Kaiming He (fan-out, ReLU).

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
        super().__init__()
        if not (1 <= base_width <= MAX_SIZE and 1 <= num_classes <= MAX_SIZE):
            raise UsageError(f"base_width ({base_width}) and num_classes ({num_classes}) must be 1 to {MAX_SIZE}")
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
        inputs = [base_width, *(width * block.expansion for width in widths)]
        self.layer1 = _stage(block, inputs[0], widths[0], depths[0], stride=1)
        self.layer2 = _stage(block, inputs[1], widths[1], depths[1], stride=2)
        self.layer3 = _stage(block, inputs[2], widths[2], depths[2], stride=2)
        self.layer4 = _stage(block, inputs[3], widths[3], depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs[4], num_classes)
        self._initialize(zero_init_residual)

    def _initialize(self, zero_init_residual: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif zero_init_residual and isinstance(module, BasicBlock | Bottleneck):
                nn.init.zeros_(module.last_norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def _resnet(
    block: type[BasicBlock | Bottleneck],
    depths: tuple[int, int, int, int],
    width: float,
    num_classes: int,
    stem: str,
    zero_init_residual: bool,
) -> ResNet:
    base_width = round(BASE_WIDTH * width) if math.isfinite(width) else 0
    if not 1 <= base_width <= MAX_SIZE:
        raise UsageError(f"width {width} is out of range; it multiplies the {BASE_WIDTH} channels of the first stage")
    return ResNet(
        block,
        depths,
        num_classes=num_classes,
        base_width=base_width,
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
