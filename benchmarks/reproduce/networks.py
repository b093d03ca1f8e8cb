"""Dense networks that are trained here: narrow ones for gray images, deep ones for images of one's own.

The narrow ones have the blocks of the published networks, one in each stage (two in ResNet-18), so that thousands of
steps fit into a minute of one core.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from sift_onnx.models.botnet import SelfAttention2d, botnet50
from sift_onnx.models.mobilenetv2 import LAST, STAGES, STEM, InvertedResidual, MobileNetV2, convolution, initialize
from sift_onnx.models.mobilevit import MobileVit, MobileVitBlock
from sift_onnx.models.registry import Architecture
from sift_onnx.models.resnet import BasicBlock, Bottleneck, ResNet, initialize_residual, resnet18, resnet34
from sift_onnx.models.trace import to_onnx

__all__ = ["NETWORKS", "Network", "write_network"]

# Of MobileNetV2's stages on 14x14, which end at 2x2 as those for 32x32 do.
STRIDES = (1, 2, 1, 2, 1, 2, 1)


@dataclass(frozen=True)
class Network:
    """How a network is made.

    Attributes:
        narrow: of channels of the first stage and a number of classes, for gray images of 14x14; ResNets take others.
        deep: of a factor on the published channels, a number of classes and the pixels along an axis of images of
            three colours; a multiple of 16.
    """

    narrow: Callable[[int, int], nn.Module]
    deep: Callable[[float, int, int], nn.Module] | None = None


def write_network(
    name: str, path: Path, width: float, seed: int, shape: tuple[int, int, int], classes: int, *, deep: bool = False
) -> None:
    """Write a network, freshly initialized.

    Args:
        name: a key of ``NETWORKS``.
        path: of the file.
        width: channels of the first stage, or if ``deep`` a factor on the published ones.
        seed: of the weights.
        shape: of an image: channels, rows, columns.
        classes: that are told apart.
        deep: make the network for one's own images.
    """
    network = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if deep:
            assert network.deep is not None, name
            module = network.deep(width, classes, shape[1])
        else:
            module = network.narrow(round(width), classes)
    architecture = Architecture(name, "a network of the reproduction", "-", shape, classes, "benchmarks.reproduce")
    to_onnx(module.eval(), architecture, "dynamic", "torchscript", 17).save(path, force=True)


def _residual(
    block: type[BasicBlock | Bottleneck], depths: tuple[int, int, int, int], width: int, classes: int
) -> ResNet:
    """Stages of ``width`` to ``8 * width`` channels."""
    module = ResNet(block, depths, num_classes=classes, base_width=width, stem="cifar")
    module.conv1 = nn.Conv2d(1, width, kernel_size=3, padding=1, bias=False)
    initialize_residual(module, zero_init_residual=True)
    return module


def _plain(width: int, classes: int) -> nn.Module:
    """Four convolutions of ``width``, and three times ``2 * width``, channels."""
    channels = (1, width, 2 * width, 2 * width, 2 * width)
    blocks = [
        convolution(inputs, outputs, 3, nn.ReLU, stride=stride)
        for inputs, outputs, stride in zip(channels, channels[1:], (1, 2, 1, 1), strict=False)
    ]
    module = _classifier([*blocks], channels[-1], classes)
    initialize(module, std=0.01)
    return module


def _botnet(width: int, classes: int) -> nn.Module:
    """Bottlenecks of ``width`` to ``8 * width`` channels; the last one attends at 4x4, and halves after that."""
    module = _residual(Bottleneck, (1, 1, 1, 1), width, classes)
    block = module.layer4[0]
    assert isinstance(block, Bottleneck)
    block.conv2 = nn.Sequential(SelfAttention2d(8 * width, 4), nn.AvgPool2d(2))
    return module


def _mobilenet(width: int, classes: int) -> nn.Module:
    """Inverted residuals, ``width`` channels in the first: 16 are as many as published."""
    first = STAGES[0][1]
    inputs, last = STEM * width // first, LAST * width // first
    blocks = [convolution(1, inputs, 3, nn.ReLU6)]
    for (expansion, channels, _, _), stride in zip(STAGES, STRIDES, strict=True):
        outputs = channels * width // first
        blocks.append(InvertedResidual(inputs, outputs, stride, expansion))
        inputs = outputs
    blocks.append(convolution(inputs, last, 1, nn.ReLU6))
    module = _classifier(blocks, last, classes)
    initialize(module, std=0.01)
    return module


def _mobilevit(width: int, classes: int) -> nn.Module:
    """Inverted residuals and transformers of two layers at 8x8 and 4x4, ``width`` channels in the first stage.

    The stem's padding makes 16x16 of 14x14, as 2x2 patches need even sides.
    """
    expansion, heads = 4, 4
    stem, features = width // 2, heads * width
    blocks = [
        nn.Sequential(nn.Conv2d(1, stem, 3, padding=2, bias=False), nn.BatchNorm2d(stem), nn.SiLU()),
        InvertedResidual(stem, width, 1, expansion, nn.SiLU),
        InvertedResidual(width, 2 * width, 2, expansion, nn.SiLU),
        InvertedResidual(2 * width, 3 * width, 1, expansion, nn.SiLU),
        MobileVitBlock(3 * width, features, 2, 8),
        InvertedResidual(3 * width, 4 * width, 2, expansion, nn.SiLU),
        MobileVitBlock(4 * width, features + 2 * heads, 2, 4),
        convolution(4 * width, 16 * width, 1, nn.SiLU),
    ]
    module = _classifier(blocks, 16 * width, classes)
    initialize(module, std=0.02)
    return module


def _classifier(blocks: list[nn.Module], features: int, classes: int) -> nn.Module:
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))
    return nn.Sequential(OrderedDict(features=nn.Sequential(*blocks), head=head))


NETWORKS = {
    "plain": Network(_plain),
    "resnet10": Network(lambda width, classes: _residual(BasicBlock, (1, 1, 1, 1), width, classes)),
    "resnet18": Network(
        lambda width, classes: _residual(BasicBlock, (2, 2, 2, 2), width, classes),
        lambda width, classes, _: resnet18(width, classes, stem="cifar"),
    ),
    "resnet34": Network(
        lambda width, classes: _residual(BasicBlock, (3, 4, 6, 3), width, classes),
        lambda width, classes, _: resnet34(width, classes, stem="cifar"),
    ),
    "mobilenet": Network(_mobilenet, lambda width, classes, _: MobileNetV2(width, classes, stem_stride=1)),
    "mobilevit": Network(
        _mobilevit, lambda width, classes, size: MobileVit(width, classes, image_size=size, small_images=True)
    ),
    "botnet": Network(_botnet, lambda width, classes, size: botnet50(width, classes, image_size=size, stem="cifar")),
}
