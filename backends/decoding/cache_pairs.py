"""Which inputs of a decoder are its cache, and which outputs are the same cache after a step.

Exporters name them in many ways: ``past_key_values.0.key`` and ``present.0.key``, ``past_0`` and ``present_0``,
``cache_k_0_in`` and ``cache_k_0_out``. Names are compared without the words that tell the two ends of a step apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sift_onnx.errors import UnsupportedError
from sift_onnx.files.data_types import is_float
from sift_onnx.shapes.open_axes import extents_of
from sift_onnx.shapes.tensor_specs import TensorSpec, shape_text

__all__ = ["CachePair", "find_cache_pairs"]

# Words that only say at which end of a step a tensor is.
_ENDS = frozenset("cache cached current in input new next out output past prev present state updated values".split())
# ``past_key_values`` and ``present_key_values`` name the cache, not the keys.
_CACHE_WORDS = re.compile(r"key_?values?|kv_?cache", re.IGNORECASE)
_LEAST_AXES = 3


@dataclass(frozen=True)
class CachePair:
    """One tensor of the cache before and after a step.

    Attributes:
        past: name of the input.
        present: name of the output.
        dtype: of both.
        shape: as the input declares it: a size, a name or None per axis.
        batch_axis: axis of the sequences.
        length_axis: axis that grows by the tokens of a step.
    """

    past: str
    present: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]
    batch_axis: int
    length_axis: int

    def sizes(self, batch: int, length: int) -> tuple[int, ...]:
        """Sizes of the cache of ``batch`` sequences of ``length`` tokens.

        Raises:
            UnsupportedError: another axis has no size.
        """
        sizes = []
        for axis, size in enumerate(self.shape):
            known = batch if axis == self.batch_axis else length if axis == self.length_axis else size
            if not isinstance(known, int):
                raise UnsupportedError(
                    f"the cache input {self.past!r} is declared as {shape_text(self.shape)}: axis {axis} has no size; "
                    "export it with the number of heads and their depth"
                )
            sizes.append(known)
        return tuple(sizes)


def find_cache_pairs(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batch_symbol: int | str | None = None
) -> tuple[CachePair, ...]:
    """The tensors of the cache, in the order of the inputs.

    Args:
        inputs: of the model.
        outputs: of the model.
        batch_symbol: what the model calls the number of sequences.

    Raises:
        UnsupportedError: an input is a tensor of a cache, and no output is the same one; or two outputs could be.
    """
    pasts = [spec for spec in inputs if _may_be_a_cache(spec)]
    presents = {_words(spec.name): spec for spec in outputs if _may_be_a_cache(spec)}
    counts = Counter(_words(spec.name) for spec in pasts)
    pairs = []
    for past in pasts:
        present = presents.get(_words(past.name))
        if present is None or counts[_words(past.name)] > 1 or not _fit(past, present):
            listed = ", ".join(repr(spec.name) for spec in presents.values()) or "none"
            raise UnsupportedError(
                f"the input {past.name!r} of shape {shape_text(past.shape)} looks like a cache, and no output is the "
                f"same after a step (outputs of such a rank: {listed}); name both alike, as past.0.key, present.0.key"
            )
        pairs.append(_pair(past, present, batch_symbol))
    return tuple(pairs)


def _may_be_a_cache(spec: TensorSpec) -> bool:
    return is_float(spec.dtype) and len(spec.shape or ()) >= _LEAST_AXES


def _words(name: str) -> tuple[str, ...]:
    """What a name says besides at which end of a step it is: numbers, and words such as ``key``."""
    parts = re.findall(r"[a-z]+|\d+", _CACHE_WORDS.sub(" ", name).lower())
    return tuple(str(int(part)) if part.isdigit() else part for part in parts if part not in _ENDS)


def _fit(past: TensorSpec, present: TensorSpec) -> bool:
    """Whether both have the same type, and sizes that do not contradict each other."""
    first, second = past.shape or (), present.shape or ()
    if past.dtype != present.dtype or len(first) != len(second):
        return False
    differ = [a != b for a, b in zip(first, second, strict=True) if isinstance(a, int) and isinstance(b, int)]
    return sum(differ) <= 1  # an export for one length has two of them


def _pair(past: TensorSpec, present: TensorSpec, batch_symbol: int | str | None) -> CachePair:
    shape, after = extents_of(past.shape or ()), extents_of(present.shape or ())
    open_axes = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    batch = [axis for axis in open_axes if batch_symbol is not None and shape[axis] == batch_symbol]
    grows = [axis for axis in open_axes if axis not in batch[:1] and isinstance(after[axis], (str, type(None)))]
    # Where nothing says more: [sequences, heads, tokens, depth].
    length_axis = len(shape) - 2 if len(shape) - 2 in grows or not grows else grows[-1]
    fixed = shape[length_axis]
    if isinstance(fixed, int):
        raise UnsupportedError(
            f"the cache input {past.name!r} has {fixed} tokens, declared as {shape_text(past.shape)}; "
            "export it with a dynamic axis for them"
        )
    batch_axis = batch[0] if batch else next((axis for axis in open_axes if axis != length_axis), 0)
    return CachePair(past.name, present.name, past.dtype, shape, batch_axis, length_axis)
