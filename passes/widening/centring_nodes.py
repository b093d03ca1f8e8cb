"""Nodes that subtract from old features their mean, and leave added ones alone: ``x - mean(x) * m``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.feature_maps.maps import FeatureMaps
from sift_onnx.graphs.constants import array_of, constant_values
from sift_onnx.passes.node_builder import NodeBuilder
from sift_onnx.passes.widening.element_types import floating_type

__all__ = ["insert_centring", "is_centred_by_nodes"]

# From this opset on, the axes of a ReduceMean are an input.
_AXES_AS_INPUT = 18
# How far the mean of ``m`` may be from 1.
_ROUNDING = 1e-3


def insert_centring(
    graph: gs.Graph,
    maps: FeatureMaps,
    x: gs.Variable,
    axes: Sequence[int],
    reads: Sequence[tuple[gs.Node, int]] | None,
) -> None:
    """Centre ``x`` over ``axes``, one of which has grown.

    Args:
        graph: changed in place, after everything has been resized.
        maps: where old features lie.
        x: the tensor.
        axes: of ``x``.
        reads: ``(node, input)`` that are to read the centred tensor; all that read ``x`` if None, and then the centred
            tensor takes over its name.
    """
    builder = NodeBuilder(graph)
    plain = x
    if reads is None:
        plain = gs.Variable(f"{x.name}_plain", dtype=x.dtype, shape=x.shape)
        producer = x.inputs[0]
        producer.outputs[next(i for i, tensor in enumerate(producer.outputs) if tensor is x)] = plain
    attributes: dict[str, Any] = {"axes": [int(axis) for axis in axes]}
    read: list[gs.Tensor] = [plain]
    if builder.opset >= _AXES_AS_INPUT:
        read.append(builder.constant(f"{x.name}_mean_axes", np.asarray(attributes.pop("axes"), dtype=np.int64)))
    shape = None if x.shape is None else [1 if i in axes else n for i, n in enumerate(x.shape)]
    mean = builder.node("ReduceMean", read, like=x, name=f"{x.name}_mean", attrs=attributes, shape=shape)
    kept = builder.node("Mul", [mean, _factors(maps, x, axes, builder)], like=x, name=f"{x.name}_old_mean")
    centred = builder.node("Sub", [plain, kept], like=x, name=f"{x.name}_centred")
    nodes = builder.take_nodes()
    if reads is None:
        nodes[-1].outputs[0] = x
        after = next(i for i, node in enumerate(graph.nodes) if node is producer) + 1
    else:
        readers = {id(node) for node, _ in reads}
        after = next(i for i, node in enumerate(graph.nodes) if id(node) in readers)
        for node, i in reads:
            node.inputs[i] = centred
    graph.nodes[after:after] = nodes


def _factors(maps: FeatureMaps, x: gs.Variable, axes: Sequence[int], builder: NodeBuilder) -> gs.Variable:
    """``m``, as a Constant node: it is not a parameter, which training would change."""
    extent = next(axis for axis in maps.extents(x.name) if axis.grows and axis.axis in axes)
    factors = np.zeros(extent.new, dtype=floating_type(x))
    factors[maps.positions_along(x.name, extent.axis)] = extent.new / extent.old
    factors = factors.reshape(-1, *[1] * (len(maps.extents(x.name)) - 1 - extent.axis))
    name = f"{x.name}_old_features"
    value = gs.Constant(f"{name}_value", factors)
    return builder.node("Constant", [], like=x, name=name, attrs={"value": value}, shape=factors.shape)


def is_centred_by_nodes(node: gs.Node, axes: Sequence[int] | None = None) -> bool:
    """Whether a node is the last of those that :func:`insert_centring` makes, over some or all of ``axes`` if given."""
    if node.op != "Sub" or not node.inputs[1].inputs:
        return False
    kept = node.inputs[1].inputs[0]
    if kept.op != "Mul" or not kept.inputs[0].inputs:
        return False
    mean, factors = kept.inputs[0].inputs[0], constant_values(kept.inputs[1])
    if mean.op != "ReduceMean" or mean.inputs[0] is not node.inputs[0] or factors is None:
        return False
    if axes is not None and not _reduced(mean) <= set(axes):
        return False
    return abs(float(array_of(factors).mean(dtype=np.float64)) - 1) < _ROUNDING


def _reduced(mean: gs.Node) -> set[int]:
    """The axes of a mean that :func:`insert_centring` made; they count from the start."""
    stored = constant_values(mean.inputs[1]) if len(mean.inputs) > 1 else None
    axes = mean.attrs.get("axes", ()) if stored is None else array_of(stored)
    return {int(axis) for axis in axes}
