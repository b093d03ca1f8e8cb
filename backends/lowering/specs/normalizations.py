"""Normalizations by statistics of the operand, and softmax."""

from __future__ import annotations

from dataclasses import dataclass, field

from sift_onnx.backends.lowering.weights import Floats

__all__ = ["CumulativeSum", "GroupNormalization", "LayerNormalization", "Softmax"]


@dataclass(frozen=True)
class LayerNormalization:
    """(x - mean) / sqrt(max(variance, least) + epsilon) * scale + shift, over the channels of each row or pixel.

    Attributes:
        scale: [c].
        shift: [c].
        epsilon: what is added to the variance.
        is_centered: RMS normalization, which takes the mean to be zero, is not.
        least: what the variance counts as at least; vectors of length one have it.
    """

    scale: Floats = field(repr=False)
    shift: Floats = field(repr=False)
    epsilon: float
    is_centered: bool = True
    least: float = 0.0


@dataclass(frozen=True)
class GroupNormalization:
    """(x - mean) / sqrt(variance + epsilon) * scale + shift, of each group of channels of an image by itself.

    Attributes:
        scale: [c].
        shift: [c].
        groups: how many there are.
        epsilon: what is added to the variance.
    """

    scale: Floats = field(repr=False)
    shift: Floats = field(repr=False)
    groups: int
    epsilon: float


@dataclass(frozen=True)
class Softmax:
    """exp(x) by its sum along an axis.

    Attributes:
        is_log: whether the result is the logarithm of that.
        axis: -1 are the channels of rows, and 1 those of images.
    """

    is_log: bool = False
    axis: int = -1


@dataclass(frozen=True)
class CumulativeSum:
    """Sums of the channels up to each.

    Attributes:
        is_exclusive: whether a value is no part of its own sum.
        is_reversed: whether sums begin at the last value.
    """

    is_exclusive: bool = False
    is_reversed: bool = False
