"""Active weights that are zero: how many there are, and what that means for a measurement.

A branch that starts at zero has layers of nothing else. Programs that tell pruned weights by their value leave such
layers out, and have them to compute from the first training step on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sift_onnx.analysis.unanalyzed_layers import stored_weights
from sift_onnx.errors import listing
from sift_onnx.graphs.constants import active_zeros_of, nnz_of
from sift_onnx.model import Model

__all__ = ["ActiveZeros", "active_zero_warnings", "active_zeros"]

# From this share on they are worth a warning: few are zero in a model that was trained.
_NOTICEABLE = 0.01


@dataclass(frozen=True)
class ActiveZeros:
    """What there is of them in one weight.

    Attributes:
        name: of the initializer.
        active: number of active weights.
        zeros: how many of them are zero.
    """

    name: str
    active: int
    zeros: int


def active_zeros(model: Model) -> list[ActiveZeros]:
    """The floating-point weights of ``model`` by name, those in subgraphs among them."""
    found: dict[str, ActiveZeros] = {}
    for graph in [model.graph, *model.graph.subgraphs(recursive=True)]:
        for node in graph.nodes:
            for constant in stored_weights(node):
                name = str(constant.name)
                if name not in found:
                    found[name] = ActiveZeros(name, nnz_of(constant), active_zeros_of(constant))
    return list(found.values())


def active_zero_warnings(layers: Sequence[ActiveZeros]) -> list[str]:
    """What is said of a model of which a noticeable share of the active weights is zero."""
    active, zeros = sum(layer.active for layer in layers), sum(layer.zeros for layer in layers)
    if not zeros or zeros < _NOTICEABLE * active:
        return []
    return [
        f"{zeros / active:.1%} of the active weights are zero ({zeros:,} of {active:,}): {_where(layers)}. "
        "A program that leaves out zeros by their value is faster on such weights than on trained ones. "
        "Before it is timed, train the model, or export it with branches that do not start at zero"
    ]


def _where(layers: Sequence[ActiveZeros]) -> str:
    only = [repr(layer.name) for layer in layers if layer.zeros and layer.zeros == layer.active]
    if only:
        return f"{len(only)} layer{'s have' if len(only) > 1 else ' has'} only zeros, {listing(only)}"
    some = sorted((layer for layer in layers if layer.zeros), key=lambda layer: -layer.zeros)
    return f"no layer has only zeros; most are in {listing([repr(layer.name) for layer in some])}"
