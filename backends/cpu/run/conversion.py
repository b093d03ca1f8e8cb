"""Types of a model's arrays where its programs compute in others: halves outside, float32 inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.lowering.subgraph import Subgraph
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["Conversion", "held_caches", "is_half"]

Array = npt.NDArray[Any]
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Conversion:
    """What is cast before a run, and after it.

    A cache may be fed in float32 in place of the model's type. Then it is returned in float32, so that it is not cast
    in every step.

    Attributes:
        inside: types that programs read, by the name of an input.
        outside: types that the model returns, by the name of an output.
        held: for each output that is a cache after a run, the input that it was before.
    """

    inside: Mapping[str, np.dtype[Any]]
    outside: Mapping[str, np.dtype[Any]]
    held: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], held: Mapping[str, str], is_widened: bool
    ) -> Conversion:
        """Of programs that compute in float32 where the model has halves, if ``is_widened``; or else as it does."""
        inside = {spec.name: _FLOAT32 if is_widened and is_half(spec.dtype) else spec.dtype for spec in inputs}
        return cls(inside, {spec.name: spec.dtype for spec in outputs}, held)

    def inwards(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """What programs read."""
        return {name: _as(array, self.inside.get(name, array.dtype)) for name, array in feeds.items()}

    def into(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays of float32 that kernels write caches to: the caller's, or copies of its halves."""
        return {name: _as(array, _FLOAT32) for name, array in arrays.items() if name in self.held}

    def outwards(self, outputs: Mapping[str, Array], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """What a run returns, for what it was fed; caches may stay where they are, and be neither."""
        types = {name: feeds[past].dtype for name, past in self.held.items() if past in feeds}
        return {name: _as(array, types.get(name, self.outside[name])) for name, array in outputs.items()}


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether a type is one of 16 bits that graphs are widened from."""
    return dtype.name in ("float16", "bfloat16")


def held_caches(parts: Sequence[Region | Subgraph], inputs: Sequence[TensorSpec]) -> dict[str, str]:
    """For each cache of halves that kernels write, the input that it was before the run."""
    halves = {spec.name for spec in inputs if is_half(spec.dtype)}
    caches = [cache for part in parts if isinstance(part, Region) for cache in part.caches if cache.keys]
    pairs = [pair for c in caches for pair in ((c.keys, c.past_keys), (c.values, c.past_values))]
    return {present: past for present, past in pairs if past in halves}


def _as(array: Array, dtype: np.dtype[Any]) -> Array:
    return array if array.dtype == dtype else array.astype(dtype)
