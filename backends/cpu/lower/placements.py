"""Where each node of a model runs, and why, in words."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from sift_onnx.backends.base import Placement
from sift_onnx.backends.cpu.lower.weights import LIVE_BELOW, pays
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.node_groups import NodeGroup
from sift_onnx.backends.lowering.specs import (
    Conv,
    Depthwise,
    Matmul,
    OpenSliced,
    QuantizedMatmul,
    Recurrent,
    Repeated,
    Reshaped,
    Sliced,
    Spec,
    Transposed,
)
from sift_onnx.operators.labels import node_name

__all__ = ["KERNELS", "ONNXRUNTIME", "placements_of"]

KERNELS = "kernels"
ONNXRUNTIME = "onnxruntime"


def placements_of(graph: GraphView, groups: Sequence[NodeGroup]) -> tuple[Placement, ...]:
    """Every node of the model, in its order."""
    group_of: dict[int, NodeGroup] = {}
    for group in groups:
        for index in group.nodes:
            # Of the steps for one node, its layer says more than views of its operand and its result.
            if index not in group_of or not _has_weights(group_of[index]):
                group_of[index] = group
    return tuple(
        _without(node) if index is None else _placement(node, group_of.get(index)) for node, index in graph.origin
    )


def _without(node: onnx.NodeProto) -> Placement:
    reason = "what reads it takes its operand, in the order of axes and the type that it has"
    return Placement(node_name(node), node.op_type, "folded", reason)


def _placement(node: onnx.NodeProto, group: NodeGroup | None) -> Placement:
    if group is None:
        place, reason = "folded", "its result is a constant, or is not needed"
    elif group.step is None:
        place, reason = ONNXRUNTIME, group.reason
    else:
        place, reason = KERNELS, _kernel_reason(group.step.spec)
    return Placement(node_name(node), node.op_type, place, reason)


def _has_weights(group: NodeGroup) -> bool:
    layers = (Conv, Depthwise, Matmul, QuantizedMatmul, Recurrent)
    return group.step is not None and isinstance(group.step.spec, layers)


def _kernel_reason(spec: Spec) -> str:
    match spec:
        case QuantizedMatmul() if spec.weights.quad_density <= LIVE_BELOW:
            pruned, skipped = 1 - spec.weights.density, 1 - spec.weights.quad_density
            return (
                f"int8, {pruned:.0%} of its weights are pruned, {skipped:.0%} of their quads along the input features"
            )
        case QuantizedMatmul():
            return "dense int8, between sparse layers: its operands stay in the kernels' layout"
        case Conv() | Matmul() if pays(spec.weights):
            held = "" if spec.weights.values == "float32" else f", values are held as {spec.weights.values}"
            return f"{1 - spec.weights.active_share:.0%} of its weights are pruned{held}"
        case Recurrent() if pays(spec.weights):
            return f"{1 - spec.weights.density:.0%} of its recurrent weights are pruned"
        case Conv() | Depthwise() | Matmul() | Recurrent():
            return "dense, between sparse layers: its operands stay in the kernels' layout"
        case Reshaped():
            return "the same values under other sizes"
        case Transposed() | Sliced() | OpenSliced() | Repeated():
            return "a view: values are copied where a layer needs them in another order"
    return "between sparse layers: its operands stay in the kernels' layout"
