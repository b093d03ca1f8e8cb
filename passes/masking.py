"""What masks look like and how layers share a budget: the settings that passes with masks have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from sift_onnx.analysis.cost import Evaluate, positions_of
from sift_onnx.analysis.findings import WeightLayer
from sift_onnx.errors import BudgetError, UsageError
from sift_onnx.graphs.constants import is_masked, nnz_of, shape_of
from sift_onnx.sparsity.budget import BudgetLayer, Distribution, shares
from sift_onnx.sparsity.patterns.pattern import UNSTRUCTURED, Pattern
from sift_onnx.sparsity.patterns.weight_matrix import WeightMatrix

__all__ = ["Growth", "Masking", "active_weights", "matrix_of", "require_room"]


@dataclass(frozen=True)
class Masking:
    """Pattern and distribution of the masks of a model.

    Attributes:
        pattern: which weights of a layer may be active together.
        distribution: how layers share a budget.
    """

    pattern: Pattern = UNSTRUCTURED
    distribution: Distribution = "uniform"

    @classmethod
    def of(cls, pattern: str | Pattern, distribution: Distribution = "uniform") -> Masking:
        """From the spelling of a pattern.

        Raises:
            UsageError: there is no such pattern.
        """
        return cls(Pattern.parse(pattern), distribution)

    def check_sparsity(self, sparsity: Fraction) -> None:
        """Refuse a sparsity at which the pattern would have to keep more than it can; 0 means no mask at all.

        Raises:
            UsageError: it names the smallest sparsity that the pattern can have.
        """
        least = 1 - self.pattern.density
        if 0 < sparsity < least:
            raise UsageError(
                f"`pattern='{self.pattern}'` leaves at most {self.pattern.first} of {self.pattern.second} weights, and "
                f"a sparsity of {float(sparsity):g} more; use a sparsity of {_decimal(least)} or above"
            )

    def budget_layer(
        self, layer: WeightLayer, macs: int, evaluate: Evaluate, capacity: int | None = None
    ) -> BudgetLayer:
        """A layer as :func:`sift_onnx.sparsity.budget.allocate` asks for it.

        Args:
            layer: the layer, which the pattern fits.
            macs: of the original layer.
            evaluate: sizes after the transform.
            capacity: the most non-zeros it can have; what the pattern leaves if None.
        """
        matrix = matrix_of(layer, evaluate)
        return BudgetLayer(
            layer.name,
            macs,
            positions_of(layer, evaluate),
            matrix.size,
            self.pattern.capacity(matrix) if capacity is None else capacity,
            self.pattern.unit,
            sum(matrix.shape),
        )


def active_weights(layer: WeightLayer) -> int:
    """Weights of a layer that its mask, if it has one, lets through; a weight that happens to be zero is active."""
    return nnz_of(layer.constant) if is_masked(layer.constant) else math.prod(shape_of(layer.constant))


def matrix_of(layer: WeightLayer, evaluate: Evaluate) -> WeightMatrix:
    """The weight of a layer, at the sizes that ``evaluate`` gives, as the matrices that patterns are stated on."""
    return WeightMatrix(tuple(evaluate(axis.size) for axis in layer.axes), layer.out_axis, layer.in_axis)


@dataclass(frozen=True)
class Growth:
    """How a layer has been widened.

    Attributes:
        weights: of the original.
        axes: how many of its axes grow with ``k``, 1 or 2.
    """

    weights: int
    axes: int


def require_room(
    layers: Sequence[BudgetLayer], target: int, masking: Masking, sparsity: Fraction, growth: Mapping[str, Growth]
) -> None:
    """Refuse a budget that needs more non-zeros than an N:M pattern leaves in layers that have been widened.

    The budget fixes the non-zeros of a layer. Its weights are the original's times ``k ** a`` or, since widths are
    rounded up, more, with ``a`` the number of its axes that grow and ``k ** 2 = 1 / (1 - s)``. So there is room where
    ``1 - s <= (N / M * weights / non-zeros) ** (2 / a)``, which is 1/4 for a layer under 2:4 that grows on one side.

    Args:
        layers: the layers that become sparse.
        target: MACs that they use together.
        masking: how.
        sparsity: that was asked for.
        growth: of each layer.

    Raises:
        BudgetError: it names what needs the highest sparsity, and one that is enough.
    """
    density = masking.pattern.density
    if density == 1:
        return
    kept: dict[str, float] = {}
    if masking.distribution == "uniform":
        exact = shares(layers, target)
        for layer in layers:
            share, grown = exact[layer.name], growth[layer.name]
            if share > layer.limit:
                kept[repr(layer.name)] = float(density * grown.weights / share) ** (2 / grown.axes)
    elif target > sum(layer.limit * layer.positions for layer in layers):
        room = density * sum(growth[layer.name].weights * layer.positions for layer in layers)
        kept["the sparse layers together"] = float(room / target) ** (2 / min(growth[x.name].axes for x in layers))
    if kept:
        name = min(kept, key=kept.__getitem__)
        enough = _decimal(1 - Fraction(kept[name]))
        raise BudgetError(
            f"at a sparsity of {float(sparsity):g} the budget asks for more non-zeros in {name} than "
            f"`pattern='{masking.pattern}'` leaves; use a sparsity of {enough} or above, or keep layers that grow on "
            "one side only dense (`keep_dense`)"
        )


def _decimal(sparsity: Fraction) -> str:
    """Rounded up, so that what is named is enough."""
    return f"{math.ceil(sparsity * 10000) / 10000:g}"
