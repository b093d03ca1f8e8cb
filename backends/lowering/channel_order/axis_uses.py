"""Operators that can run in any order of axes, and what of each node changes with the order.

An operator without a rule here keeps its order: convolutions, products, normalization, and whatever reshapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sift_onnx.backends.lowering.channel_order.orders import Kind, first_order
from sift_onnx.backends.lowering.rules import NodeView, NotLowered
from sift_onnx.operators.domains import MICROSOFT
from sift_onnx.operators.registry import Registry
from sift_onnx.operators.traits import DRAWING, ELEMENTWISE_BINARY, ELEMENTWISE_UNARY

__all__ = ["AxisUses", "axis_uses"]


@dataclass(frozen=True)
class AxisUses:
    """What of a node depends on the order of axes.

    Attributes:
        values: activations that have their axes in one order, among inputs and outputs.
        rank: how many axes.
        attributes: kinds of attributes, by name, and what they are by default; None where they must be given.
        inputs: kinds of other inputs, by position. Those of one value per axis may be computed; others are constants.
        gives_sizes: whether the output has a value for each axis.
    """

    values: tuple[str, ...]
    rank: int
    attributes: Mapping[str, tuple[Kind, int | None]] = field(default_factory=dict)
    inputs: Mapping[int, Kind] = field(default_factory=dict)
    gives_sizes: bool = False


def axis_uses(node: NodeView) -> AxisUses | None:
    """What of a node depends on the order of axes; None where the node keeps its order."""
    rule = _RULES.find(node.op, node.proto.domain)
    if rule is None or not node.proto.input or not node.input(0):
        return None
    try:
        uses = rule(node)
        if uses is None or uses.rank < 3 or any(name in node.graph.constants for name in uses.values):
            return None
        dims = [node.graph.dims(name) for name in uses.values]
    except (NotLowered, LookupError, TypeError, ValueError):  # a node that contradicts itself stays as it is
        return None
    return uses if all(own is not None and len(own) == uses.rank for own in dims) else None


def _unary(node: NodeView) -> AxisUses:
    return AxisUses((node.input(0), node.output), len(node.dims(0)))


def _broadcast(node: NodeView) -> AxisUses | None:
    dims = node.graph.dims(node.output)
    if dims is None:
        return None
    values, inputs = [node.output], {}
    for position, name in enumerate(node.proto.input):
        if node.constant(position) is not None:
            inputs[position] = Kind.OPERAND
        elif len(node.dims(position)) == len(dims):
            values.append(name)
        elif node.dims(position):
            return None
    return AxisUses(tuple(values), len(dims), inputs=inputs)


def _is_known(node: NodeView, position: int) -> bool:
    """Whether an input is a constant, or follows from constants and sizes, as the pads of torch's exporter do."""
    return node.graph.known_values(node.input(position)) is not None


def _concat(node: NodeView) -> AxisUses:
    constants = (position for position in range(len(node.proto.input)) if node.constant(position) is not None)
    inputs = dict.fromkeys(constants, Kind.OPERAND)
    values = [name for position, name in enumerate(node.proto.input) if position not in inputs]
    return AxisUses((*values, node.output), len(node.dims(0)), {"axis": (Kind.AXES, None)}, inputs)


def _split(node: NodeView) -> AxisUses:
    made = tuple(filter(None, node.proto.output))
    return AxisUses((node.input(0), *made), len(node.dims(0)), {"axis": (Kind.AXES, 0)})


def _slice(node: NodeView) -> AxisUses | None:
    values, rank = (node.input(0), node.output), len(node.dims(0))
    if len(node.proto.input) == 1:
        return AxisUses(values, rank, {"axes": (Kind.AXES, None)}) if node.attribute("axes") else None
    return AxisUses(values, rank, inputs={3: Kind.AXES}) if _is_known(node, 3) else None


def _pad(node: NodeView) -> AxisUses | None:
    values, rank = (node.input(0), node.output), len(node.dims(0))
    if node.input(3):
        return AxisUses(values, rank, inputs={3: Kind.AXES}) if _is_known(node, 3) else None
    if node.attribute("pads"):
        return AxisUses(values, rank, {"pads": (Kind.BOTH_ENDS, None)})
    return AxisUses(values, rank, inputs={1: Kind.BOTH_ENDS}) if _is_known(node, 1) else None


def _reduce(node: NodeView) -> AxisUses | None:
    rank, axes = len(node.dims(0)), node.axes()
    if not axes:
        return None
    values: tuple[str, ...] = (node.input(0), node.output)
    if not node.attribute("keepdims", 1):
        # The axes that are left must be in the order that they were in.
        left = [axis for axis in first_order(rank) if axis not in {own % rank for own in axes}]
        if left != sorted(left):
            return None
        values = values[:1]
    if node.input(1):
        return AxisUses(values, rank, inputs={1: Kind.AXES})
    return AxisUses(values, rank, {"axes": (Kind.AXES, None)})


def _resize(node: NodeView) -> AxisUses | None:
    values, rank = (node.input(0), node.output), len(node.dims(0))
    if node.attribute("axes"):
        return AxisUses(values, rank, {"axes": (Kind.AXES, None)})
    if node.attribute("scales"):
        return AxisUses(values, rank, {"scales": (Kind.EACH, None)})
    inputs = {position: Kind.EACH for position in range(1, len(node.proto.input)) if node.input(position)}
    if node.op == "Resize" and node.graph.opset > 10 and 1 in inputs:
        del inputs[1]
        region = node.array(1)
        if region is None:
            return None
        if region.size:
            inputs[1] = Kind.BOTH_ENDS
    # Before sizes were an input of their own, scales that are not given were an empty tensor.
    for position in list(inputs):
        given = node.array(position)
        if given is not None and not given.size:
            del inputs[position]
    return AxisUses(values, rank, inputs=inputs)


def _shape(node: NodeView) -> AxisUses | None:
    if node.attribute("start", 0) or node.attribute("end") is not None:
        return None
    return AxisUses((node.input(0),), len(node.dims(0)), gives_sizes=True)


def _quantization(node: NodeView) -> AxisUses | None:
    values, scale = (node.input(0), node.output), node.dims(1)
    if scale in ((), (1,)):
        return AxisUses(values, len(node.dims(0)))
    return AxisUses(values, len(node.dims(0)), {"axis": (Kind.AXES, 1)}) if len(scale) == 1 else None


def _sized(node: NodeView) -> AxisUses | None:
    rank = len(node.dims(0))
    if node.graph.dims(node.input(1)) != (rank,):
        return None
    return AxisUses((node.input(0), node.output), rank, inputs={1: Kind.EACH})


_RULES: Registry[Callable[[NodeView], AxisUses | None]] = Registry("a rule of its use of axes")
_RULES.add_table({
    **dict.fromkeys((*sorted(ELEMENTWISE_UNARY - DRAWING), "Clip", "Dropout"), _unary),
    **dict.fromkeys(sorted(ELEMENTWISE_BINARY), _broadcast),
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    **dict.fromkeys((f"Reduce{kind}" for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum")), _reduce),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Shape": _shape,
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantization),
    **dict.fromkeys(("Expand", "Tile"), _sized),
})  # fmt: skip
_RULES.add_table(dict.fromkeys(("Gelu", "QuickGelu"), _unary), MICROSOFT)
