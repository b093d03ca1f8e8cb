"""What the rules find out about a graph: weight layers, products of activations, and the places to rewrite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.axes.sizes import Axis, Size
from sift_onnx.analysis.axes.system import AxisSystem
from sift_onnx.analysis.rotary import RotaryTable
from sift_onnx.shapes.input_binding import BoundInputs

__all__ = [
    "AttentionGrowth",
    "Axes",
    "AxisAnalysis",
    "Cause",
    "Element",
    "Elements",
    "Leaf",
    "Number",
    "Product",
    "Quotient",
    "ScaleEdit",
    "WeightLayer",
    "WeightUse",
    "elements_of",
]

Axes = tuple[Axis, ...]

# Heads get wider, or there are more of them, or both stay.
AttentionGrowth = Literal["head-dim", "heads", "keep"]


@dataclass(frozen=True)
class Cause:
    """Why an axis cannot grow: a node, its operator, and a reason in words."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True)
class Leaf:
    """One element of a constant as one node input reads it: the places where a shape may be rewritten."""

    constant: str
    element: int
    node: int
    input: int


@dataclass(frozen=True)
class Element:
    """One element of an integer tensor.

    Attributes:
        value: in the original.
        size: the same as an expression: what it will be after widening, if nothing is rewritten.
        leaf: where it can be rewritten, if it is read straight from a constant.
        quotient: what it is a quotient of, where the divisor is read straight from a constant and nothing remains.
    """

    value: int
    size: Size
    leaf: Leaf | None = None
    quotient: Quotient | None = None


@dataclass(frozen=True)
class Quotient:
    """A size divided by an element of a constant: a width by the number of its heads, say."""

    dividend: Size
    divisor: Leaf


@dataclass(frozen=True)
class Number:
    """One element of a small floating-point tensor that is computed from sizes and constants.

    Attributes:
        value: in the original, as a numpy scalar.
        size: the same as an expression, if it is a whole number and linear in sizes.
        demands: expressions that have to stay whole numbers for ``size`` to be right.
        sources: sizes that it depends on where there is no expression.
    """

    value: Any
    size: Size | None
    demands: tuple[Size, ...] = ()
    sources: tuple[Size, ...] = ()


# Of Element for integers, of Number for floating-point numbers.
Elements = npt.NDArray[np.object_]


def elements_of(elements: Sequence[Element | Number], shape: tuple[int, ...]) -> Elements:
    """Elements in row-major order as an array of ``shape``."""
    flat = np.empty(len(elements), dtype=object)
    flat[:] = elements
    return flat.reshape(shape)


@dataclass(frozen=True)
class WeightUse:
    """One node that multiplies by a weight.

    Attributes:
        node: name of the node.
        op: its operator.
        index: of the node in :attr:`AxisAnalysis.order`.
        positions: factors whose product is the number of multiply-accumulates per weight of the layer.
    """

    node: str
    op: str
    index: int
    positions: tuple[Size, ...]


@dataclass
class WeightLayer:
    """A weight that multiplies activations.

    Attributes:
        name: of the initializer.
        kind: ``conv``, ``depthwise``, ``gemm``, ``matmul`` or ``embedding``.
        constant: its values.
        axes: of the initializer, as it is stored.
        out_axis: the axis of the initializer that becomes the features of the output; the others are its fan-in.
        in_axis: the axis of the initializer that runs along the features of the input.
        uses: the nodes that read it.
    """

    name: str
    kind: str
    constant: gs.Constant
    axes: Axes
    out_axis: int
    in_axis: int
    uses: list[WeightUse]


@dataclass(frozen=True)
class Product:
    """A product of two activations (attention scores, say).

    Attributes:
        node: name of the node.
        index: of the node in :attr:`AxisAnalysis.order`.
        factors: their product is the number of multiply-accumulates.
        summed: the axis that is summed over, where a factor outside of the node may belong to it.
    """

    node: str
    index: int
    factors: tuple[Size, ...]
    summed: Size | None = None


@dataclass(frozen=True)
class ScaleEdit:
    """A factor of attention that is a power of the head size, to be recomputed.

    Attributes:
        node: index of the node in :attr:`AxisAnalysis.order`.
        place: the input that reads it, or the attribute that holds it.
        exponent: of the head size: -1/2, -1/4 or 1/2.
        size: the head size.
    """

    node: int
    place: int | str
    exponent: Fraction
    size: Size


@dataclass
class AxisAnalysis:
    """What the rules found out about a graph.

    Attributes:
        system: the size variables and their equations.
        axes: per tensor name, its axes, or None where its shape is unknown.
        elements: per tensor name, its elements, for small integer tensors that are known.
        numbers: the same for small floating-point tensors that are computed from sizes or constants.
        layers: weight layers by initializer name, in graph order.
        products: activation products.
        constant_edits: constants to rewrite, by the node input that reads them: flat index -> size.
        attribute_edits: ``(node index, attribute) -> size``, or sizes for a list.
        scale_edits: factors that follow the size of a head.
        tables: constants that are recomputed at another size, by name.
        fixed: weights in ``layers`` that are fixed functions, and why; see
            :mod:`sift_onnx.analysis.fixed_weights`.
        unknown: nodes that no rule covers.
        repeats: size variables of axes that are repeated as often as their readers need.
        derived: tensors that are made from constants only, initializers included; not what is looked up in embeddings.
        unscaled: products over a growing axis without a factor that follows it.
        attention: which part of an attention width grows, see :data:`AttentionGrowth`.
        whole_groups: whether normalizations get more groups, in place of wider ones, and attention between features
            more heads.
        head_splits: nodes that split a width into heads, where they have to be distinguished.
        order: the nodes in the order they were analysed; node indices refer to it.
        inputs: the shapes of the graph's inputs that sizes are of.
    """

    system: AxisSystem[Cause] = field(default_factory=AxisSystem)
    axes: dict[str, Axes | None] = field(default_factory=dict)
    elements: dict[str, Elements] = field(default_factory=dict)
    numbers: dict[str, Elements] = field(default_factory=dict)
    layers: dict[str, WeightLayer] = field(default_factory=dict)
    products: list[Product] = field(default_factory=list)
    constant_edits: dict[tuple[int, int], dict[int, Size]] = field(default_factory=dict)
    attribute_edits: dict[tuple[int, str], Size | tuple[Size, ...]] = field(default_factory=dict)
    scale_edits: list[ScaleEdit] = field(default_factory=list)
    tables: dict[str, RotaryTable] = field(default_factory=dict)
    fixed: dict[str, str] = field(default_factory=dict)
    unknown: list[gs.Node] = field(default_factory=list)
    repeats: set[Size] = field(default_factory=set)
    derived: set[str] = field(default_factory=set)
    unscaled: list[str] = field(default_factory=list)
    attention: AttentionGrowth = "head-dim"
    whole_groups: bool = False
    head_splits: frozenset[int] = frozenset()
    order: list[gs.Node] = field(default_factory=list)
    inputs: BoundInputs = field(default_factory=BoundInputs)
