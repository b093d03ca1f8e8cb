"""The workload of a machine: weight matrices times activations, and work without weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypedDict

from sift_onnx.backends.dataflow.workloads.matrix_maps import IndexMap
from sift_onnx.backends.dataflow.workloads.pattern import FullPattern, Pattern
from sift_onnx.records.simulate import Uncosted
from sift_onnx.shapes.input_binding import BoundInputs

__all__ = [
    "ProductSubject",
    "SparseProduct",
    "Step",
    "Subject",
    "Uncosted",
    "WeightlessKind",
    "WeightlessOp",
    "Workload",
    "subject_of",
]

Step = Literal["forward", "input_gradient", "weight_gradient", "mask_update"]
WeightlessKind = Literal["product", "elementwise", "reduction", "copy", "lookup"]


@dataclass(frozen=True)
class SparseProduct:
    """A weight matrix ``[rows, columns]`` times activations ``[columns, tokens]``.

    Attributes:
        name: of the initializer.
        node: that multiplies by it.
        op: operator of that node.
        kind: ``conv``, ``depthwise``, ``gemm`` or ``matmul``.
        pattern: the matrix and its non-zeros.
        gradient_map: the matrix of the gradient of the input.
        tokens: columns of the activations: batch times positions.
        sequential: how many times this runs in sequence (time steps of a recurrent layer).
        needs_input_gradient: whether training needs the gradient of the input; not of the first layer.
        step: of training.
    """

    name: str
    node: str
    op: str
    kind: str
    pattern: Pattern
    gradient_map: IndexMap
    tokens: int
    sequential: int = 1
    needs_input_gradient: bool = True
    step: Step = "forward"

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the non-zeros."""
        return self.pattern.nnz * self.tokens * self.sequential

    @property
    def is_sparse(self) -> bool:
        """Whether it is streamed with indices."""
        return not isinstance(self.pattern, FullPattern)


class Subject(TypedDict):
    """The fields of a result that say what was computed, whatever machine it was computed on."""

    name: str
    node: str
    op: str
    kind: str
    step: Step
    storage: str
    macs: int


class ProductSubject(Subject):
    """The same of a product, with the sizes of its matrix."""

    rows: int
    columns: int
    tokens: int
    size: int
    nnz: int


def subject_of(product: SparseProduct) -> ProductSubject:
    """What ``product`` is, for its result."""
    matrix = product.pattern.map
    return ProductSubject(
        name=product.name,
        node=product.node,
        op=product.op,
        kind=product.kind,
        step=product.step,
        storage="csr" if product.is_sparse else "dense",
        rows=matrix.rows,
        columns=matrix.columns,
        tokens=product.tokens,
        size=matrix.size,
        nnz=product.pattern.nnz,
        macs=product.macs,
    )


@dataclass(frozen=True)
class WeightlessOp:
    """Work without weights.

    Attributes:
        node: name of the node.
        op: its operator.
        kind: ``product`` of two activations; ``elementwise``; ``reduction`` along a row of cores; ``copy`` from core to
            core; ``lookup`` in a stored table.
        operations: multiply-accumulates of a product; otherwise steps of one SIMD lane.
        elements_in: activations that are read.
        elements_out: activations that are written.
        ring_passes: reductions along a row of cores.
        table_elements: of a lookup, the elements of the table.
        step: of training.
    """

    node: str
    op: str
    kind: WeightlessKind
    operations: int
    elements_in: int
    elements_out: int
    ring_passes: int = 0
    table_elements: int = 0
    step: Step = "forward"


@dataclass(frozen=True)
class Workload:
    """A model at a batch.

    Attributes:
        name: of the model.
        batch: items that are processed together.
        products: weighted nodes in graph order.
        weightless: the others in graph order, without those that only rename or compute shapes.
        uncosted: nodes that are missing from the totals.
        assumptions: what was assumed when it was made.
        inputs: the input shapes of the model that it was made from.
        cache_elements: keys and values that stay in the cores' memory, as many as there are in the end.
    """

    name: str
    batch: int
    products: tuple[SparseProduct, ...]
    weightless: tuple[WeightlessOp, ...]
    uncosted: tuple[Uncosted, ...] = ()
    assumptions: tuple[str, ...] = ()
    inputs: BoundInputs = field(default_factory=BoundInputs)
    cache_elements: int = 0
