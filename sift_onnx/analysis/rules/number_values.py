"""Small tensors that are computed from sizes in other ways than by sums, products and quotients of integers.

Operators that only move elements hand them on as they are.
An exporter that divides two sizes of an image casts them to float, divides, rounds, and casts back. Each element of
such a tensor is followed as a :class:`~sift_onnx.analysis.findings.Number`. As long as it is a whole number and a
linear expression of sizes, it stays one; otherwise it knows the sizes that it depends on, and those stay what they are
once a size is made of it. Nothing stays that a number only scales, such as the root of a head's size in attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.axes.sizes import Size, size_of
from sift_onnx.analysis.findings import Element, Elements, Number, elements_of
from sift_onnx.analysis.rule_context import FOLLOWED_ELEMENTS, RuleContext, sizes_behind
from sift_onnx.files.data_types import data_type_of
from sift_onnx.shapes.numpy_ops import ELEMENTWISE, KERNELS, MOVING, compute

__all__ = ["NOT_LINEAR", "evaluate_numbers"]

# Single precision has every whole number below it, and those a little larger that a wider axis makes of it.
_EXACT_BELOW = 1 << 20
# What depends on more sizes keeps them all at once.
_MOST_SOURCES = 64
NOT_LINEAR = "a computation that is not linear uses it"

_Operand = Element | Number


def evaluate_numbers(ctx: RuleContext, inputs: Sequence[Elements | None]) -> bool:
    """Compute the outputs of the node from the elements of its inputs.

    Args:
        ctx: the node.
        inputs: elements or numbers of each input; None for one that is left out.

    Returns:
        Whether they are integers, and so all that there is to say of them; floats have the axes that a rule gives them.
    """
    node = ctx.node
    if node.op not in KERNELS or not inputs:
        return False
    arrays = [None if elements is None else _array_of(elements) for elements in inputs]
    attributes = {name: _plain(value) for name, value in node.attrs.items()}
    results = compute(node.op, arrays, attributes, len(node.outputs))
    if results is None or any(result.size > FOLLOWED_ELEMENTS for result in results):
        return False
    moves = node.op in MOVING or node.op == "Where"
    if moves:
        outputs = _moved(ctx, inputs, attributes)
    else:
        given = [elements for elements in inputs if elements is not None]
        outputs = [_combined(ctx, given, result) for result in results]
    if outputs is None:
        return False
    if results[0].dtype.kind == "f":
        for tensor, elements in zip(node.outputs, outputs, strict=False):
            ctx.analysis.numbers[tensor.name] = elements
        return False
    for i in range(0 if moves else len(node.inputs)):
        ctx.pin_all(ctx.axes(i), NOT_LINEAR)
    for i, elements in enumerate(outputs):
        whole = [_as_element(ctx, operand) for operand in elements.reshape(-1)]
        ctx.set_elements(i, elements_of(whole, elements.shape))
    return True


def _array_of(elements: Elements) -> npt.NDArray[Any]:
    values = [element.value for element in elements.reshape(-1)]
    kind = values[0].dtype if values and isinstance(values[0], np.generic) else np.int64
    return np.asarray(values, dtype=kind).reshape(elements.shape)


def _plain(value: Any) -> Any:
    if isinstance(value, gs.Constant):
        array = value.values
        return (array.reshape(-1)[0].item() if array.size else 0), data_type_of(array.dtype)
    return value


def _moved(ctx: RuleContext, inputs: Sequence[Elements | None], attributes: dict[str, Any]) -> list[Elements] | None:
    """The elements of the first input, or of all that are joined or chosen from, at their new places."""
    data = {"Concat": range(len(inputs)), "Where": (1, 2)}.get(ctx.node.op, (0,))
    reason = "a choice depends on it" if ctx.node.op == "Where" else "it picks elements of a shape"
    moved: list[npt.NDArray[Any] | None] = []
    for i, elements in enumerate(inputs):
        if elements is not None and i not in data:
            ctx.fix(elements, reason)
        moved.append(elements if elements is None or i in data else _array_of(elements))
    results = compute(ctx.node.op, moved, attributes, len(ctx.node.outputs))
    return None if results is None else list(results)


def _combined(ctx: RuleContext, inputs: Sequence[Elements], result: npt.NDArray[Any]) -> Elements:
    """The elements of an output, each made of those that meet in it, or of all."""
    flat = result.reshape(-1)
    if ctx.node.op in ELEMENTWISE:
        meeting = list(zip(*(other.reshape(-1) for other in np.broadcast_arrays(*inputs)), strict=True))
    else:
        meeting = [tuple(element for elements in inputs for element in elements.reshape(-1))] * flat.size
    made = [_number(ctx, operands, value) for operands, value in zip(meeting, flat, strict=True)]
    return elements_of(made, result.shape)


def _number(ctx: RuleContext, operands: Sequence[_Operand], value: Any) -> Number:
    depends = [size for operand in operands for size in _depends_on(ctx, operand)]
    if not depends and np.isfinite(value):
        return Number(value, size_of(Fraction(value.item())))
    size = _linear(ctx, operands, value)
    if size is not None:
        demands = [demand for operand in operands if isinstance(operand, Number) for demand in operand.demands]
        if ctx.node.op in ("Mul", "Div"):
            # What is demanded must not fall while widths grow.
            demands.append(size if value > 0 else size * -1)
        return Number(value, size, tuple(dict.fromkeys(demands)))
    sources = tuple(dict.fromkeys(depends))
    if len(sources) > _MOST_SOURCES:
        for source in sources:
            ctx.pin(source, NOT_LINEAR)
        sources = ()
    return Number(value, None, (), sources)


def _depends_on(ctx: RuleContext, operand: _Operand) -> list[Size]:
    return [size for size in sizes_behind(operand) if ctx.system.grows(size)]


def _linear(ctx: RuleContext, operands: Sequence[_Operand], value: Any) -> Size | None:
    """The output as an expression of sizes, if it is one and nothing was rounded: a whole number."""
    sizes = [operand.size for operand in operands if operand.size is not None]
    if len(sizes) < len(operands) or not np.isfinite(value) or abs(value) >= _EXACT_BELOW:
        return None
    exact = [Fraction(operand.value.item() if isinstance(operand, Number) else operand.value) for operand in operands]
    size, made = _expression(ctx, sizes, exact)
    return size if made == Fraction(value.item()) and made.denominator == 1 else None


def _expression(
    ctx: RuleContext, sizes: Sequence[Size], exact: Sequence[Fraction]
) -> tuple[Size | None, Fraction | None]:
    """What the node's operator makes of sizes, and of their values; None where it is not linear."""
    constant = [ctx.system.resolve(size).is_constant for size in sizes]
    match ctx.node.op:
        case "Add" | "Sum":
            return sum(sizes[1:], start=sizes[0]), sum(exact[1:], start=exact[0])
        case "Sub":
            return sizes[0] - sizes[1], exact[0] - exact[1]
        case "Neg":
            return sizes[0] * -1, -exact[0]
        case "Mul" if constant[0] or constant[1]:
            fixed = 0 if constant[0] else 1
            return sizes[1 - fixed] * exact[fixed], exact[0] * exact[1]
        case "Div" if constant[1] and exact[1]:
            return sizes[0] / exact[1], exact[0] / exact[1]
        case "Div" if exact[1] and ctx.system.resolve(sizes[0]) == ctx.system.resolve(sizes[1]):
            return size_of(1), Fraction(1)
        case "Cast" | "Ceil" | "Floor" | "Round":
            return sizes[0], exact[0]
    return None, None


def _as_element(ctx: RuleContext, operand: _Operand) -> Element:
    """An element of an integer tensor, which a size may be made of."""
    if isinstance(operand, Element):
        return operand
    for demand in operand.demands:
        ctx.system.require_integer(demand)
    for source in operand.sources:
        ctx.pin(source, NOT_LINEAR)
    value = int(operand.value)
    return Element(value, size_of(value) if operand.size is None else operand.size)
