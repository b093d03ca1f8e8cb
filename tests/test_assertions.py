"""What stands in an assertion is gone under ``python -O``: it narrows a type, and checks or reads nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for room in ("sift_onnx", "passes", "backends", "models") for path in (ROOT / room).rglob("*.py"))


def narrows(test: ast.expr) -> bool:
    """Whether it is ``x is not None`` or ``isinstance(x, ...)``, of a name or an attribute; or several of these."""
    match test:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(map(narrows, parts))
        case ast.Compare(left=subject, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return not any(isinstance(part, ast.Call) for part in ast.walk(subject))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return narrows(operand)
        case ast.Call(func=ast.Name(id="isinstance"), args=[subject, _]):
            return not any(isinstance(part, ast.Call) for part in ast.walk(subject))
    return False


def checking(source: str) -> list[int]:
    """Lines of assertions that do more."""
    asserts = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert))
    return [node.lineno for node in asserts if not narrows(node.test)]


@pytest.mark.parametrize("room", ["sift_onnx", "passes", "backends", "models"])
def test_assertions_narrow_types_alone(room: str) -> None:
    sources = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == room]
    assert sources
    found = {str(path.relative_to(ROOT)): checking(path.read_text(encoding="utf-8")) for path in sources}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize("check", ["x.read() is not None", "len(x) == 1", "x.nnz == y.nnz", "x.any()", "x"])
def test_an_assertion_that_checks_is_found(check: str) -> None:
    assert checking(f"assert {check}") == [1]


def test_an_assertion_that_narrows_is_let_alone() -> None:
    assert checking("assert x is not None and isinstance(x.y, int)\nassert not isinstance(x, str)") == []
