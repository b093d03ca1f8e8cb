"""What a feature-map rule sees of the graph, and what it can say about it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import onnx_graphsurgeon as gs

from sift_onnx.analysis.findings import AttentionGrowth, AxisAnalysis
from sift_onnx.errors import UnsupportedError
from sift_onnx.feature_maps.findings import CentredInput, Extent, Obstacle, Scaling, ZeroDemand
from sift_onnx.feature_maps.maps import FeatureMaps
from sift_onnx.graphs.constants import array_of, constant_values, parameter_behind

__all__ = ["FeatureMapContext", "RefusedError", "product", "refusal"]


class RefusedError(Exception):
    """A rule's refusal on its way to the search, which goes on with the next node."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle.reason)
        self.obstacle = obstacle


class FeatureMapContext:
    """One node, as a rule sees it."""

    def __init__(self, maps: FeatureMaps, analysis: AxisAnalysis, node: gs.Node, index: int, opset: int) -> None:
        self._maps = maps
        self._analysis = analysis
        self._free = 0
        self.index = index
        self.node = node
        self.opset = opset

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

    def added_range(self, i: int) -> tuple[float, float]:
        """Between which numbers the features that are added to input ``i`` lie."""
        return self._maps.ranges.get(self.node.inputs[i].name, (-math.inf, math.inf))

    @property
    def has_weight(self) -> bool:
        """Whether the node multiplies by a stored weight, in which whatever is added is pruned."""
        return self._maps.layer_at(self.index) is not None

    def is_weight(self, i: int) -> bool:
        """Whether input ``i`` is that weight, perhaps transposed or cast on the way."""
        layer, parameter = self._maps.layer_at(self.index), parameter_behind(self.node.inputs[i])
        return layer is not None and parameter is not None and parameter[0].name == layer.name

    @property
    def has_fixed_weight(self) -> bool:
        """Whether it multiplies by a weight that is a fixed function, which added channels share."""
        layer = self._maps.layer_at(self.index)
        return layer is not None and layer.name in self._analysis.fixed

    @property
    def feature_axis(self) -> int:
        """Of the output of a matrix product: its columns are features, or its rows, where the weight stands left."""
        left = self.node.inputs[0]
        return -2 if left.name in self._analysis.derived or constant_values(left) is not None else -1

    @property
    def attention(self) -> AttentionGrowth:
        """What grows in attention."""
        return self._analysis.attention

    @property
    def subtracts_mean(self) -> bool:
        """Whether it subtracts the mean over axes that grow from what the mean is of, which is zero then."""
        return self.index in self._maps.subtractions

    def slice_start(self, axis: int) -> int | None:
        """Where a Slice starts along an axis of its input that grows, in the original; None where that is not known.

        Raises:
            RefusedError: it reverses or skips elements.
        """
        x = self.input(0)
        taken = self.slice_places(axis)
        if taken is None:
            return None
        if taken.step != 1:
            self.refuse("reverses or skips features of an axis that grows", [x[axis]])
        return taken.start

    def slice_places(self, axis: int) -> range | None:
        """Which places of an axis of its input a Slice takes in the original; None where that is not known."""
        x = self.input(0)
        if "starts" in self.node.attrs:
            starts, ends, axes, steps = (self.attr(name) for name in ("starts", "ends", "axes", "steps"))
        else:
            starts, ends, axes, steps = (self.integers(i) for i in range(1, 5))
        if starts is None or ends is None:
            return None
        chosen = [int(a) % len(x) for a in axes or range(len(starts))]
        if axis not in chosen:
            return range(x[axis].old)
        k = chosen.index(axis)
        return range(x[axis].old)[int(starts[k]) : int(ends[k]) : 1 if steps is None else int(steps[k])]

    # What the rule says.

    def refuse(self, reason: str, axes: Sequence[Extent] = ()) -> NoReturn:
        """Say that the node keeps the original from being embedded as long as ``axes`` grow.

        Args:
            reason: the predicate of a sentence about the node.
            axes: all that grow around the node, if none are given.

        Raises:
            RefusedError: always.
        """
        raise RefusedError(self.obstacle(reason, axes))

    def obstacle(self, reason: str, axes: Sequence[Extent] = ()) -> Obstacle:
        """That the node keeps the original from being embedded as long as ``axes`` grow, see :meth:`refuse`."""
        around = [self.input(i) for i in range(len(self.node.inputs))]
        around += [self.output(i) for i in range(len(self.node.outputs))]
        return Obstacle(self.index, reason, tuple(axis for axis in axes or itertools.chain(*around) if axis.grows))

    def require_zero(
        self, inputs: Sequence[int], axes: Sequence[Extent], verb: str, part: tuple[int, int] | None = None
    ) -> None:
        """Say that what is added along ``axes`` has to be zero in one of ``inputs``: ``verb`` is done over them.

        Args:
            inputs: the first of them that can have zeros there is taken.
            axes: that keep their sizes if none can.
            verb: what the node does over them.
            part: of the last axis of the input, see :class:`ZeroDemand`.
        """
        growing = tuple(axis for axis in axes if axis.grows)
        if growing:
            reason = f"{verb} an axis that grows from {growing[0].old} to {growing[0].new}"
            self._maps.demands.append(ZeroDemand(self.index, tuple(inputs), reason, growing, part))

    def require_centred(self, i: int, axes: Sequence[int]) -> None:
        """Say that the mean over ``axes``, one of which grows, of input ``i`` has to be zero."""
        growing = [self.input(i)[axis] for axis in axes if self.input(i)[axis].grows]
        if len(growing) > 1:
            self.refuse("subtracts the mean over several axes that grow", growing)
        self._maps.centred.append(CentredInput(self.index, i, tuple(axes)))

    def require_centred_images(self) -> bool:
        """Say that the mean over features and pixels has to be zero where a Reshape reads them to flatten them.

        The Reshape gives input 0, ``[N, 1, features * pixels]``. There, unlike behind it, features are an axis.

        Returns:
            Whether a Reshape does so, for this node alone.
        """
        flat = self.node.inputs[0]
        reshape = flat.inputs[0] if flat.inputs else None
        if reshape is None or reshape.op != "Reshape" or len(flat.outputs) != 1:
            return False
        x = self._maps.extents(reshape.inputs[0].name)
        kept = [axis for axis in x[1:] if not axis.grows]
        if len(kept) != len(x) - 2 or x[0].grows or x[0].old != self.input(0)[0].old:
            return False
        self._maps.centred.append(CentredInput(self._maps.index_of(reshape), 0, tuple(range(1, len(x)))))
        return True

    def require_centred_difference(self, axes: Sequence[int]) -> None:
        """Say that the node takes the mean over ``axes`` for others that subtract it from the same input."""
        self.require_centred(0, axes)
        for subtraction in self.node.outputs[0].outputs:
            index = self._maps.index_of(subtraction)
            self._maps.subtractions.add(index)
            self._maps.centred.append(CentredInput(index, 0, tuple(axes)))

    def scales_mean(self, factor: float) -> None:
        """Say that the output is ``factor`` times what it was, since it is a mean over added zeros as well."""
        self._maps.means[self.node.outputs[0].name] = factor

    def freeze(self, i: int) -> None:
        """Say that the numbers of input ``i`` have to stay what they were in the original."""
        self._maps.frozen.append((self.index, i))

    def scale_parameter(self, i: int, factor: float) -> None:
        """Say that the values of input ``i``, which scales features, are multiplied by ``factor``.

        Raises:
            RefusedError: it is not stored.
        """
        if not self.has_input(i) or not self.is_parameter(i):
            self.refuse("has a computed scale, which would have to follow the number of features")
        self._maps.scalings.append(Scaling(self.index, i, factor))

    def set_attribute(self, name: str, value: float) -> None:
        """Say that an attribute has this value."""
        self._maps.attributes[self.index, name] = value

    def composed(self, whole: Extent, pieces: Sequence[tuple[Extent, int, int, int]]) -> None:
        """Say that ``whole`` consists of pieces: axis, old start, new start, places for each feature."""
        if whole.grows:
            self._maps.composed(whole, pieces, self.index)

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
                self.refuse(f"{verb} an axis that grows from {axis.old} to {axis.new}", [axis])


def product(axes: Sequence[Extent]) -> int:
    """How many elements axes have together in the original."""
    return math.prod(axis.old for axis in axes)


def refusal(node: str, reason: str) -> UnsupportedError:
    """The error that a node which cannot be embedded behind is refused with."""
    return UnsupportedError(
        f"`init='embed'` cannot keep what the model computes: node {node} {reason}. Use `init='random'`, or `only` "
        "with weights whose widths do not reach this node"
    )
