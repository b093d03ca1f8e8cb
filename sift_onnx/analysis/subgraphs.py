"""What the subgraphs of If, Loop and Scan read from around them."""

from __future__ import annotations

import onnx_graphsurgeon as gs

__all__ = ["captured"]


def captured(node: gs.Node) -> set[str]:
    """Names of the tensors that subgraphs of ``node``, at any depth, read but do not make."""
    names: set[str] = set()
    for graph in (value for value in node.attrs.values() if isinstance(value, gs.Graph)):
        made = {t.name for t in graph.inputs} | {t.name for inner in graph.nodes for t in inner.outputs}
        read = {t.name for t in graph.outputs} | {t.name for inner in graph.nodes for t in inner.inputs}
        read.update(name for inner in graph.nodes for name in captured(inner))
        names |= {name for name in read - made if name}
    return names
