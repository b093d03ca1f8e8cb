"""Networks whose images have their channels last, as tf2onnx and Keras's own export write them, mostly zeros."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sparse_nets import SparseNet

TO_FIRST, TO_LAST = [0, 3, 1, 2], [0, 2, 3, 1]


class ChannelsLastNet(SparseNet):
    """Operators on ``[n, h, w, c]``; those that ONNX has for channels first are turned around."""

    def image(self, channels: int, size: int) -> str:
        return self.input("x", 1, size, size, channels, declared=["n", size, size, channels])

    def turned(self, kind: str, x: str, *inputs: str, **attrs: object) -> str:
        first = self.op("Transpose", x, perm=TO_FIRST)
        return str(self.op("Transpose", self.op(kind, first, *inputs, **attrs), perm=TO_LAST))

    def layer(self, x: str, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, group: int = 1) -> str:
        """Padded like ``same`` does it: the odd pixel comes behind."""
        weight = self.weight(outputs, inputs // group, kernel, kernel, fan_in=inputs // group * kernel**2)
        whole = kernel - 1 if stride == 1 else max(kernel - stride, 0)
        before, after = whole // 2, whole - whole // 2
        pads = [before, before, after, after]
        return self.turned("Conv", x, weight, pads=pads, strides=[stride] * 2, group=group)

    def norm(self, x: str, channels: int) -> str:
        scale, shift, mean, variance = (self.constant(self._rng.uniform(0.5, 1.5, channels)) for _ in range(4))
        return self.turned("BatchNormalization", x, scale, shift, mean, variance)

    def swish(self, x: str) -> str:
        return str(self.op("Mul", x, self.op("Sigmoid", x)))

    def hard_swish(self, x: str) -> str:
        raised = self.op("Add", x, self.constant(3.0))
        gate = self.op("Mul", self.op("Clip", raised, self.constant(0.0), self.constant(6.0)), self.constant(1 / 6))
        return str(self.op("Mul", x, gate))

    def relu6(self, x: str) -> str:
        return str(self.op("Clip", x, self.constant(0.0), self.constant(6.0)))

    def mean(self, x: str, keepdims: int = 0) -> str:
        return str(self.op("ReduceMean", x, self.constant([1, 2]), keepdims=keepdims))

    def gate(self, x: str, channels: int, inner: int) -> str:
        """Squeeze-and-excite: the mean as an image of one pixel."""
        y = self.op("Reshape", self.mean(x), self.constant([-1, 1, 1, channels]))
        y = self.swish(self.op("Add", self.layer(y, channels, inner), self.constant(np.full(inner, 0.1))))
        return str(self.op("Mul", x, self.op("Sigmoid", self.layer(y, inner, channels))))

    def classifier(self, x: str, channels: int, classes: int = 10) -> None:
        self.output(self.op("Add", self.dense(self.mean(x), channels, classes), self.constant(np.full(classes, 0.1))))


def mobilenet(net: ChannelsLastNet, width: int = 8, size: int = 16, depth: int = 2) -> None:
    """MobileNetV2's blocks, with the padding of strided layers in a node of its own, as keras.applications has it."""
    x = net.relu6(net.norm(net.layer(net.image(3, size), 3, width, 3, 2), width))
    for stage in range(depth):
        outputs = width * 2**stage
        for stride in (2, 1):
            inputs = width * 2 ** max(stage - 1, 0) if stride == 2 else outputs
            inner = 6 * inputs
            y = net.relu6(net.norm(net.layer(x, inputs, inner), inner))
            if stride == 2:
                y = net.op("Pad", y, net.constant([0, 0, 0, 0, 0, 1, 1, 0]))
                weight = net.weight(inner, 1, 3, 3, fan_in=9)
                y = net.turned("Conv", y, weight, group=inner, strides=[2, 2])
            else:
                y = net.layer(y, inner, inner, 3, group=inner)
            y = net.norm(net.layer(net.relu6(net.norm(y, inner)), inner, outputs), outputs)
            x = net.op("Add", x, y) if stride == 1 else y
    net.classifier(x, outputs)


def efficientnet(net: ChannelsLastNet, width: int = 8, size: int = 16, depth: int = 2) -> None:
    x = net.op("Sub", net.op("Mul", net.image(3, size), net.constant(0.5)), net.constant([0.1, 0.2, 0.3]))
    x = net.swish(net.norm(net.layer(x, 3, width, 3, 2), width))
    for stage in range(depth):
        outputs = width * 2**stage
        for stride in (2, 1):
            inputs = width * 2 ** max(stage - 1, 0) if stride == 2 else outputs
            inner = 4 * inputs
            y = net.swish(net.norm(net.layer(x, inputs, inner), inner))
            y = net.swish(net.norm(net.layer(y, inner, inner, 5 if stage else 3, stride, inner), inner))
            y = net.norm(net.layer(net.gate(y, inner, max(inputs // 4, 1)), inner, outputs), outputs)
            x = net.op("Add", y, x) if stride == 1 else y
    net.classifier(net.hard_swish(net.norm(net.layer(x, outputs, 2 * outputs), 2 * outputs)), 2 * outputs)


def resnet(net: ChannelsLastNet, width: int = 8, size: int = 16, depth: int = 2) -> None:
    """Two layers to a block; the end flattens pixels before their channels."""
    x = net.op("Relu", net.norm(net.layer(net.image(3, size), 3, width, 3), width))
    x = net.turned("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    pixels = size // 2
    for stage in range(depth):
        inputs, outputs, stride = width * 2 ** max(stage - 1, 0), width * 2**stage, 2 if stage else 1
        y = net.op("Relu", net.norm(net.layer(x, inputs, outputs, 3, stride), outputs))
        y = net.norm(net.layer(y, outputs, outputs, 3), outputs)
        if stage:
            x = net.norm(net.layer(x, inputs, outputs, 1, stride), outputs)
            pixels //= 2
        x = net.op("Relu", net.op("Add", x, y))
    x = net.op("Reshape", x, net.constant([-1, pixels**2 * outputs]))
    net.output(net.dense(x, pixels**2 * outputs, 10))


def unet(net: ChannelsLastNet, width: int = 8, size: int = 16) -> None:
    skips = []
    x, inputs = net.image(3, size), 3
    for level in range(2):
        outputs = width * 2**level
        x = net.op("Relu", net.norm(net.layer(x, inputs, outputs, 3), outputs))
        skips.append((x, outputs))
        x = net.turned("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        inputs = outputs
    for skip, channels in reversed(skips):
        x = net.op("Resize", x, "", net.constant([1.0, 2.0, 2.0, 1.0]), mode="nearest")
        x = net.op("Concat", x, skip, axis=-1)
        x = net.op("Relu", net.norm(net.layer(x, inputs + channels, channels, 3), channels))
        inputs = channels
    net.output(net.op("Sigmoid", net.layer(x, inputs, 2)))


def convnext(net: ChannelsLastNet, width: int = 8, size: int = 16, depth: int = 2) -> None:
    x = net.layer(net.image(3, size), 3, width, 4, 4)
    for _ in range(depth):
        y = net.layer(x, width, width, 7, group=width)
        y = net.op("LayerNormalization", y, net.constant(np.linspace(0.5, 1.5, width)), net.constant(np.zeros(width)))
        y = net.op("Add", net.dense(y, width, 4 * width), net.constant(np.full(4 * width, 0.1)))
        half = net.op("Mul", y, net.constant(0.5))
        y = net.op("Mul", half, net.op("Add", net.op("Erf", net.op("Div", y, net.constant(2**0.5))), net.constant(1.0)))
        y = net.op("Mul", net.dense(y, 4 * width, width), net.constant(np.linspace(0.1, 1, width)))
        x = net.op("Add", x, y)
    net.classifier(x, width)


CHANNELS_LAST: dict[str, Callable[..., None]] = {
    build.__name__: build for build in (mobilenet, efficientnet, resnet, unet, convnext)
}


def channels_last_net(name: str, **sizes: int) -> ChannelsLastNet:
    """One of ``CHANNELS_LAST``, by its name."""
    net = ChannelsLastNet(opset=18)
    CHANNELS_LAST[name](net, **sizes)
    return net
