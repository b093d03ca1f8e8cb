"""The field in which graphsurgeon keeps the values of a constant is read and written in one module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("sift_onnx", "passes", "backends", "models", "benchmarks", "tests")
FIELDS = ("_values", "__class__")
ALLOWED = {Path("sift_onnx/graphs/constants.py"), Path(__file__).relative_to(ROOT)}


def violations(source: str) -> Iterator[str]:
    """Uses of a constant's private field, and changes of an object's class; fields of ``self`` are a class's own."""
    if not any(field in source for field in FIELDS):
        return  # without the time that parsing takes
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr == "_values":
            if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                yield f"line {node.lineno}: ._values"
        elif isinstance(node, ast.Attribute) and node.attr == "__class__" and isinstance(node.ctx, ast.Store):
            yield f"line {node.lineno}: .__class__ ="
        elif isinstance(node, ast.Constant) and node.value in FIELDS:
            yield f"line {node.lineno}: {node.value!r}"


@pytest.mark.parametrize("room", ROOMS)
def test_values_of_constants_are_touched_by_one_module_alone(room: str) -> None:
    paths = [path for path in (ROOT / room).rglob("*.py") if path.relative_to(ROOT) not in ALLOWED]
    assert paths
    found = {str(path.relative_to(ROOT)): list(violations(path.read_text())) for path in paths}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    ["x = constant._values", "self.constant._values = 1", "getattr(constant, '_values')", "tensor.__class__ = Other"],
)
def test_each_way_around_the_module_is_found(line: str) -> None:
    assert list(violations(line))


def test_fields_of_other_classes_may_have_the_name() -> None:
    assert not list(violations("self._values = self._values + type(x).__class__.values"))
