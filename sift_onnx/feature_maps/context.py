"""What a feature-map rule sees of the graph, and what it can say about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.axis_system import Solution
from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.errors import UnsupportedError
from sift_onnx.feature_maps.system import FeatureMapError, FeatureMapSystem, Piece
from sift_onnx.graphs.constants import array_of, constant_values
from sift_onnx.operators.labels import node_label

__all__ = ["Extent", "FeatureMapContext", "FeatureMaps", "refusal"]


@dataclass(frozen=True)
class Extent:
    """One axis of one tensor, before and after.

    Attributes:
        tensor: its name.
        axis: which of its axes.
        old: length in the original.
        new: length after widening.
    """

    tensor: str
    axis: int
    old: int
    new: int

    @property
    def grows(self) -> bool:
        """Whether features are added."""
        return self.old != self.new


class FeatureMaps:
    """Where the elements of the original lie in the tensors of the wider model.

    The elements of a tensor lie at the product of the places along its axes.
    """

    def __init__(self, analysis: AxisAnalysis, solution: Solution) -> None:
        self._analysis = analysis
        self._solution = solution
        self._system: FeatureMapSystem[str] = FeatureMapSystem()
        self._numbers: dict[tuple[str, int], int] = {}

    def extents(self, tensor: str) -> tuple[Extent, ...]:
        """The axes of a tensor; none where its shape is unknown, in which case nothing in it grows."""
        original, value = self._analysis.system.original, self._solution.value
        axes = self._analysis.axes.get(tensor) or ()
        return tuple(Extent(tensor, i, original(axis.size), value(axis.size)) for i, axis in enumerate(axes))

    def positions(self, tensor: str) -> list[npt.NDArray[np.int64]]:
        """Along each axis of ``tensor``, the new place of each old element, ascending."""
        return [self._system.positions(self._number(extent)) for extent in self.extents(tensor)]

    def positions_along(self, tensor: str, axis: int) -> npt.NDArray[np.int64]:
        """The same along one axis; others, of an activation, may be longer than anything that is stored."""
        return self._system.positions(self._number(self.extents(tensor)[axis]))

    def composed(self, whole: Extent, pieces: Sequence[tuple[Extent, int, int, int]], node: str) -> None:
        """State that ``whole`` consists of pieces: axis, old start, new start, places for each feature."""
        numbered = [Piece(self._number(extent), *where) for extent, *where in pieces]
        self._system.composed(self._number(whole), numbered, node)

    def settle(self) -> None:
        """Find the feature map of every axis.

        Raises:
            UnsupportedError: there is none; the message names the node.
        """
        try:
            self._system.settle()
        except FeatureMapError as error:
            raise refusal(str(error.cause), f"parts its features where they cannot be parted: {error}") from error

    def _number(self, extent: Extent) -> int:
        key = (extent.tensor, extent.axis)
        if key not in self._numbers:
            self._numbers[key] = self._system.axis(extent.old, extent.new)
        return self._numbers[key]


class FeatureMapContext:
    """One node, as a rule sees it."""

    def __init__(self, maps: FeatureMaps, analysis: AxisAnalysis, node: gs.Node, index: int, opset: int) -> None:
        self._maps = maps
        self._analysis = analysis
        self._index = index
        self._free = 0
        self.node = node
        self.opset = opset
        self.label = node_label(node)

    # What the node is.

    def attr(self, name: str, default: Any = None) -> Any:
        """The value of an attribute, as the original has it."""
        return self.node.attrs.get(name, default)

    def input(self, i: int) -> tuple[Extent, ...]:
        """The axes of input ``i``; none where it is left out, or its shape is unknown and so nothing in it grows."""
        return self._maps.extents(self.node.inputs[i].name) if self.has_input(i) else ()

    def output(self, i: int = 0) -> tuple[Extent, ...]:
        """The axes of output ``i``."""
        return self._maps.extents(self.node.outputs[i].name) if i < len(self.node.outputs) else ()

    def has_input(self, i: int) -> bool:
        """Whether input ``i`` is there."""
        return i < len(self.node.inputs) and not self.node.inputs[i].is_empty()

    def is_parameter(self, i: int) -> bool:
        """Whether input ``i`` is stored and no weight, so that the values that are added to it can be chosen."""
        tensor = self.node.inputs[i]
        return constant_values(tensor) is not None and tensor.name not in self._analysis.layers

    def integers(self, i: int) -> list[int] | None:
        """The elements of input ``i`` in the original, if it is a small integer tensor that is known."""
        if not self.has_input(i):
            return None
        tensor = self.node.inputs[i]
        elements = self._analysis.elements.get(tensor.name)
        if elements is not None:
            return [element.value for element in elements.reshape(-1)]
        constant = constant_values(tensor)
        if constant is None:
            return None
        array = array_of(constant)
        return [int(value) for value in array.reshape(-1)] if array.dtype.kind in "iu" else None

    @property
    def has_weight(self) -> bool:
        """Whether the node multiplies by a stored weight, in which whatever is added is pruned."""
        return any(use.index == self._index for layer in self._analysis.layers.values() for use in layer.uses)

    @property
    def grows_heads(self) -> bool:
        """Whether the heads of attention were to become wider."""
        return self._analysis.attention == "head-dim"

    # What the rule says.

    def refuse(self, reason: str) -> NoReturn:
        """Say that the node keeps the original from being embedded.

        Raises:
            UnsupportedError: always.
        """
        raise refusal(self.label, reason)

    def composed(self, whole: Extent, pieces: Sequence[tuple[Extent, int, int, int]]) -> None:
        """Say that ``whole`` consists of pieces: axis, old start, new start, places for each feature."""
        if whole.grows:
            self._maps.composed(whole, pieces, self.label)

    def same(self, a: Extent, b: Extent) -> None:
        """Say that two axes are placed alike."""
        if (a.old, a.new) != (b.old, b.new):
            self.refuse(f"relates an axis of {a.old} that becomes {a.new} to one of {b.old} that becomes {b.new}")
        self.composed(a, [(b, 0, 0, 1)])

    def same_axes(self, a: Sequence[Extent], b: Sequence[Extent]) -> None:
        """Say that tensors are placed alike."""
        if any(axis.grows for axis in (*a, *b)) and len(a) != len(b):
            self.refuse("relates tensors of different ranks")
        for one, other in zip(a, b, strict=False):
            self.same(one, other)

    def same_but(self, skipped: int, a: Sequence[Extent], b: Sequence[Extent]) -> None:
        """Say that tensors of one rank are placed alike, apart from an axis."""
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            if i != skipped:
                self.same(one, other)

    def broadcast(self, operand: Sequence[Extent], out: Sequence[Extent]) -> None:
        """Say that ``operand`` is broadcast to ``out``; what is repeated lies anywhere."""
        for axis, wide in zip(reversed(operand), reversed(out), strict=False):
            if axis.old != 1:
                self.same(axis, wide)

    def joined(self, whole: Extent, parts: Sequence[Extent]) -> None:
        """Say that ``whole`` is ``parts`` one after another, or a part of the axis that they cover."""
        pieces, old, new = [], 0, 0
        for part in parts:
            pieces.append((part, old, new, 1))
            old, new = old + part.old, new + part.new
        if (old, new) != (whole.old, whole.new):
            self.refuse(f"joins parts of {old} that become {new} to an axis of {whole.old} that becomes {whole.new}")
        self.composed(whole, pieces)

    def merged(self, whole: Extent, part: Extent, *, outer: int = 1, inner: int = 1) -> None:
        """Say that ``whole`` is ``[outer, part, inner]`` in one axis; ``outer`` and ``inner`` do not grow."""
        if (outer * part.old * inner, outer * part.new * inner) != (whole.old, whole.new):
            self.refuse(f"merges {outer} x {part.old} x {inner} to an axis of {whole.old}, which does not fit")
        self.composed(whole, [(part, j * part.old * inner, j * part.new * inner, inner) for j in range(outer)])

    def free(self, old: int, new: int) -> Extent:
        """An axis of no tensor, to state relations with."""
        self._free += 1
        return Extent(f"{self.node.outputs[0].name}\0{self._free}", 0, old, new)

    def only_growing(self, axes: Sequence[Extent]) -> Extent | None:
        """The axis that grows, or None.

        Raises:
            UnsupportedError: there are several.
        """
        growing = [axis for axis in axes if axis.grows]
        if len(growing) > 1:
            self.refuse("merges two axes that both grow")
        return growing[0] if growing else None

    def require_fixed(self, axes: Sequence[Extent], verb: str) -> None:
        """Refuse axes that grow: ``verb`` says what the node does over them."""
        for axis in axes:
            if axis.grows:
                self.refuse(f"{verb} an axis that grows from {axis.old} to {axis.new}")


def product(axes: Sequence[Extent]) -> int:
    """How many elements axes have together in the original."""
    return math.prod(axis.old for axis in axes)


def refusal(node: str, reason: str) -> UnsupportedError:
    """The error that a node which cannot be embedded behind is refused with."""
    return UnsupportedError(
        f"`init='embed'` cannot keep what the model computes: node {node} {reason}. Use `init='random'`, or `only` "
        "with weights whose widths do not reach this node"
    )
