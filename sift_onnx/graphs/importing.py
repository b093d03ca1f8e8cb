"""From ONNX to a graphsurgeon graph whose constants are lazy; and copies of such graphs."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.logger import G_LOGGER
from onnx_graphsurgeon.util.misc import SynchronizedList

from sift_onnx.errors import MaskWarning, ModelReadError
from sift_onnx.files.detached_data import DetachedData, refuse_external
from sift_onnx.files.external_data import is_external
from sift_onnx.files.file_bytes import PackedNumbers
from sift_onnx.files.stored_values import StoredValues
from sift_onnx.graphs.checks import check_graphs
from sift_onnx.graphs.constants import apply_export_dtype, imported_tensor, own_array, replace_values, stored_values_of
from sift_onnx.weights.mask_search import find_masks
from sift_onnx.weights.mask_storage import MaskRecord
from sift_onnx.weights.sparse import SparseWeight
from sift_onnx.weights.sparse_tensors import SparseTensor, weight_of

__all__ = ["copy_graph", "import_model", "normalize_constants", "own_arrays", "restore_masks"]


def import_model(model: onnx.ModelProto, data: DetachedData | None = None) -> gs.Graph:
    """The model's graph, with constants of kinds that :mod:`sift_onnx.graphs.constants` knows.

    Args:
        model: not changed, and referred to by the graph.
        data: of tensors whose data is not in ``model``; reading a tensor whose data is missing raises an error.

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
        # The importer does not validate what it reads, and fails in many ways.
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelReadError(f"the graph cannot be read: {reason[-1]}") from error
    for function, proto in zip(graph.functions, model.functions, strict=True):
        # Functions of one name differ in their overload, which graphsurgeon does not know.
        function.overload = getattr(proto, "overload", "")
    # graphsurgeon's exporter appends to the list, which is the model's own.
    for level in [graph, *graph.subgraphs(recursive=True), *graph.functions]:
        detached = onnx.ModelProto(opset_import=level.import_domains or ())
        level.import_domains = list(detached.opset_import)
    normalize_constants(graph, data or {})
    return graph


def normalize_constants(graph: gs.Graph, data: DetachedData) -> None:
    """Make the values of all constants, in subgraphs and functions too, arrays or lazy values of our kinds.

    Args:
        graph: changed in place.
        data: as for :func:`import_model`.

    Raises:
        ModelReadError: a tensor is damaged.
    """
    for constant in _constants(graph):
        _normalize(constant, data)


def _constants(graph: gs.Graph) -> Iterator[gs.Constant]:
    """Constants that nodes read, and those that are attributes, at every level."""
    for level in [graph, *graph.subgraphs(recursive=True), *graph.functions]:
        values = [*level.tensors().values(), *(value for node in level.nodes for value in node.attrs.values())]
        yield from (value for value in values if isinstance(value, gs.Constant))


def _normalize(constant: gs.Constant, data: DetachedData) -> None:
    tensor = imported_tensor(constant)
    if isinstance(tensor, onnx.SparseTensorProto):
        replace_values(constant, _sparse_weight(tensor, data))
    elif tensor is not None:
        replace_values(constant, _stored(tensor, constant.name, data))
        constant.data_location = None
    else:
        apply_export_dtype(constant)


def _stored(proto: onnx.TensorProto, name: str, data: DetachedData) -> StoredValues:
    raw = data[id(proto)][1] if id(proto) in data else None
    if raw is None and is_external(proto):
        raw = partial(refuse_external, name)
    return StoredValues(proto, raw)


def _sparse_weight(tensor: onnx.SparseTensorProto, data: DetachedData) -> SparseWeight | SparseTensor:
    """The weight; lazy, if it can be read from its file each time that it is used.

    Data in the model file is checked at once, so that damage is found on load; external data when it is read.
    """
    if not any(map(is_external, (tensor.values, tensor.indices))):
        return weight_of(tensor)
    name = tensor.values.name
    parts = [_stored(part, name, data) for part in (tensor.values, tensor.indices)]
    weight = SparseTensor(tensor, *parts)
    if any(part.external_data for part in (tensor.values, tensor.indices)):
        return weight
    _, values = data.get(id(tensor.values), (None, None))
    if isinstance(values, PackedNumbers):
        values.check()
    return weight if weight.is_in_order() else weight.read()


def restore_masks(graph: gs.Graph, records: Mapping[str, MaskRecord]) -> None:
    """Put the masks of a file's metadata on the weights that they belong to; warn of those that belong to none.

    Raises:
        ModelReadError: a record is damaged.
    """
    tensors = graph.tensors()
    stored = {name: stored_values_of(t) for name, t in tensors.items() if isinstance(t, gs.Constant)}
    try:
        findings = find_masks(records, {name: values for name, values in stored.items() if values is not None})
    except ValueError as error:
        raise ModelReadError(str(error)) from error
    for name, source in findings.found.items():
        replace_values(tensors[name], source)
    for name, reason in findings.lost.items():
        warnings.warn(f"the mask of {name!r} is lost: {reason}", MaskWarning, stacklevel=4)
    for name, reason in findings.altered.items():
        warnings.warn(f"the mask of {name!r}: {reason}", MaskWarning, stacklevel=4)


def copy_graph(graph: gs.Graph) -> gs.Graph:
    """A graph that can be edited without changing this one; arrays and stored values are shared.

    graphsurgeon's own ``copy`` forgets the types of sequences and optionals, and copies a constant once more
    for each subgraph that captures it.
    """
    # All levels of a model share one list of functions.
    functions: list[gs.Function] = []
    functions.extend(_copy_graph(function, {}, functions) for function in graph.functions)
    return _copy_graph(graph, {}, functions)


def own_arrays(graph: gs.Graph) -> None:
    """Copy the arrays of the constants of a copied graph; stored and masked values are never written to, and shared.

    Args:
        graph: changed in place.
    """
    for constant in _constants(graph):
        own_array(constant)


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
