"""A decoder that gives the logits of the last token only, which is all that generating reads.

Of a prompt, the product with the vocabulary and what follows the last attention are computed for one token instead of
for all. Where a node treats each token by itself and only its last token is read, its operands are cut to that token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.backends.decoding.signature import DecoderSignature
from sift_onnx.errors import UnsupportedError, UsageError
from sift_onnx.graphs.constants import array_of, constant_values, new_constant, shape_of
from sift_onnx.model import Model
from sift_onnx.operators.domains import MICROSOFT, canonical_domain
from sift_onnx.operators.traits import DRAWING, ELEMENTWISE_BINARY, ELEMENTWISE_UNARY
from sift_onnx.shapes.inference import Shapes, infer_shapes
from sift_onnx.shapes.tensor_specs import model_inputs

__all__ = ["with_last_logits"]

# [sequences, tokens, channels]
_RANK, _TOKENS = 3, 1
# Tokens of the run whose sizes are looked at, and tokens before it.
_NEW, _PAST = 3, 4

# Those whose operands with tokens are treated element by element, or along the channels; the others are the same for
# all tokens.
_BROADCASTING = {
    "": (ELEMENTWISE_UNARY - DRAWING) | ELEMENTWISE_BINARY | {"Clip"},
    MICROSOFT: frozenset(
        """
        BiasGelu FastGelu Gelu QuickGelu SimplifiedLayerNormalization SkipLayerNormalization
        SkipSimplifiedLayerNormalization
        """.split()
    ),
}
# Along an axis, which has to be that of the channels, and the axis where none is named.
_ALONG_AXIS = {
    "LayerNormalization": -1, "LogSoftmax": -1, "RMSNormalization": -1, "SimplifiedLayerNormalization": -1,
    "Softmax": -1, "Split": 0,
}  # fmt: skip
_QUANTIZING = ("DequantizeLinear", "QuantizeLinear")
_PRODUCTS = frozenset({("", "MatMul"), (MICROSOFT, "MatMulNBits")})
# Since this one, Slice takes its bounds as inputs; and since the other, Softmax is along one axis.
_SLICE_OPSET, _SOFTMAX_OPSET = 10, 13


def with_last_logits(model: Model, signature: DecoderSignature) -> Model | None:
    """A copy of a decoder whose logits are [sequences, 1, vocabulary]: those of the last position.

    Args:
        model: the decoder.
        signature: of it.

    Returns:
        None where that would save nothing: the model takes one token at a time or gives one's logits already, no
        product of its logits can be seen, or its sizes are not known.
    """
    if model.graph.opset < _SLICE_OPSET:
        return None
    try:
        shapes = _shapes(model, signature)
    except (UsageError, UnsupportedError):
        return None
    made = model.copy()
    cut = _LastToken(made.graph, shapes, signature.logits)
    if not cut.has_product:
        return None
    cut.apply()
    return made


def _shapes(model: Model, signature: DecoderSignature) -> Shapes:
    bound: dict[str, Any] = dict(signature.bound(signature.own_batch or 1, _NEW, _PAST).shapes)
    for spec in model_inputs(model):
        if spec.name in signature.given:
            bound[spec.name] = [size if isinstance(size, int) else 1 for size in spec.extents]
    return infer_shapes(model, bound)


class _LastToken:
    """The nodes of a graph of which only the last token is needed."""

    def __init__(self, graph: gs.Graph, shapes: Mapping[str, tuple[int | None, ...]], logits: str) -> None:
        self._graph = graph
        self._shapes = shapes
        self._logits = logits
        inner = list(graph.subgraphs(recursive=True))
        self._taken = {name for level in (graph, *inner) for name in level.tensors()}
        # Outputs of the graph, and whatever a graph inside it may read.
        self._outputs = {tensor.name for tensor in graph.outputs} | {
            name for level in inner for name in level.tensors()
        }
        self._kept: dict[int, gs.Node] = {}
        for node in reversed(graph.nodes):
            if self._is_read_for_last_only(node) and self._is_by_token(node):
                self._kept[id(node)] = node

    @property
    def has_product(self) -> bool:
        """Whether a product is among them."""
        return any(_kind(node) in _PRODUCTS for node in self._kept.values())

    def apply(self) -> None:
        """Cut what they read to the last token."""
        cut: dict[str, gs.Variable] = {}
        bounds = [new_constant(self._new_name(name), np.array([at], np.int64)) for name, at in _BOUNDS.items()]
        nodes = []
        for node in self._graph.nodes:
            if id(node) in self._kept:
                for place, tensor in enumerate(node.inputs):
                    if self._has_tokens(tensor) and not self._is_made_by_kept(tensor):
                        if tensor.name not in cut:
                            last = gs.Variable(self._new_name(f"{tensor.name}: last token"), dtype=tensor.dtype)
                            cut[tensor.name] = last
                            nodes.append(gs.Node("Slice", last.name, inputs=[tensor, *bounds], outputs=[last]))
                        node.inputs[place] = cut[tensor.name]
                for result in node.outputs:
                    if result.shape is not None and len(result.shape) == _RANK:
                        result.shape = [1 if axis == _TOKENS else size for axis, size in enumerate(result.shape)]
            nodes.append(node)
        self._graph.nodes = nodes

    def _new_name(self, name: str) -> str:
        while name in self._taken:
            name += "'"
        self._taken.add(name)
        return name

    def _is_made_by_kept(self, tensor: gs.Tensor) -> bool:
        return any(id(node) in self._kept for node in tensor.inputs)

    def _is_read_for_last_only(self, node: gs.Node) -> bool:
        results = [tensor for tensor in node.outputs if tensor.name]
        for tensor in results:
            if tensor.name in self._outputs and tensor.name != self._logits:
                return False
            if any(id(reader) not in self._kept and not _reads_other_sizes(reader) for reader in tensor.outputs):
                return False
        return any(tensor.outputs or tensor.name == self._logits for tensor in results)

    def _is_by_token(self, node: gs.Node) -> bool:
        """Whether the results of each token follow from the same token of what the node reads."""
        if not all(self._has_tokens(tensor) for tensor in node.outputs if tensor.name) or not node.inputs:
            return False
        domain, op = kind = _kind(node)
        first, *others = node.inputs
        if op in _BROADCASTING.get(domain, ()):
            return all(self._has_tokens(tensor) or self._is_same_for_all(tensor) for tensor in node.inputs)
        if not self._has_tokens(first):
            return False
        if kind in _PRODUCTS:
            return op != "MatMul" or len(self._shape(others[0]) or (0,) * _RANK) < _RANK
        if domain:
            return False
        if op == "ReduceMean":
            return _is_of_channels(_reduced_axes(node))
        if op == "Slice":
            return len(others) > 2 and _is_of_channels(_stored(others[2]))
        if op in _QUANTIZING:
            return all(self._is_a_number(tensor) for tensor in others)
        if op not in _ALONG_AXIS or (op in ("LogSoftmax", "Softmax") and self._graph.opset < _SOFTMAX_OPSET):
            return False
        return node.attrs.get("axis", _ALONG_AXIS[op]) in (-1, _RANK - 1)

    def _shape(self, tensor: gs.Tensor) -> tuple[int | None, ...] | None:
        if isinstance(tensor, gs.Constant):
            return shape_of(tensor)
        return self._shapes.get(tensor.name)

    def _has_tokens(self, tensor: gs.Tensor) -> bool:
        shape = self._shape(tensor)
        return shape is not None and len(shape) == _RANK and shape[_TOKENS] == _NEW

    def _is_same_for_all(self, tensor: gs.Tensor) -> bool:
        """Whether it is left out, or broadcast over the tokens."""
        shape = self._shape(tensor) if tensor.name else ()
        return shape is not None and (len(shape) < _RANK - _TOKENS or shape[_TOKENS - _RANK] == 1)

    def _is_a_number(self, tensor: gs.Tensor) -> bool:
        """Whether it is left out, or one number for all channels."""
        shape = self._shape(tensor) if tensor.name else ()
        return shape is not None and all(size == 1 for size in shape)


# Start, end and axis of what is kept.
_BOUNDS = {"last token: start": -1, "last token: end": np.iinfo(np.int64).max, "last token: axis": _TOKENS}


def _kind(node: gs.Node) -> tuple[str, str]:
    return canonical_domain(node.domain), node.op


def _stored(tensor: gs.Tensor) -> list[int] | None:
    constant = constant_values(tensor)
    return None if constant is None else array_of(constant).reshape(-1).tolist()


def _is_of_channels(axes: list[int] | None) -> bool:
    return axes in ([-1], [_RANK - 1])


def _reduced_axes(node: gs.Node) -> list[int] | None:
    """The axes of a reduction that keeps them, where they are stored."""
    if not node.attrs.get("keepdims", 1):
        return None
    if "axes" in node.attrs:
        return list(node.attrs["axes"])
    return _stored(node.inputs[1]) if len(node.inputs) > 1 else None


def _reads_other_sizes(node: gs.Node) -> bool:
    """Whether it reads sizes of a tensor, and of these not the number of tokens."""
    if _kind(node) != ("", "Shape") or node.attrs:
        return False
    readers = node.outputs[0].outputs
    places = [_stored(reader.inputs[1]) if _kind(reader) == ("", "Gather") else None for reader in readers]
    return bool(readers) and all(
        found is not None and all(place % _RANK != _TOKENS for place in found) for found in places
    )
