"""Shapes that depend on numbers which a graph computes: those numbers are computed, and handed to shape inference.

ONNX's inference follows sums and products of integers. It stops where sizes are divided or become floating-point
numbers: where a table of positions is resized to the patches of an image, say. Here one walk through the graph computes
each small tensor that depends on constants and known sizes alone, and infers again what inference had left open.

Nothing large is computed: no tensor of more than :data:`MOST_ELEMENTS`, and none before inference knows its shape.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.errors import UnsupportedError
from sift_onnx.files.data_types import CONSTANT_NUMBERS
from sift_onnx.files.external_data import is_external
from sift_onnx.graphs.node_checks import subgraphs
from sift_onnx.operators.domains import is_standard, opset_versions
from sift_onnx.operators.labels import node_label
from sift_onnx.shapes.node_inference import infer_outputs
from sift_onnx.shapes.numpy_ops import ELEMENTWISE, KERNELS, MOVING, compute
from sift_onnx.shapes.open_axes import known_sizes

__all__ = ["MOST_ELEMENTS", "complete_shapes"]

MOST_ELEMENTS = 1024

_NUMBERS = "iufb"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Value:
    """A small tensor: its elements, and which of them are known."""

    array: Array
    known: npt.NDArray[np.bool_]

    @classmethod
    def whole(cls, array: Array) -> _Value:
        return cls(array, np.ones(array.shape, np.bool_))


def complete_shapes(
    model: onnx.ModelProto, inferred: onnx.ModelProto, *, without: Collection[str] = ()
) -> dict[str, Array]:
    """Compute the numbers that ``model`` computes of sizes, and write the shapes that follow into ``inferred``.

    Args:
        model: without the data of large tensors; only standard operators of its main graph are computed.
        inferred: what shape inference made of it; completed in place.
        without: names of values that are not computed, since their node stands for another.

    Returns:
        The small tensors that are known, apart from constants, by name.

    Raises:
        UnsupportedError: the numbers contradict each other; the message names the node.
    """
    walk = _Walk(model, inferred, without)
    functions = {(function.domain, function.name) for function in model.functions}
    for node in model.graph.node:
        is_call = (node.domain, node.op_type) in functions
        if is_standard(node.domain) and not is_call and next(subgraphs(node), None) is None:
            walk.visit(node)
    walk.settle()
    return {name: value.array for name, value in walk.values.items() if name in walk.computed and value.known.all()}


class _Walk:
    """What is known of a graph's tensors up to a node.

    Attributes:
        values: of small tensors, by name.
        computed: names of those among them that are not constants.
    """

    def __init__(self, model: onnx.ModelProto, inferred: onnx.ModelProto, without: Collection[str]) -> None:
        self._without = without
        self.values: dict[str, _Value] = {}
        self.computed: set[str] = set()
        self._infos = inferred.graph.value_info
        self._types = {
            info.name: info.type for info in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)
        }
        # A size with one of these names is as known as it can be.
        named = (dim.dim_param for info in model.graph.input for dim in info.type.tensor_type.shape.dim)
        self._symbols = set(filter(None, named))
        self._solved: dict[str, int] = {}
        self._improved: set[str] = set()
        self._opsets = opset_versions(model.opset_import)
        for tensor in model.graph.initializer:
            kind = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            self._types.setdefault(tensor.name, kind)
            self._hold(tensor.name, tensor)

    def visit(self, node: onnx.NodeProto) -> None:
        """Learn what ``node`` makes."""
        for name in (*node.input, *node.output):
            self._apply_solved(name)
        if node.op_type == "Constant":
            self._visit_constant(node)
            return
        is_open = any(self._is_open(name) for name in node.output if name)
        if any(name in self._improved or (is_open and name in self.computed) for name in node.input):
            self._infer(node)
        if any(name in self._without for name in node.output):
            return
        if node.op_type in ("Shape", "Size"):
            self._read_sizes(node)
        elif node.op_type in KERNELS:
            self._compute(node)

    def settle(self) -> None:
        """Write sizes that were found out into every shape that names them."""
        for name in self._types:
            self._apply_solved(name)

    # Shapes.

    def _dims(self, name: str) -> list[onnx.TensorShapeProto.Dimension] | None:
        kind = self._types.get(name)
        return None if kind is None or not kind.tensor_type.HasField("shape") else list(kind.tensor_type.shape.dim)

    def _sizes(self, name: str) -> tuple[int | None, ...] | None:
        kind = self._types.get(name)
        return None if kind is None else known_sizes(kind.tensor_type)

    def _is_open(self, name: str) -> bool:
        dims = self._dims(name)
        return dims is None or any(not d.HasField("dim_value") and d.dim_param not in self._symbols for d in dims)

    def _apply_solved(self, name: str) -> None:
        for dim in (self._dims(name) or ()) if self._solved else ():
            if dim.dim_param in self._solved:
                dim.dim_value = self._solved[dim.dim_param]
                self._improved.add(name)

    def _infer(self, node: onnx.NodeProto) -> None:
        given = [name for name in node.input if name]
        if not all(name in self._types and self._types[name].HasField("tensor_type") for name in given):
            return
        values = {n: self.values[n].array for n in given if n in self.values and self.values[n].known.all()}
        try:
            found = infer_outputs(node, self._opsets, self._types, values)
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise _contradiction(node, lines[0]) from error
        for name in node.output:
            if name and name in found:
                self._learn(node, name, found[name])

    def _learn(self, node: onnx.NodeProto, name: str, kind: onnx.TypeProto) -> None:
        if not kind.tensor_type.HasField("shape"):
            return
        if name not in self._types:
            info = self._infos.add(name=name)
            info.type.CopyFrom(kind)
            self._types[name] = info.type
            self._improved.add(name)
            return
        before, after = self._dims(name), kind.tensor_type.shape.dim
        if before is None:
            self._types[name].tensor_type.shape.CopyFrom(kind.tensor_type.shape)
            self._improved.add(name)
            return
        if len(before) != len(after):
            raise _contradiction(
                node, f"{name!r} has {len(before)} axes by its readers, and {len(after)} by its inputs"
            )
        for axis, (old, new) in enumerate(zip(before, after, strict=True)):
            if new.HasField("dim_value"):
                self._learn_size(node, f"axis {axis} of {name!r}", old, new.dim_value)
            elif new.dim_param in self._symbols and not old.HasField("dim_value"):
                old.dim_param = new.dim_param
        self._improved.add(name)

    def _learn_size(self, node: onnx.NodeProto, what: str, dim: onnx.TensorShapeProto.Dimension, size: int) -> None:
        known = dim.dim_value if dim.HasField("dim_value") else self._solved.get(dim.dim_param, size)
        if known != size:
            raise _contradiction(node, f"{what} has size {known} elsewhere in the graph, and {size} by its inputs")
        if dim.dim_param and dim.dim_param not in self._symbols:
            self._solved[dim.dim_param] = size
        if dim.dim_param not in self._symbols:
            dim.dim_value = size

    # Values.

    def _hold(self, name: str, tensor: onnx.TensorProto) -> None:
        if is_external(tensor) or math.prod(tensor.dims) > MOST_ELEMENTS or tensor.data_type == tensor.STRING:
            return
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype.kind in _NUMBERS:
            self.values[name] = _Value.whole(array)

    def _visit_constant(self, node: onnx.NodeProto) -> None:
        for attribute in node.attribute:
            value = onnx.helper.get_attribute_value(attribute)
            if attribute.name == "value":
                self._hold(node.output[0], value)
            elif attribute.name in CONSTANT_NUMBERS:
                numbers = np.asarray(value, CONSTANT_NUMBERS[attribute.name])
                self._hold(node.output[0], onnx.numpy_helper.from_array(numbers))

    def _read_sizes(self, node: onnx.NodeProto) -> None:
        sizes = self._sizes(node.input[0])
        if sizes is None:
            return
        if node.op_type == "Shape":
            attributes = _plain_attributes(node)
            sizes = sizes[attributes.get("start", 0) : attributes.get("end", len(sizes))]
            array = np.asarray([1 if size is None else size for size in sizes], np.int64)
            known = np.asarray([size is not None for size in sizes], np.bool_)
        elif None in sizes:
            return
        else:
            array = np.asarray(math.prod(size for size in sizes if size is not None), np.int64)
            known = np.asarray(True)
        self._keep(node.output[0], _Value(array, known))

    def _compute(self, node: onnx.NodeProto) -> None:
        if not node.input or any(name and name not in self.values for name in node.input):
            return
        shapes = [self._sizes(name) for name in node.output]
        if any(shape is None or None in shape or math.prod(n or 0 for n in shape) > MOST_ELEMENTS for shape in shapes):
            return
        attributes = _plain_attributes(node)
        given = [self.values[name] if name else None for name in node.input]
        known = _known_results(node, given, attributes)
        arrays = compute(node.op_type, [None if v is None else v.array for v in given], attributes, len(node.output))
        if known is None or arrays is None:
            return
        for name, shape, array, mask in zip(node.output, shapes, arrays, known, strict=False):
            if name and shape == array.shape:
                self._keep(name, _Value(array, np.broadcast_to(mask, array.shape)))

    def _keep(self, name: str, value: _Value) -> None:
        if value.array.dtype.kind in _NUMBERS and value.array.size <= MOST_ELEMENTS and value.known.any():
            self.values[name] = value
            self.computed.add(name)


def _known_results(
    node: onnx.NodeProto, given: Sequence[_Value | None], attributes: Mapping[str, Any]
) -> tuple[Array, ...] | None:
    """Which elements of each output of a node are known, given those of its inputs; None where that is not certain."""
    present = [value for value in given if value is not None]
    if all(value.known.all() for value in present):
        return (np.asarray(True),) * len(node.output)
    if node.op_type in ELEMENTWISE:
        return (np.logical_and.reduce(np.broadcast_arrays(*(value.known for value in present))),)
    if node.op_type == "Concat":
        return compute("Concat", [value.known for value in present], attributes)
    if node.op_type not in MOVING or not all(value.known.all() for value in present[1:]):
        return None  # which elements are meant is not known
    others = [None if value is None else value.array for value in given[1:]]
    return compute(node.op_type, [present[0].known, *others], attributes, len(node.output))


def _contradiction(node: onnx.NodeProto, reason: str) -> UnsupportedError:
    return UnsupportedError(f"node {node_label(node)} contradicts the sizes that are computed for it: {reason}")


def _plain_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes as :func:`~sift_onnx.shapes.numpy_ops.compute` takes them."""
    return dict(_plain(node))


def _plain(node: onnx.NodeProto) -> Iterator[tuple[str, Any]]:
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            first = onnx.numpy_helper.to_array(value).reshape(-1)[:1]
            yield attribute.name, (first[0].item() if first.size else 0, value.data_type)
        else:
            yield attribute.name, value
