"""Channel shuffles: Reshape to groups of channels, Transpose of groups and channels, Reshape back.

They come from ShuffleNet (Zhang et al., 2018), spelled in three nodes by every exporter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sift_onnx.backends.lowering.dims import Dims, product
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.specs import Channels

__all__ = ["ShuffleMatch", "find_shuffles"]

# A list with the index of each channel is made.
_MOST_CHANNELS = 1 << 20


@dataclass(frozen=True)
class ShuffleMatch:
    """Nodes that are a shuffle.

    Attributes:
        nodes: their indices; the last one makes the result.
        operand: what is shuffled.
        spec: its channels in their new order.
    """

    nodes: tuple[int, ...]
    operand: str
    spec: Channels


def find_shuffles(graph: GraphView) -> list[ShuffleMatch]:
    """Every shuffle of channels of images, by its Transpose."""
    found = (_match(graph, index) for index, node in enumerate(graph.nodes) if is_standard_op(node, "Transpose"))
    return [match for match in found if match is not None]


def _match(graph: GraphView, index: int) -> ShuffleMatch | None:
    turn = graph.nodes[index]
    apart = graph.producers.get(turn.input[0])
    together = graph.only_reader(turn.output[0])
    if apart is None or together is None or graph.only_reader(turn.input[0]) != index:
        return None
    first, last = graph.nodes[apart], graph.nodes[together]
    if not (is_standard_op(first, "Reshape") and is_standard_op(last, "Reshape") and last.input[0] == turn.output[0]):
        return None
    operand, grouped, result = (graph.dims(name) for name in (first.input[0], turn.input[0], last.output[0]))
    order = next((list(a.ints) for a in turn.attribute if a.name == "perm"), [])
    if operand is None or grouped is None or operand != result or len(operand) != 4 or len(grouped) < 4:
        return None
    groups, channels = grouped[1:3]
    if order != [0, 2, 1, *range(3, len(grouped))] or not _only_splits_channels(operand, grouped):
        return None
    assert isinstance(groups, int) and isinstance(channels, int)
    if groups * channels > _MOST_CHANNELS:
        return None
    taken = np.arange(groups * channels).reshape(groups, channels).T.reshape(-1)
    return ShuffleMatch((apart, index, together), first.input[0], Channels(tuple(map(int, taken)), 1))


def _only_splits_channels(operand: Dims, grouped: Dims) -> bool:
    """Whether the images and the pixels of both are the same, and all channels are counted."""
    groups, channels = grouped[1:3]
    return (
        isinstance(groups, int)
        and isinstance(channels, int)
        and grouped[0] == operand[0]
        and groups * channels == operand[1]
        and product(grouped[3:]) == product(operand[2:])
    )
