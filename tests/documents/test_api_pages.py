"""Every public name has a docstring, and what documents import is public."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]


def python_pages() -> ModuleType:
    """The script of that name."""
    spec = importlib.util.spec_from_file_location("python_pages", ROOT / "docs" / "site" / "python_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PUBLIC: tuple[str, ...] = python_pages().PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring(name: str) -> None:
    needed = {"training": "torch", "olive": "olive", "onnx_ir": "onnx_ir", "onnxscript": "onnxscript", "qonnx": "qonnx"}
    for part in name.split("."):
        if part in needed:
            pytest.importorskip(needed[part])
    module = importlib.import_module(name)
    assert module.__doc__
    assert module.__all__
    for public in module.__all__:
        value = getattr(module, public)
        if inspect.isclass(value):
            assert "__doc__" in vars(value), f"{name}.{public}"
            assert vars(value)["__doc__"], f"{name}.{public}"
        elif inspect.isroutine(value):
            assert value.__doc__, f"{name}.{public}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_documents_import_has_a_page(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    imported = set(re.findall(r"^(?:from|import) (sift_onnx[\w.]*)", text, re.MULTILINE))
    assert imported <= set(PUBLIC)
