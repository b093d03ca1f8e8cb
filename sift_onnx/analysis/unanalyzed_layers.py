"""Weight layers that the axis analysis cannot handle.

It does not know the shape of what they read, or they are within the graphs of another node, such as an ``If``. No pass
changes them and their cost is unknown. They are reported, never dropped silently.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.errors import listing
from sift_onnx.graphs.constants import constant_values, parameter_behind, shape_of
from sift_onnx.operators.domains import full_domain, is_standard
from sift_onnx.operators.labels import node_name, operator_name, qualified_operator
from sift_onnx.operators.traits import RECURRENT
from sift_onnx.operators.weight_operands import CONVOLUTIONS, MATRIX_PRODUCTS, PARAMETERS
from sift_onnx.records.cost import LeftOut, StoppedAt

__all__ = ["LeftOutLayer", "left_out_layers", "left_out_records", "left_out_warnings", "stored_weights", "why_left_out"]

# Operator -> the inputs that may be its weights.
_WEIGHTS = {
    **{op: PARAMETERS[op].weights for op in CONVOLUTIONS | MATRIX_PRODUCTS | RECURRENT | {"Einsum", "Gather"}},
    # Of com.microsoft. The Attention of ONNX has no weights; what is stored there is listed all the same.
    "Attention": (1,),
    "EmbedLayerNormalization": (2, 3, 4),
}


@dataclass(frozen=True)
class LeftOutLayer:
    """A stored weight at a node whose shapes are not known.

    Attributes:
        constant: the weight.
        index: of the node in the order of the analysis.
        node: the node.
        stop: the node, or one before it, that makes a tensor of unknown shape from known ones.
        source: of the numbers that ``stop`` reads its sizes from, the first node whose result cannot be computed.
        is_inside: whether ``node`` is within a graph of ``stop``, and ``index`` is that of ``stop``.
    """

    constant: gs.Constant
    index: int
    node: gs.Node
    stop: gs.Node
    source: gs.Node | None = None
    is_inside: bool = False

    @property
    def reason(self) -> str:
        """Why it is left out."""
        if self.is_inside:
            return f"it is within {_called(self.stop)}"
        if self.stop is self.node:
            return "the sizes of what it makes are not known"
        return f"sizes are not known behind {_called(self.stop)}"


def left_out_layers(analysis: AxisAnalysis) -> list[LeftOutLayer]:
    """The layers of the graph that was analysed which are left out of it, in its order."""
    known = {(use.index, layer.name) for layer in analysis.layers.values() for use in layer.uses}
    found: list[LeftOutLayer] = []
    for index, node in enumerate(analysis.order):
        inside = {
            constant.name: (constant, inner) for inner in _inner_nodes(node) for constant in stored_weights(inner)
        }
        found += [LeftOutLayer(constant, index, inner, node, is_inside=True) for constant, inner in inside.values()]
        stop = _stop(analysis, node) if node.op in _WEIGHTS else None
        if stop is None:
            continue
        found += [
            LeftOutLayer(constant, index, node, stop, _source(analysis, stop))
            for constant in stored_weights(node)
            if (index, constant.name) not in known
        ]
    return found


def _inner_nodes(node: gs.Node) -> Iterator[gs.Node]:
    """The nodes of a node's graphs, at any depth."""
    for graph in node.attrs.values():
        if isinstance(graph, gs.Graph):
            for level in (graph, *graph.subgraphs(recursive=True)):
                yield from level.nodes


def left_out_records(layers: Sequence[LeftOutLayer]) -> tuple[LeftOut, ...]:
    """The entries of ``left_out`` in the documents of ``inspect`` and of the verbs that rewrite models."""
    return tuple(
        LeftOut(
            name=layer.constant.name,
            node=node_name(layer.node),
            op=str(layer.node.op),
            shape=shape_of(layer.constant),
            params=math.prod(shape_of(layer.constant)),
            reason=layer.reason,
            stopped_at=StoppedAt(
                node=node_name(layer.stop),
                op=str(layer.stop.op),
                domain=full_domain(layer.stop.domain),
                outputs=tuple(t.name for t in layer.stop.outputs if t.name),
            ),
        )
        for layer in layers
    )


def stored_weights(node: gs.Node) -> Iterator[gs.Constant]:
    """The floating-point weights of two axes or more that a node multiplies by, or looks up in, and a model stores."""
    for position in _WEIGHTS.get(node.op, ()):
        tensor = node.inputs[position] if position < len(node.inputs) else None
        parameter = None if tensor is None or tensor.is_empty() else parameter_behind(tensor)
        if parameter is not None and len(parameter[1]) > 1:
            yield parameter[0]


def why_left_out(layers: Sequence[LeftOutLayer]) -> list[str]:
    """For each node at which shapes end: which layers that leaves out, and what to do about it."""
    stops: dict[int, list[LeftOutLayer]] = {}
    for layer in layers:
        stops.setdefault(id(layer.stop), []).append(layer)
    return [_explained(behind) for behind in stops.values()]


def left_out_warnings(layers: Sequence[LeftOutLayer]) -> list[str]:
    """What is said of layers that a result lacks."""
    return [f"layers are left out, and stay as they are: {text}" for text in why_left_out(layers)]


def _explained(layers: Sequence[LeftOutLayer]) -> str:
    stop = layers[0].stop
    named = [f"{layer.constant.name!r} ({layer.node.op} {node_name(layer.node)!r})" for layer in layers]
    if layers[0].is_inside:
        return (
            f"{listing(named)}, within {_called(stop)}, whose graphs are not looked into. Export a merged decoder "
            "without merging (of optimum, its option no_post_process), or simplify a constant condition (onnxsim)"
        )
    output = next((t.name for t in stop.outputs if t.name), "")
    source = layers[0].source
    by = f", by numbers that {_called(source)} makes" if source is not None else ""
    return (
        f"{listing(named)}, since shape inference stops at {_called(stop)}{by}: the sizes of its output "
        f"{output!r} are not known. {_way_out(stop, output)}"
    )


def _way_out(stop: gs.Node, output: str) -> str:
    if is_standard(stop.domain):
        return (
            "If they are computed from constants, simplify the model (onnxslim, onnxsim); if they depend on the data, "
            "cut the model behind it (onnx.utils.extract_model)"
        )
    return (
        f"Record them in the model (onnx.helper.make_tensor_value_info({output!r}, ...) in graph.value_info), or "
        f"register an axis rule for {operator_name(stop.op, stop.domain)} (register_axis_rule, or a plug-in: "
        "docs/plugins.md)"
    )


def _stop(analysis: AxisAnalysis, node: gs.Node) -> gs.Node | None:
    """Where shapes end on the way to ``node``; None where all that it reads and makes has a known shape."""
    unknown = _unknown(analysis, node.inputs)
    if unknown is None:
        return node if _unknown(analysis, node.outputs[:1]) is not None else None
    while unknown is not None and unknown.inputs:
        node = unknown.inputs[0]
        unknown = _unknown(analysis, node.inputs)
    return node


def _source(analysis: AxisAnalysis, stop: gs.Node) -> gs.Node | None:
    """Where the numbers come from that ``stop`` reads its sizes from, as far as they cannot be computed."""
    source: gs.Node | None = None
    tensors = stop.inputs[1:]
    while True:
        unread = (t for t in tensors if len(t.inputs) == 1 and constant_values(t) is None and _is_list(analysis, t))
        tensor = next((t for t in unread if t.name not in analysis.elements and t.name not in analysis.numbers), None)
        if tensor is None:
            return source
        source = tensor.inputs[0]
        tensors = source.inputs


def _is_list(analysis: AxisAnalysis, tensor: gs.Tensor) -> bool:
    axes = analysis.axes.get(tensor.name)
    return axes is not None and len(axes) < 2


def _unknown(analysis: AxisAnalysis, tensors: Sequence[gs.Tensor]) -> gs.Tensor | None:
    return next((t for t in tensors if t.name and t.name in analysis.axes and analysis.axes[t.name] is None), None)


def _called(node: gs.Node) -> str:
    return f"node {node_name(node)!r} ({qualified_operator(node.op, node.domain)})"
