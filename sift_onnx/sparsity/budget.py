"""Budgets: how many non-zeros each layer gets, so that together they cost a given number of multiply-accumulates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from sift_onnx.errors import BudgetError, UsageError

__all__ = ["DISTRIBUTIONS", "BudgetLayer", "Distribution", "allocate", "check_distribution", "shares"]

Distribution = Literal["uniform", "erk"]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)


@dataclass(frozen=True)
class BudgetLayer:
    """A layer that is to become sparse.

    Attributes:
        name: of its weight.
        macs: of the original layer.
        positions: multiply-accumulates per weight of the transformed layer.
        weights: number of weights of the transformed layer.
        capacity: the most non-zeros that its pattern allows; ``weights`` if None.
        unit: its non-zeros come in multiples of this, blocks say.
        dims: sum of the sizes of the transformed weight, ``C_out + C_in + kh + kw``; only ``erk`` asks for it.
    """

    name: str
    macs: int
    positions: int
    weights: int
    capacity: int | None = None
    unit: int = 1
    dims: int = 0

    @property
    def limit(self) -> int:
        """The most non-zeros that it can have."""
        return self.weights if self.capacity is None else self.capacity


def check_distribution(name: str) -> Distribution:
    """``name``, if there is such a distribution.

    Raises:
        UsageError: there is none.
    """
    for known in DISTRIBUTIONS:
        if name == known:
            return known
    raise UsageError(f"distribution {name!r} is unknown; choose one of {', '.join(DISTRIBUTIONS)}")


def shares(
    layers: Sequence[BudgetLayer], target: int, distribution: Distribution = "uniform"
) -> Mapping[str, Fraction]:
    """The exact, fractional number of non-zeros of each layer; together they cost ``target`` MACs.

    * ``uniform``: in proportion to the MACs of the original layer, which for layers that grow alike means one sparsity.
    * ``erk``, Erdős-Rényi kernel (Mocanu et al. 2018; Evci et al. 2020, section 3): the density of a layer is in
      proportion to the sum over the product of the sizes of its weight, the non-zeros therefore to their sum. A layer
      that would get more than it can hold gets that, and the rest is distributed again. The scale is chosen such that
      the MACs, not the parameters, meet the budget.

    Raises:
        BudgetError: ``erk`` leaves MACs over when every layer holds what it can.
    """
    if distribution == "uniform":
        total = sum(layer.macs for layer in layers)
        if not total:
            return {layer.name: Fraction(0) for layer in layers}
        return {layer.name: Fraction(target * layer.macs, total * layer.positions) for layer in layers}
    found: dict[str, Fraction] = {}
    open_layers, left = list(layers), target
    while open_layers:
        slope = sum(layer.dims * layer.positions for layer in open_layers)
        scale = Fraction(left, slope) if slope else Fraction(0)
        saturated = [layer for layer in open_layers if scale * layer.dims >= layer.limit]
        if not saturated:
            return found | {layer.name: scale * layer.dims for layer in open_layers}
        found.update({layer.name: Fraction(layer.limit) for layer in saturated})
        left -= sum(layer.limit * layer.positions for layer in saturated)
        open_layers = [layer for layer in open_layers if layer.name not in found]
    if left > 0:
        raise BudgetError(f"the budget of {target:,} MACs is {left:,} more than all sparse layers can use")
    return found


def allocate(layers: Sequence[BudgetLayer], target: int, distribution: Distribution = "uniform") -> dict[str, int]:
    """Non-zeros for each layer that together come nearest below ``target`` MACs.

    The :func:`shares` are rounded down to whole units, and what that leaves is handed out, at most one unit a layer, to
    expensive layers first. So each layer is within one unit of its share, and what is left of ``target`` pays for no
    further unit in any layer that is below its share: less than ``unit * positions`` of the cheapest of these.

    Args:
        layers: the layers that become sparse.
        target: MACs that they may use together.
        distribution: how they share them, see :func:`shares`.

    Returns:
        Weight name -> non-zeros.

    Raises:
        BudgetError: a layer's share is less than one unit, or more than it can hold.
    """
    exact = shares(layers, target, distribution)
    nnz: dict[str, int] = {}
    for layer in layers:
        share = exact[layer.name]
        if share < layer.unit:
            what = "no non-zero weight" if layer.unit == 1 else f"not one block of {layer.unit} weights"
            raise BudgetError(f"the budget leaves {what} for {layer.name!r}")
        if share > layer.limit:
            what = "weights" if layer.limit == layer.weights else f"room for under its mask, of {layer.weights} weights"
            raise BudgetError(f"the budget asks for more non-zeros than {layer.name!r} has {what} ({layer.limit})")
        nnz[layer.name] = int(share) // layer.unit * layer.unit
    left = target - sum(nnz[layer.name] * layer.positions for layer in layers)
    for layer in sorted(layers, key=lambda layer: (-layer.positions, layer.name)):
        name, price = layer.name, layer.unit * layer.positions
        if nnz[name] < exact[name] and nnz[name] + layer.unit <= layer.limit and price <= left:
            nnz[name] += layer.unit
            left -= price
    return nnz
