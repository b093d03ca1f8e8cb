"""Attention as one operator."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NO_ROUNDINGS", "Attention", "AttentionRoundings", "Rounding"]


@dataclass(frozen=True)
class Rounding:
    """What quantizing and dequantizing leaves of a number x: ``scale * clip(round(x * steps), low, high)``."""

    steps: float
    scale: float
    low: float
    high: float


@dataclass(frozen=True)
class AttentionRoundings:
    """Where a quantized model rounds within attention.

    Attributes:
        scores: before the mask, one after the other.
        masked: before the softmax, likewise.
        weights: behind the softmax, likewise.
    """

    scores: tuple[Rounding, ...] = ()
    masked: tuple[Rounding, ...] = ()
    weights: tuple[Rounding, ...] = ()


NO_ROUNDINGS = AttentionRoundings()


@dataclass(frozen=True)
class Attention:
    """softmax(scale q k + mask) v, head by head.

    The operands are q [..., tokens, depth], k [..., depth, keys] and v [..., keys, value_depth], where the keys may be
    of the same tokens or of others, as an encoder's in a decoder. The axes before are those of sequences and heads, or
    of both in one, where ``heads`` is 1.

    Attributes:
        heads: how many there are.
        depth: channels of a head's queries and keys.
        value_depth: channels of a head's values.
        scale: of the scores.
        head_scales: of those of each head, besides; none are ones.
        nan_to_zero: whether a token whose weights are NaN, since it attends to nothing, gets zeros.
        repeats_mask: whether sequences take the masks in turn, as windows of one image after the other do.
        roundings: of scores and weights.
    """

    heads: int
    depth: int
    value_depth: int
    scale: float
    nan_to_zero: bool = False
    repeats_mask: bool = False
    head_scales: tuple[float, ...] = ()
    roundings: AttentionRoundings = NO_ROUNDINGS
