"""The constants of a graph that write-back can find again by name."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import constant_values

__all__ = ["stored_constants"]


def stored_constants(graph: gs.Graph) -> dict[str, gs.Constant]:
    """Initializers by name, and values of Constant nodes by the name of the node's output."""
    found = {name: constant_values(tensor) for name, tensor in graph.tensors().items()}
    return {name: constant for name, constant in found.items() if constant is not None}
