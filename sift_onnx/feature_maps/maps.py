"""Where the elements of the original lie in the tensors of a wider model, as rules state it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.axes.solution import Solution
from sift_onnx.analysis.findings import AxisAnalysis, WeightLayer
from sift_onnx.feature_maps.findings import CentredInput, Extent, Scaling, ZeroDemand
from sift_onnx.feature_maps.system import FeatureMapError, FeatureMapSystem, Piece

__all__ = ["FeatureMaps"]


class FeatureMaps:
    """Where the elements of the original lie in the tensors of the wider model.

    The elements of a tensor lie at the product of the places along its axes.

    Attributes:
        demands: what has to be zero among what is added.
        centred: inputs whose mean has to be zero.
        means: what the mean over added zeros is of the original's, by the name of the tensor that holds it.
        scalings: stored inputs that are multiplied by a number.
        frozen: ``(node, input)`` whose numbers are computed from sizes that grow, and have to stay what they were.
        attributes: ``(node, attribute) -> value`` that would otherwise follow from a size that grows.
        ranges: between which numbers what is added to a tensor lies, see :mod:`sift_onnx.feature_maps.ranges`.
        subtractions: nodes that subtract the mean of a centred input from it.
    """

    def __init__(self, analysis: AxisAnalysis, solution: Solution) -> None:
        self._analysis = analysis
        self._solution = solution
        self._system: FeatureMapSystem[int] = FeatureMapSystem()
        self._numbers: dict[tuple[str, int], int] = {}
        self._extents: dict[str, tuple[Extent, ...]] = {}
        self.demands: list[ZeroDemand] = []
        self.centred: list[CentredInput] = []
        self.means: dict[str, float] = {}
        self.scalings: list[Scaling] = []
        self.frozen: list[tuple[int, int]] = []
        self.attributes: dict[tuple[int, str], float] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self.subtractions: set[int] = set()
        self._indices = {id(node): i for i, node in enumerate(analysis.order)}
        self._layers = {use.index: layer for layer in analysis.layers.values() for use in layer.uses}

    def extents(self, tensor: str) -> tuple[Extent, ...]:
        """The axes of a tensor; none where its shape is unknown, in which case nothing in it grows."""
        if tensor not in self._extents:
            original, value = self._analysis.system.original, self._solution.value
            axes = self._analysis.axes.get(tensor) or ()
            extents = (Extent(tensor, i, original(axis.size), value(axis.size)) for i, axis in enumerate(axes))
            self._extents[tensor] = tuple(extents)
        return self._extents[tensor]

    def positions(self, tensor: str) -> list[npt.NDArray[np.int64]]:
        """Along each axis of ``tensor``, the new place of each old element, ascending."""
        return [self._system.positions(self._number(extent)) for extent in self.extents(tensor)]

    def positions_along(self, tensor: str, axis: int) -> npt.NDArray[np.int64]:
        """The same along one axis; others, of an activation, may be longer than anything that is stored."""
        return self._system.positions(self._number(self.extents(tensor)[axis]))

    def layer_at(self, node: int) -> WeightLayer | None:
        """The weight that a node multiplies by."""
        return self._layers.get(node)

    def index_of(self, node: gs.Node) -> int:
        """The place of a node in the order of the analysis."""
        return self._indices[id(node)]

    def grows(self, tensor: str) -> bool:
        """Whether a tensor gets features."""
        return any(extent.grows for extent in self.extents(tensor))

    def composed(self, whole: Extent, pieces: Sequence[tuple[Extent, int, int, int]], node: int) -> None:
        """State that ``whole`` consists of pieces: axis, old start, new start, places for each feature."""
        numbered = [Piece(self._number(extent), *where) for extent, *where in pieces]
        self._system.composed(self._number(whole), numbered, node)

    def settle(self) -> tuple[int, str] | None:
        """Find the feature map of every axis; if there is none, the node that finds out, and why."""
        try:
            self._system.settle()
        except FeatureMapError as error:
            return int(str(error.cause)), f"parts its features where they cannot be parted: {error}"
        return None

    def _number(self, extent: Extent) -> int:
        key = (extent.tensor, extent.axis)
        if key not in self._numbers:
            self._numbers[key] = self._system.axis(extent.old, extent.new)
        return self._numbers[key]
