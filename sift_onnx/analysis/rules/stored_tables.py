"""Constants that hold a formula, not parameters: rotary tables and their frequencies.

What was recognised is recomputed at the new size. What looks like such a constant and was not recognised keeps its
size: drawn at random it would make nonsense of every position.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.axes.sizes import Axis
from sift_onnx.analysis.rotary import recognise_rotary
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.graphs.constants import array_of, constant_values, dtype_of, named, shape_of
from sift_onnx.graphs.walks import origin_of
from sift_onnx.operators.traits import REARRANGING

__all__ = ["follow_frequencies", "follow_table", "is_table", "recompute_table"]

Array = npt.NDArray[Any]

# Operators that pick or rearrange what a constant holds. Not Tile, which changes the period of a table, nor those that
# read or make several tensors.
_VIEWS = REARRANGING | {"Cast", "Expand", "Gather", "Slice"}


def recompute_table(ctx: RuleContext, position: int, axis: Axis) -> None:
    """Have the rotary table at an input recomputed, or keep ``axis``, the one that grows, as it is."""
    stored = _stored(ctx.node.inputs[position])
    if stored is not None and not is_table(ctx, stored):
        ctx.pin(axis, "its rotary table was not recognised")


def follow_table(ctx: RuleContext, i: int) -> None:
    """A stored factor for each position and feature at input ``i`` is a rotary table, or cannot be drawn at random."""
    axes = ctx.axes(i) or ()
    growing = [axis for axis in axes if ctx.grows(axis)]
    stored = _stored(ctx.node.inputs[i])
    if stored is None or len(growing) != 1:
        return
    if sum(ctx.original(axis) > 1 for axis in axes) < 2:
        _follow_vector(ctx, stored, growing[0])
        return
    if is_table(ctx, stored):
        return
    # Rows that are looked up may well be learned, and so may be what is multiplied with them.
    values = array_of(stored)
    if np.all(values == values.flat[0]):
        return
    if ctx.parameter(i) is not None or _starts_like_a_table(values):
        ctx.pin(growing[0], "a table of factors by position and feature was not recognised")


def follow_frequencies(ctx: RuleContext, i: int) -> bool:
    """Whether input ``i`` of an outer product holds frequencies, which positions are multiplied with."""
    stored = _stored(ctx.node.inputs[i])
    growing = [axis for axis in ctx.axes(i) or () if ctx.grows(axis)]
    return stored is not None and len(growing) == 1 and _follow_vector(ctx, stored, growing[0])


def is_table(ctx: RuleContext, stored: gs.Constant) -> bool:
    """Have a constant recomputed if it is a rotary table, or frequencies of one; whether it is."""
    recipe = recognise_rotary(array_of(stored))
    if recipe is None:
        return False
    ctx.analysis.tables[stored.name] = recipe
    axes = ctx.analysis.axes.get(stored.name)
    if recipe.layout != "plain" and axes:
        ctx.system.require_integer(axes[recipe.axis].size / 2)
    return True


def _follow_vector(ctx: RuleContext, stored: gs.Constant, axis: Axis) -> bool:
    if max(shape_of(stored), default=1) < math.prod(shape_of(stored)):
        return False
    if is_table(ctx, stored):
        return True
    if not _falls_like_frequencies(array_of(stored).reshape(-1)):
        return False
    ctx.pin(axis, f"{stored.name!r} looks like frequencies of a rotary embedding that are not of the usual sequence")
    return True


def _stored(tensor: gs.Tensor) -> gs.Constant | None:
    """The floating-point constant that a tensor is picked or rearranged from."""
    tensor, _ = origin_of(tensor, _VIEWS)
    constant = constant_values(tensor)
    if constant is None or dtype_of(constant).kind != "f" or 0 in shape_of(constant):
        return None
    return named(constant, tensor.name)


def _starts_like_a_table(values: Array) -> bool:
    """Whether the first row is the cosine or the sine of nothing, and no value is beyond their range.

    The second row of a sine table is not negative: frequencies begin at 1. An embedding of words, whose first row is
    zero for padding, has numbers of either sign.
    """
    first, second = values.reshape(-1, values.shape[-1])[[0, 1 if values.size > values.shape[-1] else 0]]
    starts = np.all(first == 1) or (np.all(first == 0) and np.all(second >= 0))
    return bool(np.max(np.abs(values)) <= 1.001 and starts)


def _falls_like_frequencies(values: Array) -> bool:
    """Whether the values are positive and fall, over more than a factor of ten."""
    return bool(values.size >= 4 and values[-1] > 0 and np.all(np.diff(values) < 0) and values[0] > 10 * values[-1])
