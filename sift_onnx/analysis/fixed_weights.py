"""Weights that were not learned: fixed functions that a model computes by a convolution or a matrix product.

A detector integrates over the bins of a distribution, a speech model begins with a Fourier transform, an anti-aliased
one blurs before it samples. To prune such a weight, to draw it again or to train it would be wrong. Names do not tell,
but values do; training produces none of the patterns below:

* all values are the same (a mean, a sum);
* the single feature has an arithmetic or geometric progression for its weights (the bins of an integral, frequencies);
* all channels have the same kernel, and do not mix (blur, interpolation);
* each feature selects one input, all with the same factor (identity, permutation, a reversed sign apart);
* each feature is a band of positive weights, and the bands ascend (mel filters, interpolation, sums of what precedes);
* the features are sines or cosines under a window (Fourier transforms).

A weight of nothing but zeros is none of these: a branch that starts at zero is going to be trained. Nor is one under a
mask. And where every weight of a model looks fixed, its values are place holders, and none of them is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import array_of, is_masked, shape_of, value_pieces
from sift_onnx.operators.weight_operands import CONVOLUTIONS, MATRIX_PRODUCTS

__all__ = ["SAME_KERNEL", "fixed_weights"]

Matrix = npt.NDArray[np.float64]

# The reason of a weight that keeps its meaning with more channels, where there are such.
SAME_KERNEL = "all channels have the same kernel"

# Smaller weights may have any values by chance, or by design of an initial value.
_FEWEST = 4
_FEWEST_BANDS = 4
_FEWEST_SAMPLES = 8
# Larger ones are taken to be learned: the filters of known transforms are smaller, and reading costs time.
_MOST = 1 << 23
# How many values of a large weight are looked at first. Learned values hardly ever repeat.
_SAMPLE = 1 << 12
_DISTINCT = 0.75
_DIGITS = 1e5
# Exporters compute in single precision, and store in half.
_TOLERANCE = 2e-3
_EXACT = 1e-5
# Share of zeros from which bands are bands.
_ZEROS = 0.25


def fixed_weights(uses: Iterable[tuple[gs.Node, gs.Constant]]) -> dict[str, str]:
    """Which of some weights are fixed functions, and what tells.

    Args:
        uses: all weights of a model, each with a node that multiplies by it.

    Returns:
        Initializer name -> the pattern in its values.
    """
    found: dict[str, str] = {}
    learned = False
    for node, constant in uses:
        reason = found.get(constant.name) or _pattern(node, constant)
        if reason:
            found[constant.name] = reason
        else:
            learned = True
    return found if learned else {}


def _pattern(node: gs.Node, constant: gs.Constant) -> str:
    if node.op not in CONVOLUTIONS | MATRIX_PRODUCTS or is_masked(constant):
        return ""
    shape = shape_of(constant)
    size = math.prod(shape)
    if len(shape) < 2 or not _FEWEST <= size <= _MOST or not _may_be_fixed(constant, size):
        return ""
    values = np.asarray(array_of(constant)).astype(np.float64)
    if not np.isfinite(values).all() or not values.any():
        return ""
    if node.op in CONVOLUTIONS:
        return _of_kernels(values, int(node.attrs.get("group", 1)), node.op == "ConvTranspose")
    if values.ndim > 2:
        return ""
    return _of_matrix(values) or _of_matrix(values.T)


def _may_be_fixed(constant: gs.Constant, size: int) -> bool:
    if size <= _SAMPLE:
        return True
    piece = next(value_pieces(constant))
    sample = np.abs(np.asarray(piece[:_SAMPLE]).astype(np.float64))
    largest = sample.max(initial=0.0)
    if not largest or not math.isfinite(largest):
        return not largest
    return len(np.unique(np.round(sample * (_DIGITS / largest)))) <= _DISTINCT * len(sample)


def _of_kernels(values: Matrix, group: int, transposed: bool) -> str:
    kernels = values.reshape(*values.shape[:2], -1)
    channels = kernels.shape[0] if transposed else kernels.shape[1] * group
    if group > 1:
        per_channel = kernels.reshape(group, -1)
        alone = group == channels
        repeats = alone and per_channel.shape[1] > 1 and bool((per_channel == per_channel[0]).all())
        return SAME_KERNEL if repeats else _same(values)
    if kernels.shape[0] == kernels.shape[1] > 1 and kernels.shape[2] > 1:
        diagonal = kernels[np.arange(len(kernels)), np.arange(len(kernels))]
        if np.count_nonzero(kernels) == np.count_nonzero(diagonal) and bool((diagonal == diagonal[0]).all()):
            return f"{SAME_KERNEL}, and do not mix"
    features = np.moveaxis(kernels, 1, 0) if transposed else kernels
    return _of_matrix(features.reshape(len(features), -1))


def _of_matrix(matrix: Matrix) -> str:
    """The pattern of a weight of ``[features, inputs]``."""
    return next(filter(None, (pattern(matrix) for pattern in _PATTERNS)), "")


def _same(matrix: Matrix) -> str:
    return "all weights are the same" if (matrix == matrix.flat[0]).all() else ""


def _progression(matrix: Matrix) -> str:
    if len(matrix) > 1:
        return ""
    row = matrix[0]
    steps = np.diff(row)
    if (np.abs(steps - steps[0]) <= _EXACT * np.abs(row).max()).all():
        return f"{row[0]:g}, {row[1]:g}, ..., {row[-1]:g} is an arithmetic progression"
    if (row > 0).all():
        logs = np.diff(np.log(row))
        if (np.abs(logs - logs[0]) <= _EXACT * max(1.0, float(np.abs(np.log(row)).max()))).all():
            return f"{row[0]:g}, {row[1]:g}, ..., {row[-1]:g} is a geometric progression"
    return ""


def _selection(matrix: Matrix) -> str:
    active = matrix != 0
    single = len(matrix) > 1 and bool((active.sum(axis=1) == 1).all())
    return "each feature selects one input" if single and len(np.unique(np.abs(matrix[active]))) == 1 else ""


def _bands(matrix: Matrix) -> str:
    rows = matrix[matrix.any(axis=1)]
    active = rows > 0
    if len(rows) < _FEWEST_BANDS or (matrix < 0).any() or active.mean() > 1 - _ZEROS:
        return ""
    first, last = active.argmax(axis=1), active.shape[1] - 1 - active[:, ::-1].argmax(axis=1)
    whole = bool((active.sum(axis=1) == last - first + 1).all())
    ascending = bool((np.diff(first) >= 0).all() and (np.diff(last) >= 0).all())
    moves = first[-1] + last[-1] > first[0] + last[0]
    return "its features are bands that ascend" if whole and ascending and moves else ""


def _waves(matrix: Matrix) -> str:
    """Sines or cosines of the frequencies 0, 1, 2, ... under one window, or the ones and then the others."""
    if matrix.shape[1] < _FEWEST_SAMPLES:
        return ""
    halves = [matrix] if len(matrix) % 2 else [matrix, *np.split(matrix, 2)]
    if _is_wave(halves[0]) or (len(halves) == 3 and _is_wave(halves[1]) and _is_wave(halves[2])):
        return "its features are the waves of a Fourier transform"
    return ""


def _is_wave(matrix: Matrix) -> bool:
    if len(matrix) < 3:
        return False
    bound = _TOLERANCE * np.abs(matrix).max()
    # Cosines of large matrices take long, and few rows tell those that were learned.
    return _fits_waves(matrix[:3], bound) and _fits_waves(matrix, bound)


def _fits_waves(matrix: Matrix, bound: float) -> bool:
    count, length = matrix.shape
    angles = 2 * np.pi * np.outer(np.arange(count), np.arange(length)) / length
    # Multiplied across, so that the window need not be known.
    if (np.abs(matrix - matrix[0] * np.cos(angles)) <= bound).all():
        return bool(matrix[0].any())
    return bool((np.abs(matrix * np.sin(angles[1]) - matrix[1] * np.sin(angles)) <= bound).all()) and bool(matrix.any())


_PATTERNS: tuple[Callable[[Matrix], str], ...] = (_same, _progression, _selection, _bands, _waves)
