"""Weights of 3-D layers, arranged as those of layers of images; masks are arranged with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.lowering.rules import NodeView, NotLowered
from sift_onnx.graphs.constants import array_of, is_masked, nbytes_of, sparse_weight_of
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["VolumeWeights", "weights_of"]

# A sparse tensor of a file can declare more than there is memory for.
_MOST_BYTES = 1 << 31

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class VolumeWeights:
    """Weights over frames, rows and columns.

    Attributes:
        values: with five axes.
        mask: the active ones; None where these are the non-zeros.
    """

    values: npt.NDArray[np.float32]
    mask: npt.NDArray[np.bool_] | None

    def arranged(self, arrange: Callable[[Array], Array]) -> npt.NDArray[np.float32] | SparseWeight:
        """The same weights in other places, with their mask if they have one."""
        values = np.ascontiguousarray(arrange(self.values))
        if self.mask is None:
            return values
        return SparseWeight.from_dense(values, np.flatnonzero(arrange(self.mask)))


def weights_of(node: NodeView) -> VolumeWeights:
    """The constant weights of a Conv or ConvTranspose of volumes.

    Raises:
        NotLowered: they are computed, of another type, or too large to be held dense.
    """
    constant = node.constant(1)
    if constant is None or len(constant.shape) != 5 or constant.dtype != np.float32 or not nbytes_of(constant) > 0:
        raise NotLowered(f"the weights {node.input(1)!r} are no stored float32 weights over three axes")
    if nbytes_of(constant) > _MOST_BYTES:
        raise NotLowered(f"the weights {node.input(1)!r} are too large to be arranged")
    weight = sparse_weight_of(constant) if is_masked(constant) else None
    if weight is None:
        return VolumeWeights(array_of(constant), None)
    return VolumeWeights(weight.to_dense(), weight.mask())
