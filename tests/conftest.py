"""How tests are collected: without garbage collections, and in an order that keeps two workers busy to the end.

And what all of them may share.
"""

from __future__ import annotations

import functools
import gc
import importlib
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection, which takes a fifth of the time here and frees nothing.

    The million objects that are left are frozen, without a last look at them: each garbage collection of a test would
    visit them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Files with the fewest tests of all that take minutes: compilers of their own, and all commands of the documents.
_LONGEST = ("test_sanitizers.py", "test_documents.py")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first: a worker that began one last would leave the other idle.

    After the longest, these are files with slow tests, with the most tests first; of the others those with the fewest
    tests, each of which takes longest.
    """
    count = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def place(path: Path) -> tuple[int, int]:
        if path in slow and path.name in _LONGEST:
            return 0, _LONGEST.index(path.name)
        return (1, -count[path]) if path in slow else (2, count[path])

    items.sort(key=lambda item: place(item.path))


@pytest.fixture(scope="session")
def torch_operators() -> Iterator[None]:
    """``torch.onnx.export(dynamo=True)`` lists its operators once instead of for each model, in a third of a second.

    The list depends on the opset alone, and is only read, since no export here has a translation of its own.
    """
    try:
        registry = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
    except (ImportError, AttributeError):  # not public: other releases may have it elsewhere, and exports take longer
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "from_torchlib", staticmethod(functools.cache(registry.from_torchlib)))
        yield


@pytest.fixture(scope="module")
def older_objects_are_frozen() -> None:
    """Full garbage collections of a module's tests visit what the module made, not all that tests before it left."""
    gc.collect()
    gc.freeze()
