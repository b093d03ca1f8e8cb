"""Passes on onnx-graphsurgeon graphs, and an export that keeps what graphsurgeon's own leaves out.

    from sift_onnx.hosts.graphsurgeon import apply, export_onnx
    from sift_onnx.passes import Wide

    graph = apply(Wide(0.9), gs.import_onnx(onnx.load("in.onnx")))
    onnx.save(export_onnx(graph), "wide.onnx")

``gs.export_onnx`` writes the same tensors, and nothing of the model's metadata: masks are then left as zeros among the
weights, and the model does not say what was done to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_graphsurgeon as gs

from sift_onnx.model import Model, as_kind_of

if TYPE_CHECKING:
    from sift_onnx.passes.base import Pass

__all__ = ["apply", "export_onnx"]


def apply(pass_: Pass, graph: gs.Graph) -> gs.Graph:
    """A graph that ``pass_`` has been applied to; ``graph`` itself is not changed.

    The model's metadata is in its attribute ``metadata_props``.

    Raises:
        SiftError: see the pass.
    """
    result: gs.Graph = as_kind_of(graph, pass_(graph).model)
    return result


def export_onnx(graph: gs.Graph) -> onnx.ModelProto:
    """The graph as a model, with its masks and its metadata.

    Raises:
        UnsupportedError: it is too large for one ModelProto; use ``sift_onnx.save(graph, path)``.
    """
    return Model.load(graph).to_proto()
