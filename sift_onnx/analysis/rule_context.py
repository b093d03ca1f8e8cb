"""What an axis rule sees of one node, and what it can say about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.axes.sizes import Axis, Size, size_of
from sift_onnx.analysis.axes.system import AxisSystem
from sift_onnx.analysis.findings import (
    Axes,
    AxisAnalysis,
    Cause,
    Element,
    Elements,
    Leaf,
    Number,
    Product,
    WeightLayer,
    WeightUse,
    elements_of,
)
from sift_onnx.graphs.constants import array_of, constant_values, dtype_of, parameter_behind, shape_of
from sift_onnx.operators.labels import node_name
from sift_onnx.shapes.inference import Shapes
from sift_onnx.shapes.node_inference import infer_node

__all__ = ["FOLLOWED_ELEMENTS", "AxisRule", "RuleContext", "enter_constant", "sizes_behind"]

# Integer tensors up to this many elements are followed element by element: they may be shapes.
FOLLOWED_ELEMENTS = 64


class RuleContext:
    """One node, as a rule sees it."""

    def __init__(
        self, analysis: AxisAnalysis, node: gs.Node, index: int, shapes: Shapes, opsets: Mapping[str, int]
    ) -> None:
        self.analysis = analysis
        self.system = analysis.system
        self.node = node
        self.index = index
        self._shapes = shapes
        self._opsets = opsets
        self._inferred = False

    # What the node is.

    @property
    def label(self) -> str:
        """The node's name, or what it produces if it has none."""
        return node_name(self.node)

    @property
    def opset(self) -> int:
        """The version of the standard operator set."""
        return self._opsets[""]

    def attr(self, name: str, default: Any = None) -> Any:
        """The value of an attribute."""
        return self.node.attrs.get(name, default)

    def has_input(self, i: int) -> bool:
        """Whether input ``i`` is there (optional inputs may be left out)."""
        return i < len(self.node.inputs) and not self.node.inputs[i].is_empty()

    def axes(self, i: int) -> Axes | None:
        """The axes of input ``i``; None where its shape is unknown or it is left out."""
        if not self.has_input(i):
            return None
        tensor = self.node.inputs[i]
        if tensor.name not in self.analysis.axes:
            self._enter(tensor)
        return self.analysis.axes[tensor.name]

    def elements(self, i: int) -> Elements | None:
        """The elements of input ``i`` if it is a small, known integer tensor."""
        if not self.has_input(i):
            return None
        tensor = self.node.inputs[i]
        if tensor.name in self.analysis.elements:
            return self.analysis.elements[tensor.name]
        constant = constant_values(tensor)
        if constant is None or math.prod(shape_of(constant)) > FOLLOWED_ELEMENTS:
            return None
        values = array_of(constant)
        if values.dtype.kind not in "iub":
            return None
        followed = [
            Element(int(value), size_of(int(value)), Leaf(tensor.name, flat, self.index, i))
            for flat, value in enumerate(values.reshape(-1).tolist())
        ]
        return elements_of(followed, values.shape)

    def integers(self, i: int) -> list[int] | None:
        """The values of :meth:`elements` in the original."""
        elements = self.elements(i)
        return None if elements is None else [element.value for element in elements.reshape(-1)]

    def numbers(self, i: int) -> Elements | None:
        """The elements of input ``i`` if it is a small, known floating-point tensor of one axis or none."""
        if not self.has_input(i):
            return None
        tensor = self.node.inputs[i]
        if tensor.name in self.analysis.numbers:
            return self.analysis.numbers[tensor.name]
        constant = constant_values(tensor)
        if constant is None or len(shape_of(constant)) > 1 or math.prod(shape_of(constant)) > FOLLOWED_ELEMENTS:
            return None
        values = array_of(constant)
        if values.dtype.kind != "f" or not np.isfinite(values).all():
            return None
        followed = [Number(value, size_of(Fraction(value.item()))) for value in values.reshape(-1)]
        return elements_of(followed, values.shape)

    def parameter(self, i: int) -> tuple[gs.Constant, tuple[int, ...]] | None:
        """The floating-point constant that input ``i`` is, and the permutation of its axes on the way, or None.

        Between the constant and the input there may be nodes that copy, cast or transpose it.
        """
        if not self.has_input(i):
            return None
        return parameter_behind(self.node.inputs[i])

    def is_derived(self, i: int) -> bool:
        """Whether input ``i`` is made from constants only."""
        tensor = self.node.inputs[i]
        return constant_values(tensor) is not None or tensor.name in self.analysis.derived

    def readers(self) -> list[gs.Node]:
        """The nodes that read the first output."""
        return list(self.node.outputs[0].outputs)

    def output_shape(self, i: int = 0) -> tuple[int | None, ...] | None:
        """The shape of output ``i`` in the original, as far as inference knows it."""
        if i >= len(self.node.outputs):
            return None
        known = self._shapes.get(self.node.outputs[i].name)
        if known is not None and None not in known:
            return known
        if not self._inferred:
            # Inference of the whole graph loses track of computed shapes; here every input is known as a number.
            self._inferred = True
            self._shapes.update(self._infer())
        return self._shapes.get(self.node.outputs[i].name)

    def _infer(self) -> Shapes:
        shapes: dict[str, tuple[int, ...]] = {}
        values: dict[str, npt.NDArray[Any]] = {}
        for i, tensor in enumerate(self.node.inputs):
            axes, elements = self.axes(i), self.elements(i)
            if axes is not None:
                shapes[tensor.name] = tuple(self.original(axis) for axis in axes)
            if elements is not None:
                flat = [element.value for element in elements.reshape(-1)]
                values[tensor.name] = np.asarray(flat, dtype=np.int64).reshape(elements.shape)
            elif tensor.name in self.analysis.numbers:
                numbers = self.analysis.numbers[tensor.name]
                flat = [number.value for number in numbers.reshape(-1)]
                values[tensor.name] = np.asarray(flat).reshape(numbers.shape)
        return infer_node(self.node, self._opsets, shapes, values)

    def original(self, axis: Axis | Size) -> int:
        """A size in the original."""
        return self.system.original(axis.size if isinstance(axis, Axis) else axis)

    def grows(self, axis: Axis) -> bool:
        """Whether an axis is free to grow."""
        return self.system.grows(axis.size)

    def cause(self, reason: str) -> Cause:
        """``reason``, said of this node."""
        return Cause(self.label, self.node.op, reason)

    # What the rule says.

    def set_axes(self, i: int, axes: Sequence[Axis] | None) -> None:
        """Say what the axes of output ``i`` are."""
        for axis in axes or ():
            if self.original(axis) == 1:
                self.pin(axis, "a part of size 1 stays, since whatever it meets takes it for one to be broadcast")
        if i < len(self.node.outputs) and self.node.outputs[i].name:
            self.analysis.axes[self.node.outputs[i].name] = None if axes is None else tuple(axes)

    def set_elements(self, i: int, elements: Elements) -> None:
        """Say what the elements of integer output ``i`` are; its axes are constant."""
        self.analysis.elements[self.node.outputs[i].name] = elements
        self.set_axes(i, [Axis(size_of(n)) for n in elements.shape])

    def equate(self, a: Axis | Size, b: Axis | Size, reason: str) -> None:
        """Say that two sizes are the same."""
        first = a.size if isinstance(a, Axis) else a
        second = b.size if isinstance(b, Axis) else b
        self.system.equate(first, second, self.cause(f"{reason}: the other side is fixed"))

    def pin(self, axis: Axis | Size, reason: str) -> None:
        """Say that a size must stay what it is."""
        self.system.pin(axis.size if isinstance(axis, Axis) else axis, self.cause(reason))

    def pin_all(self, axes: Sequence[Axis] | None, reason: str) -> None:
        """Pin each of ``axes``."""
        for axis in axes or ():
            self.pin(axis, reason)

    def tie(self, element: Element, size: Size, reason: str) -> None:
        """Say that ``element`` states ``size``: it is rewritten if it can be, else the two are the same."""
        if element.leaf is not None:
            self._rewrite(element.leaf, size, reason)
        elif not self.system.grows(element.size):
            self.system.equate(element.size, size, self.cause(f"{reason}, computed from numbers that stay"))
        elif self.index in self.analysis.head_splits and element.quotient is not None and not self.system.grows(size):
            # A width, divided by the number of its heads, of which there are going to be more.
            number = element.quotient.dividend / element.value
            self.system.require_integer(number)
            self._rewrite(element.quotient.divisor, number, reason)
        else:
            self.equate(element.size, size, reason)

    def _rewrite(self, leaf: Leaf, size: Size, reason: str) -> None:
        edits = self.analysis.constant_edits.setdefault((leaf.node, leaf.input), {})
        if leaf.element in edits:
            self.equate(edits[leaf.element], size, reason)
        edits[leaf.element] = size

    def fix(self, elements: Elements, reason: str) -> None:
        """Say that ``elements`` must stay what they are."""
        for element in elements.reshape(-1):
            for size in sizes_behind(element):
                self.pin(size, reason)

    def fix_input(self, i: int, reason: str) -> None:
        """Say that input ``i`` must stay what it is: its axes, and its elements as far as they are followed."""
        self.pin_all(self.axes(i), reason)
        for elements in (self.elements(i), self.numbers(i)):
            if elements is not None:
                self.fix(elements, reason)

    def keep_sizes(self, reason: str) -> None:
        """Say that every size which the node reads must stay; outputs have the sizes that inference knows."""
        for i in range(len(self.node.inputs)):
            self.pin_all(self.axes(i), reason)
        for i in range(len(self.node.outputs)):
            self.set_axes(i, self.inferred_axes(i))

    def fix_node(self, reason: str) -> None:
        """Say that all inputs must stay what they are, see :meth:`fix_input`, and so the outputs."""
        for i in range(len(self.node.inputs)):
            self.fix_input(i, reason)
        self.keep_sizes(reason)

    def set_attribute(self, name: str, size: Size | Sequence[Size]) -> None:
        """Say that an integer attribute states ``size``, or a list of integers these sizes."""
        self.analysis.attribute_edits[(self.index, name)] = size if isinstance(size, Size) else tuple(size)

    def weight(
        self,
        parameter: tuple[gs.Constant, tuple[int, ...]],
        kind: str,
        out_axis: int,
        positions: Sequence[Size],
        in_axis: int | None = None,
    ) -> None:
        """Register a weight layer, or one more use of it.

        Args:
            parameter: from :meth:`parameter`.
            kind: see :class:`WeightLayer`.
            out_axis: output features, as an axis of the node's input.
            positions: see :class:`WeightUse`.
            in_axis: input features, as an axis of the node's input. Where it is left out: of a convolution the first
                axis other than ``out_axis``, before the kernel; of any other layer the last, after those of a stack.
        """
        constant, permutation = parameter
        use = WeightUse(self.label, self.node.op, self.index, tuple(positions))
        known = self.analysis.layers.get(constant.name)
        if known is not None:
            known.uses.append(use)
            return
        axes = self.analysis.axes[constant.name]
        assert axes is not None
        if in_axis is None:
            others = [i for i in range(len(axes)) if i != out_axis]
            in_axis = others[0 if kind in ("conv", "depthwise") else -1]
        self.analysis.layers[constant.name] = WeightLayer(
            constant.name, kind, constant, axes, permutation[out_axis], permutation[in_axis], [use]
        )

    def product(self, *factors: Size, summed: Size | None = None) -> None:
        """Register a product of two activations, see :class:`Product`."""
        self.analysis.products.append(Product(self.label, self.index, factors, summed))

    def const_axes(self, shape: Sequence[int], reason: str = "") -> Axes:
        """Axes of fixed sizes, and why they are fixed."""
        cause = self.cause(reason) if reason else None
        return tuple(Axis(self.system.fixed(n, cause)) for n in shape)

    def inferred_axes(self, i: int = 0) -> Axes | None:
        """The axes of output ``i`` as fixed sizes from inference, None where it knows too little."""
        shape = self.output_shape(i)
        if shape is None or any(n is None for n in shape):
            return None
        return self.const_axes([n for n in shape if n is not None])

    def _enter(self, tensor: gs.Tensor) -> None:
        constant = constant_values(tensor)
        if constant is None:
            self.analysis.axes[tensor.name] = None
            return
        self.analysis.axes[tensor.name] = enter_constant(self.system, tensor.name, constant)


def sizes_behind(element: Element | Number) -> tuple[Size, ...]:
    """The sizes that an element changes with."""
    if isinstance(element, Number):
        return element.sources if element.size is None else (element.size,)
    return (element.size,)


def enter_constant(system: AxisSystem[Cause], name: str, constant: gs.Constant) -> Axes:
    """The axes of a constant: a variable each for floating-point data, which can be drawn at any size."""
    floating = dtype_of(constant).kind not in "iubOUS"
    axes: list[Axis] = []
    for n in shape_of(constant):
        if n < 2:
            axes.append(Axis(size_of(n)))
            continue
        size = system.variable(n)
        if not floating:
            system.pin(size, Cause(name, "initializer", f"{name!r} holds integers, which cannot be drawn again"))
        axes.append(Axis(size, 1, n))
    return tuple(axes)


AxisRule = Callable[[RuleContext], None]
