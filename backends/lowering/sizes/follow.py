"""What exporters compute of shapes, as expressions of the axes that are known before a run.

Models of any batch and length read sizes off their tensors, and put them together into targets of reshapes and scales
of attention. ONNX's own inference gives up where a product or a quotient of two such sizes is another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.assumed_sizes import AssumedSizes, SizeProbe
from sift_onnx.backends.lowering.contradictions import CONTRADICTIONS
from sift_onnx.backends.lowering.dims import Dim, Dims
from sift_onnx.backends.lowering.sizes.dims_of_results import dims_of_parts, dims_of_result
from sift_onnx.backends.lowering.sizes.known import KnownSizes
from sift_onnx.backends.lowering.sizes.moved_tensors import moved_tensor
from sift_onnx.backends.lowering.sizes.small_tensors import number_of_result, vector_of_result
from sift_onnx.operators.domains import is_standard
from sift_onnx.shapes.equivalent_ops import equivalent_nodes

__all__ = ["Sizes"]


class Sizes:
    """What is known of sizes, beyond what ONNX's inference has found."""

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        opset: int,
        inferred: Callable[[str], Dims | None],
        constants: Mapping[str, gs.Constant],
        evaluated: Mapping[str, npt.NDArray[Any]],
        learned: Mapping[str, Dims] | None = None,
        assumed: AssumedSizes | SizeProbe | None = None,
    ) -> None:
        """Follow sizes through a graph.

        Args:
            nodes: in topological order.
            opset: version of the standard operators.
            inferred: sizes that ONNX's inference has found, by name.
            constants: by name.
            evaluated: small tensors that the graph computes of constants and of sizes that are numbers, by name.
            learned: sizes of values that are known otherwise.
            assumed: what simplifies sizes to those of usual runs.
        """
        self._known = known = KnownSizes(inferred, constants, evaluated, assumed)
        standard = [made for node in nodes for made in _standard(node, opset)]
        while True:
            fixed = len(known.fixed)
            for node in standard:
                if node.output:
                    with suppress(*CONTRADICTIONS):
                        _follow(known, node)
                    if learned and node.output[0] in learned:
                        known.know_dims(node.output[0], learned[node.output[0]])
            if len(known.fixed) == fixed:
                break
            known.forget()

    def dims(self, name: str) -> Dims | None:
        """Sizes of a tensor; None if not even its rank is known."""
        return self._known.dims(name)

    def vector(self, name: str) -> tuple[Dim, ...] | None:
        """Elements of an integer tensor of one axis, or of none; None for what is none, or unknown."""
        return self._known.vector(name)

    def number(self, name: str) -> float | None:
        """The number that a tensor of one element is; None for what is none, or unknown."""
        return self._known.number(name)


def _standard(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    """Standard nodes that make the same sizes; none for other operators."""
    return [node] if is_standard(node.domain) else equivalent_nodes(node, opset)


def _follow(known: KnownSizes, node: onnx.NodeProto) -> None:
    """Find out what is known of a node's results."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.HasField("t")}
    if node.op_type in ("DynamicQuantizeLinear", "GRU", "LSTM", "RNN", "Split", "TopK"):
        for output, dims in zip(node.output, dims_of_parts(known, node, attributes), strict=False):
            known.know_dims(output, dims)
        return
    name = node.output[0]
    known.know_dims(name, dims_of_result(known, node, attributes))
    vector = vector_of_result(known, node, attributes)
    known.know_vector(name, vector)
    if vector is None:
        known.know_tensor(name, moved_tensor(known, node, attributes))
    known.know_number(name, number_of_result(known, node))
