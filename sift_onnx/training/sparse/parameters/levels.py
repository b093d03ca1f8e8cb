"""The sparsity of each parameter at a step: its schedule's, or its part of a common one by Erdős-Rényi-Kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from sift_onnx.errors import UsageError
from sift_onnx.sparsity.budget import BudgetLayer, allocate, check_distribution
from sift_onnx.sparsity.patterns.pattern import Pattern
from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter
from sift_onnx.training.sparse.schedules.share import Share, ShareLike

__all__ = ["Levels", "erk_counts"]


class Levels:
    """Sparsities under a distribution.

    Attributes:
        distribution: ``uniform``: every parameter has the sparsity of its schedule; ``erk``: all parameters of a
            schedule have it together.
    """

    def __init__(self, distribution: str = "uniform") -> None:
        self.distribution = check_distribution(distribution)
        self._counts: dict[tuple[int, Share], dict[str, int]] = {}

    def of(self, sparse: SparseParameter, params: Mapping[str, SparseParameter], step: int, pattern: Pattern) -> Share:
        """The sparsity of one parameter, within [0, 1].

        Args:
            sparse: the parameter.
            params: all parameters of its algorithm.
            step: number of optimizer steps so far.
            pattern: of the masks.

        Raises:
            UsageError: not a number; the message names the parameter.
            BudgetError: ``erk`` leaves a parameter without a weight.
        """
        try:
            level = sparse.schedule(step).clamped()
        except UsageError as error:
            raise UsageError(f"sparsity of {sparse.name!r} at step {step}: {error}") from error
        if self.distribution == "uniform":
            return level
        key = (id(sparse.schedule), level)
        if key not in self._counts:
            together = {name: other for name, other in params.items() if other.schedule is sparse.schedule}
            structured = pattern.kind != "unstructured"
            counts = erk_counts(
                {name: tuple(other.shape) for name, other in together.items()},
                level,
                {name: pattern.capacity(other.matrix) for name, other in together.items()} if structured else None,
                {name: pattern.unit for name in together} if structured else None,
            )
            self._counts = {key: counts}
        return Share(1 - Fraction(self._counts[key][sparse.name], sparse.numel))


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
