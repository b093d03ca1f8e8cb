"""Sizes of the results of nodes, as far as they follow from what is known of their operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from sift_onnx.backends.lowering.dims import Dim, Dims, are_counts, divided, product, quotient, solved, terms
from sift_onnx.backends.lowering.sizes.dims_of_cuts import (
    dims_of_padded,
    dims_of_slice,
    dims_of_windows,
    second_operand,
)
from sift_onnx.backends.lowering.sizes.known import KnownSizes
from sift_onnx.backends.lowering.sizes.size_arithmetic import broadcast, joined
from sift_onnx.operators.einsum_terms import einsum_terms
from sift_onnx.operators.traits import ELEMENTWISE_BINARY, ELEMENTWISE_UNARY

__all__ = ["dims_of_parts", "dims_of_result", "reshaped"]

# The result has as many images as the first operand.
_SAME_IMAGES = frozenset({"Resize", "Upsample"})
_WINDOWS = frozenset({"AveragePool", "Conv", "ConvInteger", "ConvTranspose", "MaxPool", "QLinearConv"})
# The result has the sizes of the first operand.
_SAME = ELEMENTWISE_UNARY | {
    "BatchNormalization", "Clip", "CumSum", "DequantizeLinear", "Dropout", "GroupNormalization",
    "InstanceNormalization", "LRN", "LayerNormalization", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization",
    "QuantizeLinear", "RMSNormalization", "RotaryEmbedding", "ScatterElements", "ScatterND",
    "SimplifiedLayerNormalization", "Softmax", "Trilu",
}  # fmt: skip


def reshaped(
    target: Sequence[Dim], before: Dims, copies_zeros: bool, usual: Callable[[Dim], Dim] = lambda size: size
) -> Dims | None:
    """Sizes after a Reshape to ``target``; None where what -1 stands for is no known quotient.

    Args:
        target: what the node is told.
        before: sizes of its operand.
        copies_zeros: whether 0 stands for the operand's size.
        usual: what a size is in the runs that matter, see :class:`AssumedSizes`.
    """
    sizes: list[Dim] = []
    for axis, size in enumerate(target):
        if size == 0 and copies_zeros:
            if axis >= len(before):
                return None
            sizes.append(before[axis])
        else:
            sizes.append(size)
    if sizes.count(-1) > 1 or not all(are_counts(terms(size)) for size in sizes):
        return None
    if -1 not in sizes:
        return tuple(sizes)
    rest = usual(quotient(product(before), product(size for size in sizes if size != -1)))
    # It is whole in every run that gets there.
    if isinstance(rest, tuple) and rest[0] == "quotient":
        return None
    return tuple(rest if size == -1 else size for size in sizes)


def dims_of_result(
    known: KnownSizes, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Sequence[Dim | None] | None:
    """Sizes of a node's only result: None where nothing is known, and in place of a size that is not.

    Args:
        known: of its operands.
        node: of one result.
        attributes: its own, by name.
    """
    if node.op_type in ELEMENTWISE_BINARY:
        return broadcast([known.dims(name) for name in node.input])
    first = known.dims(node.input[0]) if node.input else None
    if first is None:
        return None
    if node.op_type in _SAME:
        return first
    if node.op_type == "Resize" and len(node.input) > 3 and node.input[3] and not attributes.get("axes"):
        return known.vector(node.input[3])
    if node.op_type in _SAME_IMAGES:
        return _dims_of_scaled(known, node, attributes, first)
    if node.op_type in _WINDOWS:
        return dims_of_windows(known, node, attributes, first)
    match node.op_type:
        case "Transpose":
            order = attributes.get("perm") or range(len(first))[::-1]
            return [first[axis] for axis in order]
        case "Reshape":
            target = known.vector(node.input[1])
            if target is None:
                return None
            sizes = reshaped(target, first, not attributes.get("allowzero", 0), known.usual)
            # An export for one length says so here, whatever its inputs declare.
            open_name = solved(product(first), product(sizes)) if sizes and 0 not in sizes else None
            if open_name is not None:
                known.fixed.update([open_name])
            return sizes
        case "Flatten":
            axis = int(attributes.get("axis", 1))
            axis = axis + len(first) if axis < 0 else axis
            return [product(first[:axis]), product(first[axis:])]
        case "ArgMax" | "ArgMin":
            axis = int(attributes.get("axis", 0)) % len(first)
            kept = [1] if attributes.get("keepdims", 1) else []
            return [*first[:axis], *kept, *first[axis + 1 :]]
        case "Gemm":
            second = known.dims(node.input[1])
            rows = first[1 if attributes.get("transA", 0) else 0]
            return [rows, second[0 if attributes.get("transB", 0) else 1]] if second is not None else None
        case (
            "ReduceL1"
            | "ReduceL2"
            | "ReduceMax"
            | "ReduceMean"
            | "ReduceMin"
            | "ReduceProd"
            | "ReduceSum"
            | "ReduceSumSquare"
        ):
            axes = _axes(known, node, attributes)
            if axes is None:
                return None
            reduced = {axis % len(first) for axis in axes}
            kept = attributes.get("keepdims", 1)
            return [1 if axis in reduced else size for axis, size in enumerate(first) if kept or axis not in reduced]
        case "GlobalAveragePool":
            return (*first[:2], *(1 for _ in first[2:]))
        case "GridSample":
            grid = known.dims(node.input[1])
            return (*first[:2], *grid[1:-1]) if grid is not None and len(grid) == len(first) else None
        case "ConstantOfShape":
            return known.vector(node.input[0])
        case "GatherElements":
            return known.dims(node.input[1])
        case "GatherND" if not attributes.get("batch_dims", 0):
            places = known.dims(node.input[1])
            taken = places[-1] if places else None
            return (*places[:-1], *first[taken:]) if places and isinstance(taken, int) else None
        case "Einsum":
            return _dims_of_einsum(known, node, attributes["equation"].decode())
        case "Tile":
            repeats = known.vector(node.input[1])
            is_known = repeats is not None and len(repeats) == len(first) and len(node.input) == 2
            return [product(pair) for pair in zip(first, repeats or (), strict=True)] if is_known else None
        case "Expand":
            target = known.vector(node.input[1])
            return broadcast([first, target]) if target is not None else None
        case "Concat":
            return joined([known.dims(name) for name in node.input], int(attributes["axis"]))
        case "Pad":
            return dims_of_padded(known, node, first)
        case "Range":
            start, limit, step = (known.vector(name) for name in node.input)
            return limit if start == (0,) and step == (1,) else None
        case "MatMul" | "MatMulInteger" | "QLinearMatMul":
            second = known.dims(node.input[second_operand(node)])
            if second is None or not first or not second:
                return None
            if len(second) == 1:
                return first[:-1]
            if len(first) == 1:
                return [*second[:-2], second[-1]]
            return [*(broadcast([first[:-2], second[:-2]]) or ()), first[-2], second[-1]]
        case "Gather":
            places, axis = known.dims(node.input[1]), int(attributes.get("axis", 0)) % len(first)
            return (*first[:axis], *places, *first[axis + 1 :]) if places is not None else None
        case "Unsqueeze":
            axes = _axes(known, node, attributes)
            if axes is None:
                return None
            left = list(first)
            added = {axis % (len(first) + len(axes)) for axis in axes}
            return [1 if axis in added else left.pop(0) for axis in range(len(first) + len(axes))]
        case "Squeeze":
            axes = _axes(known, node, attributes)
            dropped = {axis % len(first) for axis in axes} if axes is not None else set()
            return [size for axis, size in enumerate(first) if axis not in dropped] if dropped else None
        case "Slice":
            return dims_of_slice(known, node, first)
    return None


def dims_of_parts(
    known: KnownSizes, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Sequence[Sequence[Dim | None] | None]:
    """Sizes of each result of a node that has several, as :func:`dims_of_result` has them."""
    first, count = known.dims(node.input[0]), len(node.output)
    if first is None:
        return ()
    if node.op_type == "DynamicQuantizeLinear":
        return [first, [], []]
    if node.op_type in ("GRU", "LSTM", "RNN"):
        return _dims_of_states(known, node, attributes, first)
    if node.op_type == "TopK":
        axis = int(attributes.get("axis", -1)) % len(first)
        (taken,) = (known.vector(node.input[1]) if len(node.input) > 1 else None) or (attributes.get("k"),)
        return [[*first[:axis], taken, *first[axis + 1 :]]] * count
    axis = int(attributes.get("axis", 0)) % len(first)
    sizes: Sequence[Dim | None] = attributes.get("split", ())
    if len(node.input) > 1 and node.input[1]:
        sizes = known.vector(node.input[1]) or ()
    if not sizes:
        sizes = [divided(first[axis], count)] * count
    return [[*first[:axis], size, *first[axis + 1 :]] for size in sizes]


def _dims_of_scaled(
    known: KnownSizes, node: onnx.NodeProto, attributes: Mapping[str, Any], first: Dims
) -> Sequence[Dim | None]:
    """Of a Resize by factors that are whole numbers; of others, the images alone."""
    place = 2 if len(node.input) > 2 else 1
    scales = known.constant(node.input[place]) if place < len(node.input) and node.input[place] else None
    if scales is None or scales.shape != (len(first),) or attributes.get("axes"):
        return [first[0], *[None] * (len(first) - 1)]
    return [
        product((int(scale), size)) if scale == int(scale) else None
        for size, scale in zip(first, scales.tolist(), strict=True)
    ]


def _dims_of_states(
    known: KnownSizes, node: onnx.NodeProto, attributes: Mapping[str, Any], first: Dims
) -> Sequence[Sequence[Dim | None]]:
    """Of a recurrent layer: the states of all steps, and the last ones, of each direction."""
    weights = known.dims(node.input[2])
    states = attributes.get("hidden_size") or (weights[-1] if weights else None)
    directions = 2 if attributes.get("direction") in (b"bidirectional", "bidirectional") else 1
    if len(first) != 3 or attributes.get("layout", 0):
        return ()
    steps, sequences, _ = first
    return [[steps, directions, sequences, states], *[[directions, sequences, states]] * 2]


def _dims_of_einsum(known: KnownSizes, node: onnx.NodeProto, equation: str) -> Sequence[Dim | None] | None:
    """Of each label of the result, the size that an operand has."""
    dims = [own for own in map(known.dims, node.input) if own is not None]
    terms, result = einsum_terms(equation, [len(own) for own in dims])
    if len(dims) < len(node.input) or terms is None or [*map(len, terms)] != [*map(len, dims)]:
        return None
    sizes: dict[str, Dim] = {}
    for term, own in zip(terms, dims, strict=True):
        for label, size in zip(term, own, strict=True):
            # One position is repeated.
            if sizes.get(label, 1) == 1 or (isinstance(size, int) and size != 1):
                sizes[label] = size
    return [sizes[label] for label in result if label in sizes]


def _axes(known: KnownSizes, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> list[int] | None:
    if len(node.input) > 1 and node.input[1]:
        listed = known.vector(node.input[1])
        return [axis for axis in listed if isinstance(axis, int)] if listed is not None else None
    return list(attributes["axes"]) if "axes" in attributes else None
