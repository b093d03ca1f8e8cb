"""Einsum of two operands as a product of matrices, between steps that bring the axes into order.

Labels that both operands and the result have are those of a batch; labels that both have and the result has not are
summed over. What only one of them has are rows, or columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sift_onnx.backends.lowering.dims import Dim, Dims, product
from sift_onnx.backends.lowering.rules.convolution import check_weights
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.specs import BatchedMatmul, Matmul, Reshaped, Spec, Transposed
from sift_onnx.backends.lowering.weights import WeightMatrix
from sift_onnx.operators.einsum_terms import einsum_terms

__all__ = ["einsum"]

Sizes = Mapping[str, Dim]


class _Chain:
    """Steps for one node, each on the result of the one before it.

    Attributes:
        name: of the value so far.
        labels: of its axes.
        steps: in order.
    """

    def __init__(self, node: NodeView, position: int, labels: str, sizes: Sizes) -> None:
        """Begin with an operand."""
        node.operand(position, "rows")
        self._node, self._position, self._sizes = node, position, sizes
        self.name, self.labels = node.input(position), labels
        self.steps: list[Step] = []

    def add(self, spec: Spec, *others: str) -> None:
        """Append a step; ``others`` are its further operands."""
        made = f"{self._node.output}/{self._position} {len(self.steps)}"
        self.steps.append(Step(spec, (self.name, *others), made, "rows", "rows", (self._node.index,)))
        self.name = made

    def turn(self, labels: str) -> None:
        """Bring the axes into the order of ``labels``."""
        if labels != self.labels:
            self.add(Transposed(tuple(self.labels.index(label) for label in labels)))
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
    """Einsum of two operands, of which one may be constant weights."""
    if len(node.proto.input) != 2:
        raise NotLowered(f"it has {len(node.proto.input)} operands; the kernels multiply two")
    dims = [node.dims(position) for position in range(2)]
    terms, result = einsum_terms(str(node.attribute("equation")), [len(own) for own in dims])
    if terms is None or any(len(set(term)) < len(term) for term in (*terms, result)):
        raise NotLowered("an operand has a label twice")
    sizes = _sizes_of_labels(terms, dims)
    if any(label not in result and (label in terms[0]) != (label in terms[1]) for label in sizes):
        raise NotLowered("it sums over an axis that only one operand has")
    constants = [position for position in range(2) if node.constant(position) is not None]
    if constants:
        chain = _with_weights(node, constants[0], terms, result, sizes)
    else:
        chain = _of_two(node, terms, result, sizes)
    chain.turn(result)
    *before, last = chain.steps
    return (*before, replace(last, output=node.output))


def _sizes_of_labels(terms: Sequence[str], dims: Sequence[Dims]) -> Sizes:
    sizes: dict[str, Dim] = {}
    for term, own in zip(terms, dims, strict=True):
        for label, size in zip(term, own, strict=True):
            if sizes.setdefault(label, size) != size:
                raise NotLowered(f"the sizes of its label {label!r} are not known to be the same")
    return sizes


def _of_two(node: NodeView, terms: Sequence[str], result: str, sizes: Sizes) -> _Chain:
    """The product of two values that are computed."""
    first, second = terms
    batch = [label for label in result if label in first and label in second]
    summed = "".join(label for label in first if label in second and label not in result)
    rows, columns = ("".join(label for label in result if label in term and label not in batch) for term in terms)
    if not (summed or rows or columns):
        raise NotLowered("it multiplies element by element")
    left, right = _Chain(node, 0, first, sizes), _Chain(node, 1, second, sizes)
    left.group([*batch, rows, summed])
    right.group([*batch, summed, columns])
    left.steps += right.steps
    left.add(BatchedMatmul(), right.name)
    left.part([*batch, rows, columns])
    return left


def _with_weights(node: NodeView, constant: int, terms: Sequence[str], result: str, sizes: Sizes) -> _Chain:
    """The product of a value and constant weights."""
    weights, own = terms[constant], terms[1 - constant]
    summed = "".join(label for label in weights if label in own)
    columns = "".join(label for label in weights if label not in own)
    kept = [label for label in result if label in own]
    if any(label in result for label in summed) or not kept or not summed:
        raise NotLowered("its weights share an axis with its result")
    if weights not in (summed + columns, columns + summed):
        raise NotLowered("axes of its weights that are summed over lie between others")
    stored = node.constant(constant)
    assert stored is not None
    count, total = (product(sizes[label] for label in group) for group in (columns, summed))
    if not (isinstance(count, int) and isinstance(total, int) and count and total):
        raise NotLowered("its weights are empty")
    matrix = WeightMatrix(stored, count, total, transposed=weights == summed + columns)
    check_weights(node, matrix)
    chain = _Chain(node, 1 - constant, own, sizes)
    chain.group([*kept, summed])
    chain.add(Matmul(matrix, None))
    chain.part([*kept, columns])
    return chain
