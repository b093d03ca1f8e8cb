"""Models without the choices of an ``If`` that constants and known sizes decide, as torch exports ``tile``."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from sift_onnx.graphs.branches import conditions, take_branch
from sift_onnx.graphs.constants import array_of
from sift_onnx.model import Model
from sift_onnx.shapes.inference import infer_values

__all__ = ["with_decided_branches"]


def with_decided_branches(model: Model) -> Model:
    """``model``, or a copy with one branch in the place of each ``If`` that goes the same way in every run.

    Inference does not look into branches, so what is behind such a node has no shape otherwise.
    """
    taken = model
    while waiting := _computed(taken.graph):
        decided = _decided(taken, waiting)
        if not decided:
            break
        taken = taken.copy() if taken is model else taken
        for name, value in decided.items():
            take_branch(taken.graph, name, value)
    return taken


def _computed(graph: gs.Graph) -> tuple[str, ...]:
    """Conditions that are not inputs of the model."""
    given = {tensor.name for tensor in graph.inputs if not isinstance(tensor, gs.Constant)}
    return tuple(name for name in conditions(graph) if name not in given)


def _decided(model: Model, names: tuple[str, ...]) -> dict[str, bool]:
    constants = {name: tensor for name, tensor in model.graph.tensors().items() if isinstance(tensor, gs.Constant)}
    found = {name: array_of(constants[name]) for name in names if name in constants}
    if len(found) < len(names):
        try:
            found |= infer_values(model.skeleton())[1]
        except Exception:  # native code: a damaged model makes it fail in many ways
            return {}
    return {name: bool(found[name].reshape(())) for name in names if name in found and found[name].size == 1}
