"""Symbols of sizes that are expressions of others, as exporters write them: ``past_sequence_length + 1``, ``2*s0``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

__all__ = ["names_in", "size_of_symbol"]

_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
# Symbols in decoders of onnxruntime-genai, with their documented meaning.
_MEANINGS = {"total_sequence_length": "past_sequence_length + sequence_length"}
# A longer text is not an expression of sizes, and could be nested too deeply for the parser.
_LONGEST = 200


def size_of_symbol(symbol: str, sizes: Mapping[str, int]) -> int | None:
    """The size of an axis from that of its symbol, or of the symbols in its expression; None if these are not known."""
    if symbol in sizes:
        return sizes[symbol]
    tree = _parsed(symbol)
    if tree is None or not names_in(symbol) <= sizes.keys():
        return None
    try:
        size = _value(tree, sizes)
    except ZeroDivisionError:
        return None
    return size if size >= 0 else None


def names_in(symbol: str) -> frozenset[str]:
    """The symbols in an expression; a symbol that is not an expression has only itself."""
    tree = _parsed(symbol)
    if tree is None:
        return frozenset([symbol])
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def _parsed(symbol: str) -> ast.expr | None:
    text = _MEANINGS.get(symbol, symbol)
    if len(text) > _LONGEST:
        return None
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if isinstance(tree, ast.BinOp) and _is_arithmetic(tree) else None


def _is_arithmetic(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in _OPERATIONS and _is_arithmetic(node.left) and _is_arithmetic(node.right)
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and type(node.value) is int)


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.Name):
        return sizes[node.id]
    assert isinstance(node, ast.Constant) and isinstance(node.value, int)
    return node.value
