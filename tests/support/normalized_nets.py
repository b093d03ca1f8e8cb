"""Normalizations over features, in all the spellings of exporters, for nets of tokens."""

from __future__ import annotations

import numpy as np
from nets import Net

__all__ = [
    "LENGTH",
    "NORMS",
    "WIDTH",
    "around_one",
    "bias",
    "layer_norm",
    "layer_norm_in_nodes",
    "layer_norm_without_bias",
]

WIDTH, LENGTH = 8, 5


def around_one(net: Net, *shape: int) -> str:
    return net.constant(np.random.default_rng(3).uniform(0.5, 1.5, shape).astype(np.float32))


def bias(net: Net, *shape: int) -> str:
    return net.weight(*shape, fan_in=9)


def layer_norm(net: Net, x: str) -> str:
    return net.op("LayerNormalization", x, around_one(net, WIDTH), bias(net, WIDTH), axis=-1, name="norm")


def layer_norm_without_bias(net: Net, x: str) -> str:
    return net.op("LayerNormalization", x, around_one(net, WIDTH), axis=-1, epsilon=0.1)


def centred(net: Net, x: str) -> str:
    return net.op("Sub", x, net.op("ReduceMean", x, net.constant([-1])))


def spelled(net: Net, x: str, square: str, root: str) -> str:
    squares = net.op("Mul", x, x) if square == "Mul" else net.op("Pow", x, net.constant(2.0))
    mean = net.op("Add", net.op("ReduceMean", squares, net.constant([-1])), net.constant(0.1))
    deviation = net.op("Sqrt", mean)
    if root == "Reciprocal":
        return net.op("Mul", x, net.op("Reciprocal", deviation))
    if root == "Pow":
        return net.op("Mul", x, net.op("Pow", mean, net.constant(-0.5)))
    return net.op("Div", x, deviation)


def layer_norm_in_nodes(net: Net, x: str) -> str:
    y = net.op("Mul", spelled(net, centred(net, x), "Pow", "Div"), around_one(net, WIDTH))
    return net.op("Add", y, bias(net, WIDTH))


def layer_norm_with_two_differences(net: Net, x: str) -> str:
    mean = net.op("ReduceMean", x, net.constant([-1]))
    difference, again = net.op("Sub", x, mean), net.op("Sub", x, mean)
    variance = net.op("ReduceMean", net.op("Mul", again, again), net.constant([-1]))
    y = net.op("Div", difference, net.op("Sqrt", net.op("Add", variance, net.constant(0.1))))
    return net.op("Mul", y, around_one(net, WIDTH))


def layer_norm_by_moments(net: Net, x: str) -> str:
    """The variance is the mean of squares less the square of the mean."""
    mean = net.op("ReduceMean", x, net.constant([-1]))
    squares = net.op("ReduceMean", net.op("Mul", x, x), net.constant([-1]))
    variance = net.op("Sub", squares, net.op("Mul", mean, mean))
    deviation = net.op("Sqrt", net.op("Add", variance, net.constant(0.1)))
    return net.op("Mul", net.op("Div", net.op("Sub", x, mean), deviation), around_one(net, WIDTH))


def rms_norm(net: Net, x: str) -> str:
    return net.op("RMSNormalization", x, around_one(net, WIDTH), axis=-1, epsilon=0.1)


def rms_norm_of_onnxruntime(net: Net, x: str) -> str:
    return net.op("SimplifiedLayerNormalization", x, around_one(net, WIDTH), axis=-1, epsilon=0.1)


def rms_norm_in_nodes(net: Net, x: str) -> str:
    return net.op("Mul", spelled(net, x, "Pow", "Reciprocal"), around_one(net, WIDTH))


def rms_norm_scaled_first(net: Net, x: str) -> str:
    return net.op("Mul", around_one(net, WIDTH), spelled(net, x, "Mul", "Pow"))


def rms_norm_without_scale(net: Net, x: str) -> str:
    return spelled(net, x, "Mul", "Div")


def norm_by_the_sum_of_squares(net: Net, x: str) -> str:
    """T5 and Gemma divide by a stored width; zeros add nothing to a sum."""
    squares = net.op("ReduceSumSquare", x, net.constant([-1]))
    mean = net.op("Add", net.op("Div", squares, net.constant(float(WIDTH))), net.constant(0.1))
    return net.op("Mul", net.op("Div", x, net.op("Sqrt", mean)), around_one(net, WIDTH))


def unit_length(net: Net, x: str) -> str:
    return net.op("Div", x, net.op("Add", net.op("ReduceL2", x, net.constant([-1])), net.constant(0.1)))


def lp_norm(net: Net, x: str) -> str:
    return net.op("LpNormalization", x, axis=-1)


NORMS = [
    layer_norm,
    layer_norm_without_bias,
    layer_norm_in_nodes,
    layer_norm_with_two_differences,
    layer_norm_by_moments,
    rms_norm,
    rms_norm_of_onnxruntime,
    rms_norm_in_nodes,
    rms_norm_scaled_first,
    rms_norm_without_scale,
    norm_by_the_sum_of_squares,
    unit_length,
    lp_norm,
    centred,
]
