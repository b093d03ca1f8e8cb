"""Erdős-Rényi-Kernel densities: which layers get more of a common number of non-zeros."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sift_onnx.sparsity.budget import BudgetLayer, allocate
from sift_onnx.training.sparse.schedules.share import Share, ShareLike

__all__ = ["erk_counts"]


def erk_counts(
    shapes: Mapping[str, Sequence[int]],
    sparsity: ShareLike,
    capacities: Mapping[str, int] | None = None,
    units: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Non-zeros of each weight, ``floor((1 - sparsity) * total)`` together to within one unit.

    The density of a weight is in proportion to the sum over the product of its sizes (Evci et al. 2020, section 3);
    weights that would be more than full are full, and the others share the rest. Unlike the transforms, which spend a
    budget of multiply-accumulates, this spends one of non-zeros, as RigL and cbsparse do.

    Args:
        shapes: of the weights, by name.
        sparsity: of all of them together.
        capacities: the most non-zeros that a weight may have, if that is not all.
        units: non-zeros come in multiples of this, blocks say; 1 where it is not given.

    Raises:
        BudgetError: a weight would be left without a non-zero.
    """
    layers = [
        BudgetLayer(
            name,
            macs=math.prod(shape),
            positions=1,
            weights=math.prod(shape),
            capacity=None if capacities is None else capacities.get(name),
            unit=1 if units is None else units.get(name, 1),
            dims=sum(shape),
        )
        for name, shape in shapes.items()
    ]
    density = 1 - Share(sparsity).clamped().exact
    return allocate(layers, math.floor(density * sum(layer.weights for layer in layers)), "erk")
