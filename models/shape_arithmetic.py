"""Replacement of shape arithmetic by constants.

``x.reshape(x.shape[0], x.shape[1], 12, 64)`` is traced as operators that take the shape of ``x`` apart and assemble a
new one. ``Reshape`` can express it with the constant ``[0, 0, 12, 64]``: a 0 copies the size of the same axis of its
input, and one size may be left open as -1. ``Resize`` can as well: with a constant factor for each axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sift_onnx.models.graph_editing import drop_unread_nodes, keep

__all__ = ["settle_shapes"]

# A size: a number, the name of an open axis, or the axis of a tensor.
Size = int | str | tuple[str, int]
# Longer tensors are not shapes.
MAX_RANK = 16


def settle_shapes(graph: onnx.GraphProto) -> None:
    """Put constants in the place of computed shapes.

    1. The target of a Reshape becomes a constant if its sizes, but for one, are numbers or sizes of its input.
    2. The target of a Resize becomes constant factors if its sizes are those of its input or multiples of them.
    3. A Range up to a known size and a Concat of small constants become constants.
    4. What only that arithmetic read goes.

    Args:
        graph: changed in place. The shapes in its ``value_info`` are trusted, and some of them made more exact; axes of
            the same name have the same size.
    """
    sizes = _Sizes(graph)
    for node in graph.node:
        if node.op_type == "Reshape":
            _settle_reshape(node, sizes)
        elif node.op_type == "Resize":
            _settle_resize(node, sizes)
        elif node.op_type == "Range":
            _settle_range(node, sizes)
        elif node.op_type == "Concat" and all(name in sizes.constants for name in node.input):
            sizes.add_constant(node.output[0], np.concatenate([sizes.constants[name] for name in node.input]))
        sizes.follow(node)
    # Nodes whose outputs are constants now are removed.
    keep(graph.node, lambda node: node.output[0] not in sizes.constants)
    drop_unread_nodes(graph)


def _settle_reshape(node: onnx.NodeProto, sizes: _Sizes) -> None:
    target = sizes.elements.get(node.input[1])
    if target is None or 0 in target or node.input[1] in sizes.constants:
        return
    settled = [
        0 if not isinstance(size, int) and size == sizes.of(node.input[0], axis) else size
        for axis, size in enumerate(target)
    ]
    values = [size if isinstance(size, int) else -1 for size in settled]
    if values.count(-1) < 2:
        node.input[1] = sizes.add_constant(f"{node.output[0]}_shape", np.array(values, np.int64))
        # With allowzero, a 0 would be a size of 0.
        keep(node.attribute, lambda attribute: attribute.name != "allowzero")


def _settle_resize(node: onnx.NodeProto, sizes: _Sizes) -> None:
    source = node.input[0]
    if len(node.input) == 4 and node.input[3] in sizes.elements:
        factors = [_quotient(size, sizes.of(source, axis)) for axis, size in enumerate(sizes.elements[node.input[3]])]
        if all(factors):
            name = sizes.add_constant(f"{node.output[0]}_scales", np.array(factors, np.float32))
            node.input[:] = [*node.input[:2], name]
    if len(node.input) == 3 and node.input[2] in sizes.constants:
        # Shape inference forgets the names of axes that keep their size.
        factors = sizes.constants[node.input[2]].tolist()
        sizes.declare(
            node.output[0], [sizes.of(source, i) if factor == 1 else None for i, factor in enumerate(factors)]
        )


def _quotient(size: Size, of: Size) -> int:
    """How many times as large; 0 if that is not known, or no whole number."""
    if size == of:
        return 1
    return size // of if isinstance(size, int) and isinstance(of, int) and of > 0 and size % of == 0 else 0


def _settle_range(node: onnx.NodeProto, sizes: _Sizes) -> None:
    start, limit, step = (sizes.elements.get(name, []) for name in node.input)
    if (start, step) != ([0], [1]) or len(limit) != 1:
        return
    if isinstance(limit[0], int):
        sizes.add_constant(node.output[0], np.arange(limit[0]))
    else:
        sizes.declare(node.output[0], limit)


class _Sizes:
    """What is known of shapes, and of tensors that hold shapes.

    Attributes:
        elements: of tensors of at most one axis that hold sizes.
        constants: values of those that depend on nothing, and of other small constants.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._dims: dict[str, list[int | str]] = {}
        self._infos = {value.name: value for value in graph.value_info}
        self.elements: dict[str, list[Size]] = {}
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        for value in (*graph.value_info, *graph.input, *graph.output):
            if value.type.tensor_type.HasField("shape"):
                self._dims[value.name] = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for tensor in graph.initializer:
            if len(tensor.dims) < 2 and sum(tensor.dims) <= MAX_RANK:
                self._note(tensor.name, numpy_helper.to_array(tensor))

    def _note(self, name: str, values: np.ndarray[Any, Any]) -> None:
        self.constants[name] = values
        self._dims[name] = list(values.shape)
        if values.dtype == np.int64 and values.size <= MAX_RANK:
            self.elements[name] = [int(size) for size in values.reshape(-1)]

    def add_constant(self, name: str, values: np.ndarray[Any, Any]) -> str:
        """Add an initializer; returns its name."""
        self._graph.initializer.append(numpy_helper.from_array(values, name))
        self._note(name, values)
        return name

    def of(self, name: str, axis: int) -> Size:
        """The size of an axis of a tensor."""
        dims = self._dims.get(name, [])
        return (dims[axis] if axis < len(dims) else 0) or (name, axis)

    def declare(self, name: str, dims: Sequence[Size | None]) -> None:
        """Give axes of a tensor the names of open axes, which shape inference may have missed."""
        shape = self._infos[name].type.tensor_type.shape if name in self._infos else None
        if shape is not None and len(shape.dim) == len(dims):
            for dim, size in zip(shape.dim, dims, strict=True):
                if isinstance(size, str):
                    dim.dim_param = size
            self._dims[name] = [dim.dim_param or dim.dim_value for dim in shape.dim]

    def follow(self, node: onnx.NodeProto) -> None:
        """Note the elements of the output of a node that handles shapes."""
        known = [self.elements.get(name) for name in node.input]
        found: Sequence[Size] | None = None
        if node.op_type == "Shape" and self._dims.get(node.input[0]):
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            rank = len(self._dims[node.input[0]])
            whole = [self.of(node.input[0], axis) for axis in range(rank)]
            found = whole[attributes.get("start", 0) : attributes.get("end", rank)]
        elif known and known[0] is not None:
            found = _follow(node.op_type, known[0], known[1:])
        if found is not None and node.output[0] not in self.constants:
            self.elements[node.output[0]] = list(found)


def _follow(op: str, first: list[Size], others: list[list[Size] | None]) -> Sequence[Size] | None:
    """The elements that an operator gives, whose inputs have these; None where they are not known."""
    if op in ("Cast", "Identity"):
        return first
    if op in ("Squeeze", "Unsqueeze", "Reshape"):
        return first if len(first) == 1 else None
    rest = [elements for elements in others if elements is not None]
    if len(rest) < len(others):
        return None
    if op == "Concat":
        return [*first, *(size for elements in rest for size in elements)]
    numbers = [[size for size in elements if isinstance(size, int)] for elements in rest]
    if op == "Gather" and len(numbers[0]) == len(rest[0]):
        return [first[position] for position in numbers[0]]
    if op == "Slice" and numbers[0] and numbers[1] and numbers[2:] in ([], [[0]], [[0], [1]]):
        return first[numbers[0][0] : numbers[1][0]]
    return None
