"""Names of tensors."""

from __future__ import annotations

import itertools

import onnx_graphsurgeon as gs

__all__ = ["free_name", "names_in"]


def names_in(graph: gs.Graph) -> set[str]:
    """The names of all tensors, those of subgraphs among them."""
    return {name for level in [graph, *graph.subgraphs(recursive=True)] for name in level.tensors()}


def free_name(name: str, taken: set[str]) -> str:
    """``name``, with a number at the end if it is taken; it is added to ``taken``."""
    free = next(n for n in itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1))) if n not in taken)
    taken.add(free)
    return free
