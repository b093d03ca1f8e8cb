"""Graphs that a step of the lowering rewrites, against what they were."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from nets import Net
from onnx.reference import ReferenceEvaluator

from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.model import Model

__all__ = ["operators_left"]


def operators_left(net: Net, rewrite: Callable[[GraphView], GraphView], tolerance: float = 0.0) -> list[str]:
    """The operators of the rewritten model, which computes what the model did, up to ``tolerance`` times each value.

    Each node of the model has another in its place, which reports name.
    """
    model = net.model()
    graph = GraphView(Model.load(model))
    view = rewrite(graph)
    onnx.checker.check_model(view.proto)
    wanted, found = (ReferenceEvaluator(own).run(None, net.feeds) for own in (model, view.proto))
    for array, other in zip(wanted, found, strict=True):
        assert array.dtype == other.dtype
        np.testing.assert_allclose(array, other, rtol=tolerance, atol=tolerance / 10)
    assert [node for node, _ in view.origin] == list(graph.nodes)
    assert all(index in range(len(view.nodes)) for _, index in view.origin)
    return [node.op_type for node in view.nodes]
