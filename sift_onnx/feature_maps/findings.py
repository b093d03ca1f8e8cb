"""What is found out about a wider model that is to compute what the original did."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CentredInput", "Extent", "Obstacle", "Scaling", "ZeroDemand"]


@dataclass(frozen=True)
class Extent:
    """One axis of one tensor, before and after.

    Attributes:
        tensor: its name.
        axis: which of its axes.
        old: length in the original.
        new: length after widening.
    """

    tensor: str
    axis: int
    old: int
    new: int

    @property
    def grows(self) -> bool:
        """Whether features are added."""
        return self.old != self.new


@dataclass(frozen=True)
class Obstacle:
    """A node behind which old features would not hold what they held.

    Attributes:
        node: its index in the order of the analysis.
        reason: why, as the predicate of a sentence about the node.
        axes: if these keep their sizes, the obstacle is gone.
    """

    node: int
    reason: str
    axes: tuple[Extent, ...]


@dataclass(frozen=True)
class ZeroDemand:
    """What a node does over an axis that grows leaves old features alone if what is added to an input is zero.

    Attributes:
        node: its index in the order of the analysis.
        inputs: one of these inputs has to have zeros there; the first that can is taken.
        reason: what the node does, as the predicate of a sentence about it.
        axes: that must keep their sizes if none of the inputs can.
        part: of the last axis of the input, its new start and end; all of the axis if None.
    """

    node: int
    inputs: tuple[int, ...]
    reason: str
    axes: tuple[Extent, ...]
    part: tuple[int, int] | None = None


@dataclass(frozen=True)
class CentredInput:
    """An input from which a node subtracts the mean over axes that grow, which has to be zero for that.

    Attributes:
        node: index of the node in the order of the analysis.
        input: which of its inputs.
        axes: of the input, that the mean is taken over.
    """

    node: int
    input: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Scaling:
    """An input that is multiplied by a number, so that old features hold what they held.

    Attributes:
        node: index of the node in the order of the analysis.
        input: which of its inputs; a stored one is multiplied where it lies, any other by a node.
        factor: what it is multiplied by.
    """

    node: int
    input: int
    factor: float
