"""How tests are collected: without garbage collections, and in an order that keeps two workers busy to the end."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection, which takes a fifth of the time here and frees nothing.

    The million objects that are left are frozen: each garbage collection of a test would visit them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
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
