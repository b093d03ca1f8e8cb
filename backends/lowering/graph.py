"""The graph as the lowering reads it: nodes, constants, and what is known of each value's type and sizes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.assumed_sizes import AssumedSizes, SizeProbe
from sift_onnx.backends.lowering.dims import Dim, Dims
from sift_onnx.backends.lowering.folding import Folder
from sift_onnx.backends.lowering.sizes import Sizes
from sift_onnx.backends.lowering.sizes.size_nodes import follows_from, nodes_of_sizes
from sift_onnx.graphs.constant_tensors import stub_of
from sift_onnx.graphs.constants import array_of
from sift_onnx.model import Model
from sift_onnx.model_files.reader import STREAMED_FROM
from sift_onnx.operators.domains import is_standard, opset_versions
from sift_onnx.operators.traits import DRAWING
from sift_onnx.shapes.equivalent_ops import forget_recorded_shapes
from sift_onnx.shapes.inference import infer_values

# Elements of a value that is computed when a model is opened though it depends on sizes: each layer has its own. What
# follows from sizes by one of these operators is left to a run: the reference evaluator computes element by element.
_MOST_FOLDED = 1 << 18
_LOOPING = (
    *("AveragePool", "Col2Im", "Conv", "ConvTranspose", "GRU", "GridSample", "If", "LSTM", "Loop", "LpPool", "MaxPool"),
    *("RNN", "Resize", "RoiAlign", "Scan", "Upsample"),
)

__all__ = ["GraphView", "behind_identities", "is_standard_op", "names_read"]


class GraphView:
    """A model to be lowered; read-only.

    Attributes:
        proto: the model without the data of large constants.
        nodes: in topological order.
        constants: initializers by name, what Constant nodes hold, and their aliases by Identity.
        derived: values that depend on constants alone, with the index of the node that makes them; who reads one
            brings that node along.
        inputs: names of the graph's inputs, without those that have a default.
        outputs: names of its outputs.
        producers: index of the node that makes a value, by its name.
        readers: indices of the nodes that read a value, within their subgraphs too.
        origin: every node of the model, and its index in ``nodes``; None for one that the graph does without.
        intermediates: names of floats that kernels pass between the steps for one node.
        not_finite: weights that were found to hold NaN or infinity, when they were read.
        rounding: relative error of the graph's constants: those of formulas are recognized up to it.
        assumed: what simplifies sizes to those of usual runs; None or a probe for sizes of any run.
        moves: indices of nodes that only move values for other nodes, and that the model does not have.
    """

    rounding: float = 1e-5
    assumed: AssumedSizes | SizeProbe | None = None
    moves: frozenset[int] = frozenset()

    def __init__(self, model: Model) -> None:
        """Read ``model`` and infer its types and sizes."""
        proto = model.skeleton()
        self._read(proto, model.initializers(), [(node, index) for index, node in enumerate(proto.graph.node)])

    def with_nodes(
        self, nodes: Iterable[onnx.NodeProto], places: Mapping[int, int], constants: Mapping[str, gs.Constant]
    ) -> GraphView:
        """A graph of the same inputs and outputs.

        Args:
            nodes: in topological order.
            places: for the index of a node of this graph, that of the one which is in its place, if there is one.
            constants: more of them.
        """
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        proto.graph.initializer.extend(stub_of(constant, STREAMED_FROM) for constant in constants.values())
        view = GraphView.__new__(GraphView)
        view.rounding, view.assumed = self.rounding, self.assumed
        origin = [(node, None if index is None else places.get(index)) for node, index in self.origin]
        view._read(proto, {**self.constants, **constants}, origin)
        return view

    def with_names(self, names: Mapping[str, str | int], assumed: AssumedSizes | None = None) -> GraphView:
        """The same graph, with other names for open sizes of its inputs: the new name, or number, by the old name.

        Args:
            names: of sizes.
            assumed: see :class:`GraphView`.
        """
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        for info in proto.graph.input:
            for dim, size in zip(info.type.tensor_type.shape.dim, self.dims(info.name) or (), strict=False):
                if size in names:
                    _set_size(dim, names[str(size)])
        for info in (*proto.graph.value_info, *proto.graph.output):
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_param in names:
                    _set_size(dim, names[dim.dim_param])
        view = GraphView.__new__(GraphView)
        view.rounding, view.assumed = self.rounding, assumed
        view._read(proto, dict(self.constants), self.origin)
        return view

    def _read(
        self,
        proto: onnx.ModelProto,
        constants: dict[str, gs.Constant],
        origin: list[tuple[onnx.NodeProto, int | None]],
    ) -> None:
        self.proto = proto
        self.nodes = list(proto.graph.node)
        self.constants = constants
        self.origin = origin
        outputs = {info.name for info in self.proto.graph.output}
        for node in self.nodes:
            if node.op_type == "Constant" and is_standard(node.domain) and len(node.attribute) == 1:
                constant = _constant_of(node)
                if constant is not None:
                    self.constants[node.output[0]] = constant
            elif node.op_type == "Identity" and is_standard(node.domain):
                # torch.onnx stores equal parameters once.
                constant = self.constants.get(node.input[0])
                if constant is not None and node.output[0] not in outputs:
                    self.constants[node.output[0]] = constant
        initializers = {t.name for t in self.proto.graph.initializer}
        self.derived = _derived(self.proto.graph, initializers)
        self.inputs = [info.name for info in self.proto.graph.input if info.name not in initializers]
        self.outputs = [info.name for info in self.proto.graph.output]
        self.producers = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.readers: dict[str, list[int]] = defaultdict(list)
        for i, node in enumerate(self.nodes):
            for name in dict.fromkeys(names_read(node)):
                self.readers[name].append(i)
        self.intermediates: set[str] = set()
        self.not_finite: set[str] = set()
        self._learned: dict[str, Dims] = {}
        self._shared: dict[str, npt.NDArray[np.generic]] = {}

    @cached_property
    def opset(self) -> int:
        """Of the standard operators."""
        return opset_versions(self.proto.opset_import).get("", 1)

    @cached_property
    def _inference(self) -> tuple[onnx.ModelProto, dict[str, npt.NDArray[np.generic]]]:
        bare = onnx.ModelProto()
        bare.CopyFrom(self.proto)
        forget_recorded_shapes(bare)
        try:
            return infer_values(bare)
        except Exception:  # native code: a damaged model makes it fail in many ways
            return bare, {}

    @cached_property
    def _inferred(self) -> dict[str, onnx.ValueInfoProto]:
        graph = self._inference[0].graph
        return {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}

    @cached_property
    def _sizes(self) -> Sizes:
        return Sizes(
            self.nodes, self.opset, self._inferred_dims, self.constants, self._inference[1], self._learned, self.assumed
        )

    def usual(self, dims: Dims) -> Dims:
        """``dims`` as they are in usual runs, if the graph is for these."""
        return dims if self.assumed is None else self.assumed.dims(dims)

    def learn(self, name: str, dims: Dims) -> None:
        """Take ``dims`` for the sizes of a value, which inference cannot know; others follow from them."""
        if self.dims(name) != dims:
            self._learned[name] = dims
            for derived in ("_sizes", "_folder", "size_nodes"):
                self.__dict__.pop(derived, None)

    def _inferred_dims(self, name: str) -> Dims | None:
        if name in self.constants:
            return tuple(int(n) for n in self.constants[name].shape)
        info = self._inferred.get(name)
        if info is None or not info.type.tensor_type.HasField("shape"):
            return None
        return tuple(
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{name}[{axis}]"
            for axis, dim in enumerate(info.type.tensor_type.shape.dim)
        )

    @cached_property
    def _folder(self) -> Folder:
        return Folder(self.nodes, self.producers, self.opset, self.known_values, self.dims)

    def known_values(self, name: str) -> npt.NDArray[Any] | None:
        """The values of a constant, or of a tensor of sizes that are numbers."""
        if name in self.constants:
            return self.values_of(name)
        vector, dims = self.vector(name), self.dims(name)
        if vector is None or dims is None or not all(isinstance(size, int) for size in vector):
            return None
        values = np.array(vector, onnx.helper.tensor_dtype_to_np_dtype(self.elem_type(name)))
        return values if dims else values.reshape(())

    @cached_property
    def size_nodes(self) -> dict[int, list[onnx.NodeProto]]:
        """For a node that reads sizes of a value, or takes one, nodes that make the same of the graph's inputs.

        Without them, what onnxruntime computes of sizes would wait for values that kernels make.
        """
        places: dict[Dim, tuple[str, int]] = {}
        for name in self.inputs:
            places.update((size, (name, axis)) for axis, size in enumerate(self.dims(name) or ()) if size not in places)
        found = {}
        for index, node in enumerate(self.nodes):
            if self._reads_sizes(node):
                output = node.output[0]
                sizes = self.vector(output)
                if sizes and all(follows_from(places, size, self.opset) for size in sizes):
                    found[index] = nodes_of_sizes(output, sizes, places, is_number=self.dims(output) == ())
        return found

    def _reads_sizes(self, node: onnx.NodeProto) -> bool:
        """Whether a node gives the sizes of a value that others make, or one of them by a constant index."""
        if is_standard_op(node, "Gather") and node.input[1] in self.constants:
            index = self.producers.get(node.input[0])
            return index is not None and self._reads_sizes(self.nodes[index])
        return is_standard_op(node, "Shape") and node.input[0] in self.producers

    def fold(self, name: str) -> bool:
        """Make a constant of a value that follows from constants and sizes; whether it is one now.

        Those that are large, or cannot be computed here, are left to onnxruntime.
        """
        if name not in self.constants:
            value = self._folder.value(name) if name in self.producers and name not in self.outputs else None
            if value is None:
                return False
            self.constants[name] = gs.Constant(name, np.ascontiguousarray(value))
        return True

    def fold_floats_of_sizes(self) -> None:
        """Make constants of small floats that follow from constants and from sizes that are numbers in every run.

        torch.onnx writes ``weight.view(1, x.shape[1], 1, 1)`` so, and a table of biases that is looked up by positions
        which the model counts. What follows from these alone is :attr:`derived`.
        """
        of_sizes: set[str] = set()
        found = False
        for node in self.nodes:
            if self._is_of_sizes(node, of_sizes):
                of_sizes.update(node.output)
                continue
            for name in of_sizes.intersection(node.input) - self.derived.keys():
                found = (self._is_small_float(name) and self.fold(name)) or found
        if found:
            self.derived = _derived(self.proto.graph, set(self.constants))

    def _is_of_sizes(self, node: onnx.NodeProto, of_sizes: set[str]) -> bool:
        if is_standard_op(node, "Shape", "Size"):
            return True
        return (
            is_standard(node.domain)
            and node.op_type not in _LOOPING
            and all(name in self.constants or name in of_sizes for name in filter(None, names_read(node)))
        )

    def _is_small_float(self, name: str) -> bool:
        dims = self.dims(name)
        sizes = [size for size in dims or () if isinstance(size, int)]
        is_small = dims is not None and len(sizes) == len(dims) and math.prod(sizes) <= _MOST_FOLDED
        return is_small and self.elem_type(name) == onnx.TensorProto.FLOAT

    def value_info(self, name: str) -> onnx.ValueInfoProto | None:
        """What inference knows of a value that nodes exchange."""
        return self._inferred.get(name)

    def elem_type(self, name: str) -> int:
        """``onnx.TensorProto.FLOAT`` and so on; UNDEFINED where it is unknown or no tensor."""
        if name in self.constants:
            return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self.constants[name].dtype)))
        if name in self.intermediates:
            return onnx.TensorProto.FLOAT
        info = self._inferred.get(name)
        return info.type.tensor_type.elem_type if info is not None else onnx.TensorProto.UNDEFINED

    def dims(self, name: str) -> Dims | None:
        """Sizes of a value; those that inference does not know get names."""
        return self._sizes.dims(name)

    def vector(self, name: str) -> tuple[Dim, ...] | None:
        """Elements of a small integer tensor that is a constant, or follows from sizes."""
        return self._sizes.vector(name)

    def number(self, name: str) -> float | None:
        """The number that a tensor of one element is, if it is a constant or follows from sizes."""
        return self._sizes.number(name)

    def only_reader(self, name: str, but_shape: bool = False) -> int | None:
        """The only node that reads a value, which is no output; with ``but_shape``, Shape does not count."""
        readers = self.readers.get(name, [])
        if but_shape:
            readers = [index for index in readers if self.nodes[index].op_type != "Shape"]
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def is_only_read_by(self, name: str, nodes: set[int]) -> bool:
        """Whether no other nodes read a value, which is no output."""
        return name not in self.outputs and set(self.readers.get(name, ())) <= nodes

    def shared_values(self, name: str) -> npt.NDArray[np.generic] | None:
        """As :meth:`values_of`, contiguous, and one array for all who ask: tables that every layer reads are large."""
        if name not in self._shared and name in self.constants:
            self._shared[name] = np.ascontiguousarray(array_of(self.constants[name]))
        return self._shared.get(name)

    def values_of(self, name: str) -> npt.NDArray[np.generic] | None:
        """The values of a constant; None for what is none."""
        return array_of(self.constants[name]) if name in self.constants else None

    def folded_values(self, name: str) -> npt.NDArray[np.generic] | None:
        """As :meth:`values_of`, also of what nodes make of constants: see :meth:`fold`."""
        return self.values_of(name) if self.fold(name) else None


def _set_size(dim: onnx.TensorShapeProto.Dimension, size: str | int) -> None:
    if isinstance(size, int):
        dim.dim_value = size
    else:
        dim.dim_param = size


def _derived(graph: onnx.GraphProto, initializers: set[str]) -> dict[str, int]:
    outputs = {info.name for info in graph.output}
    derived: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        if not is_standard(node.domain) or node.op_type in DRAWING or outputs.intersection(node.output):
            continue
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            continue
        if all(name in initializers or name in derived for name in filter(None, node.input)):
            derived.update((name, index) for name in node.output if name)
    return derived


def _constant_of(node: onnx.NodeProto) -> gs.Constant | None:
    value = onnx.helper.get_attribute_value(node.attribute[0])
    if isinstance(value, onnx.TensorProto):
        return gs.Constant(node.output[0], onnx.numpy_helper.to_array(value))
    if isinstance(value, float):
        return gs.Constant(node.output[0], np.asarray(value, np.float32))
    if isinstance(value, int):
        return gs.Constant(node.output[0], np.asarray(value, np.int64))
    types = {onnx.AttributeProto.FLOATS: np.float32, onnx.AttributeProto.INTS: np.int64}
    kind = types.get(node.attribute[0].type)
    return None if kind is None else gs.Constant(node.output[0], np.asarray(value, kind))


def is_standard_op(node: onnx.NodeProto, *ops: str) -> bool:
    """Whether a node is one of these standard operators."""
    return node.op_type in ops and is_standard(node.domain)


def behind_identities(graph: GraphView, name: str) -> str:
    """The value that Identity nodes, such as those of an inlined branch, give another name."""
    while (index := graph.producers.get(name)) is not None and is_standard_op(graph.nodes[index], "Identity"):
        name = graph.nodes[index].input[0]
    return name


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Values that a node reads from its graph, within its subgraphs too."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        for graph in graphs:
            yield from _captured(graph)


def _captured(graph: onnx.GraphProto) -> Iterator[str]:
    own = {t.name for t in graph.initializer} | {info.name for info in graph.input}
    for node in graph.node:
        yield from (name for name in names_read(node) if name not in own)
        own.update(node.output)
    yield from (info.name for info in graph.output if info.name not in own)
