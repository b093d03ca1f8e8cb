"""How many positions a decoder has: rows of tables that its positions are looked up in."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from sift_onnx.operators.domains import MICROSOFT, canonical_domain, is_standard

__all__ = ["most_positions"]

# Operators that hand positions on as they are.
_PASSED = ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Flatten")
# Input of the table of cosines, by domain and operator.
_COSINES = {("", "RotaryEmbedding"): 1, (MICROSOFT, "RotaryEmbedding"): 2, (MICROSOFT, "GroupQueryAttention"): 7}


def most_positions(graph: onnx.GraphProto) -> int | None:
    """Positions of the smallest table that is read by ``position_ids``, or rotates queries; None if there is none.

    Args:
        graph: of the model; only the sizes of its initializers are looked at.
    """
    rows = {tensor.name: int(tensor.dims[0]) for tensor in graph.initializer if len(tensor.dims) == 2}
    positions = {info.name for info in graph.input if "position" in info.name.rpartition(".")[2].lower()}
    found = [_rows_of_table(node, rows, positions) for node in graph.node]
    return min((count for count in found if count is not None), default=None)


def _rows_of_table(node: onnx.NodeProto, rows: Mapping[str, int], positions: set[str]) -> int | None:
    if is_standard(node.domain) and node.op_type in _PASSED and node.input and node.input[0] in positions:
        positions.update(node.output)
    if is_standard(node.domain) and node.op_type == "Gather" and node.input[1] in positions:
        return rows.get(node.input[0])
    place = _COSINES.get((canonical_domain(node.domain), node.op_type))
    return rows.get(node.input[place]) if place is not None and place < len(node.input) else None
