"""Names of nodes and operators in messages and reports."""

from __future__ import annotations

from typing import TypeAlias

import onnx
import onnx_graphsurgeon as gs

from sift_onnx.operators.domains import canonical_domain, full_domain

__all__ = ["node_label", "node_name", "operator_label", "operator_name", "qualified_operator"]


Node: TypeAlias = gs.Node | onnx.NodeProto


def node_name(node: Node) -> str:
    """The node's name; without one, that of its first named output, else its operator."""
    if isinstance(node, onnx.NodeProto):
        op, outputs = node.op_type, list(node.output)
    else:
        op, outputs = node.op, [tensor.name for tensor in node.outputs]
    return str(node.name or next(filter(None, outputs), op))


def node_label(node: Node) -> str:
    """A node as messages call it: ``'conv1' (Conv)``."""
    return f"{node_name(node)!r} ({node.op_type if isinstance(node, onnx.NodeProto) else node.op})"


def operator_label(node: gs.Node) -> str:
    """A node as lists of operators call it: ``com.example::Snake (node 'snake1')``."""
    return f"{qualified_operator(node.op, node.domain)} (node {node_name(node)!r})"


def operator_name(op: str, domain: str | None) -> str:
    """An operator as messages call it: ``Conv``, ``com.example::Snake``."""
    return f"{domain}::{op}" if canonical_domain(domain) else op


def qualified_operator(op: str, domain: str | None) -> str:
    """An operator with its domain in any case: ``ai.onnx::Conv``, ``com.example::Snake``."""
    return f"{full_domain(domain)}::{op}"
