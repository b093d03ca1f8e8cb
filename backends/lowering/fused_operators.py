"""The graph with ONNX's operators in place of those that onnxruntime's optimizer for transformers fuses them to.

The kernels know attention and embeddings by the operators that exporters write. Replaced are, of com.microsoft:
EmbedLayerNormalization, Attention without a cache, QuickGelu, and SkipLayerNormalization of operands that are not
known to have the same sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx

from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.graph_writer import GraphWriter
from sift_onnx.operators.domains import MICROSOFT

__all__ = ["with_separate_operators"]

# The first version with Split and Unsqueeze as they are written here.
_OPSET = 13
# What onnxruntime adds where a mask has no positive number, if the node does not say.
_FILTER = -10000.0


def with_separate_operators(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same values with fewer of onnxruntime's own operators."""
    if graph.opset < _OPSET or not any(node.domain == MICROSOFT and node.op_type in _WRITERS for node in graph.nodes):
        return graph
    rewriter = _Rewriter(graph)
    rewritten = rewriter.rewritten()
    return rewritten if rewriter.is_changed else graph


class _Rewriter:
    """Writes the nodes in graph order."""

    def __init__(self, graph: GraphView) -> None:
        self.graph = graph
        self.is_changed = False
        self._writer = GraphWriter(graph)
        self._node = onnx.NodeProto()
        self._shared: dict[tuple[str, float], str] = {}

    def rewritten(self) -> GraphView:
        """The graph with all of them replaced."""
        for index, node in enumerate(self.graph.nodes):
            write = _WRITERS.get(node.op_type) if node.domain == MICROSOFT else None
            self._node = node
            if write is not None and write[0](self):
                self.is_changed = True
                self._writer.place_next((index,))
                write[1](self)
            else:
                self._writer.write(index, self._writer.copied(node))
        return self._writer.written()

    def _input(self, position: int) -> str:
        return self._node.input[position] if position < len(self._node.input) else ""

    def _output(self, position: int) -> str:
        return self._node.output[position] if position < len(self._node.output) else ""

    def _attribute(self, name: str, default: Any) -> Any:
        found = (onnx.helper.get_attribute_value(a) for a in self._node.attribute if a.name == name)
        return next(found, default)

    def _made(self, op: str, inputs: Iterable[str], what: str, **attributes: Any) -> str:
        """Add a node for a value between those of the old graph; its name."""
        made = self._writer.unique(f"{self._node.output[0]}: {what}")
        self._add(op, inputs, made, **attributes)
        return made

    def _add(self, op: str, inputs: Iterable[str], output: str, **attributes: Any) -> None:
        self._writer.add(op, map(self._writer.current, inputs), output, **attributes)

    def _constant(self, values: Any, what: str, dtype: type[np.generic] = np.int64) -> str:
        return self._writer.constant(np.array(values, dtype), f"{self._node.output[0]}: {what}")

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
        total = self._output(3) or self._writer.unique(f"{self._output(0)}: sum")
        bias = self._input(4)
        operands = list(self._node.input[:2])
        if bias:
            operands = [self._made("Add", operands, "unbiased sum"), bias]
        self._add("Add", operands, total)
        self._normalize(total, self._input(2), self._input(3))

    def _is_read(self, position: int) -> bool:
        name = self._output(position)
        return bool(name) and (bool(self.graph.readers.get(name)) or name in self.graph.outputs)

    # EmbedLayerNormalization

    def takes_embedding(self) -> bool:
        """Whether the mask, if lengths are made of one, has a row of numbers for each sequence."""
        dims = self.graph.dims(self._input(7)) if self._input(7) else ()
        return self._attribute("mask_index_type", 1) == 1 and (
            not self._is_read(1) or (dims is not None and len(dims) == 2)
        )

    def write_embedding(self) -> None:
        """Rows of tables by tokens, positions and segments, their sum, and its normalization."""
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

    # Attention

    def takes_attention(self) -> bool:
        """Whether all positions of all heads are seen, but for those that a mask leaves out."""
        dims, heads = self.graph.dims(self._input(1)), int(self._attribute("num_heads", 0))
        if dims is None or len(dims) != 2 or not isinstance(dims[1], int) or heads < 1:
            return False
        if any(self._attribute(name, 0) for name in ("unidirectional", "do_rotary", "past_present_share_buffer")):
            return False
        if self._input(4) or self._input(6) or self._output(1) or self._attribute("rotary_embedding_dim", 0):
            return False
        sizes = self._sizes(dims[1])
        if len(sizes) != 3 or sum(sizes) != dims[1] or any(size % heads for size in sizes) or sizes[0] != sizes[1]:
            return False
        return not self._input(3) or self._axes_of_mask() in (1, 2, 3)

    def _sizes(self, columns: int) -> list[int]:
        """Channels of queries, keys and values."""
        return [int(size) for size in self._attribute("qkv_hidden_sizes", None) or [columns // 3] * 3]

    def _axes_of_mask(self) -> int | None:
        """Two or three if it is of zeros and other numbers; one if it has the lengths of sequences.

        A mask of one axis may also be of starts and ends: lengths are what an embedding or a sum makes of one row each.
        """
        name = self._input(3)
        dims, maker = self.graph.dims(name), self.graph.producers.get(name)
        if maker is not None:
            node = self.graph.nodes[maker]
            if node.op_type == "EmbedLayerNormalization":
                return 1
            summed = self.graph.dims(node.input[0]) if node.op_type == "ReduceSum" else None
            if dims is not None and len(dims) == 1 and summed is not None and len(summed) == 2:
                return 1
        return len(dims) if dims is not None and len(dims) in (2, 3) else None

    def write_attention(self) -> None:
        """Queries, keys and values in one product; scores, the mask added to them, their softmax; and the values."""
        dims, heads = self.graph.dims(self._input(1)), int(self._attribute("num_heads", 0))
        assert dims is not None
        assert isinstance(dims[1], int)
        sizes = self._sizes(dims[1])
        joined = self._made("MatMul", self._node.input[:2], "queries, keys and values")
        if self._input(2):
            joined = self._made("Add", [joined, self._input(2)], "with bias")
        parts = [self._writer.unique(f"{self._output(0)}: {what}") for what in ("queries", "keys", "values")]
        split = onnx.helper.make_node("Split", [joined, self._constant(sizes, "sizes")], parts, axis=2)
        self._writer.append(split)
        operands = []
        for part, size, order in zip(parts, sizes, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True):
            target = self._constant([0, 0, heads, size // heads], "size of heads")
            operands.append(
                self._made("Transpose", [self._made("Reshape", [part, target], "heads")], "heads", perm=order)
            )
        scale = float(self._attribute("scale", 0.0)) or (sizes[0] // heads) ** -0.5
        scores = self._made("MatMul", operands[:2], "products")
        scores = self._made("Mul", [scores, self._constant(scale, "scale", np.float32)], "scores")
        for added in (self._mask() if self._input(3) else "", self._input(5)):
            scores = self._made("Add", [scores, added], "masked scores") if added else scores
        chosen = self._made(
            "MatMul", [self._made("Softmax", [scores], "shares", axis=-1), operands[2]], "chosen values"
        )
        turned = self._made("Transpose", [chosen], "turned", perm=[0, 2, 1, 3])
        self._add("Reshape", [turned, self._constant([0, 0, sizes[2]], "size")], self._output(0))

    def _mask(self) -> str:
        """What is added to scores: 0 for what is seen, else the filter. Layers with the same mask have it in common."""
        filtered = float(self._attribute("mask_filter_value", _FILTER))
        key = (self._input(3), filtered)
        if key not in self._shared:
            count = self._axes_of_mask()
            seen = self._seen_lengths() if count == 1 else self._made("Greater", [self._input(3), self._zero()], "seen")
            numbers = [self._constant(value, "mask", np.float32) for value in (0.0, filtered)]
            axes = self._constant([1] if count == 3 else [1, 2], "axes")
            self._shared[key] = self._made("Unsqueeze", [self._made("Where", [seen, *numbers], "mask"), axes], "mask")
        return self._shared[key]

    def _zero(self) -> str:
        return self._constant(0, "zero", np.int32)

    def _seen_lengths(self) -> str:
        """Whether each position comes before the end of its sequence.

        How many there are is read off what the lengths are made of, which the kernels do not make.
        """
        tokens = self.graph.nodes[self.graph.producers[self._input(3)]].input[0]
        shape = self._made("Shape", [tokens], "shape")
        length = self._made("Gather", [shape, self._constant(1, "second")], "length")
        places = self._made("Range", [self._constant(0, "first"), length, self._constant(1, "step")], "places")
        ends = self._made("Cast", [self._input(3)], "ends", to=onnx.TensorProto.INT64)
        return self._made("Less", [places, self._made("Unsqueeze", [ends, self._constant([1], "axis")], "end")], "seen")


_WRITERS: dict[str, tuple[Callable[[_Rewriter], bool], Callable[[_Rewriter], None]]] = {
    "Attention": (_Rewriter.takes_attention, _Rewriter.write_attention),
    "EmbedLayerNormalization": (_Rewriter.takes_embedding, _Rewriter.write_embedding),
    "QuickGelu": (_Rewriter.takes_quick_gelu, _Rewriter.write_quick_gelu),
    "SkipLayerNormalization": (_Rewriter.takes_skip, _Rewriter.write_skip),
}
