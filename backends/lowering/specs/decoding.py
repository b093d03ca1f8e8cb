"""What decoders compute besides what other models do: attention to a cache, and angles of positions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from sift_onnx.backends.lowering.dims import Dim
from sift_onnx.backends.lowering.weights import Floats

__all__ = ["NOTHING", "CacheNames", "CachedAttention", "MaskPart", "Rotated", "TableRows"]


@dataclass(frozen=True)
class CachedAttention:
    """softmax(cap(scale q k) + mask) v, with keys and values of the new tokens appended to those of the tokens before.

    The operands are queries, and keys and values of the new tokens: [sequences, heads, tokens, depth] where they are
    parted, [sequences, tokens, heads depth] otherwise. The cache is named by the step.

    Attributes:
        heads: of queries.
        key_heads: of keys and values; each is of ``heads / key_heads`` heads of queries.
        depth: channels of a head's queries and keys.
        value_depth: channels of a head's values.
        scale: of the scores.
        appends: whether there are new keys and values; otherwise the cache is read, as that of another text, and the
            queries are the only operand.
        is_causal: whether a token attends to itself and those before it alone.
        window: how many tokens a causal one attends to at most, itself included; 0 is all of them.
        softcap: a score s is capped to ``softcap tanh(s / softcap)``; 0 leaves it.
        nan_to_zero: whether a token whose weights are NaN, since it attends to nothing, gets zeros.
        is_parted: whether heads are an axis of their own.
    """

    heads: int
    key_heads: int
    depth: int
    value_depth: int
    scale: float
    appends: bool = True
    is_causal: bool = False
    window: int = 0
    softcap: float = 0.0
    nan_to_zero: bool = False
    is_parted: bool = True


@dataclass(frozen=True)
class Rotated:
    """Pairs of channels of each head, turned by an angle; the operands are x, cosines and sines.

    Attributes:
        heads: of x, [sequences, heads, tokens, depth] or [sequences, tokens, heads depth].
        depth: channels of a head.
        rotated: how many of them are turned, the first ones.
        is_interleaved: whether pairs are neighbours; otherwise they are half of the turned channels apart.
        has_angle_each: whether there is a cosine for each turned channel; otherwise there is one for each pair.
        heads_axis: where they are an axis of their own; None where they are not.
    """

    heads: int
    depth: int
    rotated: int
    is_interleaved: bool = False
    has_angle_each: bool = False
    heads_axis: int | None = 1


@dataclass(frozen=True)
class TableRows:
    """Rows of a table, looked up before the region runs.

    Attributes:
        table: [positions, channels].
        kind: ``positions`` are the operand; or the last ones of sequences, whose ``lengths`` without one are it.
        tokens: how many there are of each sequence, for ``lengths``.
        total: name of the number of tokens of the longest sequence, for ``lengths``.
        name: of the table in the model.
    """

    table: Floats = field(repr=False, hash=False, compare=False)
    kind: Literal["positions", "lengths"] = "positions"
    tokens: Dim = 1
    total: str = ""
    name: str = ""


# Added to scores by the operator Attention where a boolean is false: a query that sees nothing gets zeros.
NOTHING = -math.inf


@dataclass(frozen=True)
class MaskPart:
    """Something that is added to scores.

    Attributes:
        name: of an array of floats; or of booleans, which say what counts.
        hidden: what is added where a boolean is false. As in onnxruntime it is finite: a query that sees nothing, such
            as one of padding, gets no NaN, which would reach others through its values.
        hides: whether booleans say what does not count.
        heads: where sequences and heads are one axis, the first one: how many heads there are; otherwise 0.
    """

    name: str
    hidden: float = float(np.finfo(np.float32).min)
    hides: bool = False
    heads: int = 0


@dataclass(frozen=True)
class CacheNames:
    """The cache of a step, by the names of inputs and outputs of the model.

    Attributes:
        past_keys: [sequences, heads, tokens, depth].
        past_values: likewise.
        keys: the same after the run; empty where the cache is only read.
        values: likewise.
        masks: what is added to the scores.
        lengths: tokens of each sequence after the run, less one; empty where all have as many.
        total: tokens of the longest one, with ``lengths``.
        starts: where the new tokens of each sequence are written in a cache of a fixed length; or empty.
        ends: tokens of each sequence that count after the run, with ``starts``; empty where all do.
    """

    past_keys: str
    past_values: str
    keys: str = ""
    values: str = ""
    masks: tuple[MaskPart, ...] = ()
    lengths: str = ""
    total: str = ""
    starts: str = ""
    ends: str = ""

    @cached_property
    def places(self) -> tuple[object, ...]:
        """What masks and lengths follow from; layers mostly have it in common."""
        return self.masks, self.lengths, self.total, self.starts, self.ends

    @property
    def read(self) -> tuple[str, ...]:
        """Arrays that are read as they are."""
        places = (self.lengths, self.total, self.starts, self.ends)
        names = (self.past_keys, self.past_values, *(part.name for part in self.masks), *places)
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def written(self) -> tuple[str, ...]:
        """Arrays that are made."""
        return (self.keys, self.values) if self.keys else ()
