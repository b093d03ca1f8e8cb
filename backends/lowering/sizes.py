"""What exporters compute of shapes, as expressions of the axes that are known before a run.

Models of any batch and length read sizes off their tensors, and put them together into targets of reshapes and scales
of attention. ONNX's own inference gives up where a product or a quotient of two such sizes is another's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.dims import Dim, Dims, bound, cut, divided, product, solved
from sift_onnx.backends.lowering.size_arithmetic import broadcast, computed, joined
from sift_onnx.graphs.constants import array_of
from sift_onnx.operators.domains import is_standard
from sift_onnx.operators.traits import ELEMENTWISE_BINARY, ELEMENTWISE_UNARY

__all__ = ["Sizes", "reshaped"]

# Larger constants are no shapes.
_MOST_ELEMENTS = 16

_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
# Ends that exporters write for all that follows.
_ENDLESS = 1 << 30

# The result has as many images as the first operand.
_SAME_IMAGES = frozenset({
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "GlobalAveragePool", "MaxPool", "Resize", "Upsample",
})  # fmt: skip
# The result has the sizes of the first operand.
_SAME = ELEMENTWISE_UNARY | {
    "Dropout", "LayerNormalization", "RMSNormalization", "RotaryEmbedding", "SimplifiedLayerNormalization", "Softmax",
}  # fmt: skip


def reshaped(target: Sequence[Dim], before: Dims, copies_zeros: bool) -> Dims | None:
    """Sizes after a Reshape to ``target``; None where what -1 stands for is no known quotient."""
    sizes: list[Dim] = []
    for axis, size in enumerate(target):
        if size == 0 and copies_zeros:
            if axis >= len(before):
                return None
            sizes.append(before[axis])
        else:
            sizes.append(size)
    if sizes.count(-1) > 1:
        return None
    rest = divided(product(before), product(size for size in sizes if size != -1))
    if -1 in sizes and rest is None:
        return None
    return tuple(rest if size == -1 and rest is not None else size for size in sizes)


class Sizes:
    """What is known of sizes, beyond what ONNX's inference has found."""

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        inferred: Callable[[str], Dims | None],
        constants: Mapping[str, gs.Constant],
        evaluated: Mapping[str, npt.NDArray[Any]],
        learned: Mapping[str, Dims] | None = None,
    ) -> None:
        """Follow sizes through a graph.

        Args:
            nodes: in topological order.
            inferred: sizes that ONNX's inference has found, by name.
            constants: by name.
            evaluated: small tensors that the graph computes of constants and of sizes that are numbers, by name.
            learned: sizes of values that are known otherwise.
        """
        self._dims: dict[str, Dims] = {}
        self._vectors: dict[str, tuple[Dim, ...]] = {}
        self._numbers: dict[str, float] = {}
        self._inferred_dims = inferred
        self._constants = constants
        self._evaluated = evaluated
        self._learned = learned or {}
        self._fixed: dict[str, int] = {}
        while True:
            fixed = len(self._fixed)
            for node in nodes:
                if is_standard(node.domain) and node.output:
                    with suppress(ArithmeticError, LookupError, TypeError, ValueError):  # it contradicts itself
                        self._infer(node)
            if len(self._fixed) == fixed:
                break
            for known in (self._dims, self._vectors, self._numbers):
                known.clear()

    def _inferred(self, name: str) -> Dims | None:
        dims = self._inferred_dims(name)
        return tuple(bound(size, self._fixed) for size in dims) if dims and self._fixed else dims

    def dims(self, name: str) -> Dims | None:
        """Sizes of a tensor; None if not even its rank is known."""
        return self._dims.get(name) or self._inferred(name)

    def vector(self, name: str) -> tuple[Dim, ...] | None:
        """Elements of an integer tensor of one axis, or of none; None for what is none, or unknown."""
        found = self._vectors.get(name)
        values = self._constant(name) if found is None else None
        if values is None or values.ndim > 1 or values.dtype.kind not in "iu":
            return found
        return tuple(int(n) for n in values.reshape(-1))

    def number(self, name: str) -> float | None:
        """The number that a tensor of one element is; None for what is none, or unknown."""
        if name in self._numbers:
            return self._numbers[name]
        values = self._constant(name)
        if values is not None and values.size == 1:
            return float(values.reshape(-1)[0])
        vector = self._vectors.get(name, ())
        return float(vector[0]) if len(vector) == 1 and isinstance(vector[0], int) else None

    def _constant(self, name: str) -> npt.NDArray[Any] | None:
        evaluated, constant = self._evaluated.get(name), self._constants.get(name)
        if evaluated is not None:
            return evaluated if evaluated.size <= _MOST_ELEMENTS else None
        return array_of(constant) if constant is not None and math.prod(constant.shape) <= _MOST_ELEMENTS else None

    def _infer(self, node: onnx.NodeProto) -> None:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.HasField("t")}
        name = node.output[0]
        if node.op_type == "Split":
            for output, dims in zip(node.output, self._dims_of_parts(node, attributes), strict=False):
                self._know(output, dims)
            return
        self._know(name, self._learned.get(name) or self._dims_of_result(node, attributes))
        vector = self._vector_of_result(node, attributes)
        if vector is not None and len(vector) <= _MOST_ELEMENTS:
            self._vectors[name] = vector
        number = self._number_of_result(node)
        if number is not None and math.isfinite(number):
            self._numbers[name] = number

    def _know(self, name: str, dims: Sequence[Dim | None] | None) -> None:
        known = self._inferred(name)
        if dims is None or (known is not None and len(known) != len(dims)):
            return
        unknown = known or [f"{name}[{axis}]" for axis in range(len(dims))]
        self._dims[name] = tuple(
            other if size is None or isinstance(other, int) else size for size, other in zip(dims, unknown, strict=True)
        )

    def _is_float(self, name: str) -> bool:
        values = self._constant(name)
        return name in self._numbers or (values is not None and values.dtype == np.float32)

    def _dims_of_result(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> Sequence[Dim | None] | None:
        if node.op_type in ELEMENTWISE_BINARY:
            return broadcast([self.dims(name) for name in node.input])
        first = self.dims(node.input[0]) if node.input else None
        if first is None:
            return None
        if node.op_type in _SAME:
            return first
        if node.op_type == "Resize" and len(node.input) > 3 and node.input[3] and not attributes.get("axes"):
            return self.vector(node.input[3])
        if node.op_type in _SAME_IMAGES:
            return [first[0], *[None] * (len(first) - 1)]
        match node.op_type:
            case "Transpose":
                order = attributes.get("perm") or range(len(first))[::-1]
                return [first[axis] for axis in order]
            case "Reshape":
                target = self.vector(node.input[1])
                if target is None:
                    return None
                sizes = reshaped(target, first, not attributes.get("allowzero", 0))
                # An export for one length says so here, whatever its inputs declare.
                open_name = solved(product(first), product(sizes)) if sizes and 0 not in sizes else None
                if open_name is not None:
                    self._fixed.update([open_name])
                return sizes
            case "Gemm":
                second = self.dims(node.input[1])
                rows = first[1 if attributes.get("transA", 0) else 0]
                return [rows, second[0 if attributes.get("transB", 0) else 1]] if second is not None else None
            case "ReduceMean" | "ReduceSum" | "ReduceMax":
                axes = self._axes(node, attributes)
                if axes is None:
                    return None
                reduced = {axis % len(first) for axis in axes}
                kept = attributes.get("keepdims", 1)
                return [
                    1 if axis in reduced else size for axis, size in enumerate(first) if kept or axis not in reduced
                ]
            case "GlobalAveragePool":
                return (*first[:2], *(1 for _ in first[2:]))
            case "GatherElements":
                return self.dims(node.input[1])
            case "Expand":
                target = self.vector(node.input[1])
                return broadcast([first, target]) if target is not None else None
            case "Concat":
                return joined([self.dims(name) for name in node.input], int(attributes["axis"]))
            case "Pad":
                pads = self._integers(node.input[1]) if len(node.input) > 1 else None
                return first if pads and not any(pads) else None
            case "Range":
                start, limit, step = (self.vector(name) for name in node.input)
                return limit if start == (0,) and step == (1,) else None
            case "MatMul":
                second = self.dims(node.input[1])
                if second is None or len(first) < 2 or len(second) < 2:
                    return None
                return [*(broadcast([first[:-2], second[:-2]]) or ()), first[-2], second[-1]]
            case "Gather":
                places, axis = self.dims(node.input[1]), int(attributes.get("axis", 0)) % len(first)
                return (*first[:axis], *places, *first[axis + 1 :]) if places is not None else None
            case "Unsqueeze":
                axes = self._axes(node, attributes)
                if axes is None:
                    return None
                left = list(first)
                added = {axis % (len(first) + len(axes)) for axis in axes}
                return [1 if axis in added else left.pop(0) for axis in range(len(first) + len(axes))]
            case "Squeeze":
                axes = self._axes(node, attributes)
                dropped = {axis % len(first) for axis in axes} if axes is not None else set()
                return [size for axis, size in enumerate(first) if axis not in dropped] if dropped else None
            case "Slice":
                return self._dims_of_slice(node, first)
        return None

    def _dims_of_slice(self, node: onnx.NodeProto, first: Dims) -> Sequence[Dim | None] | None:
        starts, axes, steps = (
            self._integers(node.input[i]) if i < len(node.input) and node.input[i] else () for i in (1, 3, 4)
        )
        ends = self.vector(node.input[2])
        if starts is None or ends is None or axes is None or steps is None:
            return None
        result: list[Dim | None] = list(first)
        for i, axis in enumerate(axes or range(len(starts))):
            size, end = first[axis], ends[i]
            step = steps[i] if steps else 1
            if isinstance(size, int) and isinstance(end, int):
                result[axis] = len(range(size)[starts[i] : end : step])
            elif step == 1 and starts[i] == 0 and not isinstance(end, int):
                result[axis] = cut(size, end)
            elif step != 1 or starts[i] != 0 or not isinstance(end, int) or end < _ENDLESS:
                result[axis] = None
        return result

    def _dims_of_parts(
        self, node: onnx.NodeProto, attributes: Mapping[str, Any]
    ) -> Sequence[Sequence[Dim | None] | None]:
        first = self.dims(node.input[0])
        if first is None:
            return ()
        axis, count = int(attributes.get("axis", 0)) % len(first), len(node.output)
        sizes: Sequence[Dim | None] = attributes.get("split", ())
        if len(node.input) > 1 and node.input[1]:
            sizes = self.vector(node.input[1]) or ()
        if not sizes:
            sizes = [divided(first[axis], count)] * count
        return [[*first[:axis], size, *first[axis + 1 :]] for size in sizes]

    def _integers(self, name: str) -> list[int] | None:
        vector = self.vector(name)
        if vector is None or not all(isinstance(size, int) for size in vector):
            return None
        return [size for size in vector if isinstance(size, int)]

    def _axes(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> list[int] | None:
        if len(node.input) > 1 and node.input[1]:
            listed = self.vector(node.input[1])
            return [axis for axis in listed if isinstance(axis, int)] if listed is not None else None
        return list(attributes["axes"]) if "axes" in attributes else None

    def _vector_of_result(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> tuple[Dim, ...] | None:
        if node.op_type == "Shape":
            dims = self.dims(node.input[0])
            return dims[attributes.get("start", 0) : attributes.get("end", len(dims))] if dims is not None else None
        if node.op_type == "Concat":
            parts = [self.vector(name) for name in node.input]
            return None if None in parts else tuple(size for part in parts if part is not None for size in part)
        if node.op_type == "ConstantOfShape":
            shape = self._integers(node.input[0])
            values = next((onnx.numpy_helper.to_array(a.t) for a in node.attribute if a.name == "value"), np.zeros(1))
            return (int(values[0]),) * shape[0] if shape is not None and len(shape) == 1 else None
        if node.op_type == "Where":
            chosen, first, second = (self.vector(name) for name in node.input)
            if not chosen or first is None or second is None or len({len(chosen), len(first), len(second)}) > 1:
                return None
            return tuple(a if c else b for c, a, b in zip(chosen, first, second, strict=True))
        first = self.vector(node.input[0]) if node.input else None
        if first is None and node.op_type == "Cast" and node.input[0] in self._numbers:
            # Sizes that were divided and rounded as floats.
            return (int(self._numbers[node.input[0]]),) if attributes["to"] in _INTEGERS else None
        if first is None:
            return None
        match node.op_type:
            case "Cast":
                return first if attributes["to"] in _INTEGERS else None
            case "Identity" | "Squeeze" | "Unsqueeze" | "Reshape":
                dims = self.dims(node.output[0])
                return first if dims is not None and len(dims) <= 1 else None
            case "Gather":
                places = self._constant(node.input[1])
                if places is None or places.ndim > 1:
                    return None
                return tuple(first[int(place)] for place in places.reshape(-1))
            case "Slice":
                listed = [self._constant(name) for name in node.input[1:]]
                if any(values is None or values.size != 1 for values in listed):
                    return None
                start, end, *rest = (int(values.reshape(-1)[0]) for values in listed if values is not None)
                step = rest[1] if len(rest) > 1 else 1
                return first[start:end:step] if step > 0 else None
            case "Mul" | "Div" | "Add" | "Sub" | "Equal":
                return computed(node.op_type, first, self.vector(node.input[1]))
        return None

    def _number_of_result(self, node: onnx.NodeProto) -> float | None:
        if node.op_type not in ("Cast", "Ceil", "Floor", "Sqrt", "Reciprocal", "Div", "Mul", "Pow"):
            return None
        if node.op_type == "Cast":
            to_float = any(a.i == onnx.TensorProto.FLOAT for a in node.attribute if a.name == "to")
            return self.number(node.input[0]) if to_float else None
        if not self._is_float(node.input[0]):
            return None
        numbers = [self.number(name) for name in node.input]
        if any(number is None for number in numbers):
            return None
        first, *rest = (np.float32(number) for number in numbers if number is not None)
        match node.op_type:
            case "Ceil":
                return float(np.ceil(first))
            case "Floor":
                return float(np.floor(first))
            case "Sqrt":
                return float(np.sqrt(first)) if first >= 0 else None
            case "Reciprocal":
                return float(np.float32(1) / first) if first else None
            case "Mul":
                return float(first * rest[0])
            case "Pow":
                return float(first ** rest[0]) if first > 0 else None
        return float(first / rest[0]) if rest[0] else None
