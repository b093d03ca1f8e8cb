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
    """One node as numpy computes it: ``function`` of the arrays of its inputs."""

    name: str
    op: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    output: str


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
            _evaluate(node, values)
        return {name: values[name] for name in self.outputs}

    def profile_unchecked(self, feeds: Mapping[str, Array]) -> Profile:
        """Time per node; errors as of :meth:`run_unchecked`."""
        values = {**self._constants, **feeds}
        times: list[list[float]] = [[] for _ in self._nodes]
        for _ in range(_PROFILED_RUNS):
            for node, own in zip(self._nodes, times, strict=True):
                begin = time.perf_counter()
                _evaluate(node, values)
                own.append(time.perf_counter() - begin)
        nodes = (
            NodeProfile(node.name, node.op, NUMPY, _REASON, 1e3 * statistics.median(own))
            for node, own in zip(self._nodes, times, strict=True)
        )
        return Profile(tuple(nodes), _PROFILED_RUNS)


def _evaluate(node: _Node, values: dict[str, Array]) -> None:
    """Add what a node makes to ``values``."""
    try:
        values[node.output] = np.asarray(node.function(*[values[name] for name in node.inputs]))
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
        node, op = _node_of(proto, constants), proto.op_type
        floats = [name for name in proto.input if name not in types]
        moves = op == "Shape" or (op in _MOVES_FLOATS and floats == [proto.input[0]])
        # Sums that run over are another matter in onnxruntime.
        runs_over = op == "ReduceSum" and types.get(proto.input[0]) == onnx.TensorProto.INT32
        if node is None or (floats and not moves) or runs_over:
            return None
        if op == "Shape":
            types[node.output] = onnx.TensorProto.INT64
        elif not floats:
            types[node.output] = _attributes(proto)["to"] if op == "Cast" else types[proto.input[0]]
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


def _node_of(proto: onnx.NodeProto, constants: Mapping[str, Array]) -> _Node | None:
    """What computes a node; None where nothing here does."""
    is_known = proto.op_type in _OPS and is_standard(proto.domain) and len(proto.output) == 1
    if not is_known or not all(proto.input):
        return None
    found = _function(proto.op_type, _attributes(proto), [constants.get(name) for name in proto.input[1:]])
    if found is None:
        return None
    function, count = found
    return _Node(node_name(proto), proto.op_type, function, tuple(proto.input[:count]), proto.output[0])


def _attributes(proto: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in proto.attribute}


def _function(
    op: str, attributes: Mapping[str, Any], others: Sequence[Array | None]
) -> tuple[Callable[..., Any], int] | None:
    """A function, and of how many inputs; ``others`` are those behind the first one that are constants.

    Axes are read here once, and not in each run.
    """
    match op:
        case "Add":
            return np.add, 2
        case "Sub":
            return np.subtract, 2
        case "Identity":
            return np.asarray, 1
        case "Shape":
            cut = slice(attributes.get("start", 0), attributes.get("end"))
            return lambda x: np.array(x.shape[cut], np.int64), 1
        case "Cast" if attributes["to"] in _INTEGERS:
            dtype = helper.tensor_dtype_to_np_dtype(attributes["to"])
            return lambda x: x.astype(dtype), 1
        case "Gather":
            axis = attributes.get("axis", 0)
            return lambda x, places: x.take(places, axis), 2
        case "ReduceSum" | "Squeeze" | "Unsqueeze":
            axes = _axes(attributes, others)
            return None if axes is None else (_along(op, axes, attributes), 1)
    return None


def _axes(attributes: Mapping[str, Any], others: Sequence[Array | None]) -> tuple[int, ...] | None:
    """An attribute before they became an input; empty where there are none, None where they are not constant."""
    found = others[0] if others else attributes.get("axes", ())
    return None if found is None else tuple(int(axis) for axis in np.asarray(found).reshape(-1))


def _along(op: str, axes: tuple[int, ...], attributes: Mapping[str, Any]) -> Callable[[Array], Any]:
    if op == "Squeeze":
        return lambda x: x.squeeze(axes or None)
    if op == "Unsqueeze":
        return lambda x: np.expand_dims(x, axes)
    keeps = bool(attributes.get("keepdims", 1))
    if not axes and attributes.get("noop_with_empty_axes", 0):
        return np.asarray
    return lambda x: x.sum(axis=axes or None, keepdims=keeps)
