"""Merged decoders: an ``If`` that runs one graph for the prompt and another one for all tokens after it.

optimum writes them. The branch with a cache takes an empty one too, so it alone makes a decoder.
"""

from __future__ import annotations

from sift_onnx.graphs.branches import choosing_inputs, take_branch
from sift_onnx.model import Model

__all__ = ["with_cache_branch"]

# The input that chooses.
_CONDITION = "use_cache_branch"


def with_cache_branch(model: Model) -> Model | None:
    """The model with the branch for a cache in the place of each such ``If``, without the input if it only chose.

    Returns:
        None for a model that is not merged.
    """
    if _CONDITION not in choosing_inputs(model.graph):
        return None
    made = model.copy()
    take_branch(made.graph, _CONDITION, value=True)
    made.graph.inputs = [tensor for tensor in made.graph.inputs if tensor.name != _CONDITION or tensor.outputs]
    return made
