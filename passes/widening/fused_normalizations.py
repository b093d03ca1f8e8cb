"""Normalizations that onnxruntime fuses with what they read, in nodes again.

What a normalization subtracts can be centred only where it is a tensor. SkipLayerNormalization makes it itself, by a
sum, and EmbedLayerNormalization by look-ups. onnxruntime fuses the nodes again when it loads the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.operators.domains import MICROSOFT, canonical_domain
from sift_onnx.passes.node_builder import NodeBuilder
from sift_onnx.passes.widening.element_types import floating_type

__all__ = ["spell_fused_normalizations"]

# Opsets: LayerNormalization is an operator; axes of a mean, and of a sum, are an input; axes count from the end too.
_LAYER_NORMALIZATION, _AXES_OF_MEANS, _AXES_OF_SUMS, _FROM_THE_END = 17, 18, 13, 11
# What the fused operators take where no epsilon is stated.
_EPSILON = 1e-12


def spell_fused_normalizations(graph: gs.Graph) -> None:
    """Replace every SkipLayerNormalization and EmbedLayerNormalization; in place, with the same tensor names."""
    ends = {tensor.name for tensor in graph.outputs}
    fused = [node for node in graph.nodes if _can_be_spelled(node, ends)]
    builder = NodeBuilder(graph) if fused else None
    if builder is None or builder.opset < _FROM_THE_END:
        return
    for node in fused:
        place = next(i for i, other in enumerate(graph.nodes) if other is node)
        inputs = [*node.inputs, *[gs.Variable.empty()] * 9]
        outputs = [*node.outputs, *[gs.Variable.empty()] * 3]
        node.inputs.clear()
        node.outputs.clear()
        spell = _spell_skip if node.op == "SkipLayerNormalization" else _spell_embed
        spell(builder, inputs, outputs, float(node.attrs.get("epsilon", _EPSILON)))
        graph.nodes[place : place + 1] = builder.take_nodes()


def _can_be_spelled(node: gs.Node, ends: set[str]) -> bool:
    if canonical_domain(node.domain) != MICROSOFT:
        return False
    read = [bool(tensor.name) and (bool(tensor.outputs) or tensor.name in ends) for tensor in node.outputs]
    if node.op == "SkipLayerNormalization":
        return not any(read[1:3])  # statistics
    # The second output counts the tokens of the mask.
    has_mask = len(node.inputs) > 7 and not node.inputs[7].is_empty()
    return node.op == "EmbedLayerNormalization" and (has_mask or not any(read[1:2]))


def _spell_skip(builder: NodeBuilder, inputs: Sequence[Any], outputs: Sequence[Any], epsilon: float) -> None:
    x, skip, scale, shift, bias = inputs[:5]
    normalized = outputs[0]
    if not bias.is_empty():
        x = builder.node("Add", [x, bias], like=normalized, name=f"{normalized.name}_biased")
    total = builder.node("Add", [x, skip], like=normalized, name=f"{normalized.name}_sum")
    _normalize(builder, _as(total, outputs[3]), scale, shift, epsilon, normalized)


def _spell_embed(builder: NodeBuilder, inputs: Sequence[Any], outputs: Sequence[Any], epsilon: float) -> None:
    ids, segments, words, positions, kinds, scale, shift, mask, places = inputs[:9]
    normalized, counted = outputs[:2]
    name = normalized.name
    total = builder.node("Gather", [words, ids], like=normalized, name=f"{name}_words")
    total = builder.node("Add", [total, _placed(builder, ids, positions, places, normalized)], like=total, name=name)
    if not segments.is_empty():
        kind = builder.node("Gather", [kinds, segments], like=normalized, name=f"{name}_segments")
        total = builder.node("Add", [total, kind], like=normalized, name=f"{name}_sum")
    _normalize(builder, _as(total, outputs[2]), scale, shift, epsilon, normalized)
    if counted.name and not mask.is_empty():
        tokens = _reduced(builder, "ReduceSum", mask, 1, False, counted, _AXES_OF_SUMS)
        _as(builder.node("Cast", [tokens], like=counted, name=name, attrs={"to": onnx.TensorProto.INT32}), counted)


def _placed(
    builder: NodeBuilder, ids: gs.Tensor, positions: gs.Tensor, places: gs.Tensor, like: gs.Variable
) -> gs.Variable:
    """Rows of the table of positions: those that are asked for, or the first ones."""
    name = f"{like.name}_positions"
    if not places.is_empty():
        return builder.node("Gather", [positions, places], like=like, name=name)
    zero, one = (builder.constant(name, np.asarray([n], np.int64)) for n in (0, 1))
    number = gs.Variable("", np.int64, [1])
    shape = builder.node("Shape", [ids], like=number, name=name, shape=[2])
    length = builder.node("Gather", [shape, one], like=number, name=name)
    return builder.node("Slice", [positions, zero, length, zero], like=like, name=name, shape=[None, None])


def _normalize(
    builder: NodeBuilder, x: gs.Tensor, scale: gs.Tensor, shift: gs.Tensor, epsilon: float, normalized: gs.Variable
) -> None:
    """``normalized`` is ``x``, normalized over its last axis."""
    name = normalized.name
    if builder.opset >= _LAYER_NORMALIZATION:
        parameters = [scale] if shift.is_empty() else [scale, shift]
        attributes = {"axis": -1, "epsilon": epsilon}
        made = builder.node("LayerNormalization", [x, *parameters], like=normalized, name=name, attrs=attributes)
        _as(made, normalized)
        return
    dtype = floating_type(scale)
    two, small = (builder.constant(name, np.asarray(number, dtype)) for number in (2, epsilon))
    mean = _reduced(builder, "ReduceMean", x, -1, True, normalized, _AXES_OF_MEANS)
    centred = builder.node("Sub", [x, mean], like=normalized, name=name)
    squares = builder.node("Pow", [centred, two], like=normalized, name=name)
    variance = _reduced(builder, "ReduceMean", squares, -1, True, normalized, _AXES_OF_MEANS)
    variance = builder.node("Add", [variance, small], like=variance, name=name)
    deviation = builder.node("Sqrt", [variance], like=variance, name=name)
    made = builder.node("Div", [centred, deviation], like=normalized, name=name)
    made = builder.node("Mul", [made, scale], like=normalized, name=name)
    if not shift.is_empty():
        made = builder.node("Add", [made, shift], like=normalized, name=name)
    _as(made, normalized)


def _reduced(
    builder: NodeBuilder, op: str, x: gs.Tensor, axis: int, keeps: bool, like: gs.Variable, axes_are_input: int
) -> gs.Variable:
    attributes: dict[str, Any] = {"keepdims": int(keeps)}
    read = [x]
    if builder.opset >= axes_are_input:
        read.append(builder.constant(f"{like.name}_axes", np.asarray([axis], np.int64)))
    else:
        attributes["axes"] = [axis]
    shape = None if like.shape is None else [*like.shape[:-1], 1] if keeps else list(like.shape)
    return builder.node(op, read, like=like, name=f"{like.name}_reduced", attrs=attributes, shape=shape)


def _as(made: gs.Variable, tensor: gs.Variable) -> gs.Variable:
    """Let a node give ``tensor``, if that is anything, in place of ``made``, which nothing reads yet."""
    if tensor.is_empty():
        return made
    made.inputs[0].outputs[0] = tensor
    return tensor
