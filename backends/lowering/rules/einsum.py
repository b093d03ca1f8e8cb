"""Einsum as products of matrices or of elements, between steps that bring the axes into order.

Labels that both operands and the result have are those of a batch; labels that both have and the result has not are
summed over. What only one of them has are rows, or columns. Of three operands, two are multiplied first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.dims import Dim, Dims, product
from sift_onnx.backends.lowering.rules.convolution import check_weights
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.specs import (
    BatchedMatmul,
    ChannelScale,
    Elementwise,
    Matmul,
    Repeated,
    Reshaped,
    Spec,
    Transposed,
)
from sift_onnx.backends.lowering.weights import WeightMatrix
from sift_onnx.graphs.constants import array_of
from sift_onnx.operators.einsum_terms import einsum_terms

__all__ = ["einsum"]

Sizes = Mapping[str, Dim]


@dataclass(frozen=True)
class _Operand:
    """An operand of a product, which may be the result of another one.

    Attributes:
        name: of the value.
        labels: of its axes.
        constant: its values, if it is one.
        steps: that make it.
    """

    name: str
    labels: str
    constant: gs.Constant | None = None
    steps: tuple[Step, ...] = ()


class _Chain:
    """Steps for one node, each on the result of the one before it.

    Attributes:
        name: of the value so far.
        labels: of its axes.
        steps: in order.
    """

    def __init__(self, node: NodeView, operand: _Operand, sizes: Sizes, place: int = 0) -> None:
        """Begin with an operand, the first or the second of a product."""
        self._node, self._sizes = node, sizes
        self.name, self.labels = operand.name, operand.labels
        self.steps = list(operand.steps)
        self._begin = node.between(f"{place} {operand.name}")

    def add(self, spec: Spec, *others: str) -> None:
        """Append a step; ``others`` are its further operands."""
        made = f"{self._begin} {len(self.steps)}"
        self.steps.append(Step(spec, (self.name, *others), made, "rows", "rows", (self._node.index,)))
        self.name = made

    def turn(self, labels: str) -> None:
        """Bring the axes into the order of ``labels``."""
        if labels != self.labels:
            self.add(Transposed(tuple(self.labels.index(label) for label in labels)))
            self.labels = labels

    def apart(self, labels: str) -> None:
        """Add axes of one position, so that the axes are those of ``labels``, which has all of them in their order."""
        if labels != self.labels:
            places = [self.labels.find(label) for label in labels]
            self.add(Reshaped(tuple(1 if place < 0 else (place, place + 1) for place in places)))
            self.labels = labels

    def group(self, groups: Sequence[str]) -> None:
        """Make one axis of each group of labels, of one position where it has none."""
        self.turn("".join(groups))
        if any(len(group) != 1 for group in groups):
            self.add(Reshaped(tuple(_positions(groups))))

    def part(self, groups: Sequence[str]) -> None:
        """The way back, from one axis of each group."""
        self.labels = "".join(groups)
        if all(len(group) == 1 for group in groups):
            return
        target: list[Dim | tuple[int, int]] = []
        for axis, group in enumerate(groups):
            sizes = [self._sizes[label] for label in group]
            own = [size if isinstance(size, int) else -1 for size in sizes]
            target += [(axis, axis + 1)] if len(group) == 1 else own
        if target.count(-1) > 1:
            raise NotLowered("the sizes of its result are not known before a run")
        self.add(Reshaped(tuple(target)))


def _positions(groups: Sequence[str]) -> list[Dim | tuple[int, int]]:
    """The axes that each group is made of, which follow each other."""
    first = 0
    found: list[Dim | tuple[int, int]] = []
    for group in groups:
        found.append((first, first + len(group)) if group else 1)
        first += len(group)
    return found


def einsum(node: NodeView) -> tuple[Step, ...]:
    """Einsum of two or three operands, of which some may be constants, but not all."""
    count = len(node.proto.input)
    if count not in (2, 3):
        raise NotLowered(f"it has {count} operands; the kernels multiply two or three")
    dims = [node.dims(position) for position in range(count)]
    terms, result = einsum_terms(str(node.attribute("equation")), [len(own) for own in dims])
    if terms is None or any(len(set(term)) < len(term) for term in (*terms, result)):
        raise NotLowered("an operand has a label twice")
    sizes = _sizes_of_labels(terms, dims)
    if any(label not in result and sum(label in term for term in terms) == 1 for label in sizes):
        raise NotLowered("it sums over an axis that only one operand has")
    operands = [_Operand(node.input(i), term, node.constant(i)) for i, term in enumerate(terms)]
    for position, operand in enumerate(operands):
        if operand.constant is None:
            node.operand(position, "rows")
    chain = _product(node, operands, result, sizes) if count == 2 else _of_three(node, operands, result, sizes)
    chain.turn(result)
    if not chain.steps or chain.steps[-1].output != chain.name:
        chain.add(Reshaped())
    *before, last = chain.steps
    return (*before, replace(last, output=node.output))


def _sizes_of_labels(terms: Sequence[str], dims: Sequence[Dims]) -> Sizes:
    sizes: dict[str, Dim] = {}
    for term, own in zip(terms, dims, strict=True):
        for label, size in zip(term, own, strict=True):
            if sizes.setdefault(label, size) != size:
                raise NotLowered(f"the sizes of its label {label!r} are not known to be the same")
    return sizes


def _of_three(node: NodeView, operands: Sequence[_Operand], result: str, sizes: Sizes) -> _Chain:
    """Two of the operands, and their product and the third; those first that make the smallest product."""
    reason = NotLowered("it has constants only")
    for first, second, third in sorted(
        permutations(operands), key=lambda order: len({*order[0].labels, *order[1].labels})
    ):
        kept = {*result, *third.labels}
        both = dict.fromkeys(first.labels + second.labels)
        inner = "".join(label for label in both if label in kept)
        try:
            chain = _product(node, (first, second), inner, sizes)
            chain.turn(inner)
            return _product(node, (_Operand(chain.name, inner, steps=tuple(chain.steps)), third), result, sizes)
        except NotLowered as error:
            reason = error
    raise reason


def _product(node: NodeView, operands: Sequence[_Operand], result: str, sizes: Sizes) -> _Chain:
    """The product of two operands, with the labels of ``result`` in some order."""
    constants = [operand for operand in operands if operand.constant is not None]
    if len(constants) == 2:
        raise NotLowered("it multiplies constants")
    if not constants:
        return _of_two(node, operands, result, sizes)
    value = next(operand for operand in operands if operand.constant is None)
    weights = constants[0]
    shared = {*weights.labels} & {*value.labels}
    if shared and not shared & {*result}:
        return _with_weights(node, value, weights, result, sizes)
    if shared - {*result}:
        return _with_stack(node, value, weights, result, sizes)
    return _by_table(node, value, weights, result, sizes)


def _of_two(node: NodeView, operands: Sequence[_Operand], result: str, sizes: Sizes) -> _Chain:
    """The product of two values that are computed."""
    first, second = (operand.labels for operand in operands)
    batch = [label for label in result if label in first and label in second]
    summed = "".join(label for label in first if label in second and label not in result)
    rows, columns = (
        "".join(label for label in result if label in term and label not in batch) for term in (first, second)
    )
    if not summed and not (rows and columns):
        whole, part = operands if not columns else operands[::-1]
        return _by_elements(node, whole, part, sizes)
    left, right = (_Chain(node, operand, sizes, place) for place, operand in enumerate(operands))
    left.group([*batch, rows, summed])
    right.group([*batch, summed, columns])
    left.steps += right.steps
    left.add(BatchedMatmul(), right.name)
    left.part([*batch, rows, columns])
    return left


def _by_elements(node: NodeView, whole: _Operand, part: _Operand, sizes: Sizes) -> _Chain:
    """The product of two values, of which one has all labels of the other one."""
    left, right = (_Chain(node, operand, sizes, place) for place, operand in enumerate((whole, part)))
    right.turn("".join(label for label in whole.labels if label in part.labels))
    repeats = right.labels != left.labels
    right.apart(left.labels)
    left.steps += right.steps
    left.add(Elementwise("multiply", repeats=repeats), right.name)
    return left


def _by_table(node: NodeView, value: _Operand, table: _Operand, result: str, sizes: Sizes) -> _Chain:
    """The product of a value and a constant element by element: the value is repeated along axes that it lacks."""
    constant, counts = table.constant, {label: sizes[label] for label in table.labels}
    assert constant is not None
    if not counts or not counts.keys() <= {*result}:
        raise NotLowered("its weights share an axis with its result")
    if np.dtype(constant.dtype) != np.float32:
        raise NotLowered(f"the constant {table.name!r} is {constant.dtype}")
    chain = _Chain(node, value, sizes)
    # The axes of the constant come last.
    order = "".join(label for label in value.labels if label not in counts) + table.labels
    chain.turn("".join(label for label in order if label in value.labels))
    lacked = [(axis, count) for axis, label in enumerate(order) if label not in value.labels
              and isinstance(count := counts[label], int)]  # fmt: skip
    if lacked:
        chain.apart(order)
        chain.add(Repeated(tuple(lacked)))
    if len(counts) == 1:
        chain.add(ChannelScale(np.array(array_of(constant)), np.zeros(constant.shape, np.float32)))
    else:
        chain.add(Elementwise("multiply", repeats=True), table.name)
    return chain


def _with_stack(node: NodeView, value: _Operand, stack: _Operand, result: str, sizes: Sizes) -> _Chain:
    """The product of a value and a constant matrix for each position of axes that both have, such as heads."""
    batch = [label for label in result if label in value.labels and label in stack.labels]
    summed = "".join(label for label in value.labels if label in stack.labels and label not in result)
    rows, columns = (
        "".join(label for label in result if label in term and label not in batch)
        for term in (value.labels, stack.labels)
    )
    order = (*batch, *summed, *columns)
    counts = [sizes[label] for label in order]
    known = [size for size in counts if isinstance(size, int)]
    if len(known) != len(counts) or 0 in known:
        raise NotLowered("the sizes of its weights are not known, or one of them is zero")
    matrices = [*known[: len(batch)], math.prod(known[len(batch) : len(batch) + len(summed)]), -1]
    name = _rearranged(node, stack, order, matrices)
    chain = _Chain(node, value, sizes)
    chain.group([*batch, rows, summed])
    chain.add(BatchedMatmul(), name)
    chain.part([*batch, rows, columns])
    return chain


def _rearranged(node: NodeView, stored: _Operand, order: Sequence[str], shape: Sequence[int]) -> str:
    """The name of a constant that has the values of another one, with its axes in ``order``, in ``shape``."""
    assert stored.constant is not None
    values = array_of(stored.constant)
    if values.dtype != np.float32:
        raise NotLowered(f"the constant {stored.name!r} is {values.dtype}")
    if not np.isfinite(values).all():
        raise NotLowered(f"the constant {stored.name!r} holds NaN or infinity")
    turned = values.transpose([stored.labels.index(label) for label in order]).reshape(shape)
    name = node.between(f"{stored.name} as {list(shape)}")
    node.graph.constants[name] = gs.Constant(name, np.ascontiguousarray(turned))
    return name


def _with_weights(node: NodeView, value: _Operand, constant: _Operand, result: str, sizes: Sizes) -> _Chain:
    """The product of a value and constant weights."""
    weights, own = constant.labels, value.labels
    summed = "".join(label for label in weights if label in own)
    columns = "".join(label for label in weights if label not in own)
    kept = [label for label in result if label in own]
    if not kept:
        raise NotLowered("it sums over all of its operand")
    stored = constant.constant
    assert stored is not None
    count, total = (product(sizes[label] for label in group) for group in (columns, summed))
    if not (isinstance(count, int) and isinstance(total, int) and count and total):
        raise NotLowered("its weights are empty")
    if weights not in (summed + columns, columns + summed):
        # Axes that are summed over lie between others.
        weights = columns + summed
        stored = node.graph.constants[_rearranged(node, constant, weights, [count, total])]
    matrix = WeightMatrix(stored, count, total, transposed=weights == summed + columns)
    check_weights(node, matrix)
    chain = _Chain(node, value, sizes)
    chain.group([*kept, summed])
    chain.add(Matmul(matrix, None))
    chain.part([*kept, columns])
    return chain
