"""Nodes that compute something else in training than at inference, and nodes that draw.

At inference an output depends on its own sample alone. It does not where

- BatchNormalization is in training mode, and normalizes by the statistics of the batch: from opset 14 on with
  ``training_mode=1``, in opsets 7 to 13 with more than one output, and before with ``is_test=0``, which is the default;
- it is not, but the exporter put nodes in front of it that compute those statistics, as both of torch's exporters do
  for ``track_running_stats=False``;
- Dropout drops: from opset 12 on with a third input that is true, and before opset 7 with ``is_test=0``. In between it
  has no mode, and every runtime hands its input on;
- onnxruntime's fusions of Dropout do, which have such an input too;
- a node draws random numbers.

What is normalized without any data in it, a weight that is standardized, is the same for every sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from sift_onnx.errors import listing
from sift_onnx.graphs.constants import array_of, constant_values
from sift_onnx.graphs.walks import origin_of
from sift_onnx.operators.domains import MICROSOFT, is_standard
from sift_onnx.operators.labels import node_label, node_name
from sift_onnx.operators.traits import DRAWING
from sift_onnx.operators.weight_operands import STATISTICS

__all__ = [
    "TrainingNode",
    "drawing_nodes",
    "every_node",
    "has_is_test",
    "has_modes",
    "in_words",
    "mode_note",
    "training_input",
    "training_nodes",
]

# The input that is the training mode, of onnxruntime's fusions of Dropout.
_FUSED_DROPOUTS = {"BiasDropout": 4, "BitmaskBiasDropout": 4, "BitmaskDropout": 2}
_TRAINING_MODE_INPUT = 2
# Of the standard domain: from here on Dropout has an input, and BatchNormalization an attribute, that is its mode.
_DROPOUT_HAS_INPUT, _NORM_HAS_ATTRIBUTE = 12, 14
# Before it, both have the attribute is_test.
_NO_IS_TEST = 7


@dataclass(frozen=True)
class TrainingNode:
    """A node that is in training mode, or may be.

    Attributes:
        node: BatchNormalization or Dropout.
        graph: where it is: the main graph, a subgraph or a function.
        version: of the standard operator set there.
        obstacle: why it cannot be put into inference mode, and the way out; empty if it can.
    """

    node: gs.Node
    graph: gs.Graph
    version: int
    obstacle: str


def in_words(nodes: Sequence[gs.Node]) -> str:
    """The first of some nodes by name and operator, and how many more there are."""
    return listing([node_label(node) for node in nodes])


def mode_note(names: Sequence[str]) -> str:
    """What is said where nodes of some names were put into inference mode."""
    were = "1 node was" if len(names) == 1 else f"{len(names)} nodes were"
    return f"{were} exported in training mode, and put into inference mode: {listing([repr(name) for name in names])}"


def training_nodes(graph: gs.Graph) -> list[TrainingNode]:
    """The nodes of a graph, its subgraphs and its functions that are in training mode, or may be."""
    found: list[TrainingNode] = []
    for level in _levels(graph):
        shown = {id(tensor) for tensor in level.outputs}
        version = int(level.opset or graph.opset)
        for node in level.nodes:
            if node.op == "BatchNormalization" and is_standard(node.domain):
                obstacle = _of_norm(node, version, shown)
            else:
                obstacle = _of_dropout(node, version, shown)
            if obstacle is not None:
                found.append(TrainingNode(node, level, version, obstacle))
    return found


def every_node(graph: gs.Graph) -> Iterator[gs.Node]:
    """The nodes of a graph, its subgraphs and its functions."""
    for level in _levels(graph):
        yield from level.nodes


def has_modes(graph: gs.Graph) -> bool:
    """Whether a graph or a subgraph holds a node that may train, in whatever mode it is."""
    kinds = ("BatchNormalization", "Dropout", *_FUSED_DROPOUTS)
    return any(node.op in kinds for node in every_node(graph))


def drawing_nodes(graph: gs.Graph) -> list[gs.Node]:
    """The nodes of a graph, its subgraphs and its functions that draw random numbers whenever the model runs."""
    return [node for node in every_node(graph) if node.op in DRAWING]


def training_input(node: gs.Node, version: int) -> int | None:
    """The input of a node that says whether it is in training mode; None if it has none."""
    if node.op == "Dropout" and is_standard(node.domain):
        position = _TRAINING_MODE_INPUT if version >= _DROPOUT_HAS_INPUT else None
    else:
        position = _FUSED_DROPOUTS.get(node.op) if node.domain == MICROSOFT else None
    given = position is not None and len(node.inputs) > position and not node.inputs[position].is_empty()
    return position if given else None


def has_is_test(version: int) -> bool:
    """Whether BatchNormalization and Dropout of an opset say with ``is_test`` that they are not in training mode."""
    return version < _NO_IS_TEST


def _levels(graph: gs.Graph) -> Iterator[gs.Graph]:
    for level in (graph, *graph.functions):
        yield level
        yield from level.subgraphs(recursive=True)


def _of_norm(node: gs.Node, version: int, shown: set[int]) -> str | None:
    """The obstacle of a BatchNormalization; None if it is not in training mode."""
    if len(node.inputs) <= max(STATISTICS):
        return None
    statistics = [node.inputs[i] for i in STATISTICS]
    computed = [tensor for tensor in statistics if constant_values(tensor) is None]
    of_batch = any(_is_made_of(tensor, node.inputs[0]) for tensor in computed)
    if not (of_batch or _norm_trains(node, version)) or not _is_of_data(node.inputs[0]):
        return None
    if of_batch:
        return (
            "the file has no running statistics of it, they are computed of each batch (track_running_stats=False); "
            "export a network that keeps running statistics, or one with GroupNorm, LayerNorm or InstanceNorm"
        )
    return _readers(node, shown, "running statistics")


def _norm_trains(node: gs.Node, version: int) -> bool:
    if version >= _NORM_HAS_ATTRIBUTE:
        return _flag(node, "training_mode")
    outputs = [tensor for tensor in node.outputs if not tensor.is_empty()]
    return len(outputs) > 1 or (has_is_test(version) and not _flag(node, "is_test"))


def _of_dropout(node: gs.Node, version: int, shown: set[int]) -> str | None:
    """The obstacle of a Dropout; None if the node is none, or is not in training mode."""
    position = training_input(node, version)
    if position is None:
        standard = node.op == "Dropout" and is_standard(node.domain)
        trains = standard and has_is_test(version) and not _flag(node, "is_test")
        return _readers(node, shown, "mask") if trains else None
    flag = _stored_flag(node.inputs[position])
    if flag is None:
        name = node.inputs[position].name
        return (
            f"its training_mode {name!r} is not a constant, so that the mode is known only when the model runs; "
            "export the network after model.eval()"
        )
    return _readers(node, shown, "mask") if flag else None


def _flag(node: gs.Node, name: str) -> bool:
    value = node.attrs.get(name, 0)
    # In a function it may be an attribute of the call, which is known where the function is inlined.
    return isinstance(value, (bool, int)) and bool(value)


def _readers(node: gs.Node, shown: set[int], what: str) -> str:
    """Why the outputs that only training has cannot go; empty if they can."""
    for tensor in node.outputs[1:]:
        # Old exporters write new statistics over the old ones.
        readers = [reader for reader in tensor.outputs if reader is not node]
        if readers or id(tensor) in shown:
            by = f"node {node_name(readers[0])!r} reads" if readers else "the model returns"
            return f"{by} its {what} {tensor.name!r}, which it has in training mode only; export after model.eval()"
    return ""


def _stored_flag(tensor: gs.Tensor) -> bool | None:
    """The value of a flag that is stored, through nodes that hand it on; None for one that is not."""
    origin, passed = origin_of(tensor, ("Cast", "Identity", "Not"))
    constant = constant_values(origin)
    if constant is None:
        return None
    negated = bool(sum(node.op == "Not" for node in passed) % 2)
    return bool(array_of(constant).reshape(-1)[0]) != negated


def _is_made_of(tensor: gs.Tensor, other: gs.Tensor) -> bool:
    """Whether a tensor is computed of another one."""
    return any(reached is other for reached in _behind(tensor))


def _is_of_data(tensor: gs.Tensor) -> bool:
    """Whether a tensor depends on more than what is stored: on inputs, on what is drawn, on the state of a loop."""
    return any(
        not isinstance(reached, gs.Constant)
        and (not reached.inputs or any(n.op in DRAWING or list(n.subgraphs()) for n in reached.inputs))
        for reached in _behind(tensor)
    )


def _behind(tensor: gs.Tensor) -> Iterator[gs.Tensor]:
    """A tensor, and all that it is computed of."""
    pending, seen = [tensor], {id(tensor)}
    while pending:
        current = pending.pop()
        yield current
        for node in current.inputs:
            for read in node.inputs:
                if not read.is_empty() and id(read) not in seen:
                    seen.add(id(read))
                    pending.append(read)
