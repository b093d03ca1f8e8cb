"""Weights that nodes compute from nothing but constants.

Reparametrized layers are exported as what computes their weights: weight normalization (Salimans and Kingma 2016) as a
quotient of a stored tensor and its norm, standardized weights of normalizer-free networks (Brock et al. 2021) as a
normalization without data in it. Exporters fold constants up to some size, and not every operator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import constant_values, dtype_of, is_masked, named, shape_of
from sift_onnx.graphs.walks import origin_of
from sift_onnx.model import Model
from sift_onnx.operators.domains import is_standard
from sift_onnx.operators.traits import DRAWING, PARAMETER_VIEWS, RECURRENT
from sift_onnx.operators.weight_operands import CONVOLUTIONS, MATRIX_PRODUCTS, PARAMETERS, feature_axes
from sift_onnx.passes.node_builder import free_name, names_in
from sift_onnx.passes.unread_nodes import drop_makers

__all__ = ["ComputedWeight", "computed_weights", "store"]

Array = npt.NDArray[Any]

# What weights are quantized with stays, as do weights that are drawn.
_LEFT = DRAWING | {"DequantizeLinear", "QuantizeLinear"}
# A tensor that holds the same values over and over is no weight of its own.
_LARGEST_GROWTH = 2


@dataclass(frozen=True)
class ComputedWeight:
    """A weight that nodes compute.

    Attributes:
        tensor: its name.
        stored: the name of the largest constant that it is computed from.
        values: the weight.
    """

    tensor: str
    stored: str
    values: Array


def computed_weights(model: Model) -> list[ComputedWeight]:
    """The weights of layers that are computed from constants alone, each once; none of them has a mask."""
    places = {id(node): i for i, node in enumerate(model.graph.nodes)}
    computed = _computed_tensors(model.graph)
    found: dict[str, tuple[list[int], gs.Constant]] = {}
    readers: dict[str, list[tuple[gs.Node, int]]] = {}
    for node in model.graph.nodes:
        if node.op not in CONVOLUTIONS | MATRIX_PRODUCTS | RECURRENT:
            continue
        weights = [i for i in PARAMETERS[node.op].weights if i < len(node.inputs)]
        if all(_is_known(node.inputs[i], computed) for i in {0, *weights}):
            continue  # a product of constants is no layer
        for i in weights:
            origin, _ = origin_of(node.inputs[i], PARAMETER_VIEWS)
            if id(origin) in computed:
                makers, stored = _made_of(origin)
                found[origin.name] = [places[id(maker)] for maker in makers], stored
                readers.setdefault(origin.name, []).append((node, i))
    values = _evaluated(model, {place for makers, _ in found.values() for place in makers}, list(found))
    return [
        ComputedWeight(name, stored.name, values[name])
        for name, (_, stored) in found.items()
        if name in values and _is_weight(values[name], stored, readers[name])
    ]


def store(graph: gs.Graph, weights: Sequence[ComputedWeight]) -> list[str]:
    """Put the values of weights into the graph, in place of the nodes; the names of the new initializers."""
    taken, tensors, names = names_in(graph), graph.tensors(), list[str]()
    for weight in weights:
        tensor = tensors[weight.tensor]
        constant = gs.Constant(free_name(f"{weight.stored}.computed", taken), weight.values)
        names.append(constant.name)
        for reader in list(tensor.outputs):
            for i, read in enumerate(reader.inputs):
                if read is tensor:
                    reader.inputs[i] = constant
        drop_makers(graph, [tensor])
    return names


def _computed_tensors(graph: gs.Graph) -> set[int]:
    """The identities of the tensors that nodes compute from constants without a mask, and from nothing else."""
    computed: set[int] = set()
    for node in graph.nodes:
        has_subgraph = any(isinstance(value, gs.Graph) for value in node.attrs.values())
        if not node.inputs or has_subgraph or node.op in _LEFT or not is_standard(node.domain):
            continue
        if all(t.is_empty() or _is_known(t, computed) for t in node.inputs):
            computed.update(id(t) for t in node.outputs)
    return computed


def _is_known(tensor: gs.Tensor, computed: Collection[int]) -> bool:
    constant = constant_values(tensor)
    return id(tensor) in computed if constant is None else not is_masked(constant)


def _made_of(tensor: gs.Tensor) -> tuple[list[gs.Node], gs.Constant]:
    """The nodes that compute a tensor, and the largest constant that they read."""
    makers: dict[int, gs.Node] = {}
    constants: list[gs.Constant] = []
    pending = [tensor]
    while pending:
        read = pending.pop()
        constant = constant_values(read)
        if constant is not None:
            constants.append(named(constant, read.name))
        elif id(read.inputs[0]) not in makers:
            makers[id(read.inputs[0])] = read.inputs[0]
            pending.extend(t for t in read.inputs[0].inputs if not t.is_empty())
    return list(makers.values()), max(constants, key=_size)


def _size(constant: gs.Constant) -> int:
    return int(np.prod(shape_of(constant), dtype=np.int64))


def _is_weight(values: Array, stored: gs.Constant, readers: Sequence[tuple[gs.Node, int]]) -> bool:
    """Whether what was computed is a matrix of numbers of its own: no repeated one, and no outer product with it."""
    if values.dtype != dtype_of(stored) or values.ndim < 2 or values.size > _LARGEST_GROWTH * _size(stored):
        return False
    for node, i in readers:
        axes = feature_axes(node.op, node.attrs, i, values.ndim) if node.op in MATRIX_PRODUCTS else None
        # Positions times frequencies, as in rotary embeddings.
        if axes is not None and values.shape[axes[1]] == 1:
            return False
    return True


def _evaluated(model: Model, makers: set[int], names: Sequence[str]) -> Mapping[str, Array]:
    """The tensors ``names``, computed by nodes at ``makers``; nothing if onnxruntime cannot compute them."""
    if not names:
        return {}
    import onnxruntime  # its import takes long, and few models need it

    probe = model.copy()
    tensors = probe.graph.tensors()
    probe.graph.nodes = [node for i, node in enumerate(probe.graph.nodes) if i in makers or node.op == "Constant"]
    probe.graph.inputs, probe.graph.outputs = [], [tensors[name] for name in names]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        source = probe.to_proto().SerializeToString()
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        return dict(zip(names, session.run(list(names), {}), strict=True))
    except Exception:  # onnxruntime raises types of its own; what it cannot compute stays as it is
        return {}
