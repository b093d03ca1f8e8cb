"""Networks of videos and volumes, mostly zeros: small ones of the families that exporters write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sparse_nets import SparseNet


class VolumeNet(SparseNet):
    """Operators on ``[n, c, d, h, w]``."""

    def volume(self, channels: int, *sizes: int, batch: int = 1) -> str:
        return self.input("x", batch, channels, *sizes, declared=["n", channels, *sizes])

    def layer(
        self, x: str, inputs: int, outputs: int, kernel: Sequence[int] = (3, 3, 3), group: int = 1, **attrs: Any
    ) -> str:
        """A convolution that keeps sizes where its stride is one, with a bias."""
        weight = self.weight(outputs, inputs // group, *kernel, fan_in=inputs // group * int(np.prod(kernel)))
        bias = self.constant(np.linspace(-0.5, 0.5, outputs))
        attrs.setdefault("pads", [size // 2 for size in kernel] * 2)
        return str(self.op("Conv", x, weight, bias, group=group, **attrs))

    def norm(self, x: str, channels: int) -> str:
        scale, shift, mean, variance = (self.constant(self._rng.uniform(0.5, 1.5, channels)) for _ in range(4))
        return str(self.op("BatchNormalization", x, scale, shift, mean, variance))

    def instance_norm(self, x: str, channels: int) -> str:
        scale, shift = (self.constant(self._rng.uniform(0.5, 1.5, channels)) for _ in range(2))
        return str(self.op("InstanceNormalization", x, scale, shift))

    def group_norm(self, x: str, channels: int, groups: int) -> str:
        """In the nodes that torch's exporter writes."""
        apart = self.op("Reshape", x, self.constant([0, groups, -1], dtype=np.int64))
        one, zero = self.constant(np.ones(groups)), self.constant(np.zeros(groups))
        made = self.op("Reshape", self.op("InstanceNormalization", apart, one, zero), self.op("Shape", x))
        scale, shift = (self.constant(self._rng.uniform(0.5, 1.5, (channels, 1, 1, 1))) for _ in range(2))
        return str(self.op("Add", self.op("Mul", made, scale), shift))

    def classifier(self, x: str, channels: int) -> None:
        x = self.op("Flatten", self.op("GlobalAveragePool", x))
        self.output(self.op("Add", self.dense(x, channels, 5), self.constant(np.full(5, 0.1))))


def r2plus1d(net: VolumeNet, width: int = 8, sizes: Sequence[int] = (4, 8, 8)) -> None:
    """Frames, then from frame to frame, with residual sums; the shortcut skips frames and pixels."""
    x = net.op("Relu", net.norm(net.layer(net.volume(3, *sizes), 3, width, (1, 7, 7), strides=[1, 2, 2]), width))
    x = net.op("Relu", net.norm(net.layer(x, width, width, (3, 1, 1)), width))
    for stride in (1, 2):
        outputs = width * stride
        y = net.op("Relu", net.norm(net.layer(x, width, 12, (1, 3, 3), strides=[1, stride, stride]), 12))
        y = net.norm(net.layer(y, 12, outputs, (3, 1, 1), strides=[stride, 1, 1]), outputs)
        if stride > 1:
            x = net.norm(net.layer(x, width, outputs, (1, 1, 1), strides=[stride] * 3), outputs)
        x = net.op("Relu", net.op("Add", y, x))
        width = outputs
    net.classifier(x, width)


def c3d(net: VolumeNet, width: int = 8, sizes: Sequence[int] = (4, 8, 8)) -> None:
    x = net.op("Relu", net.layer(net.volume(3, *sizes), 3, width))
    x = net.op("MaxPool", x, kernel_shape=[1, 2, 2], strides=[1, 2, 2])
    x = net.op("Relu", net.layer(x, width, 2 * width))
    x = net.op("MaxPool", x, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    x = net.op("Relu", net.layer(x, 2 * width, width))
    x = net.op("Flatten", x)
    depth, height, pixels = sizes[0] // 2, sizes[1] // 4, sizes[2] // 4
    net.output(net.dense(x, width * depth * height * pixels, 5))


def x3d(net: VolumeNet, width: int = 8, sizes: Sequence[int] = (4, 6, 6)) -> None:
    """Depthwise layers of three frames between layers of single pixels, with squeeze-and-excite."""
    x = net.layer(net.volume(3, *sizes), 3, width, (1, 3, 3), strides=[1, 2, 2])
    x = net.op("Relu", net.norm(net.layer(x, width, width, (5, 1, 1), group=width), width))
    for stride in (2, 1):
        inner = 2 * width
        y = net.op("Relu", net.norm(net.layer(x, width, inner, (1, 1, 1)), inner))
        y = net.norm(net.layer(y, inner, inner, (3, 3, 3), group=inner, strides=[1, stride, stride]), inner)
        gate = net.op("Relu", net.layer(net.op("GlobalAveragePool", y), inner, 8, (1, 1, 1)))
        y = net.op("Mul", y, net.op("Sigmoid", net.layer(gate, 8, inner, (1, 1, 1))))
        y = net.op("Mul", y, net.op("Sigmoid", y))
        y = net.norm(net.layer(y, inner, width, (1, 1, 1)), width)
        x = net.op("Relu", net.op("Add", x, y) if stride == 1 else y)
    net.output(net.dense(net.op("ReduceMean", x, net.constant([2, 3, 4]), keepdims=0), width, 5))


def unet(net: VolumeNet, width: int = 8, sizes: Sequence[int] = (4, 4, 6)) -> None:
    """As for medical images: instance normalization, transposed convolutions that tile, classes of each voxel."""

    def block(x: str, inputs: int, outputs: int) -> str:
        return str(net.op("LeakyRelu", net.instance_norm(net.layer(x, inputs, outputs), outputs), alpha=0.1))

    skip = block(net.volume(2, *sizes), 2, width)
    x = net.op("LeakyRelu", net.layer(skip, width, 2 * width, strides=[2, 2, 2]))
    weight = net.weight(2 * width, width, 2, 2, 2)
    x = net.op("ConvTranspose", x, weight, net.constant(np.full(width, 0.1)), strides=[2, 2, 2])
    x = block(net.op("Concat", x, skip, axis=1), 2 * width, width)
    net.output(net.op("Softmax", net.layer(x, width, 3, (1, 1, 1)), axis=1))


def residual_unet(net: VolumeNet, width: int = 8, sizes: Sequence[int] = (4, 4, 6)) -> None:
    """With group normalization, and resizing in place of transposed convolutions."""
    x = skip = net.op("Elu", net.group_norm(net.layer(net.volume(2, *sizes), 2, width), width, 4))
    x = net.op("AveragePool", x, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    y = net.op("Elu", net.group_norm(net.layer(x, width, width), width, 4))
    x = net.op("Add", x, net.layer(y, width, width))
    x = net.op("Resize", x, "", net.constant([1.0, 1.0, 2.0, 2.0, 2.0]), mode="nearest")
    x = net.op("Add", net.layer(x, width, width), skip)
    net.output(net.op("Sigmoid", net.layer(x, width, 2, (1, 1, 1))))


def causal(net: VolumeNet, width: int = 8, sizes: Sequence[int] = (4, 4, 6)) -> None:
    """As encoders of videos: frames are padded before the first one, and the first one goes its own way."""

    def layer(x: str, inputs: int, outputs: int) -> str:
        padded = net.op("Pad", x, net.constant([0, 0, 2, 1, 1, 0, 0, 0, 1, 1]))
        return net.layer(padded, inputs, outputs, pads=[0] * 6)

    x = layer(net.volume(3, *sizes), 3, width)
    x = net.op("Add", x, layer(net.op("Mul", x, net.op("Sigmoid", x)), width, width))
    bounds = ([net.constant([bound]) for bound in own] for own in ((0, 1, 2), (1, 1 << 40, 2)))
    first, others = (net.op("Slice", x, *own) for own in bounds)
    others = net.op("Add", net.layer(others, width, width, (3, 1, 1)), others)
    x = net.op("Concat", net.layer(first, width, width, (1, 3, 3)), others, axis=2)
    net.output(net.layer(x, width, 4, (1, 1, 1)))


VOLUME_NETS: dict[str, Callable[..., None]] = {
    build.__name__: build for build in (r2plus1d, c3d, x3d, unet, residual_unet, causal)
}


def volume_net(name: str, **sizes: Any) -> VolumeNet:
    """One of ``VOLUME_NETS``, by its name."""
    net = VolumeNet(opset=18)
    VOLUME_NETS[name](net, **sizes)
    return net
