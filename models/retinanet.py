"""RetinaNet on ResNet-18 in torch: an object detector up to its raw predictions.

Lin et al., "Focal Loss for Dense Object Detection" (2017), on a feature pyramid: P3 to P5 from C3 to C5, P6 and P7 by
convolutions of stride 2 from C5 and from P6. Two heads of four convolutions are shared by the five levels: each of
their weights is one parameter, and one initializer with five readers. Anchors and non-maximum suppression are left to
the caller. The backbone has batch normalization; pyramid and heads have none.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from sift_onnx.models.resnet import BASE_WIDTH, Backbone, BasicBlock, Bottleneck, initialize_residual
from sift_onnx.models.sizes import check_size, scaled

__all__ = ["RetinaNet", "retinanet_resnet18"]

CHANNELS = 256
ANCHORS = 9
# Probability of an object that a fresh model predicts everywhere.
PRIOR = 0.01


class FeaturePyramid(nn.Module):
    """C3, C4 and C5 to P3 to P7, of the same ``channels`` each and of strides 8 to 128.

    Rows and columns of C3 must be multiples of 4: coarser maps are doubled to the size of the finer ones.
    """

    def __init__(self, inputs: list[int], channels: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(size, channels, 1) for size in inputs)
        self.output = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in inputs)
        self.p6 = nn.Conv2d(inputs[-1], channels, 3, stride=2, padding=1)
        self.p7 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, c3: Tensor, c4: Tensor, c5: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        m5 = self.lateral[2](c5)
        m4 = self.lateral[1](c4) + functional.interpolate(m5, scale_factor=2.0, mode="nearest")
        m3 = self.lateral[0](c3) + functional.interpolate(m4, scale_factor=2.0, mode="nearest")
        p6 = self.p6(c5)
        return self.output[0](m3), self.output[1](m4), self.output[2](m5), p6, self.p7(torch.relu(p6))


class RetinaNet(nn.Module):
    """RetinaNet: images ``[N, 3, H, W]`` to predictions at five levels, of strides 8 to 128.

    ``H`` and ``W`` are multiples of 32. The outputs are class logits ``[N, 9 * num_classes, h, w]`` of the five levels,
    and then their box deltas ``[N, 9 * 4, h, w]``, nine anchors per position.

    Args:
        block: the backbone's residual block.
        depths: blocks of each of its stages.
        num_classes: classes of objects.
        base_width: channels of the first stage of the backbone.
        channels: of the pyramid and of the heads.

    Raises:
        UsageError: a size is out of range.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        num_classes: int = 80,
        base_width: int = BASE_WIDTH,
        channels: int = CHANNELS,
    ) -> None:
        super().__init__()
        check_size("num_classes", num_classes)
        self.backbone = Backbone(block, depths, base_width=base_width)
        initialize_residual(self.backbone, zero_init_residual=False)
        self.pyramid = FeaturePyramid(self.backbone.widths[1:], channels)
        self.class_tower, self.box_tower = _tower(channels), _tower(channels)
        self.class_logits = nn.Conv2d(channels, ANCHORS * num_classes, 3, padding=1)
        self.box_deltas = nn.Conv2d(channels, ANCHORS * 4, 3, padding=1)
        for name, parameter in self.named_parameters():
            if name.startswith("backbone."):
                continue
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name.startswith("pyramid."):
                nn.init.kaiming_uniform_(parameter, a=1)
            else:
                nn.init.normal_(parameter, std=0.01)
        assert self.class_logits.bias is not None
        nn.init.constant_(self.class_logits.bias, -math.log((1 - PRIOR) / PRIOR))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        _, c3, c4, c5 = self.backbone(x)
        levels = self.pyramid(c3, c4, c5)
        logits = [self.class_logits(self.class_tower(level)) for level in levels]
        deltas = [self.box_deltas(self.box_tower(level)) for level in levels]
        return (*logits, *deltas)


def _tower(channels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers)


def retinanet_resnet18(width: float = 1.0, num_classes: int = 80) -> RetinaNet:
    """RetinaNet on ResNet-18: 21,410,100 parameters at 80 classes; ``width`` multiplies the channels of every layer."""
    return RetinaNet(
        BasicBlock,
        (2, 2, 2, 2),
        num_classes=num_classes,
        base_width=scaled(BASE_WIDTH, width, "channels of the first stage"),
        channels=scaled(CHANNELS, width, "channels of the pyramid"),
    )
