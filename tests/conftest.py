"""How tests are collected: without garbage collections, and in an order that keeps two workers busy to the end."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Generator

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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first: a worker that began one last would leave the other idle.

    These are files with slow tests, with the most tests first; of the others those with the fewest tests, each of which
    takes longest.
    """
    count = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (0, -count[item.path]) if item.path in slow else (1, count[item.path]))
