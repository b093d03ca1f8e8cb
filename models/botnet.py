"""BoTNet-50 in torch, for ImageNet and for CIFAR: ResNet-50 whose last stage attends instead of convolving.

Srinivas et al., "Bottleneck Transformers for Visual Recognition" (2021), section 3 and Figure 4. In the place of the
3x3 convolutions of c5, its three blocks have self-attention of 4 heads over all positions, with relative positions in
two dimensions. As in BoT50 there (not its variant S1), c5 still halves the resolution: its first block attends at the
resolution of c4, and takes the mean of 2x2 patches after. A 224x224 image is 14x14 in the first block and 7x7 in the
other two; a 32x32 image, with the stem for CIFAR, is 8x8 and 4x4.

Parameters are named as in :mod:`sift_onnx.models.resnet`; attention is ``layer4.0.conv2.0`` in the first block, and
``layer4.1.conv2`` in the others. Its batch normalization follows no convolution, so it is not folded.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sift_onnx.models.resnet import Bottleneck, ResNet, conv1x1, resnet50

__all__ = ["SelfAttention2d", "botnet50"]

HEADS = 4


class SelfAttention2d(nn.Module):
    """Self-attention over the positions of a feature map: ``[N, channels, size, size]`` in and out.

    The score of the query at ``(i, j)`` and the key at ``(k, l)`` is ``q_ij . (k_kl + r_(k-i) + c_(l-j))``, over the
    root of the size of a head; ``r`` and ``c`` are learned vectors for distances of rows and of columns, the same for
    all heads.

    Args:
        channels: a multiple of ``heads``.
        size: rows, and columns, of the feature map.
        heads: how many there are.
    """

    distances: Tensor

    def __init__(self, channels: int, size: int, heads: int = HEADS) -> None:
        super().__init__()
        self.heads, self.head_size, self.size = heads, channels // heads, size
        self.query = conv1x1(channels, channels)
        self.key = conv1x1(channels, channels)
        self.value = conv1x1(channels, channels)
        self.relative_rows = nn.Parameter(torch.randn(2 * size - 1, self.head_size) * self.head_size**-0.5)
        self.relative_columns = nn.Parameter(torch.randn(2 * size - 1, self.head_size) * self.head_size**-0.5)
        positions = torch.arange(size)
        # From a pair of rows, or of columns, to a row of the table of their distances.
        self.register_buffer("distances", positions[None, :] - positions[:, None] + size - 1, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        heads, head_size, size = self.heads, self.head_size, self.size
        q = (self.query(x) * head_size**-0.5).reshape(-1, heads, head_size, size * size).transpose(2, 3)
        k = self.key(x).reshape(-1, heads, head_size, size * size)
        v = self.value(x).reshape(-1, heads, head_size, size * size).transpose(2, 3)
        q_map = q.reshape(-1, heads, size, size, head_size)
        rows = functional.embedding(self.distances, self.relative_rows)
        columns = functional.embedding(self.distances, self.relative_columns)
        by_row = (q_map @ rows.transpose(1, 2)).unsqueeze(-1)
        by_column = (q_map.transpose(2, 3) @ columns.transpose(1, 2)).transpose(2, 3).unsqueeze(-2)
        bias = (by_row + by_column).reshape(-1, heads, size * size, size * size)
        mixed = torch.softmax(q @ k + bias, dim=-1) @ v
        out: Tensor = mixed.transpose(2, 3).reshape(-1, heads * head_size, size, size)
        return out


def botnet50(
    width: float = 1.0,
    num_classes: int = 1000,
    *,
    image_size: int = 224,
    stem: str = "imagenet",
    zero_init_residual: bool = True,
) -> ResNet:
    """BoTNet-50: 20.8 million parameters at 1000 classes; ``width`` multiplies the channels of every layer.

    Args:
        width: factor on all channels.
        num_classes: class scores per image.
        image_size: rows, and columns, of an image: a multiple of 32, or of 8 with the stem for CIFAR.
        stem: ``"imagenet"`` or ``"cifar"``.
        zero_init_residual: see :func:`~sift_onnx.models.resnet.initialize_residual`.

    Raises:
        UsageError: a size is out of range, or the stem is unknown.
    """
    model = resnet50(width, num_classes, stem=stem, zero_init_residual=zero_init_residual)
    size = image_size // (16 if stem == "imagenet" else 4)
    for index, module in enumerate(model.layer4):
        block = cast(Bottleneck, module)
        channels = cast(nn.Conv2d, block.conv2).out_channels
        block.conv2 = SelfAttention2d(channels, size if index == 0 else size // 2)
        if index == 0:
            block.conv2 = nn.Sequential(block.conv2, nn.AvgPool2d(2))
    return model
