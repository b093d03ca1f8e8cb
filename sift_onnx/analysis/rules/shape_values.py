"""Small integer tensors, element by element: the subgraphs that compute shapes.

A dynamic batch leaves chains like ``Shape -> Gather -> Concat -> Reshape`` in a graph. Each element is followed as a
:class:`~sift_onnx.analysis.rule_context.Element`: one that comes from ``Shape`` is the size of that axis and updates
itself when the model runs; one that comes from a constant can be rewritten; sums, and products and quotients with
constants, are expressions of these. Whatever is not a linear expression fixes what it is made of. Operators that
move elements, that compute in floating point, or that are rare are in
:mod:`sift_onnx.analysis.rules.number_values`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial, reduce

import numpy as np
import onnx

from sift_onnx.analysis.axes.sizes import size_of
from sift_onnx.analysis.findings import Element, Elements, Quotient, elements_of
from sift_onnx.analysis.rule_context import FOLLOWED_ELEMENTS, RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.number_values import NOT_LINEAR, evaluate_numbers
from sift_onnx.operators.domains import is_standard

__all__ = ["evaluate"]


@axis_rule("Shape")
def shape(ctx: RuleContext) -> None:
    """The sizes of the input, each an expression."""
    x = ctx.axes(0)
    if x is None:
        ctx.set_axes(0, ctx.inferred_axes())
        return
    end = ctx.attr("end")
    part = x[slice(int(ctx.attr("start", 0)), None if end is None else int(end))]
    ctx.set_elements(0, elements_of([Element(ctx.original(axis), axis.size) for axis in part], (len(part),)))


@axis_rule("Size")
def size(ctx: RuleContext) -> None:
    """The number of elements."""
    x = ctx.axes(0)
    if x is None:
        ctx.set_axes(0, ctx.inferred_axes())
        return
    total = _product(ctx, [Element(ctx.original(axis), axis.size) for axis in x])
    ctx.set_elements(0, elements_of([total], ()))


def evaluate(ctx: RuleContext) -> bool:
    """Compute the output of the node from the elements of its inputs.

    Returns:
        Whether that was possible; if not, the rule of the operator takes over.
    """
    node = ctx.node
    if not is_standard(node.domain):
        return False
    inputs: list[Elements | None] = []
    for i in range(len(node.inputs)):
        elements = ctx.elements(i)
        elements = ctx.numbers(i) if elements is None else _as_numbers(ctx, elements)
        if elements is None and ctx.has_input(i):
            return False
        inputs.append(elements)
    evaluator = _EVALUATORS.get(node.op)
    integers = [e for e in inputs if e is not None and all(isinstance(element, Element) for element in e.reshape(-1))]
    if evaluator is not None and integers and len(integers) == len(inputs) and len(node.outputs) == 1:
        result = evaluator(ctx, integers)
        if result is not None and result.size <= FOLLOWED_ELEMENTS:
            ctx.set_elements(0, result)
            return True
    return evaluate_numbers(ctx, inputs)


def _as_numbers(ctx: RuleContext, elements: Elements) -> Elements:
    """``elements`` for this node: a constant that another reader of the same tensor may rewrite is a size, too."""
    return elements_of([_as_number(ctx, element) for element in elements.reshape(-1)], elements.shape)


def _as_number(ctx: RuleContext, element: Element) -> Element:
    leaf = element.leaf
    # Nobody rewrites -1, 0 and 1.
    if leaf is None or leaf.node == ctx.index or element.value < 2:
        return element
    edits = ctx.analysis.constant_edits.setdefault((leaf.node, leaf.input), {})
    if leaf.element not in edits:
        edits[leaf.element] = ctx.system.variable(element.value)
    return Element(element.value, edits[leaf.element])


def _values(elements: Elements) -> list[int]:
    return [element.value for element in elements.reshape(-1)]


def _pairwise(combine: Callable[[RuleContext, Element, Element], Element]) -> Callable[..., Elements]:
    def apply(ctx: RuleContext, inputs: list[Elements]) -> Elements:
        result = inputs[0]
        for other in inputs[1:]:
            left, right = np.broadcast_arrays(result, other)
            pairs = zip(left.reshape(-1), right.reshape(-1), strict=True)
            result = elements_of([combine(ctx, a, b) for a, b in pairs], left.shape)
        return result

    return apply


def _add(_: RuleContext, a: Element, b: Element) -> Element:
    return Element(a.value + b.value, a.size + b.size)


def _subtract(_: RuleContext, a: Element, b: Element) -> Element:
    return Element(a.value - b.value, a.size - b.size)


def _multiply(ctx: RuleContext, a: Element, b: Element) -> Element:
    grows = ctx.system.grows(a.size)
    if grows:
        # Sizes that multiply each other are not a linear expression: the second one stays.
        ctx.pin(b.size, "it is multiplied with another size")
    return Element(a.value * b.value, a.size * b.value if grows else b.size * a.value)


def _product(ctx: RuleContext, elements: Iterable[Element]) -> Element:
    return reduce(partial(_multiply, ctx), elements, Element(1, size_of(1)))


def _divide(ctx: RuleContext, a: Element, b: Element) -> Element:
    if b.value == 0:
        return _fixed(ctx, 0, a, b)
    ctx.pin(b.size, "it divides another size")
    if a.value < 0 or b.value < 0:
        return _fixed(ctx, int(Fraction(a.value, b.value)), a, b)
    # Demanding an integer keeps the remainder as it is, so that rounding down takes the same away as before.
    quotient = (a.size - size_of(a.value % b.value)) / b.value
    ctx.system.require_integer(quotient)
    parts = Quotient(a.size, b.leaf) if b.leaf is not None and a.value % b.value == 0 else None
    return Element(a.value // b.value, quotient, quotient=parts)


def _remainder(ctx: RuleContext, a: Element, b: Element) -> Element:
    if a.value < 0 or b.value <= 0 or ctx.attr("fmod", 0):
        return _fixed(ctx, a.value % b.value if b.value else 0, a, b)
    ctx.pin(b.size, "it divides another size")
    ctx.system.require_integer((a.size - size_of(a.value % b.value)) / b.value)
    return Element(a.value % b.value, size_of(a.value % b.value))


def _fixed(ctx: RuleContext, value: int, *sources: Element) -> Element:
    for source in sources:
        ctx.pin(source.size, NOT_LINEAR)
    return Element(value, size_of(value))


def _nonlinear(function: Callable[[int, int], int | bool]) -> Callable[..., Elements]:
    return _pairwise(lambda ctx, a, b: _fixed(ctx, int(function(a.value, b.value)), a, b))


def _comparison(function: Callable[[int, int], bool]) -> Callable[..., Elements]:
    """A comparison that cannot turn out differently when sizes grow fixes nothing (``size == -1``, say)."""

    def compare(ctx: RuleContext, a: Element, b: Element) -> Element:
        value = int(function(a.value, b.value))
        low, high = sorted((a, b), key=lambda element: element.value)
        if low.value < high.value and not ctx.system.grows(low.size) and _only_grows(ctx, high):
            return Element(value, size_of(value))
        return _fixed(ctx, value, a, b)

    return _pairwise(compare)


def _only_grows(ctx: RuleContext, element: Element) -> bool:
    return all(coefficient > 0 for _, coefficient in ctx.system.resolve(element.size).terms)


def _cast(ctx: RuleContext, inputs: list[Elements]) -> Elements | None:
    kind = np.dtype(ctx.node.outputs[0].dtype).kind if ctx.node.outputs[0].dtype is not None else "i"
    to = ctx.attr("to")
    if isinstance(to, int):
        kind = onnx.helper.tensor_dtype_to_np_dtype(to).kind
    elif to is not None:
        kind = np.dtype(to).kind
    if kind == "b":
        return _comparison(operator.ne)(ctx, [inputs[0], elements_of([Element(0, size_of(0))], ())])
    return inputs[0] if kind in "iu" else None


def _reduce_prod(ctx: RuleContext, inputs: list[Elements]) -> Elements | None:
    if inputs[0].ndim != 1:
        return None
    return elements_of([_product(ctx, inputs[0])], (1,) if ctx.attr("keepdims", 1) else ())


def _constant_of_shape(ctx: RuleContext, inputs: list[Elements]) -> Elements | None:
    value = ctx.attr("value")
    fill = value.values.reshape(-1)[0] if value is not None else np.float32(0)
    if np.dtype(type(fill)).kind not in "iu" or math.prod(_values(inputs[0])) > FOLLOWED_ELEMENTS:
        return None
    ctx.fix(inputs[0], "a tensor of this size is followed element by element")
    shape = tuple(_values(inputs[0]))
    return elements_of([Element(int(fill), size_of(int(fill)))] * math.prod(shape), shape)


def _range(ctx: RuleContext, inputs: list[Elements]) -> Elements | None:
    start, limit, delta = (_values(elements)[0] for elements in inputs)
    numbers = range(start, limit, delta)
    if len(numbers) > FOLLOWED_ELEMENTS:
        return None
    for elements in inputs:
        ctx.fix(elements, "a range of numbers depends on it")
    return elements_of([Element(n, size_of(n)) for n in numbers], (len(numbers),))


_EVALUATORS: dict[str, Callable[[RuleContext, list[Elements]], Elements | None]] = {
    "Add": _pairwise(_add),
    "And": _nonlinear(lambda a, b: bool(a) and bool(b)),
    "Cast": _cast,
    "ConstantOfShape": _constant_of_shape,
    "Div": _pairwise(_divide),
    "Equal": _comparison(operator.eq),
    "Greater": _comparison(operator.gt),
    "GreaterOrEqual": _comparison(operator.ge),
    "Less": _comparison(operator.lt),
    "LessOrEqual": _comparison(operator.le),
    "Max": _nonlinear(max),
    "Min": _nonlinear(min),
    "Mod": _pairwise(_remainder),
    "Mul": _pairwise(_multiply),
    "Range": _range,
    "ReduceProd": _reduce_prod,
    "Sub": _pairwise(_subtract),
}
