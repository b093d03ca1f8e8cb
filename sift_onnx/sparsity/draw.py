"""Fresh values for tensors that have changed their size.

A weight is drawn so that each output feature keeps the variance that the original layer gave it. For inputs of equal
second moment that variance is proportional to the *energy* of a feature, the sum of its squared weights, so the energy
of the original layer, averaged over its features, is what a new feature gets, whatever number of active inputs the
mask leaves it (its real fan-in). The energy carries the law that the exporter's framework drew by: 2 for Kaiming
normal (fan-in), 1 for LeCun, ``2 / sqrt(2 * layers)`` for GPT's residual projections, 0 for a zero-initialised
residual branch. Only where the original has no law to carry, a constant other than zero, does the kind of layer decide:
Kaiming's 2 before a rectifier (He et al. 2015), else LeCun's 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.sparsity.patterns.pattern import UNSTRUCTURED, Pattern
from sift_onnx.sparsity.patterns.weight_matrix import WeightMatrix
from sift_onnx.weights.sparse import SparseWeight, generator, sample_positions

__all__ = ["DrawnWeight", "draw_dense", "draw_sparse", "draw_vector", "energy_per_feature", "neutral"]

Array = npt.NDArray[Any]

# Drawn in single precision; wider or narrower tensors are converted afterwards.
_DRAWN = np.float32
# No weight that is drawn with more becomes zero in single precision, whatever its fan-in.
_LEAST_ENERGY = 1e-30
# Elements that are summed in double precision at a time.
_PIECE = 1 << 22


def energy_per_feature(original: Array | SparseWeight, out_axis: int, *, rectified: bool) -> float:
    """The sum of squared weights that an output feature has on average.

    Args:
        original: the weight as it came.
        out_axis: its axis of output features.
        rectified: whether a rectifier follows; decides only where the original is constant and not zero.
    """
    values = original.values if isinstance(original, SparseWeight) else original.reshape(-1)
    features = original.shape[out_axis]
    if not values.size or not features:
        return 0.0
    first = values.flat[0]
    if first != 0 and values.size > 1 and bool(np.all(values == first)):
        return 2.0 if rectified else 1.0
    flat = values.reshape(-1)
    pieces = (flat[i : i + _PIECE] for i in range(0, flat.size, _PIECE))
    return sum(float(np.sum(np.square(piece, dtype=np.float64))) for piece in pieces) / features


def draw_sparse(
    name: str,
    shape: Sequence[int],
    nnz: int,
    out_axis: int,
    energy: float,
    dtype: np.dtype[Any],
    seed: int,
    *,
    pattern: Pattern = UNSTRUCTURED,
    in_axis: int | None = None,
) -> SparseWeight:
    """A weight under a randomly drawn mask with exactly ``nnz`` active weights.

    Args:
        name: of the initializer; part of the random key.
        shape: of the tensor.
        nnz: number of active weights.
        out_axis: axis of output features.
        energy: expected sum of squares of each feature, see :func:`energy_per_feature`.
        dtype: of the values.
        seed: of the draw.
        pattern: that the mask keeps; uniform among all masks if it is unstructured, else see :meth:`Pattern.draw`.
        in_axis: axis of input features, which only a pattern asks for; the first one other than ``out_axis`` if None.

    Raises:
        ValueError: no mask of that pattern has that many active weights.
    """
    rng = generator(seed, name, "mask")
    if pattern == UNSTRUCTURED:
        indices = sample_positions(math.prod(shape), nnz, rng)
    else:
        indices = pattern.draw(WeightMatrix.of(shape, out_axis, in_axis), nnz, rng)
    weight = SparseWeight(tuple(shape), indices, np.zeros(nnz, dtype=_DRAWN))
    fan_in = weight.counts_along(out_axis)
    scale = np.sqrt(energy / np.maximum(fan_in, 1)).astype(_DRAWN)
    values = _normal(nnz, generator(seed, name, "values"))
    if out_axis == 0:
        values *= np.repeat(scale, fan_in)
    else:
        inner = math.prod(shape[out_axis + 1 :])
        values *= scale[(indices // inner) % shape[out_axis]]
    return SparseWeight(tuple(shape), indices, values.astype(dtype, copy=False))


@dataclass(frozen=True)
class DrawnWeight:
    """A weight that :func:`draw_sparse` draws when it is asked for, the same each time; see there for the fields.

    It is a :class:`~sift_onnx.weights.masked_values.WeightSource`.
    """

    name: str
    shape: tuple[int, ...]
    nnz: int
    out_axis: int
    energy: float
    dtype: np.dtype[Any]
    seed: int
    pattern: Pattern = UNSTRUCTURED
    in_axis: int | None = None

    @property
    def nonzeros(self) -> int:
        """Number of active weights that are not zero; only those of few types have to be drawn to tell."""
        if not self.energy:
            return 0
        return self.nnz if self.dtype == _DRAWN and self.energy > _LEAST_ENERGY else self.read().nonzeros

    def read(self) -> SparseWeight:
        """Draw it."""
        return draw_sparse(
            self.name, self.shape, self.nnz, self.out_axis, self.energy, self.dtype, self.seed,
            pattern=self.pattern, in_axis=self.in_axis,
        )  # fmt: skip


def draw_dense(name: str, shape: Sequence[int], out_axis: int, energy: float, dtype: np.dtype[Any], seed: int) -> Array:
    """A dense weight of ``shape``; arguments as for :func:`draw_sparse`."""
    size = math.prod(shape)
    fan_in = size // shape[out_axis]
    values = _normal(size, generator(seed, name, "values"))
    values *= _DRAWN(math.sqrt(energy / max(fan_in, 1)))
    return values.astype(dtype, copy=False).reshape(shape)


def _normal(count: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    values = rng.standard_normal(count, dtype=_DRAWN)
    # The float32 generator gives an exact zero once in some ten million draws; an active weight had better not be one.
    values[values == 0] = 2.0**-24
    return values


def draw_vector(name: str, original: Array, shape: Sequence[int], seed: int) -> Array:
    """Other parameters at a new size: a constant stays that constant, else values of the original are drawn again.

    Args:
        name: of the initializer; part of the random key.
        original: its values as they came.
        shape: the new shape.
        seed: of the draw.
    """
    flat = original.reshape(-1)
    if bool(np.all(flat == flat[0])):
        return np.full(shape, flat[0], dtype=original.dtype)
    picks = generator(seed, name, "values").integers(0, flat.size, size=math.prod(shape))
    return flat[picks].reshape(shape)


def neutral(original: Array, shape: Sequence[int], value: float) -> Array:
    """Parameters of a normalization, or a bias: a constant stays that constant, else they become ``value``."""
    flat = original.reshape(-1)
    keeps = bool(np.all(flat == flat[0]))
    return np.full(shape, flat[0] if keeps else value, dtype=original.dtype)
