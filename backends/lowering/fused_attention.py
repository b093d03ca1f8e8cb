"""onnxruntime's Attention and MultiHeadAttention without a cache, in ONNX's own operators.

Attention projects its operand to queries, keys and values itself; MultiHeadAttention reads these, and adds a bias.
Both compute the softmax of scaled scores, to which masks are added, and the product with the values.
"""

from __future__ import annotations

import numpy as np
import onnx

from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.graph_writer import GraphWriter
from sift_onnx.backends.lowering.node_rewriter import NodeRewriter

__all__ = ["FusedAttentions"]

# What onnxruntime adds where a mask has no positive number, if the node does not say.
_FILTER = -10000.0
# What it adds for later positions, in the place of what the mask says.
_LOWEST = float(np.finfo(np.float32).min)
# Axes of heads: of queries and values for products, and of keys.
_HEADS_FIRST, _KEYS = [0, 2, 1, 3], [0, 2, 3, 1]


class FusedAttentions(NodeRewriter):
    """Writes these nodes."""

    def __init__(self, graph: GraphView, writer: GraphWriter) -> None:
        """Begin without any masks."""
        super().__init__(graph, writer)
        self._shared: dict[tuple[object, ...], str] = {}

    # Attention

    def takes_attention(self) -> bool:
        """Whether the node has no cache and no rotation, and its sizes are known."""
        dims, heads = self.graph.dims(self._input(1)), int(self._attribute("num_heads", 0))
        if dims is None or len(dims) != 2 or not isinstance(dims[1], int) or heads < 1:
            return False
        if any(self._attribute(name, 0) for name in ("do_rotary", "past_present_share_buffer")):
            return False
        if self._input(4) or self._input(6) or self._output(1) or self._attribute("rotary_embedding_dim", 0):
            return False
        sizes = self._sizes(dims[1])
        if len(sizes) != 3 or sum(sizes) != dims[1] or any(size % heads for size in sizes) or sizes[0] != sizes[1]:
            return False
        return not self._input(3) or self._axes_of_mask(self._input(3)) in (1, 2, 3)

    def write_attention(self) -> None:
        """Queries, keys and values in one product; scores, the mask added to them, their softmax; and the values."""
        dims = self.graph.dims(self._input(1))
        assert dims is not None
        assert isinstance(dims[1], int)
        sizes = self._sizes(dims[1])
        self._place_next()
        joined = self._made("MatMul", self._node.input[:2], "queries, keys and values")
        if self._input(2):
            joined = self._made("Add", [joined, self._input(2)], "with bias")
        parts = [self._writer.unique(f"{self._output(0)}: {what}") for what in ("queries", "keys", "values")]
        split = onnx.helper.make_node("Split", [joined, self._constant(sizes, "sizes")], parts, axis=2)
        self._writer.append(split)
        queries, keys, values = (
            self._heads(part, size, order)
            for part, size, order in zip(parts, sizes, (_HEADS_FIRST, _KEYS, _HEADS_FIRST), strict=True)
        )
        added = [self._mask(self._input(3), self._input(0)), self._input(5)]
        self._write_product(queries, keys, values, (sizes[0], sizes[2]), added)

    def _sizes(self, columns: int) -> list[int]:
        """Channels of queries, keys and values."""
        return [int(size) for size in self._attribute("qkv_hidden_sizes", None) or [columns // 3] * 3]

    # MultiHeadAttention

    def takes_multi_head(self) -> bool:
        """Whether queries, keys and values are operands of known sizes, and no others are read.

        Keys and values have tokens and channels, or have been divided into heads.
        """
        heads = int(self._attribute("num_heads", 0))
        if heads < 1 or any(self._input(position) for position in range(6, 10)) or self._is_read(1) or self._is_read(2):
            return False
        operands = [self.graph.dims(self._input(position)) for position in range(3)]
        queries, keys, values = operands
        if queries is None or keys is None or values is None or len(queries) != 3 or len(keys) != len(values):
            return False
        if len(keys) not in (3, 4) or (len(keys) == 4 and (keys[1] != heads or values[1] != heads)):
            return False
        sizes = self._all_channels()
        if len(sizes) != 3 or any(size % heads for size in sizes) or sizes[0] != sizes[1]:
            return False
        if self._input(3) and self.graph.folded_values(self._input(3)) is None:
            return False
        if self._attribute("unidirectional", 0) and keys[-2] != queries[1]:
            return False
        return not self._input(4) or self._axes_of_mask(self._input(4)) in (1, 2, 3)

    def _all_channels(self) -> list[int]:
        """Channels of queries, keys and values, of all heads; fewer numbers if some are not known."""
        heads = int(self._attribute("num_heads", 0))
        dims = [self.graph.dims(self._input(position)) or ("",) for position in range(3)]
        counts = [(own[-1], heads if len(own) == 4 else 1) for own in dims]
        return [size * count for size, count in counts if isinstance(size, int)]

    def write_multi_head(self) -> None:
        """Biases of the operands that have no heads yet; then as in :meth:`write_attention`."""
        names, sizes = list(self._node.input[:3]), self._all_channels()
        dims = [self.graph.dims(name) or () for name in names]
        ends = np.cumsum([0, *sizes])
        bias = self.graph.folded_values(self._input(3)) if self._input(3) else None
        operands = []
        for i, (name, own, what) in enumerate(zip(names, dims, ("queries", "keys", "values"), strict=True)):
            order = _KEYS if i == 1 else _HEADS_FIRST
            if len(own) == 4:
                operands.append(self._made("Transpose", [name], what, perm=[0, 1, 3, 2]) if i == 1 else name)
                continue
            if bias is not None:
                own_bias = self._constant(bias[ends[i] : ends[i + 1]], f"bias of {what}", np.float32)
                name = self._made("Add", [name, own_bias], f"{what} with bias")
            operands.append(self._heads(name, sizes[i], order))
        added = [self._mask(self._input(4), names[0]), self._input(5)]
        self._place_next()
        self._write_product(operands[0], operands[1], operands[2], (sizes[0], sizes[2]), added)

    # Both

    def _heads(self, value: str, size: int, order: list[int]) -> str:
        """[batch, tokens, size] with an axis of heads."""
        heads = int(self._attribute("num_heads", 0))
        target = self._constant([0, 0, heads, size // heads], "size of heads")
        return self._made("Transpose", [self._made("Reshape", [value, target], "heads")], "heads", perm=order)

    def _write_product(self, queries: str, keys: str, values: str, sizes: tuple[int, int], added: list[str]) -> None:
        """Scores, what is added to them, their softmax, and the values; ``sizes`` are of all queries and values."""
        scale = float(self._attribute("scale", 0.0)) or (sizes[0] // int(self._attribute("num_heads", 0))) ** -0.5
        scores = self._made("MatMul", [queries, keys], "products")
        scores = self._made("Mul", [scores, self._constant(scale, "scale", np.float32)], "scores")
        for other in added:
            scores = self._made("Add", [scores, other], "masked scores") if other else scores
        chosen = self._made("MatMul", [self._made("Softmax", [scores], "shares", axis=-1), values], "chosen values")
        turned = self._made("Transpose", [chosen], "turned", perm=_HEADS_FIRST)
        self._add("Reshape", [turned, self._constant([0, 0, sizes[1]], "size")], self._output(0))

    def _axes_of_mask(self, name: str) -> int | None:
        """Two or three if it is of zeros and other numbers; one if it has the lengths of sequences.

        A mask of one axis may also be of starts and ends: lengths are what an embedding or a sum makes of one row each.
        """
        dims, maker = self.graph.dims(name), self.graph.producers.get(name)
        if maker is not None:
            node = self.graph.nodes[maker]
            if node.op_type == "EmbedLayerNormalization":
                return 1
            summed = self.graph.dims(node.input[0]) if node.op_type == "ReduceSum" else None
            if dims is not None and len(dims) == 1 and summed is not None and len(summed) == 2:
                return 1
        return len(dims) if dims is not None and len(dims) in (2, 3) else None

    def _mask(self, name: str, tokens: str) -> str:
        """What is added to scores: 0 for what is seen, else the filter; "" if all is seen.

        Layers with the same mask have it in common. ``tokens`` has as many as there are queries, in its second axis.
        """
        filtered = float(self._attribute("mask_filter_value", _FILTER))
        is_causal = bool(self._attribute("unidirectional", 0))
        if not name and not is_causal:
            return ""
        dims = self.graph.dims(tokens)
        length = dims[1] if dims is not None else tokens
        key = (name, filtered if name else None, is_causal, length if is_causal else None)
        if key not in self._shared:
            mask = self._mask_of_operand(name, filtered) if name else ""
            self._shared[key] = self._causal(tokens, mask) if is_causal else mask
        return self._shared[key]

    def _mask_of_operand(self, name: str, filtered: float) -> str:
        count = self._axes_of_mask(name)
        seen = self._seen_lengths(name) if count == 1 else self._made("Greater", [name, self._zero()], "seen")
        seen = self._made("Unsqueeze", [seen, self._constant([1] if count == 3 else [1, 2], "axes")], "seen")
        numbers = [self._constant(value, "mask", np.float32) for value in (0.0, filtered)]
        return self._made("Where", [seen, *numbers], "mask")

    def _causal(self, tokens: str, mask: str) -> str:
        """The mask, or zeros, with the lowest number for later positions, [..., queries, keys]."""
        places = self._places(tokens)
        rows, columns = (self._made("Unsqueeze", [places, self._constant([axis], "axis")], "places") for axis in (1, 0))
        is_seen = self._made("LessOrEqual", [columns, rows], "earlier")
        seen = mask or self._constant(0.0, "mask", np.float32)
        return self._made("Where", [is_seen, seen, self._constant(_LOWEST, "lowest", np.float32)], "causal mask")

    def _zero(self) -> str:
        return self._constant(0, "zero", np.int32)

    def _seen_lengths(self, name: str) -> str:
        """Whether each position comes before the end of its sequence.

        How many there are is read off what the lengths are made of, which the kernels do not make.
        """
        places = self._places(self.graph.nodes[self.graph.producers[name]].input[0])
        ends = self._made("Cast", [name], "ends", to=onnx.TensorProto.INT64)
        return self._made("Less", [places, self._made("Unsqueeze", [ends, self._constant([1], "axis")], "end")], "seen")

    def _places(self, tokens: str) -> str:
        """Numbers of the positions along the second axis."""
        shape = self._made("Shape", [tokens], "shape")
        length = self._made("Gather", [shape, self._constant(1, "second")], "length")
        return self._made("Range", [self._constant(0, "first"), length, self._constant(1, "step")], "places")
