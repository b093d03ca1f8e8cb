"""Pools that round sizes up, for ONNX shape inference.

With ``ceil_mode``, a window that would begin in the padding behind the input is dropped. ONNX inference knows that from
opset 22 on. Before, it counts such a window, which onnxruntime and the reference evaluator do not make.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import onnx

from sift_onnx.operators.domains import is_standard, opset_versions
from sift_onnx.shapes.open_axes import known_sizes

__all__ = ["FIRST_RIGHT_OPSET", "is_ceiled_pool", "with_dropped_windows"]

FIRST_RIGHT_OPSET = 22
_POOLS = ("AveragePool", "LpPool", "MaxPool")


def is_ceiled_pool(node: onnx.NodeProto) -> bool:
    """Whether a node is a pool whose sizes are rounded up."""
    return is_standard(node.domain) and node.op_type in _POOLS and bool(_attributes(node).get("ceil_mode", 0))


def with_dropped_windows(model: onnx.ModelProto, inferred: onnx.ModelProto) -> onnx.ModelProto | None:
    """A copy of ``model`` in which inference counts the windows of one more pool right; None if there is no such pool.

    Args:
        model: to infer shapes of.
        inferred: what inference makes of it, right up to the first such pool.
    """
    if opset_versions(model.opset_import).get("", 1) >= FIRST_RIGHT_OPSET:
        return None
    pools = [index for index, node in enumerate(model.graph.node) if is_ceiled_pool(node)]
    if not pools:
        return None
    infos = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
    types = {info.name: info.type.tensor_type for info in infos}
    for index in pools:
        node = model.graph.node[index]
        kind = types.get(node.input[0])
        pads = _rounding_down(node, None if kind is None else known_sizes(kind))
        if pads is None:
            continue
        copy = deepcopy(model)
        kept = [a for a in node.attribute if a.name not in ("ceil_mode", "pads")]
        del copy.graph.node[index].attribute[:]
        copy.graph.node[index].attribute.extend([*kept, onnx.helper.make_attribute("pads", pads)])
        return copy
    return None


def _rounding_down(node: onnx.NodeProto, sizes: tuple[int | None, ...] | None) -> list[int] | None:
    """Pads with which the pool has the same sizes when it rounds down; None if no window is dropped."""
    attributes = _attributes(node)
    kernel = attributes["kernel_shape"]
    rank = len(kernel)
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET" or sizes is None or len(sizes) != rank + 2:
        return None
    strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads = list(attributes.get("pads") or [0] * 2 * rank)
    is_dropped = False
    for axis, size in enumerate(sizes[2:]):
        room = (
            None if size is None else size + pads[axis] + pads[rank + axis] - dilations[axis] * (kernel[axis] - 1) - 1
        )
        last = None if room is None else -(-room // strides[axis]) * strides[axis]
        if last is None or size is None or last < size + pads[axis]:
            pads[rank + axis] += strides[axis] - 1  # rounded down, as many as rounded up before
        else:
            is_dropped = True
    return pads if is_dropped else None


def _attributes(node: onnx.NodeProto) -> Mapping[str, Any]:
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
