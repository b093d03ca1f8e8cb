"""What surrounds the regions of decoders, computed by numpy: lengths, and rows of an embedding.

A step has a handful of such nodes. A call of onnxruntime takes longer than they do, and longer still where weights of
layers have evicted its code from the caches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from msgspec.structs import replace
from onnx import helper, numpy_helper

from sift_onnx.backends.base import NodeProfile, Placement, Profile
from sift_onnx.backends.cpu.lower.placements import ONNXRUNTIME
from sift_onnx.backends.lowering.subgraph import Subgraph
from sift_onnx.errors import BackendError
from sift_onnx.operators.domains import is_standard
from sift_onnx.operators.labels import node_name
from sift_onnx.shapes.numpy_ops import KERNELS

__all__ = ["NUMPY", "NumpyProgram", "by_numpy", "numpy_program"]

Array = npt.NDArray[Any]
NUMPY = "numpy"
_REASON = "a few integers, or rows of a table: to call onnxruntime would take longer"
_PROFILED_RUNS = 10
# Exact on integers, and of results that are no larger than what is read, but for rows of a table.
_OPS = frozenset({"Add", "Cast", "Gather", "Identity", "ReduceSum", "Shape", "Squeeze", "Sub", "Unsqueeze"})
_INTEGERS = frozenset({onnx.TensorProto.INT32, onnx.TensorProto.INT64})
_MOVES_FLOATS = frozenset({"Gather", "Identity"})


@dataclass(frozen=True)
class _Node:
    """One node as numpy computes it."""

    name: str
    op: str
    function: Callable[..., Array]
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any]


class NumpyProgram:
    """Nodes in order; thread-safe.

    Attributes:
        inputs: names of what it reads.
        outputs: names of what it makes.
    """

    def __init__(self, nodes: Sequence[_Node], part: Subgraph, constants: Mapping[str, Array]) -> None:
        """Of ``part``; see :func:`numpy_program`."""
        self._nodes = tuple(nodes)
        self._constants = dict(constants)
        self.inputs, self.outputs = part.inputs, part.outputs

    @property
    def node_names(self) -> tuple[str, ...]:
        """Of its nodes, in order."""
        return tuple(node.name for node in self._nodes)

    def run_unchecked(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name.

        Raises:
            BackendError: a place is beyond its table.
        """
        values = {**self._constants, **feeds}
        for node in self._nodes:
            values[node.output] = _computed(node, values)
        return {name: values[name] for name in self.outputs}

    def profile_unchecked(self, feeds: Mapping[str, Array]) -> Profile:
        """Time per node."""
        values = {**self._constants, **feeds}
        times: list[list[float]] = [[] for _ in self._nodes]
        for _ in range(_PROFILED_RUNS):
            for node, own in zip(self._nodes, times, strict=True):
                begin = time.perf_counter()
                values[node.output] = _computed(node, values)
                own.append(time.perf_counter() - begin)
        nodes = (
            NodeProfile(node.name, node.op, NUMPY, _REASON, 1e3 * statistics.median(own))
            for node, own in zip(self._nodes, times, strict=True)
        )
        return Profile(tuple(nodes), _PROFILED_RUNS)


def _computed(node: _Node, values: Mapping[str, Array]) -> Array:
    try:
        return node.function(*[values[name] for name in node.inputs], **node.attributes)
    except (IndexError, ValueError) as error:
        raise BackendError(f"{node.op} {node.name!r}: {error}") from error


def numpy_program(part: Subgraph) -> NumpyProgram | None:
    """A program for a part of a decoder; None where it has nodes that are not a matter of a few integers."""
    graph = part.model.graph
    constants = {tensor.name: _values_of(tensor, part) for tensor in graph.initializer}
    # Element types, of integers alone.
    types = {tensor.name: tensor.data_type for tensor in graph.initializer if tensor.data_type in _INTEGERS}
    for info in graph.input:
        if info.type.tensor_type.elem_type in _INTEGERS:
            types[info.name] = info.type.tensor_type.elem_type
    nodes = []
    for proto in graph.node:
        node, op = _node_of(proto), proto.op_type
        floats = [name for name in proto.input if name not in types]
        moves = op == "Shape" or (op in _MOVES_FLOATS and floats == [proto.input[0]])
        # Sums that run over are another matter in onnxruntime.
        runs_over = op == "ReduceSum" and types.get(proto.input[0]) == onnx.TensorProto.INT32
        if node is None or (floats and not moves) or runs_over:
            return None
        if op == "Shape":
            types[node.output] = onnx.TensorProto.INT64
        elif not floats:
            types[node.output] = node.attributes["to"] if op == "Cast" else types[proto.input[0]]
        nodes.append(node)
    return NumpyProgram(nodes, part, constants)


def by_numpy(placements: Sequence[Placement], programs: Iterable[object]) -> tuple[Placement, ...]:
    """``placements``, with the nodes of those ``programs`` that numpy computes."""
    names = {name for program in programs if isinstance(program, NumpyProgram) for name in program.node_names}
    return tuple(
        replace(one, placement=NUMPY, reason=_REASON) if one.placement == ONNXRUNTIME and one.name in names else one
        for one in placements
    )


def _values_of(tensor: onnx.TensorProto, part: Subgraph) -> Array:
    """The values of an initializer, which are in the message or beside it."""
    found = part.arrays.get(tensor.name)
    return found if found is not None else numpy_helper.to_array(tensor)


def _shape(x: Array, start: int = 0, end: int | None = None) -> Array:
    return np.array(x.shape[start:end], np.int64)


def _node_of(proto: onnx.NodeProto) -> _Node | None:
    is_known = proto.op_type in _OPS and is_standard(proto.domain) and len(proto.output) == 1
    if not is_known or not all(proto.input):
        return None
    attributes = {each.name: helper.get_attribute_value(each) for each in proto.attribute}
    if proto.op_type == "Cast" and attributes["to"] not in _INTEGERS:
        return None
    function = _shape if proto.op_type == "Shape" else KERNELS[proto.op_type]
    return _Node(node_name(proto), proto.op_type, function, tuple(proto.input), proto.output[0], attributes)
