"""Parameters that a graph computes from its constants alone, at every run.

torch's dynamo exporter puts the gates of LSTM and GRU in order by Slice and Concat of the stored weights; weight
normalization, spectral normalization, standardized weights and low-rank updates (LoRA) stay arithmetic in front of
their layer. onnxruntime computes such a weight once, when it opens a model. Here it is computed once as well, so that
the layer has a stored weight that can be counted, widened and masked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
from onnx.reference import ReferenceEvaluator

from sift_onnx.graphs.constants import (
    array_of,
    constant_values,
    dtype_of,
    is_masked,
    new_constant,
    shape_of,
    sparse_weight_of,
)
from sift_onnx.graphs.topological_order import sort_nodes
from sift_onnx.graphs.unread_nodes import drop_makers
from sift_onnx.graphs.walks import origin_of
from sift_onnx.model import Model
from sift_onnx.operators.domains import is_standard
from sift_onnx.operators.traits import DRAWING, MOVING, PARAMETER_VIEWS, REARRANGING
from sift_onnx.operators.weight_operands import MATRIX_PRODUCTS, PARAMETERS
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["store_computed_parameters"]

Array = npt.NDArray[Any]

# These give other numbers at every run, belong to a quantized layer, or have graphs of their own.
_NOT_COMPUTED = DRAWING | {
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "If",
    "Loop",
    "QuantizeLinear",
    "Scan",
    "SequenceMap",
}
# What the analysis follows from a stored tensor to the layer.
_FOLLOWED = REARRANGING | PARAMETER_VIEWS | {"Gather"}
_PRODUCT_AXES = 2
_PRODUCTS = MATRIX_PRODUCTS | {"Einsum"}
# A result, and whatever is made on the way to it, may have this many times the elements of what is stored, and some
# more: the product of two factors has many times theirs, and is left to be computed.
_MOST_GROWTH, _FEW_ELEMENTS = 2, 1024


@dataclass(frozen=True)
class _Computed:
    """A parameter: the nodes that make it, producers first, and the floating-point constants that they read."""

    tensor: gs.Variable
    nodes: tuple[gs.Node, ...]
    sources: tuple[gs.Tensor, ...]


def store_computed_parameters(model: Model, *, integers: bool = False) -> tuple[Model, list[str]]:
    """The same model with initializers in place of parameters that nodes compute; itself if there are none.

    A parameter is stored if

    1. standard operators make it from constants, without drawing numbers or turning integers into weights;
    2. they do more than to rearrange one constant, or to look up its rows, which the analysis follows by itself;
    3. nothing else reads what it is made of: a weight that is tied to another one stays tied;
    4. it has at most twice the elements of what is stored for it;
    5. as the operand of a matrix product it has two axes: those of more are positions, or rotations, of heads.

    Masks go with elements that are only moved. Where arithmetic makes the parameter from a masked weight, its mask is
    where the result is not zero.

    Args:
        model: is not changed.
        integers: whether parameters stay that are rounded, or cast from integers: to who reads them as integers, a
            quantized layer.

    Returns:
        The model, and the names of the new initializers, which are those of the tensors that nodes made.
    """
    if not _found(model.graph, integers):
        return model, []
    copy = model.copy()
    sort_nodes(copy.graph)
    stored = [
        (p.tensor, values) for p in _found(copy.graph, integers) if (values := _values_of(copy.graph, p)) is not None
    ]
    names = [tensor.name for tensor, _ in stored]
    for tensor, values in stored:
        _read_instead(tensor, new_constant(tensor.name, values))
    drop_makers(copy.graph, [tensor for tensor, _ in stored])
    left = {id(t) for node in copy.graph.nodes for t in node.outputs}
    for tensor, _ in stored:
        # Of a node with several outputs that is still needed.
        if id(tensor) in left:
            tensor.name = ""
    return (copy, names) if stored else (model, [])


def _read_instead(tensor: gs.Tensor, constant: gs.Constant) -> None:
    for reader in list(tensor.outputs):
        reader.inputs = [constant if t is tensor else t for t in reader.inputs]


def _found(graph: gs.Graph, integers: bool) -> list[_Computed]:
    computed = _computed_nodes(graph, integers)
    found = [_history(t, computed) for t in _parameters(graph, computed)]
    parameters = {id(p.tensor): p for p in found if p.sources and any(node.op not in _FOLLOWED for node in p.nodes)}
    outside = _read_outside(graph)
    while True:
        nodes = {id(node) for parameter in parameters.values() for node in parameter.nodes}
        tied = [key for key, parameter in parameters.items() if _is_tied(parameter, parameters, nodes, outside)]
        if not tied:
            return list(parameters.values())
        for key in tied:
            del parameters[key]


def _computed_nodes(graph: gs.Graph, integers: bool) -> dict[int, gs.Node]:
    """The nodes that standard operators compute from constants, by the identity of their outputs."""
    computed: dict[int, gs.Node] = {}
    for node in graph.nodes:
        inputs = [t for t in node.inputs if not t.is_empty()]
        if (
            inputs
            and is_standard(node.domain)
            and node.op not in _NOT_COMPUTED
            and not (integers and _makes_quantized(node))
            and all(id(t) in computed or constant_values(t) is not None for t in inputs)
        ):
            computed |= {id(t): node for t in node.outputs}
    return computed


def _makes_quantized(node: gs.Node) -> bool:
    """Whether a node rounds, or casts several constant integers, as weights of quantized layers are made."""
    if node.op == "Round":
        return True
    constant = constant_values(node.inputs[0]) if node.op == "Cast" else None
    return constant is not None and dtype_of(constant).kind in "iu" and math.prod(shape_of(constant)) > 1


def _parameters(graph: gs.Graph, computed: dict[int, gs.Node]) -> Iterator[gs.Variable]:
    """What layers read as parameters, and nodes compute from constants."""
    for node in graph.nodes:
        known = PARAMETERS.get(node.op)
        # A node that reads nothing else is not a layer.
        if known is None or all(id(t) in computed for t in node.outputs):
            continue
        for position in {*known.trained, *known.statistics}:
            tensor = node.inputs[position] if position < len(node.inputs) else None
            if tensor is None or tensor.is_empty():
                continue
            origin, _ = origin_of(tensor, PARAMETER_VIEWS)
            if id(origin) in computed and isinstance(origin, gs.Variable):
                yield origin


def _history(tensor: gs.Variable, computed: dict[int, gs.Node]) -> _Computed:
    nodes: dict[int, gs.Node] = {}
    sources: dict[int, gs.Tensor] = {}
    pending: list[gs.Tensor] = [tensor]
    while pending:
        current = pending.pop()
        node = computed.get(id(current))
        if node is None:
            constant = constant_values(current)
            if constant is not None and dtype_of(constant).kind not in "iubSUO" and math.prod(shape_of(constant)) > 1:
                sources[id(current)] = current
        elif id(node) not in nodes:
            nodes[id(node)] = node
            pending.extend(t for t in node.inputs if not t.is_empty())
    return _Computed(tensor, _in_order(nodes.values(), computed), tuple(sources.values()))


def _in_order(nodes: Iterable[gs.Node], computed: dict[int, gs.Node]) -> tuple[gs.Node, ...]:
    place = {id(node): i for i, node in enumerate(computed.values())}
    return tuple(sorted(nodes, key=lambda node: place[id(node)]))


def _read_outside(graph: gs.Graph) -> set[str]:
    """Names that subgraphs read, or that are outputs."""
    inner = {name for level in graph.subgraphs(recursive=True) for name in level.tensors()}
    return inner | {t.name for t in graph.outputs}


def _is_tied(parameter: _Computed, others: dict[int, _Computed], nodes: set[int], outside: set[str]) -> bool:
    """Whether something else reads what a parameter is made of."""
    between = [t for node in parameter.nodes for t in node.outputs if id(t) not in others]
    return any(
        (t.name in outside or any(id(reader) not in nodes for reader in t.outputs)) and not _is_uniform(t)
        for t in (*parameter.sources, *between)
    )


def _is_uniform(tensor: gs.Tensor) -> bool:
    """Whether it is a constant of one value throughout: exporters merge these, which ties nothing."""
    constant = constant_values(tensor)
    if constant is None:
        return False
    values = array_of(constant).reshape(-1)
    return bool((values == values[0]).all())


def _values_of(graph: gs.Graph, parameter: _Computed) -> Array | SparseWeight | None:
    """What the nodes compute; None if that is too large, or is nothing that can be computed here."""
    model = _model_of(graph, parameter)
    arrays = {t.name: array_of(c) for t in parameter.sources if (c := constant_values(t)) is not None}
    if model is None or not _is_small(model, sum(a.size for a in arrays.values())):
        return None
    try:
        values = _run(model, arrays)
        if values.dtype.kind in "iub" or not _fits_readers(parameter.tensor, values.ndim):
            return None
        masks = {t.name: mask for t in parameter.sources if (mask := _mask_of(t)) is not None}
        if not masks:
            return values
        if not all(node.op in MOVING | PARAMETER_VIEWS for node in parameter.nodes):
            return SparseWeight.from_dense(values)
        moved = _run(model, {name: masks.get(name, np.ones(a.shape)).astype(a.dtype) for name, a in arrays.items()})
    except Exception:  # an operator, or a type of elements, that the reference evaluator does not have
        return None
    return SparseWeight.from_dense(values, np.flatnonzero(moved.reshape(-1) != 0))


def _fits_readers(tensor: gs.Tensor, rank: int) -> bool:
    readers = [reader for view in _views(tensor) for reader in view.outputs]
    return rank <= _PRODUCT_AXES or not any(reader.op in _PRODUCTS for reader in readers)


def _views(tensor: gs.Tensor) -> Iterator[gs.Tensor]:
    """The tensor, and what it is copied, cast or transposed to."""
    yield tensor
    for reader in tensor.outputs:
        if reader.op in PARAMETER_VIEWS:
            for output in reader.outputs:
                yield from _views(output)


def _mask_of(tensor: gs.Tensor) -> Array | None:
    constant = constant_values(tensor)
    weight = sparse_weight_of(constant) if constant is not None and is_masked(constant) else None
    return None if weight is None else weight.mask()


def _run(model: onnx.ModelProto, arrays: dict[str, Array]) -> Array:
    (values,) = ReferenceEvaluator(model).run(None, arrays)
    return np.ascontiguousarray(values)


def _model_of(graph: gs.Graph, parameter: _Computed) -> onnx.ModelProto | None:
    """The nodes as a model of their own, with the floating-point constants as its inputs."""
    tensors: dict[int, gs.Tensor] = {}

    handed_on = _integers_handed_on(parameter)

    def taken(tensor: gs.Tensor) -> gs.Tensor:
        constant = handed_on.get(id(tensor), constant_values(tensor))
        if constant is None:
            new: gs.Tensor = gs.Variable(tensor.name)
        elif any(tensor is source for source in parameter.sources):
            new = gs.Variable(tensor.name, dtype_of(constant), shape_of(constant))
        else:
            new = gs.Constant(tensor.name, np.asarray(array_of(constant)))
        return tensors.setdefault(id(tensor), new)

    nodes = [
        gs.Node(
            node.op,
            node.name,
            dict(node.attrs),
            [t if t.is_empty() else taken(t) for t in node.inputs],
            [t if t.is_empty() else taken(t) for t in node.outputs],
        )
        for node in parameter.nodes
        if id(node.outputs[0]) not in handed_on
    ]
    own = gs.Graph(
        nodes,
        [taken(t) for t in parameter.sources],
        [taken(parameter.tensor)],
        opset=graph.opset,
        import_domains=graph.import_domains,
    )
    try:
        return onnx.shape_inference.infer_shapes(gs.export_onnx(own, do_type_check=False), data_prop=True)
    except Exception:  # native code, and types that graphsurgeon cannot write
        return None


def _integers_handed_on(parameter: _Computed) -> dict[int, gs.Constant]:
    """What an Identity gives, where it is a constant of integers: shape inference does not look behind one."""
    origins = ((node, origin_of(node.outputs[0], {"Identity"})[0]) for node in parameter.nodes if node.op == "Identity")
    found = ((node, constant_values(origin)) for node, origin in origins)
    return {id(n.outputs[0]): c for n, c in found if c is not None and dtype_of(c).kind in "iu"}


def _is_small(model: onnx.ModelProto, stored: int) -> bool:
    """Whether all that is computed has a known size, within the limit."""
    made = {name for node in model.graph.node for name in node.output if name}
    sizes = {info.name: info.type.tensor_type.shape.dim for info in (*model.graph.value_info, *model.graph.output)}
    limit = _MOST_GROWTH * stored + _FEW_ELEMENTS
    return all(
        name in sizes
        and all(dim.HasField("dim_value") for dim in sizes[name])
        and math.prod(dim.dim_value for dim in sizes[name]) <= limit
        for name in made
    )
