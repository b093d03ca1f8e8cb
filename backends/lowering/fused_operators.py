"""The graph with ONNX's operators in place of those that onnxruntime's optimizers fuse them to.

The kernels know layers, attention and embeddings by the operators that exporters write. Replaced are, of com.microsoft:
FusedConv, FusedGemm and FusedMatMul (``fused_layers``), EmbedLayerNormalization, Attention and MultiHeadAttention
without a cache, QuickGelu, and SkipLayerNormalization of operands that are not known to have the same sizes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from sift_onnx.backends.lowering.fused_attention import FusedAttentions
from sift_onnx.backends.lowering.fused_layers import FusedLayers
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.graph_writer import GraphWriter
from sift_onnx.backends.lowering.node_rewriter import NodeRewriter
from sift_onnx.operators.domains import MICROSOFT

__all__ = ["with_separate_operators"]

# The first version with Split and Unsqueeze as they are written here.
_OPSET = 13
_FUSED = {
    "Attention", "EmbedLayerNormalization", "FusedConv", "FusedGemm", "FusedMatMul", "MultiHeadAttention", "QuickGelu",
    "SkipLayerNormalization",
}  # fmt: skip


def with_separate_operators(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same values with fewer of onnxruntime's own operators."""
    if graph.opset < _OPSET or not any(node.domain == MICROSOFT and node.op_type in _FUSED for node in graph.nodes):
        return graph
    writer = GraphWriter(graph)
    others, attentions = _FusedOperators(graph, writer), FusedAttentions(graph, writer)
    layers = FusedLayers(graph, writer)
    writers: dict[str, tuple[NodeRewriter, Callable[[], bool], Callable[[], None]]] = {
        "Attention": (attentions, attentions.takes_attention, attentions.write_attention),
        "MultiHeadAttention": (attentions, attentions.takes_multi_head, attentions.write_multi_head),
        "EmbedLayerNormalization": (others, others.takes_embedding, others.write_embedding),
        "FusedConv": (layers, layers.takes_conv, layers.write_conv),
        "FusedGemm": (layers, layers.takes_gemm, layers.write_gemm),
        "FusedMatMul": (layers, layers.takes_matmul, layers.write_matmul),
        "QuickGelu": (others, others.takes_quick_gelu, others.write_quick_gelu),
        "SkipLayerNormalization": (others, others.takes_skip, others.write_skip),
    }
    is_changed = False
    for index, node in enumerate(graph.nodes):
        found = writers.get(node.op_type) if node.domain == MICROSOFT else None
        if found is not None:
            rewriter, takes, write = found
            rewriter.at(index, node)
            if takes():
                is_changed = True
                write()
                continue
        writer.write(index, writer.copied(node))
    return writer.written() if is_changed else graph


class _FusedOperators(NodeRewriter):
    """Writes embeddings, sums with their normalization, and activations."""

    def _normalize(self, total: str, gain: str, bias: str) -> None:
        epsilon = float(self._attribute("epsilon", 1e-12))
        inputs = [total, gain, *([bias] if bias else [])]
        self._add("LayerNormalization", inputs, self._output(0), axis=-1, epsilon=epsilon)

    # QuickGelu

    def takes_quick_gelu(self) -> bool:
        """Always."""
        return True

    def write_quick_gelu(self) -> None:
        """``x * sigmoid(alpha * x)``."""
        self._place_next()
        alpha = self._constant(self._attribute("alpha", 1.702), "alpha", np.float32)
        gate = self._made("Sigmoid", [self._made("Mul", [self._input(0), alpha], "scaled")], "gate")
        self._add("Mul", [self._input(0), gate], self._output(0))

    # SkipLayerNormalization

    def takes_skip(self) -> bool:
        """Whether one operand may be repeated, which ONNX's Add does, and no statistics are read."""
        dims = [self.graph.dims(self._input(position)) for position in range(2)]
        is_known = dims[0] is not None and dims[0] == dims[1]
        return not is_known and not self._is_read(1) and not self._is_read(2)

    def write_skip(self) -> None:
        """A sum, which others may read, and its normalization."""
        self._place_next()
        total = self._output(3) or self._writer.unique(f"{self._output(0)}: sum")
        bias = self._input(4)
        operands = list(self._node.input[:2])
        if bias:
            operands = [self._made("Add", operands, "unbiased sum"), bias]
        self._add("Add", operands, total)
        self._normalize(total, self._input(2), self._input(3))

    # EmbedLayerNormalization

    def takes_embedding(self) -> bool:
        """Whether the mask, if lengths are made of one, has a row of numbers for each sequence."""
        dims = self.graph.dims(self._input(7)) if self._input(7) else ()
        return self._attribute("mask_index_type", 1) == 1 and (
            not self._is_read(1) or (dims is not None and len(dims) == 2)
        )

    def write_embedding(self) -> None:
        """Rows of tables by tokens, positions and segments, their sum, and its normalization."""
        self._place_next()
        parts = [self._made("Gather", [self._input(2), self._input(0)], "words")]
        if self._input(8):
            parts.append(self._made("Gather", [self._input(3), self._input(8)], "positions"))
        else:
            first, second = self._constant([0], "first"), self._constant([1], "second")
            count = self._made("Shape", [self._input(0)], "shape")
            count = self._made("Slice", [count, second, self._constant([2], "third")], "length")
            parts.append(self._made("Slice", [self._input(3), first, count, first], "positions"))
        if self._input(4):
            parts.append(self._made("Gather", [self._input(4), self._input(1)], "segments"))
        total = parts[0]
        for i, part in enumerate(parts[1:], 2):
            named = self._output(2) if i == len(parts) else ""
            operands, total = [total, part], named or self._writer.unique(f"{self._output(0)}: sum of {i}")
            self._add("Add", operands, total)
        self._normalize(total, self._input(5), self._input(6))
        if self._is_read(1):
            self._write_lengths()

    def _write_lengths(self) -> None:
        """The number of ones in each row of a mask; without one, zeros."""
        if self._input(7):
            ones = self._made("Equal", [self._input(7), self._constant(1, "one", np.int32)], "ones")
            counted = self._made("Cast", [ones], "counted", to=onnx.TensorProto.INT32)
        else:
            counted = self._made("Mul", [self._input(0), self._constant(0, "zero", np.int32)], "zeros")
        self._add("ReduceSum", [counted, self._constant([1], "last axis")], self._output(1), keepdims=0)
