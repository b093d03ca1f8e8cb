"""How sparse a node's weight is, in the metadata of the node: viewers such as Netron show it beside the attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import onnx

__all__ = ["NONZEROS_KEY", "SPARSITY_KEY", "note_sparsity"]

SPARSITY_KEY, NONZEROS_KEY = "sift_onnx.sparsity", "sift_onnx.nonzeros"


class Counted(Protocol):
    """A masked weight, or what is recorded of one."""

    @property
    def shape(self) -> Sequence[int] | None:
        """Of the weight; None where it is not known."""

    @property
    def nnz(self) -> int | None:
        """Number of active weights; None where it is not known."""


def note_sparsity(graph: onnx.GraphProto, masked: Mapping[str, Counted]) -> None:
    """Write the share and the number of active weights into the nodes that read masked weights, in place.

    Notes of earlier masks are dropped. They are for readers alone: nothing is ever taken from them.

    Args:
        graph: of the model; its subgraphs are left alone, since masked weights are read in the main graph.
        masked: all masked weights, by initializer name.
    """
    for node in graph.node:
        kept = [entry for entry in node.metadata_props if entry.key not in (SPARSITY_KEY, NONZEROS_KEY)]
        if len(kept) < len(node.metadata_props):
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
        for name in node.input:
            weight = masked.get(name)
            size = math.prod(weight.shape) if weight is not None and weight.shape is not None else 0
            if weight is not None and weight.nnz is not None and size:
                node.metadata_props.add(key=SPARSITY_KEY, value=f"{1 - weight.nnz / size:.2%}")
                node.metadata_props.add(key=NONZEROS_KEY, value=f"{weight.nnz:,} of {size:,}")
                break
