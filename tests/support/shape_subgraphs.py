"""Subgraphs that compute shapes, as exporters write them."""

from __future__ import annotations

from typing import Any

import numpy as np
from nets import Net
from onnx import numpy_helper


def number(net: Net, value: int, form: str = "value") -> str:
    """A scalar in a Constant node, in one of the ways that exporters write it."""
    attrs: dict[str, Any] = {"value_int": value}
    if form == "value":
        attrs = {"value": numpy_helper.from_array(np.asarray(value, dtype=np.int64))}
    return str(net.op("Constant", **attrs))


def numbers(net: Net, values: list[int], form: str = "value_ints") -> str:
    """A vector in a Constant node, or as an initializer."""
    if form == "initializer":
        return net.constant(values)
    attrs: dict[str, Any] = {"value_ints": values}
    if form == "value":
        attrs = {"value": numpy_helper.from_array(np.asarray(values, dtype=np.int64))}
    return str(net.op("Constant", **attrs))


def size(net: Net, x: str, axis: int) -> str:
    """``x.shape[axis]`` as TorchScript writes it: a scalar."""
    return str(net.op("Gather", net.op("Shape", x), number(net, axis), axis=0))


def listed(net: Net, *scalars: str) -> str:
    """``[a, b, ...]`` as TorchScript writes it: every scalar becomes a vector of one."""
    parts = [net.op("Unsqueeze", scalar, numbers(net, [0])) for scalar in scalars]
    return str(net.op("Concat", *parts, axis=0))


def dynamic_tokens(net: Net, width: int) -> str:
    """``[N, 5, width]`` behind two layers; the batch is dynamic."""
    stem = net.dense(net.input("x", 1, 5, 4, declared=["N", 5, 4]), 4, 6, name="stem")
    return net.dense(net.op("Relu", stem), 6, width, name="before")


def dynamic_images(net: Net, channels: int) -> str:
    """``[N, channels, 4, 4]`` behind two layers; the batch is dynamic."""
    stem = net.conv(net.input("x", 1, 3, 4, 4, declared=["N", 3, 4, 4]), 3, 6, name="stem")
    return net.conv(net.op("Relu", stem), 6, channels, name="before")
