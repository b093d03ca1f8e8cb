"""The graph with operators that kernels have in place of standard ones that are made of these.

1. Sum and Mean of several operands are additions.
2. Softsign, Swish, Celu, ThresholdedRelu and Shrink are arithmetic and comparisons.
3. ReduceL1, ReduceLogSum and ReduceLogSumExp are a sum between functions.
4. LRN is an average over neighbouring channels, which are the rows of an image of one channel.
5. SpaceToDepth joins every n-th row and column.
6. Einsum of one operand turns its axes, and sums those that the result does not have.
7. Col2Im of blocks that do not overlap orders their axes.
8. A cubic Resize is a product with the weights of rows, and one with those of columns, nearly all of them zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.graph_writer import GraphWriter
from sift_onnx.backends.lowering.node_rewriter import NodeRewriter
from sift_onnx.backends.lowering.resampling import COORDINATES, Sampling
from sift_onnx.operators.einsum_terms import einsum_terms

__all__ = ["with_elementary_operators"]

# The first version with Clip and Slice as they are written here; those with axes of reductions as an input.
_OPSET, _SUM_OPSET, _REDUCTION_OPSET = 11, 13, 18
_LARGEST = float(np.finfo(np.float32).max)


def with_elementary_operators(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same values with operators that kernels have."""
    if graph.opset < _OPSET or not any(is_standard_op(node, *_WRITERS) for node in graph.nodes):
        return graph
    writer = GraphWriter(graph)
    composed = _ComposedOperators(graph, writer)
    is_changed = False
    for index, node in enumerate(graph.nodes):
        if is_standard_op(node, *_WRITERS) and _is_of_floats(graph, node):
            composed.at(index, node)
            if _WRITERS[node.op_type](composed):
                is_changed = True
                continue
        writer.write(index, writer.copied(node))
    return writer.written() if is_changed else graph


def _is_of_floats(graph: GraphView, node: onnx.NodeProto) -> bool:
    """Whether a node makes floats, and of floats: what is quantized may become a table as it is."""
    index = graph.producers.get(node.input[0])
    is_dequantized = index is not None and is_standard_op(graph.nodes[index], "DequantizeLinear")
    return graph.elem_type(node.output[0]) == onnx.TensorProto.FLOAT and not is_dequantized


class _ComposedOperators(NodeRewriter):
    """Writes one node's operators, or says that it does not."""

    def at(self, index: int, node: onnx.NodeProto) -> None:
        """Go on with this node, in whose place is what is added next."""
        super().at(index, node)
        self._dims = self.graph.dims(node.input[0])

    def _number(self, value: float, what: str) -> str:
        return self._constant(value, what, np.float32)

    # Sum and Mean

    def write_sum(self) -> bool:
        """``((a + b) + c) + ...``, by the number of operands for Mean."""
        self._place_next()
        is_mean, (total, *others) = self._node.op_type == "Mean", self._node.input
        for number, other in enumerate(others, 2):
            if number == len(self._node.input) and not is_mean:
                self._add("Add", [total, other], self._output(0))
            else:
                total = self._made("Add", [total, other], f"sum of {number}")
        if is_mean:
            self._add("Div", [total, self._number(len(self._node.input), "count")], self._output(0))
        elif not others:
            self._add("Identity", [total], self._output(0))
        return True

    # Activations

    def write_softsign(self) -> bool:
        """``x / (1 + |x|)``."""
        self._place_next()
        x = self._input(0)
        size = self._made("Add", [self._made("Abs", [x], "size"), self._number(1, "one")], "divisor")
        self._add("Div", [x, size], self._output(0))
        return True

    def write_swish(self) -> bool:
        """``x * sigmoid(alpha * x)``."""
        self._place_next()
        x = scaled = self._input(0)
        alpha = float(self._attribute("alpha", 1.0))
        if alpha != 1:
            scaled = self._made("Mul", [x, self._number(alpha, "alpha")], "scaled")
        self._add("Mul", [x, self._made("Sigmoid", [scaled], "gate")], self._output(0))
        return True

    def write_celu(self) -> bool:
        """``alpha * elu(x / alpha)``."""
        alpha = float(self._attribute("alpha", 1.0))
        if alpha <= 0:
            return False
        self._place_next()
        scaled = self._made("Div", [self._input(0), self._number(alpha, "alpha")], "scaled")
        made = self._made("Elu", [scaled], "elu")
        self._add("Mul", [made, self._number(alpha, "factor")], self._output(0))
        return True

    def write_thresholded_relu(self) -> bool:
        """What is larger than alpha, or zero."""
        self._place_next()
        x, zero = self._input(0), self._number(0, "zero")
        is_larger = self._made("Greater", [x, self._number(self._attribute("alpha", 1.0), "alpha")], "is larger")
        self._add("Where", [is_larger, x, zero], self._output(0))
        return True

    def write_shrink(self) -> bool:
        """What is not within lambd of zero, moved by a bias towards it; else zero."""
        self._place_next()
        x, zero = self._input(0), self._number(0, "zero")
        least, bias = (float(self._attribute(name, default)) for name, default in (("lambd", 0.5), ("bias", 0.0)))
        is_low = self._made("Less", [x, self._number(-least, "low")], "is low")
        is_high = self._made("Greater", [x, self._number(least, "high")], "is high")
        higher = self._made("Add", [x, self._number(bias, "bias")], "higher")
        lower = self._made("Add", [x, self._number(-bias, "negative bias")], "lower")
        chosen = self._made("Where", [is_high, lower, zero], "above")
        self._add("Where", [is_low, higher, chosen], self._output(0))
        return True

    # Reductions

    def _axes(self) -> list[int] | None:
        """The axes that are reduced; None if a run computes them, or all are reduced."""
        if self.graph.opset < _REDUCTION_OPSET:
            return [int(axis) for axis in self._attribute("axes", ())] or None
        values = self.graph.values_of(self._input(1)) if self._input(1) else None
        return None if values is None else [int(axis) for axis in values.reshape(-1)] or None

    def _reduced(self, op: str, x: str, axes: list[int], keepdims: int, output: str) -> None:
        since = _SUM_OPSET if op == "ReduceSum" else _REDUCTION_OPSET
        if self.graph.opset < since:
            self._add(op, [x], output, axes=axes, keepdims=keepdims)
        else:
            self._add(op, [x, self._constant(axes, "axes")], output, keepdims=keepdims)

    def write_reduced_sizes(self) -> bool:
        """ReduceL1: ``sum(|x|)``."""
        axes = self._axes()
        if axes is not None:
            self._place_next()
            size = self._made("Abs", [self._input(0)], "size")
            self._reduced("ReduceSum", size, axes, self._attribute("keepdims", 1), self._output(0))
        return axes is not None

    def write_reduced_logarithm(self) -> bool:
        """ReduceLogSum: ``log(sum(x))``."""
        axes = self._axes()
        if axes is not None:
            self._place_next()
            total = self._writer.unique(f"{self._output(0)}: sum")
            self._reduced("ReduceSum", self._input(0), axes, self._attribute("keepdims", 1), total)
            self._add("Log", [total], self._output(0))
        return axes is not None

    def write_reduced_exponentials(self) -> bool:
        """ReduceLogSumExp: ``log(sum(exp(x - m))) + m``, where m is the largest value, as a finite number."""
        axes, x = self._axes(), self._input(0)
        if axes is None:
            return False
        self._place_next()
        keeps, largest, total = self._attribute("keepdims", 1), *map(self._between, ("largest", "sum"))
        self._reduced("ReduceMax", x, axes, 1, largest)
        ends = [self._number(-_LARGEST, "least number"), self._number(_LARGEST, "largest number")]
        largest = self._made("Clip", [largest, *ends], "finite")
        exponentials = self._made("Exp", [self._made("Sub", [x, largest], "difference")], "exponentials")
        self._reduced("ReduceSum", exponentials, axes, keeps, total)
        if not keeps:
            attributes = {"axes": axes} if self.graph.opset < _SUM_OPSET else {}
            operands = [largest] if attributes else [largest, self._constant(axes, "dropped axes")]
            largest = self._made("Squeeze", operands, "dropped", **attributes)
        self._add("Add", [self._made("Log", [total], "logarithm"), largest], self._output(0))
        return True

    def _between(self, what: str) -> str:
        return self._writer.unique(f"{self._output(0)}: {what}")

    # Axes

    def write_einsum(self) -> bool:
        """Einsum of one operand whose axes have a label each."""
        rank, equation = len(self._dims or ()), self._attribute("equation", b"").decode()
        terms, result = einsum_terms(equation, [rank]) if len(self._node.input) == 1 and rank else (None, "")
        if not terms or len(terms[0]) != rank or len({*terms[0]}) != rank or not {*result} <= {*terms[0]}:
            return False
        self._place_next()
        summed = [label for label in terms[0] if label not in result]
        order = [terms[0].index(label) for label in [*result, *summed]]
        if not summed:
            self._add("Transpose", [self._input(0)], self._output(0), perm=order)
            return True
        turned = self._made("Transpose", [self._input(0)], "turned", perm=order)
        self._reduced("ReduceSum", turned, [*range(len(result), rank)], 0, self._output(0))
        return True

    # Images

    def write_lrn(self) -> bool:
        """LRN: ``x * (bias + alpha * mean)^-beta``, of the mean of squares in a window of channels."""
        size, dims = int(self._attribute("size", 1)), self._dims
        if dims is None or len(dims) != 4 or not isinstance(dims[1], int) or not dims[1] or size % 2 == 0:
            return False
        self._place_next()
        x, before = self._input(0), (size - 1) // 2
        squares = self._made("Mul", [x, x], "squares")
        as_rows = self._made("Reshape", [squares, self._constant([0, 1, dims[1], -1], "rows")], "squares in rows")
        mean = self._made(
            "AveragePool", [as_rows], "mean in rows", kernel_shape=[size, 1],
            pads=[before, 0, size - 1 - before, 0], count_include_pad=1,
        )  # fmt: skip
        mean = self._made("Reshape", [mean, self._made("Shape", [x], "shape")], "mean")
        scaled = self._made("Mul", [mean, self._number(self._attribute("alpha", 1e-4), "alpha")], "scaled")
        total = self._made("Add", [scaled, self._number(self._attribute("bias", 1.0), "bias")], "with bias")
        root = self._made("Pow", [total, self._number(self._attribute("beta", 0.75), "beta")], "power")
        self._add("Div", [x, root], self._output(0))
        return True

    def write_space_to_depth(self) -> bool:
        """SpaceToDepth: blocks become channels, the first pixels of all blocks first."""
        block, dims = int(self._attribute("blocksize", 1)), self._dims
        if self._attribute("mode", b"DCR") != b"DCR":
            # All pixels of the first channel come first.
            return False
        if block < 1 or dims is None or len(dims) != 4 or any(isinstance(n, int) and n % block for n in dims[2:]):
            return False
        self._place_next()
        ends, axes, steps = (self._constant(values, what) for values, what in (
            ([np.iinfo(np.int64).max] * 2, "ends"), ([2, 3], "axes"), ([block] * 2, "steps")))  # fmt: skip
        parts = [
            self._made("Slice", [self._input(0), self._constant([row, column], "first"), ends, axes, steps], "part")
            for row in range(block)
            for column in range(block)
        ]
        self._add("Concat", parts, self._output(0), axis=1)
        return True

    def write_cubic(self) -> bool:
        """Resize of height and width between sizes that are known, by cubic convolution."""
        dims, names = self._dims, ("coordinate_transformation_mode", "keep_aspect_ratio_policy")
        coordinates, policy = (
            self._attribute(name, default).decode()
            for name, default in zip(names, (b"half_pixel", b"stretch"), strict=True)
        )
        sizes = [size for size in (dims or ())[2:] if isinstance(size, int)]
        known = dims is not None and len(dims) == 4 and len(sizes) == 2
        if self._attribute("mode", b"nearest") != b"cubic" or not known or coordinates not in COORDINATES:
            return False
        if policy != "stretch" or self._attribute("antialias", 0) or self._attribute("axes", ()):
            return False
        samplings = self._samplings(coordinates)
        if samplings is None:
            return False
        self._place_next()
        x, a = self._input(0), float(self._attribute("cubic_coeff_a", -0.75))
        excludes = bool(self._attribute("exclude_outside", 0))
        for what, axis in (("rows", 3), ("columns", 2)):
            weights = samplings[axis - 2].cubic_weights(sizes[axis - 2], a, excludes)
            name = self._constant(np.ascontiguousarray(weights.T), f"weights of {what}", np.float32)
            x = self._made("Transpose", [self._made("MatMul", [x, name], what)], f"{what} turned", perm=[0, 1, 3, 2])
        self._add("Identity", [x], self._output(0))
        return True

    def _samplings(self, coordinates: str) -> tuple[Sampling, Sampling] | None:
        """Those of height and width; None if they are not known, or other axes are resized as well."""
        dims = self._dims or ()
        if self._input(3):
            sizes = self.graph.vector(self._input(3))
            if sizes is None or len(sizes) != 4 or sizes[:2] != dims[:2]:
                return None
            pairs = [(size, own) for size, own in zip(sizes[2:], dims[2:], strict=True) if isinstance(size, int)]
            made = [Sampling(size / own, size, coordinates) for size, own in pairs if isinstance(own, int) and own]
        else:
            values = self.graph.values_of(self._input(2))
            scales = [] if values is None else [float(scale) for scale in values.reshape(-1)]
            if len(scales) != 4 or scales[:2] != [1, 1] or min(scales) <= 0:
                return None
            made = [Sampling(scale, None, coordinates) for scale in scales[2:]]
        if len(made) != 2 or any(not sampling.size_of(size) for sampling, size in zip(made, dims[2:], strict=True)):
            return None
        return made[0], made[1]

    def write_blocks(self) -> bool:
        """Col2Im whose steps are the sizes of blocks: positions in a block lie between those of blocks."""
        image, block = (self.graph.values_of(self._input(position)) for position in (1, 2))
        if image is None or block is None or image.size != block.size or len(self._dims or ()) != 3:
            return False
        sizes, steps = image.reshape(-1).tolist(), block.reshape(-1).tolist()
        rank = len(steps)
        ones = [1] * rank
        plain = [steps, ones, [0] * (2 * rank)]
        defaults = [ones, ones, [0] * (2 * rank)]
        names = ("strides", "dilations", "pads")
        given = [list(self._attribute(name, default)) for name, default in zip(names, defaults, strict=True)]
        if given != plain or any(step < 1 or size % step for size, step in zip(sizes, steps, strict=True)):
            return False
        self._place_next()
        counts = [size // step for size, step in zip(sizes, steps, strict=True)]
        joined = (self._dims or ())[1]
        channels = joined // math.prod(steps) if isinstance(joined, int) else -1
        shape = self._constant([0, channels, *steps, *counts], "apart")
        apart = self._made("Reshape", [self._input(0), shape], "blocks")
        order = [axis for i in range(rank) for axis in (2 + rank + i, 2 + i)]
        ordered = self._made("Transpose", [apart], "ordered", perm=[0, 1, *order])
        self._add("Reshape", [ordered, self._constant([0, channels, *sizes], "image")], self._output(0))
        return True


_WRITERS: dict[str, Callable[[_ComposedOperators], bool]] = {
    "Sum": _ComposedOperators.write_sum,
    "Mean": _ComposedOperators.write_sum,
    "Softsign": _ComposedOperators.write_softsign,
    "Swish": _ComposedOperators.write_swish,
    "Celu": _ComposedOperators.write_celu,
    "ThresholdedRelu": _ComposedOperators.write_thresholded_relu,
    "Shrink": _ComposedOperators.write_shrink,
    "ReduceL1": _ComposedOperators.write_reduced_sizes,
    "ReduceLogSum": _ComposedOperators.write_reduced_logarithm,
    "ReduceLogSumExp": _ComposedOperators.write_reduced_exponentials,
    "Col2Im": _ComposedOperators.write_blocks,
    "Einsum": _ComposedOperators.write_einsum,
    "Resize": _ComposedOperators.write_cubic,
    "LRN": _ComposedOperators.write_lrn,
    "SpaceToDepth": _ComposedOperators.write_space_to_depth,
}
