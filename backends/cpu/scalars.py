"""What the spelled-out operators are recognized by: numbers among the constants, and values with one reader."""

from __future__ import annotations

from sift_onnx.backends.cpu.graph import GraphView

__all__ = ["only_reader", "other_scalar", "scalar"]


def scalar(graph: GraphView, name: str) -> float | None:
    """The number that a constant of one element is, or one that follows from sizes."""
    return graph.number(name)


def other_scalar(graph: GraphView, index: int, name: str) -> float | None:
    """The number beside ``name`` among the two inputs of a node."""
    first, second = graph.nodes[index].input
    return scalar(graph, second if first == name else first)


def only_reader(graph: GraphView, name: str, but_shape: bool = False) -> int | None:
    """The index of the only node that reads a value, which is no output; with ``but_shape``, Shape does not count."""
    readers = graph.readers.get(name, [])
    if but_shape:
        readers = [index for index in readers if graph.nodes[index].op_type != "Shape"]
    return readers[0] if len(readers) == 1 and name not in graph.outputs else None
