"""Nodes that contradict themselves: what reads them fails in as many ways as there are to damage a model."""

from __future__ import annotations

__all__ = ["CONTRADICTIONS"]

# What comes of sizes that do not fit, attributes of another kind, missing inputs, and division by zero. Such nodes are
# left to onnxruntime, which says what is wrong with them.
CONTRADICTIONS = (ArithmeticError, LookupError, TypeError, ValueError)
