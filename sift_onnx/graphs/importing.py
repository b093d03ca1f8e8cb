"""From ONNX to a graphsurgeon graph whose constants know where their data is; and copies of such graphs."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
from google.protobuf.message import DecodeError
from onnx_graphsurgeon.ir.tensor import LazyValues, SparseValues
from onnx_graphsurgeon.logger import G_LOGGER
from onnx_graphsurgeon.util.misc import SynchronizedList

from sift_onnx.errors import MaskWarning, ModelReadError
from sift_onnx.files.data_types import numpy_dtype
from sift_onnx.files.external_data import DataFiles, RawData, external_tensors, is_external
from sift_onnx.files.file_bytes import FileSlice, PackedNumbers
from sift_onnx.files.stored_values import StoredValues, stored_bytes
from sift_onnx.files.wire import Place, packed_field
from sift_onnx.graphs.checks import check_graphs
from sift_onnx.graphs.constants import MaskedValues, masked_constant
from sift_onnx.weights.mask_search import find_masks
from sift_onnx.weights.mask_storage import MaskRecord
from sift_onnx.weights.sparse import SparseWeight
from sift_onnx.weights.sparse_tensors import SparseTensor, weight_of

__all__ = ["OutsideData", "adopt_constants", "adopt_masks", "copy_graph", "import_model", "locate_data"]

# Fields of sparse tensors that are left in the file, by the type of the tensor, and what their numbers become.
_SPARSE_DATA: dict[int, tuple[str, np.dtype[Any]]] = {
    onnx.TensorProto.FLOAT: ("float_data", np.dtype("<f4")),
    onnx.TensorProto.DOUBLE: ("double_data", np.dtype("<f8")),
    onnx.TensorProto.FLOAT16: ("int32_data", np.dtype("<u2")),
    onnx.TensorProto.BFLOAT16: ("int32_data", np.dtype("<u2")),
    onnx.TensorProto.INT64: ("int64_data", np.dtype("<i8")),
}

# Tensors whose data is not in them, by id(), and what gives their data. The tensor is kept, since an id lasts as long.
OutsideData = dict[int, tuple[onnx.TensorProto, RawData]]


def import_model(model: onnx.ModelProto, data: OutsideData | None = None) -> gs.Graph:
    """The model's graph, with constants of kinds that :mod:`sift_onnx.graphs.constants` knows.

    Args:
        model: not changed, and referred to by the graph.
        data: of tensors that ``model`` holds without it; tensors whose data is nowhere fail when they are read.

    Raises:
        ModelReadError: the graph is incomplete.
        UnsupportedError: it holds what graphsurgeon cannot read.
    """
    check_graphs(model)
    try:
        # graphsurgeon logs to stdout, even what it raises.
        with G_LOGGER.suppress(G_LOGGER.CRITICAL + 1):
            graph = gs.import_onnx(model)
    except Exception as error:
        # Its importer takes the file's word for everything, and fails in as many ways.
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelReadError(f"the graph cannot be read: {reason[-1]}") from error
    for function, proto in zip(graph.functions, model.functions, strict=True):
        # Functions of one name differ in their overload, which graphsurgeon does not know.
        function.overload = getattr(proto, "overload", "")
    # graphsurgeon's exporter appends to the list, which is the model's own.
    for level in [graph, *graph.subgraphs(recursive=True), *graph.functions]:
        detached = onnx.ModelProto(opset_import=level.import_domains or ())
        level.import_domains = list(detached.opset_import)
    adopt_constants(graph, data or {})
    return graph


def locate_data(
    model: onnx.ModelProto, files: DataFiles | None, cut: Mapping[Place, memoryview | FileSlice]
) -> OutsideData:
    """Find the data of every tensor that does not hold it itself.

    Args:
        model: data of tensors that no node reads, or that are no initializers, is put into it.
        files: where external data is looked for; None for a model that never was in a file.
        cut: data that was cut out of ``model``.

    Returns:
        The data of the initializers that are left; each is marked as external.

    Raises:
        ModelReadError: data is missing or out of bounds, or there is nowhere to look.
    """
    read = {id(tensor): tensor for tensor in _read_initializers(model.graph)}
    found: list[tuple[onnx.TensorProto, RawData]] = []
    for tensor in external_tensors(model):
        if files is None:
            _refuse(tensor.name)
        if tensor.data_type == onnx.TensorProto.STRING:
            raise ModelReadError(f"initializer {tensor.name!r}: strings cannot lie outside the model file")
        found.append((tensor, files.find(tensor, stored_bytes(tensor))))
    for place, raw in cut.items():
        if place.part:
            sparse = model.graph.sparse_initializer[place.position]
            tensor = getattr(sparse, place.part)
            unpacked = _unpacked(sparse, tensor, place, raw) if id(tensor) in read else None
            if unpacked is None:
                _put_back(tensor, place, raw)
            else:
                found.append((tensor, unpacked))
            continue
        tensor = model.graph.initializer[place.position]
        if len(raw) != stored_bytes(tensor):
            raise ModelReadError(
                f"initializer {tensor.name!r}: {len(raw)} bytes do not fit its shape {list(tensor.dims)}, "
                f"which takes {stored_bytes(tensor)}"
            )
        found.append((tensor, _bytes_of(raw)))
    data: OutsideData = {}
    for tensor, bytes_of in found:
        if id(tensor) in read:
            data[id(tensor)] = tensor, bytes_of
            tensor.data_location = onnx.TensorProto.EXTERNAL
        else:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = bytes_of().tobytes()
    return data


def _bytes_of(raw: memoryview | FileSlice) -> RawData:
    return raw if isinstance(raw, FileSlice) else partial(_as_bytes, raw)


def _as_bytes(raw: memoryview) -> npt.NDArray[np.uint8]:
    return np.frombuffer(raw, np.uint8)


def _put_back(tensor: onnx.TensorProto, place: Place, raw: memoryview | FileSlice) -> None:
    try:
        tensor.MergeFromString(packed_field(place.field, bytes(_bytes_of(raw)())))
    except DecodeError as error:
        raise ModelReadError(f"the data of sparse initializer {place.position} ({place.part}) is damaged") from error


def _unpacked(
    sparse: onnx.SparseTensorProto, tensor: onnx.TensorProto, place: Place, raw: memoryview | FileSlice
) -> RawData | None:
    """What gives the bytes of a part of a sparse tensor, of which a typed field was cut out.

    None where that is not all of its data, or not of the types that readers take in sparse tensors: protobuf may judge.
    """
    known = _SPARSE_DATA.get(tensor.data_type)
    has_more = any(field.name.endswith("_data") or field.name == "external_data" for field, _ in tensor.ListFields())
    if known is None or tensor.DESCRIPTOR.fields_by_name[known[0]].number != place.field:
        return None
    if has_more or is_external(tensor) or any(n < 0 for n in tensor.dims):
        return None
    count, packed_as = stored_bytes(tensor) // known[1].itemsize, known[1]
    if known[0] in ("float_data", "double_data"):
        return _bytes_of(raw) if len(raw) == count * packed_as.itemsize else None
    return PackedNumbers(raw, count, packed_as, f"sparse initializer {sparse.values.name!r}")


def _read_initializers(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Initializers of the graph and its subgraphs that nodes read, and the parts of sparse ones."""
    names = set(_names_read(graph))
    yield from (tensor for tensor in graph.initializer if tensor.name in names)
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices) if sparse.values.name in names else ()
    for subgraph in _subgraphs(graph):
        yield from _read_initializers(subgraph)


def _names_read(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
    yield from (info.name for info in graph.output)
    for subgraph in _subgraphs(graph):
        yield from _names_read(subgraph)


def _subgraphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    return (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))


def adopt_constants(graph: gs.Graph, data: OutsideData) -> None:
    """Give the constants of ``graph``, its subgraphs and its functions values of kinds that we know.

    Args:
        graph: changed in place.
        data: as for :func:`import_model`.

    Raises:
        ModelReadError: a tensor is damaged.
    """
    for level in [graph, *graph.subgraphs(recursive=True), *graph.functions]:
        for tensor in level.tensors().values():
            _adopt(tensor, data)
        for node in level.nodes:
            for value in node.attrs.values():
                _adopt(value, data)


def _adopt(constant: Any, data: OutsideData) -> None:
    if not isinstance(constant, gs.Constant):
        return
    values = constant._values
    if isinstance(values, SparseValues):
        masked_constant(constant, MaskedValues(_sparse_weight(values.tensor, data)))
    elif isinstance(values, LazyValues) and not isinstance(values, (MaskedValues, StoredValues)):
        proto = values.tensor
        raw = data[id(proto)][1] if id(proto) in data else None
        if raw is None and is_external(proto):
            raw = partial(_refuse, constant.name)
        constant._values = StoredValues(proto, raw)
        constant.data_location = None
    elif isinstance(values, np.ndarray) and vars(constant).get("_export_dtype") is not None:
        wanted = constant._export_dtype
        constant._values = values.astype(numpy_dtype(wanted) if isinstance(wanted, int) else wanted)
        constant._export_dtype = None


def _sparse_weight(tensor: onnx.SparseTensorProto, data: OutsideData) -> SparseWeight | SparseTensor:
    """The weight, or where it lies, if it can be read from there whenever it is asked for.

    What lies in the model file is looked through at once, so that damage shows; what lies beside it, when it is read.
    """
    if not any(map(is_external, (tensor.values, tensor.indices))):
        return weight_of(tensor)
    parts: list[StoredValues] = []
    for part in (tensor.values, tensor.indices):
        known = data.get(id(part))
        raw = known[1] if known is not None else partial(_refuse, tensor.values.name) if is_external(part) else None
        parts.append(StoredValues(part, raw))
    weight = SparseTensor(tensor, *parts)
    if any(part.external_data for part in (tensor.values, tensor.indices)):
        return weight
    _, values = data.get(id(tensor.values), (None, None))
    if isinstance(values, PackedNumbers):
        values.check()
    return weight if weight.is_in_order() else weight.read()


def _refuse(name: str) -> NoReturn:
    raise ModelReadError(f"initializer {name!r}: its data is external; pass the model's path, or load the data first")


def adopt_masks(graph: gs.Graph, records: Mapping[str, MaskRecord]) -> None:
    """Put the masks that a file speaks of on the weights that they belong to; warn of those that belong to none.

    Raises:
        ModelReadError: a record is damaged.
    """
    tensors = graph.tensors()
    stored = {name: getattr(tensor, "_values", None) for name, tensor in tensors.items()}
    try:
        findings = find_masks(records, {name: v for name, v in stored.items() if isinstance(v, StoredValues)})
    except ValueError as error:
        raise ModelReadError(str(error)) from error
    for name, source in findings.found.items():
        masked_constant(tensors[name], MaskedValues(source))
    for name, reason in findings.lost.items():
        warnings.warn(f"the mask of {name!r} is lost: {reason}", MaskWarning, stacklevel=4)
    for name, reason in findings.altered.items():
        warnings.warn(f"the mask of {name!r}: {reason}", MaskWarning, stacklevel=4)


def copy_graph(graph: gs.Graph) -> gs.Graph:
    """A graph that can be edited without changing this one; arrays and stored values are shared.

    graphsurgeon's own ``copy`` forgets the types of sequences and optionals, and gives each subgraph a copy of its own
    of the constants that it captures.
    """
    # All levels of a model share one list of functions.
    return _copy_graph(graph, {}, list(graph.functions))


def _copy_graph(graph: gs.Graph, twins: dict[int, gs.Tensor], functions: list[gs.Function]) -> gs.Graph:
    copy = _shell(graph)
    copy.nodes = [_copy_node(node, twins, functions) for node in graph.nodes]
    copy.inputs = [_twin(tensor, twins) for tensor in graph.inputs]
    copy.outputs = [_twin(tensor, twins) for tensor in graph.outputs]
    copy.import_domains = None if graph.import_domains is None else list(graph.import_domains)
    copy._functions = functions
    return copy


def _copy_node(node: gs.Node, twins: dict[int, gs.Tensor], functions: list[gs.Function]) -> gs.Node:
    copy = _shell(node)
    copy.attrs = OrderedDict()
    for name, value in node.attrs.items():
        if isinstance(value, gs.Graph):
            copy.attrs[name] = _copy_graph(value, twins, functions)
        elif isinstance(value, gs.Constant):
            copy.attrs[name] = _copy_tensor(value)
        else:
            copy.attrs[name] = list(value) if isinstance(value, list) else value
    vars(copy)["inputs"] = SynchronizedList(copy, "outputs", [_twin(tensor, twins) for tensor in node.inputs])
    vars(copy)["outputs"] = SynchronizedList(copy, "inputs", [_twin(tensor, twins) for tensor in node.outputs])
    return copy


def _twin(tensor: gs.Tensor, twins: dict[int, gs.Tensor]) -> gs.Tensor:
    if id(tensor) not in twins:
        twins[id(tensor)] = _copy_tensor(tensor)
    return twins[id(tensor)]


def _copy_tensor(tensor: gs.Tensor) -> gs.Tensor:
    copy = _shell(tensor)
    vars(copy)["inputs"] = SynchronizedList(copy, "outputs", [])
    vars(copy)["outputs"] = SynchronizedList(copy, "inputs", [])
    if isinstance(tensor, gs.Variable) and isinstance(tensor.shape, (list, tuple)):
        copy.shape = list(tensor.shape)
    return copy


def _shell(original: Any) -> Any:
    """An object with the same attributes, whichever this version of graphsurgeon has."""
    copy = object.__new__(type(original))
    vars(copy).update(vars(original))
    return copy
